"""The translation task: batches, loss, evaluation, guided alignment, and validation data."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import regard
from regard.aligner import Aligner
from regard.data.batch import EOS, UNK
from regard.errors import ArgumentError, DataError
from regard.evaluation import read_links
from regard.models import build_model
from regard.runs.run_commands import ChosenRun, ViewOptions
from regard.tasks.corpus import spread_by_length
from regard.tasks.translation import TranslationTask, load_translator
from regard.tasks.translation.alignment import guided_site
from regard.tasks.translation.data import read_split
from regard.tasks.translation.settings import Data, TranslationSettings
from regard.tasks.translation.task import LEARNED_LINKS
from regard.training.distributed import Processes
from regard.training.settings import build
from regard.training.task import Stopped
from tests.facts import mentions
from tests.tasks.small import settings, train, written


def make_task(task_settings: dict[str, Any], folder: Path) -> TranslationTask:
    """Return a task with these settings."""
    chosen = build(TranslationSettings, task_settings, "here")
    folder.mkdir(exist_ok=True)
    corpus = TranslationTask.encode_data(read_split(chosen.data), chosen, folder)
    torch.manual_seed(0)
    sizes = corpus.source.size, corpus.target.size
    model = build_model(chosen.model.name, *sizes, **chosen.model.options)
    return TranslationTask(model, corpus, chosen, Processes())


def tokens(task: TranslationTask, epoch: int, start: int = 0) -> list[list[Any]]:
    return [[batch.source.tolist(), batch.target.tolist()] for batch in task.batches(epoch, start)]


def test_subword_sampling_depends_only_on_the_epoch(data: dict[str, list[str]], tmp_path: Path):
    task_settings = settings(
        data,
        data={
            "tokenizer": "bpe",
            "subword_sampling": 0.3,
            "target_vocab_size": 300,
            "source_vocab_size": 400,
        },
    )
    one, other = make_task(task_settings, tmp_path), make_task(task_settings, tmp_path)
    whole = tokens(one, 1)
    assert len(whole) > 3
    assert tokens(other, 1, start=2) == whole[2:]  # also if earlier batches are skipped
    assert tokens(one, 1) == whole != tokens(one, 2)
    plain = make_task(settings(data, data={**task_settings["data"], "subword_sampling": 0.0}), tmp_path)
    drawn, fixed = (sum(batch.source_lengths.sum() for batch in task.batches(1)) for task in (one, plain))
    assert drawn > fixed


def test_r_drop_compares_two_passes_with_different_dropout(data: dict[str, list[str]], tmp_path: Path):
    chosen = settings(data, model={"dropout": 0.5}, training={"r_drop": 2.0, "word_dropout": 0.1})
    task = make_task(chosen, tmp_path)
    batch = next(task.batches(0))
    loss = task.loss((batch, None))
    assert loss.shown["r_drop"] > 0 and loss.total > loss.shown["loss"]
    task.model.eval()  # validation has no dropout, and one pass
    loss = task.loss((batch, None))
    assert list(loss.shown) == ["loss"]
    with pytest.raises(ArgumentError, match=r"training\.r_drop"):
        make_task(settings(data, model={"dropout": 0.0}, training={"r_drop": 2.0}), tmp_path)
    with pytest.raises(ArgumentError, match="guided_alignment"):
        make_task(settings(data, training={"r_drop": 2.0, "guided_alignment": 1.0}), tmp_path)


def test_word_dropout_replaces_words_by_unk(data: dict[str, list[str]], tmp_path: Path):
    task = make_task(settings(data, training={"word_dropout": 0.5}), tmp_path)
    batch = next(task.batches(0))
    dropped = task._dropped(batch)
    for before, after in ((batch.source, dropped.source), (batch.target, dropped.target)):
        assert torch.equal(after[before <= EOS], before[before <= EOS])
        changed = after != before
        assert changed.any() and (after[changed] == UNK).all()
    task.model.eval()
    assert float(task.loss((batch, None)).total.detach()) == float(task.loss((batch, None)).total.detach())


def test_loss_of_a_batch_is_the_sum_over_its_sentences(data: dict[str, list[str]], tmp_path: Path):
    task = make_task(settings(data), tmp_path)
    task.model.eval()
    batch = next(task.batches(0))
    alone = 0.0
    for row in range(len(batch)):
        one = batch.select(torch.tensor([row]))
        alone += float(task.loss(task.prepare(one, "cpu")).shown["loss"])
    assert float(task.loss(task.prepare(batch, "cpu")).shown["loss"]) == pytest.approx(alone, rel=1e-5)


def test_evaluation_can_be_stopped(data: dict[str, list[str]], tmp_path: Path):
    task = make_task(settings(data, evaluation={"sentences": 5}), tmp_path)
    for checks in (0, 1):  # during the loss, and during translation
        stopping = iter([False] * checks + [True])
        with pytest.raises(Stopped):
            task.evaluate(lambda stopping=stopping: next(stopping))
    evaluation = task.evaluate(lambda: False)
    assert set(evaluation.scores) == {"loss", "perplexity", "bleu", "chrf", "exact"}


@pytest.mark.parametrize("terminal", [True, False])
def test_samples_are_printed_and_drawn_with_alignments_on_a_terminal(
    data: dict[str, list[str]], tmp_path: Path, terminal: bool
):
    task = make_task(settings(data, evaluation={"samples": 2, "sentences": 3}), tmp_path)
    shown = task.evaluate(lambda: False).shown
    assert len(shown) == 2
    page = io.StringIO()
    Console(file=page, force_terminal=terminal, width=200).print(*shown)
    assert page.getvalue().count("reference") == 2 and ("log-probability" in page.getvalue()) == terminal


def test_terminal_shows_a_status_while_tokenizers_are_trained(
    data: dict[str, list[str]], tmp_path: Path, monkeypatch
):
    statuses: list[str] = []
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(Console, "status", lambda self, text: statuses.append(text) or nullcontext())
    make_task(settings(data), tmp_path)
    make_task(settings(data), tmp_path)  # the tokenizers exist already
    assert statuses == ["training tokenizers"]


@pytest.mark.parametrize("layers", [1, 3])
def test_only_the_layer_before_the_last_is_guided(
    data: dict[str, list[str]], links: str, tmp_path: Path, layers: int
):
    model = {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": layers}
    task_settings = settings(data, data={"alignments": [links]}, training={"guided_alignment": 1.0})
    task = make_task({**task_settings, "model": model}, tmp_path)
    assert guided_site(task.model) == ("decoder.0.cross" if layers == 1 else "decoder.1.cross")
    ready = task.prepare(next(task.batches(0)), "cpu")
    assert ready[1] is not None and ready[1].any()
    task.model.eval()  # no dropout: equal attention with and without guidance
    loss = task.loss(ready)
    (loss.total - task.loss((ready[0], None)).total).backward()
    guided = {
        name.split(".")[1]
        for name, value in task.model.named_parameters()
        if "cross" in name and value.grad is not None and value.grad.abs().max() > 1e-4
    }
    # Earlier layers get a gradient too; later layers do not.
    assert guided == {str(layer) for layer in range(max(layers - 1, 1))}
    assert {"loss", "guided"} == set(loss.shown)


def test_alignments_of_a_guided_run_come_from_the_guided_layer(
    data: dict[str, list[str]], links: str, tmp_path: Path
):
    model = {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 2}
    for guided in (0.0, 0.5):
        task_settings = settings(
            data, data={"alignments": [links]}, training={"guided_alignment": guided, "steps": 2}
        )
        train({**task_settings, "model": model}, tmp_path / str(guided))
    free, guided_run = (load_translator(tmp_path / name) for name in ("0.0", "0.5"))
    assert (free.alignment.site, guided_run.alignment.site) == ("cross", "decoder.0.cross")
    scored = guided_run.score("고양이가 잔다 .", "the cat sleeps .")
    assert set(scored.attention) == {"decoder.0.cross", "decoder.1.cross"}
    assert torch.equal(scored.alignment.matrix, scored.align("decoder.0.cross").matrix)
    assert not torch.equal(scored.alignment.matrix, scored.align("*cross").matrix)
    translated = guided_run.translate("고양이가 잔다 .")
    assert translated.aligned_at.site == "decoder.0.cross"
    everywhere = free.score("고양이가 잔다 .", "the cat sleeps .")
    assert torch.equal(everywhere.alignment.matrix, everywhere.align("*cross").matrix)


def test_guided_runs_learn_the_alignments_of_their_training_pairs(
    data: dict[str, list[str]], links: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    guided = {"training": {"guided_alignment": 0.3, "steps": 2}, "model": {"name": "bahdanau", "width": 8}}
    run = train({**settings(data, training=guided["training"]), "model": guided["model"]}, tmp_path / "run")
    stored = tmp_path / "run" / LEARNED_LINKS
    task_settings = settings(data, training=guided["training"])
    task = make_task({**task_settings, "model": guided["model"]}, tmp_path / "task")
    pairs = [(pair.source, pair.target) for pair in task.corpus.split.train]
    assert stored.read_text().splitlines() == [str(pair) for pair in regard.align(pairs)]
    assert [str(each) for each in read_links(stored)] == [str(each) for each in task.corpus.links]
    translator = load_translator(tmp_path / "run")
    assert run is not None and translator.alignment.site == "decoder.cross"
    # Pictures say that the attention was trained to align.
    for result in (translator.score(*pairs[0]), translator.translate(pairs[0][0])):
        assert "decoder.cross" in result.entry().caption and "decoder.cross" in result.seen().notes[-1]
    # A gold alignment is used if there is one.
    gold = settings(data, data={"alignments": [links]}, training=guided["training"])
    assert make_task({**gold, "model": guided["model"]}, tmp_path / "gold").corpus.links is None
    assert not (tmp_path / "gold" / LEARNED_LINKS).exists()
    # A resumed run reads the file.
    monkeypatch.setattr(Aligner, "align", None)
    again = make_task({**task_settings, "model": guided["model"]}, tmp_path / "task")
    assert again.corpus.links == task.corpus.links


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"alignment_unit": "character"}}, "no alignments"),
        ({"model": {"name": "seq2seq"}}, "training.guided_alignment"),
        ({"training": {"guided_alignment": 1.0, "compile": True}}, "compiled model"),
    ],
)
def test_unsupported_guided_alignment_raises(
    data: dict[str, list[str]], links: str, tmp_path: Path, sections: Any, message: str
):
    aligned = sections.get("data", {"alignments": [links]})
    task_settings = settings(data, data=aligned, training={"guided_alignment": 1.0})
    model = sections.pop("model", {"name": "bahdanau", "width": 8})
    task_settings = {
        **task_settings,
        "model": model,
        "training": {**task_settings["training"], **sections.get("training", {})},
    }
    with pytest.raises(ArgumentError, match=message):
        make_task(task_settings, tmp_path)


def test_alignments_follow_the_kept_pairs_and_their_number_is_checked(tmp_path: Path):
    data = written(tmp_path / "data", 40)
    path = tmp_path / "data" / "a.links"
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = read_split(Data(**data, alignments=[str(path)], held_out=4))
    assert kept.links is not None and len(kept.links) == len(kept.train)
    for pair, links in zip(kept.train, kept.links, strict=True):
        assert links.written() == lines[pair.number - 1]
    path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"39 .*40 pairs"):
        read_split(Data(**data, alignments=[str(path)], held_out=4))


def test_validation_pairs_are_read_or_held_out(data: dict[str, list[str]], tmp_path: Path):
    valid = written(tmp_path, 7, "valid", "v")
    split = read_split(Data(**data, valid_source=valid["source"], valid_target=valid["target"]))
    assert (len(split.train), len(split.valid), len(split.notes)) == (120, 7, 2)
    assert mentions(split.notes[1], "7 pairs")
    held = read_split(Data(**data, held_out=11))
    assert len(held.valid) == 11 and len(held.train) <= 109
    assert not {pair.source for pair in held.valid} & {pair.source for pair in held.train}
    assert len(read_split(Data(**data)).valid) == 6  # 5 % by default


def test_lowercase_applies_to_training_and_evaluation(tmp_path: Path):
    (tmp_path / "a.de").write_text("Ein Haus\nEIN Hut\nein Baum\nDer Baum\n" * 5, encoding="utf-8")
    (tmp_path / "a.en").write_text("A House\nA HAT\na tree\nThe tree\n" * 5, encoding="utf-8")
    data = {"source": [str(tmp_path / "a.de")], "target": [str(tmp_path / "a.en")], "lowercase": True}
    train(settings(data, data={"held_out": 1}), tmp_path / "run")
    run = load_translator(tmp_path / "run")
    assert run.settings.evaluation.lowercase
    assert run.source_tokenizer.encode("EIN hut") == run.source_tokenizer.encode("ein Hut")
    assert UNK not in run.source_tokenizer.encode("EIN HUT")


def test_error_of_invalid_bytes_names_the_setting_that_accepts_them(tmp_path: Path):
    data = written(tmp_path / "data", 30)
    lines = Path(data["source"][0]).read_bytes().splitlines()
    lines[6] += b" \xff\xfe"
    Path(data["source"][0]).write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DataError) as caught:
        train(settings(data), tmp_path / "run")
    assert mentions(caught.value, "a.ko", "line 7", "UTF-8")
    for value in ("replace", "skip"):
        assert f'data.problems.invalid="{value}"' in str(caught.value)
    outcome = train(settings(data, data={"problems": {"invalid": "replace"}}), tmp_path / "run")
    assert outcome.progress.ended


def test_samples_have_different_lengths_and_are_the_same_in_each_evaluation(
    data: dict[str, list[str]], tmp_path: Path
):
    task = make_task(
        settings(data, data={"held_out": 30}, evaluation={"samples": 3, "sentences": 30}), tmp_path
    )
    lengths = sorted(len(source) for source, _ in task._texts)
    samples = [[sample.source for sample in task.evaluate(lambda: False).shown] for _ in range(2)]
    assert samples[0] == samples[1]
    short, median, long = map(len, samples[0])
    assert (short, median, long) == (lengths[5], lengths[15], lengths[25]) and short < median < long


def test_samples_are_shown_with_their_own_translation_and_reference(
    data: dict[str, list[str]], tmp_path: Path
):
    task = make_task(
        settings(data, data={"held_out": 12}, evaluation={"samples": 3, "sentences": 12}), tmp_path
    )
    references = dict(task._texts)
    for sample in task.evaluate(lambda: False).shown:
        assert references[sample.source] == sample.wanted
        assert sample.translation.source == sample.source and sample.translation.passages[0].attention


def test_spread_by_length_with_few_texts():
    assert spread_by_length(["aa", "a"], 5) == [1, 0]
    assert spread_by_length([], 3) == spread_by_length(["a"], 0) == []
    assert spread_by_length(["a", "a", "a"], 3) == [0, 1, 2]


def test_exact_match_is_computed_and_can_choose_the_best_checkpoint(
    data: dict[str, list[str]], tmp_path: Path
):
    task = make_task(settings(data, training={"best": "exact"}), tmp_path)
    assert 0.0 <= task.evaluate(lambda: False).scores["exact"] <= 100.0
    train(settings(data, training={"best": "exact"}), tmp_path / "run")
    assert (tmp_path / "run" / "best").is_file()


def labels(folder: Path, distinct: int) -> dict[str, Any]:
    """Write 300 sentences with this many different labels; return the data settings."""
    path = folder / "labels.tsv"
    rows = (f"sentence {number}\tlabel {number % distinct}\n" for number in range(300))
    path.write_text("".join(rows), encoding="utf-8")
    return {"tsv": [str(path)]}


def test_pairs_with_few_distinct_sources_are_an_error(tmp_path: Path):
    given = labels(tmp_path, 2)
    with pytest.raises(DataError, match=r"2 different sources(.|\n)*--task classification"):
        read_split(Data(**given, columns=[2, 1]))
    assert len(read_split(Data(**labels(tmp_path, 60), columns=[2, 1])).valid) <= 15


def test_pairs_with_few_distinct_targets_can_be_held_out(tmp_path: Path):
    split = read_split(Data(**labels(tmp_path, 5)))
    assert (len(split.train), len(split.valid)) == (285, 15)
    assert mentions(str(split.notes[-1]), "5 distinct", "--task")


def test_view_measures_the_attention_of_a_translation(finished: Path):
    values = {"text": "나는 고양이를 봤다", "target": "I saw a cat", "greedy": True, "beam_size": None}
    values |= {"length_penalty": None, "max_length": None}
    viewed = TranslationTask.view_run(ChosenRun(finished, device="cpu"), values, ViewOptions())
    assert sum("log-probability" in note for note in viewed.seen.notes) == 1
