"""regard evaluate and regard view for language models, classifiers, and a task outside the package."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

import regard
from regard.data.encoded_text import encode_text
from regard.evaluation.classifier_erasure import WordEffect, WordEffects, hide_each_word
from regard.evaluation.text_classifier import Classification, ReadText, TextClassifier
from regard.runs.run_commands import ChosenRun, ViewOptions, report_changed_data
from regard.runs.train_run import train_run
from regard.tasks.classification import ClassificationTask
from regard.tasks.classification.task import ClassificationView
from regard.tasks.language import LanguageTask
from regard.viewing import Seen
from tests.facts import mentions
from tests.tasks.own_task import LineTask

TEXT = "the cat sat on the mat\na dog ran under the tree\n" * 8
ROWS = "pos\ta good film\nneg\ta bad film\npos\tgood and funny\nneg\tbad and dull\n" * 5
PAIRS = "same\ta cat\ta cat\nother\ta cat\ta dog\n" * 8
TRAINING = {"steps": 4, "evaluate_every": 4, "save_every": 4, "learning_rate": 0.01, "warmup_steps": 1}
OWN = "tests.tasks.own_task:LineTask"


def _train(kind, folder: Path, name: str, **sections) -> Path:
    training = TRAINING | sections.pop("training", {})
    train_run(kind, {**sections, "training": training}, folder / name, console=Console(quiet=True))
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Small runs of every task, shared: tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    files = {"text.txt": TEXT, "rows.tsv": ROWS, "pairs.tsv": PAIRS, "points.txt": "0 1\n1 3\n2 5\n3 7\n"}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    text = {"train_file": [str(folder / "text.txt")], "tokenizer": "word", "window": 12}
    layered = {"name": "transformer", "width": 8, "heads": 2, "layers": 2, "inner": 8}
    rows = {"train_file": [str(folder / "rows.tsv")], "valid_file": [str(folder / "rows.tsv")]}
    pairs = {name: [str(folder / "pairs.tsv")] for name in ("train_file", "valid_file")} | {"second": 3}
    recurrent = {"name": "lstm", "width": 8}
    return {
        "folder": folder,
        "layered": _train(
            LanguageTask, folder, "layered", data=text, model=layered, training={"save_every": 2}
        ),
        "lstm": _train(LanguageTask, folder, "lstm", data=text, model=recurrent),
        "classifier": _train(
            ClassificationTask, folder, "classifier", data=rows, model=recurrent, training={"steps": 12}
        ),
        "mean": _train(ClassificationTask, folder, "mean", data=rows, model={**recurrent, "pooling": "mean"}),
        "pairs": _train(ClassificationTask, folder, "pairs", data=pairs, model=recurrent),
        "own": _train(LineTask, folder, "own", task=OWN, data={"points": [str(folder / "points.txt")]}),
    }


def test_perplexity_of_files_equals_the_library(command, runs, tmp_path):
    path = tmp_path / "test.txt"
    path.write_text("the cat ran\na zebra sat on the mat\n", encoding="utf-8")
    result = command("evaluate", runs["layered"], "--test-file", path, "--stride", 3, "--json")
    report = json.loads(result.out)
    model = regard.load(runs["layered"], device="cpu")
    text = encode_text(path, model.tokenizer, layout="continuous")
    assert result.status == 0 and (report["tokens"], report["unknown_tokens"]) == (text.token_count, 1)
    assert report["words"] == 9 and (report["window"], report["stride"]) == (12, 3)
    usual = json.loads(command("evaluate", runs["layered"], path, "--json").out)
    assert usual["perplexity"] == pytest.approx(model.evaluate(path).perplexity)
    assert usual["stride"] == 6 and math.log(usual["perplexity"]) == pytest.approx(usual["loss"])
    twice = command("evaluate", runs["layered"], "--test-file", path, "--test-file", path, "--json")
    assert json.loads(twice.out)["tokens"] == 2 * text.token_count
    assert "bits" in command("evaluate", runs["layered"], "--test-file", path).out


def test_windows_of_documents_are_reported_only_where_they_are_used(command, runs, tmp_path):
    text = {"train_file": [str(runs["folder"] / "text.txt")], "tokenizer": "word", "layout": "documents"}
    model = {"name": "transformer", "width": 8, "heads": 2, "layers": 1, "inner": 8}
    run = _train(LanguageTask, tmp_path, "lines", data=text, model=model)
    whole = json.loads(command("evaluate", run, "--json").out)  # each line has 7 tokens with </s>
    assert (whole["window"], whole["stride"]) == (None, None)
    assert not mentions(command("evaluate", run).out, "windows of")
    for options in (("--stride", 3), ("--window", 7, "--stride", 3)):
        result = command("evaluate", run, *options)
        assert result.status == 2 and "--stride 3" in result.err and "--window" in result.err
    near, far = (
        json.loads(command("evaluate", run, "--window", 4, "--stride", each, "--json").out) for each in (1, 4)
    )
    assert (near["window"], near["stride"]) == (4, 1) and near["perplexity"] != far["perplexity"]
    assert mentions(command("evaluate", run, "--window", 4).out, "windows", "4 tokens")


def test_show_prints_the_layout_of_language_runs(command, runs):
    for name in ("layered", "lstm"):
        assert "continuous" in command("show", runs[name], width=200).out


def test_invalid_model_and_vocabulary_options_are_named(command, runs, tmp_path):
    text, rows = runs["folder"] / "text.txt", runs["folder"] / "rows.tsv"
    language = ("--task", "language", "--train-file", text)
    classification = ("--task", "classification", "--train-file", rows, "--valid-file", rows)
    built_in = ("--built-in", "korean", "--set", "data.pairs=100")
    for arguments, fact in (
        ((*language, "--width", 0), "--width 0"),
        ((*language, "--dropout", 1.5), "--dropout 1.5"),
        ((*language, "--dropout", "nan"), "--dropout nan"),
        ((*language, "--vocab-size", 1), "--vocab-size 1"),
        ((*language, "--vocab-size", 20, "--tokenizer", "bpe"), "--vocab-size"),
        ((*classification, "--vocab-size", 20, "--tokenizer", "bpe"), "--vocab-size"),
        ((*built_in, "--vocab-size", 20, "--tokenizer", "bpe"), "--vocab-size"),
        ((*language, "--set", "model.width=0", "--model", "lstm"), "[model]: width"),
        ((*classification, "--set", "model.dropout=2"), "[model]: dropout"),
        ((*language, "--model", "transformer", "--width", 7), "[model]: width is 7 and heads"),
        ((*built_in, "--model", "seq2seq", "--select", "hard"), "[model]: select"),
    ):
        said = command("train", *arguments, "--output", tmp_path / "run", "--dry-run")
        assert said.status == 2 and fact in said.err and "()" not in said.err, said.err


def test_validation_text_without_files(command, runs):
    for name in ("layered", "lstm"):
        scores = json.loads(command("evaluate", runs[name], "--checkpoint", "latest", "--json").out)
        logged = [json.loads(line) for line in (runs[name] / "log.jsonl").read_text().splitlines()]
        last = [each for each in logged if each["kind"] == "evaluation"][-1]
        assert scores["perplexity"] == pytest.approx(last["perplexity"], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("lstm", ("--stride", 3), ("--stride 3", "state")),
        ("layered", ("--stride", 99), ("--stride 99", "12")),
        ("layered", ("--source", "x"), ("--source", "language", "translation")),
        ("layered", ("--test-file", "missing.txt"), ("missing.txt",)),
        ("classifier", ("--tsv", "header.tsv"), ("header.tsv, line 1", "header", "--columns class,text")),
        ("classifier", ("--beam-size", 5), ("--beam-size", "classification")),
        ("classifier", ("--columns", "1,2"), ("--columns", "--tsv")),
        ("classifier", ("--tsv", "a.tsv", "--jsonl", "a.jsonl"), ("--tsv", "--jsonl")),
        ("classifier", ("--page", "x.txt"), ("--page", ".html")),
        ("mean", ("--faithfulness",), ("--faithfulness", "pooling")),
        ("own", (), ("--task", OWN)),
        ("own", ("--task", OWN, "--test-file", "x"), ("--test-file", OWN.rpartition(":")[2])),
    ],
)
def test_evaluate_names_wrong_options(command, runs, name, options, facts, tmp_path, monkeypatch):
    (tmp_path / "header.tsv").write_text("class\ttext\npos\ta good film\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = command("evaluate", runs[name], *options)
    assert result.status == 2 and all(fact in result.err for fact in facts)


def test_evaluate_without_a_run(command):
    result = command("evaluate", "--test-file", "x.txt")
    assert result.status == 2 and "--test-file" in result.err and "RUN" in result.err


def test_classifier_on_files(command, runs, tmp_path):
    table, lines = tmp_path / "t.tsv", tmp_path / "t.jsonl"
    table.write_text("text\tclass\na good film\tpos\nbad and dull\tneg\n", encoding="utf-8")
    rows = [{"sentiment": "pos", "body": "a good film"}, {"sentiment": "neg", "body": "bad and dull"}]
    lines.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    page = tmp_path / "p.html"
    given = ("--tsv", table, "--columns", "class,text", "--faithfulness", "--page", page, "--json")
    report = json.loads(command("evaluate", runs["classifier"], *given).out)
    other = command("evaluate", runs["classifier"], lines, "--fields", "sentiment,body", "--json")
    assert report["confusion"] == json.loads(other.out)["confusion"] and report["count"] == 2
    assert report["balance"] == {"neg": 1, "pos": 1} and report["faithfulness"]["texts"] == 2
    html = page.read_text(encoding="utf-8")
    assert html.count("true label") == 2 and html.find("accuracy") < html.find("true label")
    shown = command("evaluate", runs["classifier"], runs["folder"] / "rows.tsv", "--faithfulness")
    assert shown.status == 0 and "hiding" in shown.out and "support" in shown.out
    table.write_text("pos\tgood\nodd\tfilm\n", encoding="utf-8")
    own = command("evaluate", runs["own"], "--task", OWN, table)
    assert own.status == 2 and "FILES" in own.err
    wrong = command("evaluate", runs["classifier"], "--tsv", table)
    assert wrong.status == 2 and f"{table}, line 2" in wrong.err and "odd" in wrong.err


def test_validation_texts_and_changed_data(command, runs, capsys):
    result = command("evaluate", runs["pairs"], "--json")
    assert result.status == 0 and json.loads(result.out)["count"] == 16 and not result.err
    measured = command("evaluate", runs["pairs"], "--faithfulness")
    assert mentions(measured.err, "16 pairs") and mentions(measured.out, "16 pairs")
    report_changed_data(runs["pairs"], {"train": "another fingerprint", "new": "x"})
    assert "changed" in (said := capsys.readouterr().err) and "train" in said and "new" not in said


def test_own_task_on_its_validation_data(command, runs):
    report = json.loads(command("evaluate", runs["own"], "--task", OWN, "--json").out)
    assert report["better"] == {"loss": "lower", "slope": "higher"} and report["best"] == "loss"
    model = regard.load(runs["own"], task=LineTask)
    assert report["scores"]["slope"] == pytest.approx(model.weight.item())
    shown = command("evaluate", runs["own"], "--task", OWN).out
    assert "slope" in shown and "higher" in shown
    assert command("view", runs["own"], "--task", OWN).status == 2


@pytest.mark.parametrize(
    "view", ["matrix", "lines", "heads", "word", "shaded", "self", "rollout", "long", "reading"]
)
def test_views_of_a_language_model(command, runs, tmp_path, view):
    word = ("--word", "cat") if view == "word" else ()
    given = ("view", runs["layered"], "--text", "the cat sat", "--view", view, *word)
    result = command(*given)
    assert (result.status, result.err) == (0, "") and result.out.strip()
    if view in ("self", "long"):
        assert command(*given, "--output", tmp_path / "x.svg").status == 0


def test_attention_of_a_language_model_is_causal(command, runs, tmp_path):
    path = tmp_path / "look.seen"
    assert command("view", runs["layered"], "the cat sat", "--output", path).status == 0
    seen = Seen.load(path)
    (first, second) = seen.sites
    assert first.rows == ("the", "cat", "sat", "</s>") and first.columns == ("</s>", "the", "cat", "sat")
    assert first.weights.shape == (2, 4, 4) and first.name != second.name
    assert first.weights[:, 0, 1:].max() == 0 and first.weights.sum(-1) == pytest.approx(1.0)
    assert (
        command("view", path, "--view", "matrix").out == command("view", runs["layered"], "the cat sat").out
    )


def test_long_text_is_a_map(command, runs, tmp_path):
    text = " ".join(["the cat sat"] * 100)
    path = tmp_path / "long.seen"
    assert command("view", runs["layered"], "--text", text, "--output", path).status == 0
    assert Seen.load(path).long[0].maxima.shape[-1] <= 256
    assert command("view", runs["layered"], "--text", text).status == 0
    wrong = command("view", runs["layered"], "--text", text, "--view", "heads")
    assert wrong.status == 2 and mentions(wrong.err, "--view", "heads", 301)
    too_long = command("view", runs["layered"], "--text", "cat " * 2500)
    assert too_long.status == 2 and "2,048" in too_long.err


def test_view_of_a_classifier(command, runs, tmp_path):
    result = command("view", runs["classifier"], "a good film")
    classifier = regard.load(runs["classifier"], device="cpu")
    effects = hide_each_word(classifier, "a good film")
    assert result.status == 0 and all(word in result.out for word in ("good", "film", "hidden"))
    assert f"{effects.words[1].hidden:.3f}" in result.out and f"{effects.words[1].unknown:.3f}" in result.out
    for suffix in (".svg", ".html", ".seen"):
        saved = command("view", runs["classifier"], "a good film", "--output", tmp_path / f"x{suffix}")
        assert saved.status == 0
    for view in ("erasure", "matrix"):
        assert command("view", runs["classifier"], "a good film", "--view", view).status == 0
    assert command("view", runs["classifier"], "good").status == 0


def test_view_of_a_pair(command, runs, tmp_path):
    given = ("view", runs["pairs"], "--text", "a cat", "--second", "a dog")
    result = command(*given)
    assert result.status == 0 and "first" in result.out and "second" in result.out and "dog" in result.out
    assert command(*given, "--output", tmp_path / "x.svg").status == 0
    wrong = command(*given, "--view", "matrix")
    assert wrong.status == 2 and "first.pool" in wrong.err
    assert command(*given, "--view", "matrix", "--site", "second.pool").status == 0


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("lstm", ("--text", "the cat", "--view", "matrix"), ("--view matrix", "erasure")),
        ("layered", ("--text", "the cat", "--view", "steps"), ("--view steps", "matrix")),
        ("layered", ("--text", "the cat", "--target", "x"), ("--target", "language")),
        ("layered", (), ("--text",)),
        ("pairs", ("--text", "a cat"), ("--second",)),
        ("classifier", ("--text", "a", "--second", "b"), ("--second",)),
        ("mean", ("--text", "a good film", "--view", "matrix"), ("--view matrix", "erasure")),
        ("classifier", ("--text", "a", "--view", "self"), ("--view self", "pool")),
    ],
)
def test_view_names_wrong_options(command, runs, name, options, facts):
    result = command("view", runs[name], *options)
    assert result.status == 2 and all(fact in result.err for fact in facts)


def test_interventions_in_a_language_model_and_a_classifier(command, runs):
    text = "the cat sat"
    given = ("intervene", runs["layered"], text, "--drop", "decoder.0.self:1")
    report = json.loads(command(*given, "--json").out)
    model = regard.load(runs["layered"], device="cpu")
    before = model.score(text)
    with regard.intervene(scale=0.0, at="decoder.0.self", head=1):
        after = model.score(text)
    assert report["cost"] == pytest.approx(before.log_probability - after.log_probability, abs=1e-5)
    assert report["cost"] != 0 and "before" not in report
    assert [each["piece"] for each in report["parts"]] == list(before.pieces)
    printed = command(*given)
    assert printed.status == 0 and all(word in printed.out for word in ("nats", "cat", "change"))
    report = json.loads(command("intervene", runs["layered"], text, "--cut", "0-2", "--json").out)
    with regard.intervene(cut=(2, 1), at="self"):
        after = model.score(text)
    assert [each["after"] for each in report["parts"]] == pytest.approx(after.token_scores, abs=1e-5)
    report = json.loads(command("intervene", runs["classifier"], "a good film", "--erase", 1, "--json").out)
    effects = hide_each_word(regard.load(runs["classifier"], device="cpu"), "a good film")
    assert report["before"] == effects.label
    assert math.exp(report["parts"][0]["after"]) == pytest.approx(effects.words[1].hidden, abs=1e-5)
    for name, options in (
        ("lstm", ("--erase", 0)),
        ("layered", ("--erase", 2)),
        ("layered", ("--cut", "0-9")),
        ("layered", ()),
        ("layered", ("--erase", 0, "--site", "pool")),
        ("classifier", ("--cut", "0-0")),
        ("mean", ("--erase", 0)),
        ("own", ("--erase", 0)),
    ):
        wrong = command("intervene", runs[name], text, *options)
        assert wrong.status == 2 and not wrong.out and wrong.err


def test_erasure_without_attention(command, runs):
    result = command("view", runs["mean"], "a good film", "--view", "erasure")
    assert result.status == 0 and "unknown" in result.out and "hidden" not in result.out
    assert command("view", runs["mean"], "a good film").out == result.out


@pytest.mark.parametrize(
    ("name", "attends"), [("lstm", False), ("layered", True), ("classifier", True), ("mean", False)]
)
def test_gradients_beside_erasure(command, runs, name, attends, tmp_path):
    result = command("view", runs[name], "the cat sat", "--view", "gradient", "--output", tmp_path / "x.svg")
    assert result.status == 0
    drawn = (tmp_path / "x.svg").read_text()
    assert all(title in drawn for title in ("erasure, nats", "input x gradient", "integrated gradients"))
    assert ("no attention" in drawn) != attends
    page = command("view", runs[name], "the cat sat", "--output", tmp_path / "x.html")
    assert page.status == 0 and "cat" in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize("hidden", [0.9998, None])
def test_words_without_effect_are_not_named(hidden):
    words = tuple(
        WordEffect("first", at, word, 0.5, hidden, 0.9998) for at, word in enumerate(("good", "film"))
    )
    sentence = WordEffects("pos", 0.9999, words).sentence()
    assert "0.0005" in sentence and "pos" in sentence and not any(each.word in sentence for each in words)
    assert ("<unk>" in sentence) == (hidden is None)
    assert "'good'" in WordEffects("pos", 0.99, words).sentence()


def test_erasure_of_words_without_effect_is_drawn_light():
    read = ReadText("good film", (7, 8, 3), ("good", "film", "</s>"), (0, 1, -1))
    result = Classification("pos", {"neg": 0.0, "pos": 1.0}, (read,))
    for cost, most in ((0.0001, 0.01), (0.5, 0.5)):
        words = tuple(WordEffect("first", at, "x", None, None, 1 - cost * at) for at in range(2))
        view = ClassificationView(result.seen(), result, WordEffects("pos", 1.0, words))
        assert f">{most}<" in view.picture(ViewOptions("erasure")).svg()


def test_hidden_word_equals_the_masked_pooling(runs):
    classifier: TextClassifier = ChosenRun(runs["classifier"], device="cpu").load(ClassificationTask)
    effects = hide_each_word(classifier, "a good film")
    assert [each.word for each in effects.words] == ["a", "good", "film"]
    result = classifier.classify("a good film")
    assert effects.probability == result.probability and sum(effects.decreases("first", 3)) >= 0
    unknown = classifier.classify("a zzz film").probabilities[effects.label]
    assert effects.words[1].unknown == pytest.approx(unknown)
    json.dumps(effects.to_dict())


def test_words_outside_the_vocabulary_are_not_named_as_the_strongest(runs):
    classifier: TextClassifier = ChosenRun(runs["classifier"], device="cpu").load(ClassificationTask)
    effects = hide_each_word(classifier, "zebra good")
    assert [each.known for each in effects.words] == [False, True]
    assert "zebra" not in effects.sentence() and "zebra" in str(effects)
    assert "vocabulary" in hide_each_word(classifier, "zebra yak").sentence()


def test_show_does_not_truncate_metrics(command, runs):
    alone = command("show", runs["layered"], width=80)
    assert alone.status == 0 and "…" not in alone.out and "character" in alone.out
    several = command("show", runs["layered"], runs["classifier"], width=80)
    assert several.status == 0 and "…" not in several.out and "accuracy" in several.out


def test_average_and_init_from(command, runs, tmp_path):
    for name, data in (("layered", "text.txt"), ("classifier", "rows.tsv")):
        mean = tmp_path / f"{name}-mean"
        averaged = command("average", runs[name], "--last", 2, "--output", mean)
        files = "--test-file", runs["folder"] / data
        assert averaged.status == 0 and command("evaluate", mean, *files).status == 0
        refused = command("evaluate", mean)
        assert refused.status == 2 and data in refused.err and f"evaluate {mean} FILES" in refused.err
    file = runs["folder"] / "text.txt"
    options = ("--task", "language", "--init-from", runs["layered"], "--train-file", file, "--steps", 1)
    assert command("train", *options, "--output", tmp_path / "tuned", "--device", "cpu").status == 0
    other = ("--task", "classification", "--init-from", runs["layered"], "--train-file", file, "--steps", 1)
    wrong = command("train", *other, "--set", "data.format=tsv", "--output", tmp_path / "x")
    assert wrong.status == 2 and "language" in wrong.err
