"""Language models in a run folder: training, exact resume, loading, scoring and commands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.cli import main
from regard.data.batch import EOS
from regard.data.encoded_text import EncodedText, StreamBatches
from regard.errors import ArgumentError, DataError
from regard.evaluation import text_loss
from regard.runs.prepare_run import Machine
from regard.runs.run_folder import config_of
from regard.runs.train_run import estimate
from regard.tasks.language import LanguageRun, LanguageSettings, LanguageTask
from regard.tasks.language import run as language_run
from regard.tasks.language.settings import TextData
from regard.tasks.language.task import choose, read_texts, with_batches
from regard.training.distributed import Processes
from regard.training.settings import merged
from tests.facts import facts, mentions
from tests.tasks.built_task import build_task
from tests.tasks.small_language import small, text_files, train, write
from tests.training.toys import bits, last, records

NAMES = ("lstm", "gru", "lstmn", "transformer")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return text_files(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def trained(text: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained run of an LSTM and of a Transformer. Tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    training = {"save_every": 10, "keep": 4, "steps": 60, "evaluate_every": 20}
    for name in ("lstm", "transformer"):
        train(small(text, name, training=training, evaluation={"samples": 2}), folder / name)
    return {name: folder / name for name in ("lstm", "transformer")}


@pytest.mark.parametrize(
    "name", ["lstm", "gru", pytest.param("lstmn", marks=pytest.mark.slow), "transformer"]
)
@pytest.mark.parametrize("layout", ["continuous", "documents"])
def test_loss_falls_and_all_scores_are_logged(tmp_path: Path, text, name: str, layout: str):
    train(
        small({**text, "layout": layout}, name, training={"steps": 30, "evaluate_every": 10}),
        tmp_path / "run",
    )
    evaluations = records(tmp_path / "run", "evaluation")
    assert [each["step"] for each in evaluations] == [10, 20, 30]
    assert evaluations[-1]["loss"] < min(evaluations[0]["loss"], math.log(13)) - 0.1
    final = evaluations[-1]
    assert final["perplexity"] == pytest.approx(math.exp(final["loss"]))
    assert final["word_perplexity"] == pytest.approx(final["perplexity"])  # every token is a word
    assert 0 < final["bits_per_character"] < final["loss"] / math.log(2)
    assert last(tmp_path / "run").has("task") == (layout == "continuous" and name != "transformer")


@pytest.mark.parametrize("name", NAMES)
def test_killed_run_ends_with_the_same_bits(tmp_path: Path, text, monkeypatch, name: str):
    """The run is killed within an epoch, between two checkpoints, and again within its second batch."""
    training = {"steps": 21, "accumulation_steps": 2, "ema": 0.9, "save_every": 3}
    settings = small(text, name, training=training, evaluation={"samples": 1})
    train(settings, tmp_path / "whole")
    calls, loss = [0], LanguageTask.loss

    def deadly(self: LanguageTask, batch: Any) -> Any:
        calls[0] += 1
        if calls[0] in (12, 35):
            raise SystemExit("killed")
        return loss(self, batch)

    monkeypatch.setattr(LanguageTask, "loss", deadly)
    for _ in range(2):
        with pytest.raises(SystemExit):
            train(settings, tmp_path / "killed", resume=True)
    assert train({}, tmp_path / "killed", resume=True).progress.ended
    assert calls[0] > 2 * 21
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    files = {"weights.safetensors", "raw.safetensors", "optimizer.safetensors"}
    assert set(bits(tmp_path / "whole")) == files | ({"task.safetensors"} if name != "transformer" else set())
    kept = ("step", "loss", "perplexity")
    for kind in ("training", "evaluation"):
        logs = [records(tmp_path / each, kind) for each in ("whole", "killed")]
        whole, killed = ([{key: each.get(key) for key in kept} for each in log] for log in logs)
        assert whole == killed


def test_carried_state_matters_and_belongs_to_the_streams(trained: dict[str, Path]):
    task = build_task(LanguageTask, trained["lstm"])
    first, second = (batch for batch, _ in zip(task.batches(0), range(2), strict=False))
    assert (first.carried, second.carried) == (False, True) and len(first) == 5
    with pytest.raises(AssertionError, match="continues"):
        task.prepare(second, "cpu")
    task.model.eval()
    losses = []
    for batch in (first, second):
        losses.append(task.loss(task.prepare(batch, "cpu")))
        task.state.keep(batch, losses[-1].state)
    continued = losses[1].total
    both = torch.cat((first.inputs, second.inputs), 1)
    encoded = task.model.source_free(5)
    logits = task.model.step(task.model.start(encoded), both, encoded)[1][:, first.inputs.shape[1] :]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), second.targets.flatten(), reduction="sum"
    )
    torch.testing.assert_close(continued, expected)
    assert task.state.tensors()["position"].item() == both.shape[1]
    with pytest.raises(DataError, match=facts("step-9", 5)):
        task.state.load({}, "step-9")
    wrong = {name: each[:3] if each.dim() else each for name, each in task.state.tensors().items()}
    with pytest.raises(DataError, match="3 rows"):
        task.state.load(wrong, "step-9")


def test_evaluation_reads_the_whole_text_with_its_state_carried(trained: dict[str, Path], text):
    run = regard.load(trained["lstm"], checkpoint="latest", device="cpu")
    loss = run.evaluate(text["valid_file"])
    lines = Path(text["valid_file"][0]).read_text().splitlines()
    encoded = EncodedText.from_lines(lines, run.tokenizer, layout="continuous")
    one_by_one = text_loss(run.model, StreamBatches(encoded, 1, 1).epoch(0), encoded)
    assert loss.tokens == one_by_one.tokens and loss.total == pytest.approx(one_by_one.total, rel=1e-5)
    logged = records(trained["lstm"], "evaluation")[-1]
    assert loss.perplexity == pytest.approx(logged["perplexity"], rel=1e-6)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_load_and_score(trained: dict[str, Path], name: str):
    run = regard.load(trained[name], device="cpu")
    assert isinstance(run, LanguageRun) and run.first_token == EOS and name in repr(run)
    likely, odd, empty = run.score(["the cat sat on the mat", "mat the a zebra", ""])
    assert likely.pieces == ("the", "cat", "sat", "on", "the", "mat", "</s>")
    assert len(likely.token_scores) == 7 and likely.log_probability == pytest.approx(sum(likely.token_scores))
    assert odd.perplexity > likely.perplexity and odd.unknown == ("zebra",) and len(empty.token_ids) == 1
    alone = run.score("the cat sat on the mat")
    assert alone.token_scores == pytest.approx(likely.token_scores, abs=1e-5) and not alone.attention
    assert alone.to_dict()["log_probability"] == alone.log_probability


def test_rows_of_an_lstmn_are_the_words_that_were_read(tmp_path: Path, text, monkeypatch):
    train(small(text, "lstmn", model={"tape": 4}, training={"steps": 2}), tmp_path / "run")
    run = regard.load(tmp_path / "run", device="cpu")
    result = run.score("the cat sat on the mat", look="*")
    site = result.seen().site("decoder.0.self")
    assert site.rows == site.columns == ("</s>", "the", "cat", "sat", "on", "the", "mat")
    lines = str(result.seen().picture("reading")).splitlines()
    assert lines[1] == "[</s>]" and lines[-1].endswith("[mat]") and len(lines) == 8
    weights = result.attention["decoder.0.self"]
    assert weights.shape == (1, 7, 7) and site.kind == "decoder" and not np.triu(weights).any()
    np.testing.assert_allclose(weights.sum(-1), [[0, 1, 1, 1, 1, 1, 1]], atol=1e-6)
    assert not weights[0, 6, :2].any() and weights[0, 6, 2:6].all()  # only four words are on the tapes
    (alone,) = run.score(["a"], look="*")
    assert alone.attention["decoder.0.self"].tolist() == [[[0, 0], [1, 0]]]
    assert run.score("", look="*").attention["decoder.0.self"].tolist() == [[[0]]]
    monkeypatch.setattr(language_run, "LONG", 20)
    (long,) = run.score("the cat " * 10, look="*").long
    assert long.rows == long.columns and long.rows[:3] == ("</s>", "the", "cat")
    with_look = run.generate("the cat", look="*", max_new_tokens=3)
    assert with_look.attention["decoder.0.self"].shape[1] == 2 + len(with_look.token_ids)


def test_score_records_attention_by_site(trained: dict[str, Path]):
    run = regard.load(trained["transformer"], device="cpu")
    short, long = run.score(["a dog ran", "the cat sat on the mat"], look="*")
    assert {site: each.shape for site, each in short.attention.items()} == {"decoder.0.self": (2, 4, 4)}
    weights = long.attention["decoder.0.self"]
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert weights.shape == (2, 7, 7) and not np.triu(weights, 1).any()
    site = short.seen().site("decoder.0.self")
    assert site.columns == ("</s>", "a", "dog", "ran") and site.rows == (*site.columns[1:], "</s>")
    assert "svg" in short._repr_html_() and short.word_perplexity == short.perplexity
    with pytest.raises(ArgumentError, match=facts("cross", "TransformerLanguageModel")):
        run.score("a dog ran", look="*cross")
    with pytest.raises(ArgumentError, match="line 2"):
        run.score(["a", 3])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="searhc"):
        regard.load(trained["transformer"], searhc=3)


def test_commands_show_average_and_dry_run(
    trained: dict[str, Path], text, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    shown = command("show", trained["lstm"])
    assert mentions(shown, "13 tokens", "best", "perplexity") and "translate" not in shown
    assert "perplexity" in command("show", trained["lstm"], trained["transformer"])
    command("average", trained["lstm"], "--last", 2, "--output", tmp_path / "mean")
    assert regard.load(tmp_path / "mean", device="cpu").score("a dog ran").perplexity < 13
    new = (
        "train",
        "--task",
        "language",
        "--train-file",
        text["train_file"][0],
        "--vocab-size",
        9,
        "--tokenizer",
        "word",
    )
    planned = command(*new, "--epochs", 2, "--device", "cpu", "--dry-run", "--output", tmp_path / "new")
    assert "vocab_size = 9" in planned and "streams = " in planned and not (tmp_path / "new").exists()
    assert "held out from the end" in planned


def test_init_from_starts_with_the_weights_of_another_run(trained: dict[str, Path], text, tmp_path: Path):
    other = write(tmp_path / "c.txt", 60, seed=4)
    data = {"train_file": [other], "held_out": 5, "streams": 2, "window": 3}
    train(
        {"data": data, "training": {"steps": 1, "learning_rate": 1e-9}},
        tmp_path / "run",
        init_from=trained["lstm"],
    )
    config = config_of(tmp_path / "run")
    assert config["model"]["width"] == 8 and config["data"]["streams"] == 2
    assert (tmp_path / "run" / "text.tokenizer").read_bytes() == (
        trained["lstm"] / "text.tokenizer"
    ).read_bytes()
    old, new = (
        regard.load(each, device="cpu").score("a dog ran") for each in (trained["lstm"], tmp_path / "run")
    )
    assert old.token_scores == pytest.approx(new.token_scores, abs=1e-4)
    with pytest.raises(ArgumentError, match=r"model\.width"):
        train({"data": data, "model": {"width": 9}}, tmp_path / "wide", init_from=trained["lstm"])


def test_samples_are_shown_and_are_the_same_for_the_same_seed(trained: dict[str, Path]):
    task = build_task(LanguageTask, trained["lstm"])
    task = LanguageTask(task.model, task.corpus, task.settings)
    shown = [[text.plain for text in task.evaluate(lambda: False).shown] for _ in range(2)]
    assert len(shown[0]) == 2 and shown[0] == shown[1]
    assert all("prompt" in each and "continuation" in each for each in shown[0])


def test_held_out_lines_are_the_end_of_the_text(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number}\n\n" for number in range(50)))
    split = read_texts(TextData(train_file=[str(path)]))
    assert [line for line in split.valid if line] == ["line 48", "line 49"] and split.is_held_out
    assert list(split.train)[-2:] == ["line 47", ""] and len(list(split.train)) == 96
    assert len(set(split.fingerprints.values())) == 2


def test_a_table_as_training_text_is_noted(tmp_path: Path):
    for name in ("a.csv", "a.txt"):
        (tmp_path / name).write_text("text,label\ngood,pos\nbad,neg\nfine,pos\n")
        notes = read_texts(TextData(train_file=[str(tmp_path / name)])).notes
        assert any("a.csv" in note and "delimiters" in note for note in notes) == (name == "a.csv")


def test_note_on_unknown_words_does_not_count_the_word_unk(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a <unk> b\n" * 9)
    (tmp_path / "b.txt").write_text("a <unk> b\n" * 4)
    (tmp_path / "c.txt").write_text("a <unk> zebra\n" * 5)
    for valid, note in (("b.txt", ""), ("c.txt", "25.0%")):
        files = {"train_file": [str(tmp_path / "a.txt")], "valid_file": [str(tmp_path / valid)]}
        settings = LanguageSettings(data=TextData(**files, tokenizer="closed-word"))
        notes = LanguageTask.encode_data(read_texts(settings.data), settings, tmp_path).notes
        assert ("unknown" in " ".join(notes)) == bool(note) and note in " ".join(notes)
        assert "little text: 36 training tokens" in notes[-1]


def test_text_with_unk_gets_a_closed_vocabulary(tmp_path: Path):
    path = write(tmp_path / "a.txt", 40, extra=" <unk> said")
    train(small({"train_file": [path]}, training={"steps": 1}), tmp_path / "run")
    assert config_of(tmp_path / "run")["data"]["tokenizer"] == "closed-word"
    run = regard.load(tmp_path / "run", device="cpu")
    assert run.score("a <unk> said").unknown == () and run.score("a bird").unknown == ("bird",)


def test_plan_chooses_windows_sizes_and_rates_that_suit_the_text():
    tiny = with_batches({"data": {}, "model": {"name": "gru"}}, tokens=150)
    assert tiny["data"] == {"window": 35, "streams": 1} and tiny["training"]["batch_tokens"] == 35
    assert with_batches({"data": {}, "training": {"batch_tokens": 350}}, 10**6)["data"]["streams"] == 10
    wide = with_batches({"data": {"layout": "documents"}, "model": {"name": "transformer"}}, 10**6, "cuda")
    assert wide["data"] == {"layout": "documents"} and wide["training"]["batch_tokens"] == 8192
    known: dict[str, Any] = {"data": {}, "training": {"minutes": 2}}
    speeds = []

    def speed(settings: dict[str, Any]) -> float:
        speeds.append(settings["model"]["width"])
        return 4e6 / settings["model"]["width"]

    plan = choose(known, 930_000, "cpu", 1, speed)
    assert speeds == [128, 256] and plan.settings["model"]["width"] == 128  # 256 would see too few tokens
    assert plan.epochs == pytest.approx(103.2 * 4e6 / 128 / 930_000) and plan.seconds == pytest.approx(120)
    assert plan.settings["data"]["streams"] == 20
    slow = choose(known, 930_000, "cpu", 1, lambda settings: 1500.0).settings
    assert slow["data"]["streams"] == 5 and slow["training"]["batch_tokens"] == 175
    kept = choose(
        merged(known, {"data": {"streams": 9}}), 930_000, "cpu", 1, lambda settings: 1500.0
    ).settings
    assert kept["data"]["streams"] == 9 and kept["training"]["batch_tokens"] == 9 * 35
    fixed = choose(merged(known, {"model": {"width": 40, "embedding": 20}}), 930_000, "cpu", 1, lambda _: 1e4)
    assert fixed.settings["model"]["width"] == 40 and "tie" not in fixed.settings["model"]


def test_plan_of_a_text_shorter_than_a_batch_counts_the_tokens_that_it_has():
    known: dict[str, Any] = {"data": {}, "model": {"name": "transformer"}, "training": {"steps": 200}}
    for batch in ({}, {"batch_tokens": 4096}, {"batch_size": 32}):
        plan = choose(merged(known, {"training": batch}), 89, "cpu", 1, lambda _: 1e4)
        assert (
            plan.epochs == 200
            and mentions(plan.text, "17,800 tokens", "200 epochs")
            and "e+" not in plan.text
        )


def test_estimate_measures_time_and_memory(text, tmp_path: Path):
    run = estimate(LanguageTask, small(text), tmp_path / "run", machine=Machine("cpu"))
    assert run.steps == 12 and run.memory > 4 * 4 * run.parameters and run.seconds is not None
    assert run.sizes == "13 tokens" and run.settings.data.streams == 5


def test_changed_streams_and_several_processes_raise(trained: dict[str, Path]):
    with pytest.raises(ArgumentError, match=r"data\.streams"):
        train({"data": {"streams": 4}}, trained["lstm"], resume=True, change=True)
    task = build_task(LanguageTask, trained["lstm"])
    with pytest.raises(ArgumentError, match="2 processes"):
        LanguageTask(task.model, task.corpus, task.settings, Processes(0, 2))


def test_settings_know_whether_the_state_is_carried():
    data = {"train_file": ["a"]}
    carried = {
        (name, layout): LanguageSettings(data=TextData(**data, layout=layout), model={"name": name}).carried
        for name in NAMES
        for layout in ("documents", "continuous")
    }
    recurrent = {(name, "continuous") for name in ("lstm", "gru", "lstmn")}
    assert {key for key, value in carried.items() if value} == recurrent
