"""The task: its batches, its loss, what it is judged by, and where a guided model is shown to look."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.data import hold_out, read_pairs
from regard.data.batch import EOS, UNK
from regard.errors import ArgumentError, DataError
from regard.models import build_model
from regard.tasks.translation import TranslationTask, load_translator
from regard.tasks.translation.guided_alignment import guided_site
from regard.tasks.translation.translation_data import Corpus, read_split
from regard.tasks.translation.translation_settings import Data, TranslationSettings
from regard.tasks.translation.translation_task import spread_by_length
from regard.training.distributed import Processes
from regard.training.settings import build
from regard.training.task import Stopped
from tests.tasks.small import settings, train, written


def made(given: dict[str, Any], folder: Path) -> TranslationTask:
    """A task of these settings."""
    chosen = build(TranslationSettings, given, "here")
    folder.mkdir(exist_ok=True)
    corpus = Corpus.made(read_split(chosen.data), chosen.data, folder)
    torch.manual_seed(0)
    sizes = corpus.source.size, corpus.target.size
    model = build_model(chosen.model.name, *sizes, **chosen.model.options)
    return TranslationTask(model, corpus, chosen, Processes())


def tokens(task: TranslationTask, epoch: int, start: int = 0) -> list[list[Any]]:
    return [[batch.source.tolist(), batch.target.tolist()] for batch in task.batches(epoch, start)]


def test_subwords_are_drawn_anew_each_epoch_and_the_same_again(data: dict[str, list[str]], tmp_path: Path):
    given = settings(data, data={"tokenizer": "bpe", "sampling": 0.3, "target_size": 300, "source_size": 400})
    one, other = made(given, tmp_path), made(given, tmp_path)
    whole = tokens(one, 1)
    assert len(whole) > 3
    assert tokens(other, 1, start=2) == whole[2:]  # whatever was read before
    assert tokens(one, 1) == whole != tokens(one, 2)
    plain = made(settings(data, data={**given["data"], "sampling": 0.0}), tmp_path)
    drawn, fixed = (sum(batch.source_lengths.sum() for batch in task.batches(1)) for task in (one, plain))
    assert drawn > fixed


def test_dropped_words_are_unknown_and_labels_stay(data: dict[str, list[str]], tmp_path: Path):
    task = made(settings(data, training={"word_dropout": 0.5}), tmp_path)
    batch = next(task.batches(0))
    dropped = task._dropped(batch)
    for before, after in ((batch.source, dropped.source), (batch.target, dropped.target)):
        assert torch.equal(after[before <= EOS], before[before <= EOS])
        changed = after != before
        assert changed.any() and (after[changed] == UNK).all()
    task.model.eval()
    assert float(task.loss((batch, None)).total.detach()) == float(task.loss((batch, None)).total.detach())


def test_the_loss_of_a_batch_is_that_of_its_sentences(data: dict[str, list[str]], tmp_path: Path):
    task = made(settings(data), tmp_path)
    task.model.eval()
    batch = next(task.batches(0))
    alone = 0.0
    for row in range(len(batch)):
        one = task.restored({name: value[row : row + 1] for name, value in task.tensors(batch).items()})
        alone += float(task.loss(task.prepare(one, "cpu")).shown["loss"])
    assert float(task.loss(task.prepare(batch, "cpu")).shown["loss"]) == pytest.approx(alone, rel=1e-5)


def test_judging_is_stopped_soon(data: dict[str, list[str]], tmp_path: Path):
    task = made(settings(data, evaluation={"sentences": 5}), tmp_path)
    for looks in (0, 1):  # while the loss is computed, and while sentences are translated
        asked = iter([False] * looks + [True])
        with pytest.raises(Stopped):
            task.evaluate(lambda asked=asked: next(asked))
    found = task.evaluate(lambda: False)
    assert set(found.scores) == {"loss", "perplexity", "bleu", "chrf", "exact"}


@pytest.mark.parametrize("terminal", [True, False])
def test_samples_are_shown_and_the_first_on_a_screen_with_its_alignment(
    data: dict[str, list[str]], tmp_path: Path, terminal: bool
):
    task = made(settings(data, evaluation={"samples": 2, "sentences": 3}), tmp_path)
    shown = task.evaluate(lambda: False).shown
    assert len(shown) == 2
    page = io.StringIO()
    Console(file=page, force_terminal=terminal, width=200).print(*shown)
    assert page.getvalue().count("reference") == 2 and ("log-probability" in page.getvalue()) == terminal


def test_a_terminal_is_told_that_tokenizers_are_learned(
    data: dict[str, list[str]], tmp_path: Path, monkeypatch
):
    told: list[str] = []
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(Console, "status", lambda self, text: told.append(text) or nullcontext())
    made(settings(data), tmp_path)
    made(settings(data), tmp_path)  # they are there by now
    assert told == ["training tokenizers"]


@pytest.mark.parametrize("layers", [1, 3])
def test_the_layer_before_the_last_is_guided_and_no_other(
    data: dict[str, list[str]], links: str, tmp_path: Path, layers: int
):
    model = {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": layers}
    given = settings(data, data={"alignments": [links]}, training={"guided": 1.0})
    task = made({**given, "model": model}, tmp_path)
    assert guided_site(task.model) == ("decoder.0.cross" if layers == 1 else "decoder.1.cross")
    ready = task.prepare(next(task.batches(0)), "cpu")
    assert ready[1] is not None and ready[1].any()
    task.model.eval()  # no dropout: the same attention twice, with guidance and without
    loss = task.loss(ready)
    (loss.total - task.loss((ready[0], None)).total).backward()
    pulled = {
        name.split(".")[1]
        for name, value in task.model.named_parameters()
        if "cross" in name and value.grad is not None and value.grad.abs().max() > 1e-4
    }
    # What comes before is changed by it; what comes after is not.
    assert pulled == {str(layer) for layer in range(max(layers - 1, 1))}
    assert {"loss", "guided"} == set(loss.shown)


def test_alignments_of_a_guided_run_come_from_where_it_was_guided(
    data: dict[str, list[str]], links: str, tmp_path: Path
):
    model = {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 2}
    for guided in (0.0, 0.5):
        given = settings(data, data={"alignments": [links]}, training={"guided": guided, "steps": 2})
        train({**given, "model": model}, tmp_path / str(guided))
    free, guided_run = (load_translator(tmp_path / name) for name in ("0.0", "0.5"))
    assert (free.alignment.site, guided_run.alignment.site) == ("*cross", "decoder.0.cross")
    found = guided_run.score("고양이가 잔다 .", "the cat sleeps .")
    assert set(found.attention) == {"decoder.0.cross", "decoder.1.cross"}
    assert torch.equal(found.alignment.matrix, found.align("decoder.0.cross").matrix)
    assert not torch.equal(found.alignment.matrix, found.align("*cross").matrix)
    translated = guided_run.translate("고양이가 잔다 .")
    assert translated.aligned_at.site == "decoder.0.cross"
    everywhere = free.score("고양이가 잔다 .", "the cat sleeps .")
    assert torch.equal(everywhere.alignment.matrix, everywhere.align("*cross").matrix)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"training": {"guided": 1.0}}, "no alignments"),
        ({"model": {"name": "seq2seq"}}, "no attention to its source"),
        ({"training": {"guided": 1.0, "compile": True}}, "compiled model"),
    ],
)
def test_guidance_that_cannot_be_is_refused(
    data: dict[str, list[str]], links: str, tmp_path: Path, sections: Any, says: str
):
    aligned = {} if "no alignments" in says else {"alignments": [links]}
    given = settings(data, data=aligned, training={"guided": 1.0})
    model = sections.pop("model", {"name": "bahdanau", "width": 8})
    given = {**given, "model": model, "training": {**given["training"], **sections.get("training", {})}}
    with pytest.raises(ArgumentError, match=says):
        made(given, tmp_path)


def test_alignments_are_one_a_pair_and_belong_to_the_pairs_that_are_kept(tmp_path: Path):
    data = written(tmp_path / "data", 40)
    path = tmp_path / "data" / "a.links"
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = read_split(Data(**data, alignments=[str(path)], held_out=4))
    assert kept.links is not None and len(kept.links) == len(kept.train)
    for pair, links in zip(kept.train, kept.links, strict=True):
        assert links.written() == lines[pair.number - 1]
    path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"39 lines of alignments for 40 pairs\nhint: "):
        read_split(Data(**data, alignments=[str(path)], held_out=4))


def test_pairs_to_judge_by_are_given_or_held_out(data: dict[str, list[str]], tmp_path: Path):
    valid = written(tmp_path, 7, "valid", "v")
    split = read_split(Data(**data, valid_source=valid["source"], valid_target=valid["target"]))
    assert (len(split.train), len(split.valid), len(split.notes)) == (120, 7, 2)
    assert "7 pairs read" in str(split.notes[1])
    held = read_split(Data(**data, held_out=11))
    assert len(held.valid) == 11 and len(held.train) <= 109
    assert not {pair.source for pair in held.valid} & {pair.source for pair in held.train}
    assert len(read_split(Data(**data)).valid) == 6  # a twentieth


def test_lower_case_is_learned_from_and_judged_in(tmp_path: Path):
    (tmp_path / "a.de").write_text("Ein Haus\nEIN Hut\nein Baum\nDer Baum\n" * 5, encoding="utf-8")
    (tmp_path / "a.en").write_text("A House\nA HAT\na tree\nThe tree\n" * 5, encoding="utf-8")
    data = {"source": [str(tmp_path / "a.de")], "target": [str(tmp_path / "a.en")], "lowercase": True}
    train(settings(data, data={"held_out": 1}), tmp_path / "run")
    run = load_translator(tmp_path / "run")
    assert run.settings.evaluation.lowercase
    assert run.source_tokenizer.encode("EIN hut") == run.source_tokenizer.encode("ein Hut")
    assert UNK not in run.source_tokenizer.encode("EIN HUT")


def test_invalid_bytes_are_refused_with_the_setting_that_takes_them(tmp_path: Path):
    data = written(tmp_path / "data", 30)
    lines = Path(data["source"][0]).read_bytes().splitlines()
    lines[6] += b" \xff\xfe"
    Path(data["source"][0]).write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DataError) as caught:
        train(settings(data), tmp_path / "run")
    assert "a.ko, line 7: not valid UTF-8: byte " in str(caught.value)
    assert '--set data.odd.invalid="replace" or --set data.odd.invalid="skip"' in str(caught.value)
    outcome = train(settings(data, data={"odd": {"invalid": "replace"}}), tmp_path / "run")
    assert outcome.progress.ended


def test_samples_are_of_different_lengths_and_the_same_each_time(data: dict[str, list[str]], tmp_path: Path):
    task = made(settings(data, data={"held_out": 30}, evaluation={"samples": 3, "sentences": 30}), tmp_path)
    lengths = sorted(len(source) for source, _ in task._texts)
    found = [[sample.source for sample in task.evaluate(lambda: False).shown] for _ in range(2)]
    assert found[0] == found[1]
    short, median, long = map(len, found[0])
    assert (short, median, long) == (lengths[5], lengths[15], lengths[25]) and short < median < long


def test_samples_are_shown_with_their_own_translation_and_reference(
    data: dict[str, list[str]], tmp_path: Path
):
    task = made(settings(data, data={"held_out": 12}, evaluation={"samples": 3, "sentences": 12}), tmp_path)
    known = dict(task._texts)
    for sample in task.evaluate(lambda: False).shown:
        assert known[sample.source] == sample.wanted
        assert sample.translation.source == sample.source and sample.translation.passages[0].attention


def test_few_texts_are_all_samples_once():
    assert spread_by_length(["aa", "a"], 5) == [1, 0]
    assert spread_by_length([], 3) == spread_by_length(["a"], 0) == []
    assert spread_by_length(["a", "a", "a"], 3) == [0, 1, 2]


def test_evaluation_has_exact_match_and_it_can_choose_the_best(data: dict[str, list[str]], tmp_path: Path):
    task = made(settings(data, training={"best": "exact"}), tmp_path)
    assert 0.0 <= task.evaluate(lambda: False).scores["exact"] <= 100.0
    train(settings(data, training={"best": "exact"}), tmp_path / "run")
    assert (tmp_path / "run" / "best").is_file()


def labels(folder: Path, distinct: int) -> dict[str, Any]:
    """Where 300 sentences with so many different labels are."""
    path = folder / "labels.tsv"
    rows = (f"sentence {number}\tlabel {number % distinct}\n" for number in range(300))
    path.write_text("".join(rows), encoding="utf-8")
    return {"tsv": [str(path)]}


def test_labels_can_be_held_out_and_the_report_says_how(tmp_path: Path):
    split = read_split(Data(**labels(tmp_path, 5)))
    assert (len(split.train), len(split.valid)) == (285, 15)
    assert "5 distinct targets" in str(split.notes[-1])


def test_a_run_that_was_begun_with_disjoint_targets_keeps_its_split(tmp_path: Path):
    """20 labels, of which the old rule left the few that are not held out."""
    data = Data(**labels(tmp_path, 20))
    old = hold_out(read_pairs(tsv=data.tsv), count=15, disjoint="both")
    before = {"train": old.train.fingerprint, "valid": old.valid.fingerprint}
    new = read_split(data)
    assert new.fingerprints != before and len(new.train) == 285 > len(old.train)
    assert read_split(data, before).fingerprints == before
    assert read_split(data, new.fingerprints).fingerprints == new.fingerprints
