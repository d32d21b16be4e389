"""regard classify: one result per line, JSON lines, drawings, pairs, and invalid input; other commands."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import regard
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.classification import ClassificationTask
from tests.facts import commands, mentions

WORDS = {"pos": ("good", "fine"), "neg": ("bad", "poor")}
SETTINGS = {
    "model": {"name": "lstm", "width": 8, "dropout": 0.0},
    "training": {
        "steps": 30,
        "batch_size": 16,
        "learning_rate": 0.03,
        "warmup_steps": 2,
        "save_every": 10,
        "keep": 3,
    },
    "evaluation": {"samples": 0},
}


def _train(folder: Path, name: str, data: dict[str, object], **model: object) -> Path:
    settings = {**SETTINGS, "data": data, "model": {**SETTINGS["model"], **model}}
    train_run(
        ClassificationTask, settings, folder / name, machine=Machine("cpu"), console=Console(quiet=True)
    )
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classify")
    texts = [
        (label, f"{word} {other} {number}")
        for number in range(10)
        for label, words in WORDS.items()
        for word in words
        for other in ("film", "book")
    ]
    rows = "".join(f"{label}\t{text}\n" for label, text in texts)
    (folder / "train.tsv").write_text(rows)
    pairs = [(label, text, f"it is {text.split()[0]}") for label, text in texts]
    (folder / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return _train(folder, "run", {"train_file": [str(folder / "train.tsv")], "max_length": 20})


@pytest.fixture(scope="module")
def paired(folder: Path) -> Path:
    data = {"train_file": [str(folder / "pairs.tsv")], "second": 3}
    return _train(folder, "paired", data, pooling="mean")


def test_label_and_probability_of_each_line(command, run, tmp_path):
    said = command("classify", run, "--text", "good film", "--text", "poor book", "--device", "cpu")
    assert said.status == 0
    labels, chances = zip(*(line.split("\t") for line in said.lines), strict=True)
    assert labels == ("pos", "neg") and all(0.5 < float(chance) <= 1 for chance in chances)
    with gzip.open(tmp_path / "texts.gz", "wt") as file:
        file.write("good film\npoor book\n")
    for given in ((tmp_path / "texts.gz",), ()):
        stdin = b"good film\npoor book\n"
        assert command("classify", run, *given, stdin=stdin).lines == said.lines
    output = tmp_path / "labels.tsv"
    assert command("classify", run, tmp_path / "texts.gz", "--output", output).out == ""
    assert output.read_text().splitlines() == said.lines


def test_json_lines_have_the_probability_of_each_class(command, run):
    said = command("classify", run, "--text", "bad film", "--text", " ", "--json")
    record, blank = map(json.loads, said.lines)
    assert said.status == 0 and record["label"] == "neg"
    assert sum(record["probabilities"].values()) == pytest.approx(1)
    assert record["probability"] == record["probabilities"]["neg"]
    assert record["texts"][0]["words"] == ["bad", "film"]
    assert sum(record["texts"][0]["weights"]) == pytest.approx(1, abs=1e-4)
    assert (blank["label"], blank["probabilities"]) == (None, {})
    assert "line 2" in said.err and "blank" in said.err


def test_drawing_shows_words_and_label(command, run, paired, tmp_path):
    said = command("classify", run, "--text", "bad film", "--draw")
    assert said.status == 0 and mentions(said.out, "neg", "0.") and "film" in said.out
    assert command("classify", run, "--text", "bad film", "--draw", "--output", tmp_path / "a").out == ""
    assert "neg (neg 0." in (tmp_path / "a").read_text()
    refused = command("classify", paired, "--text", "bad", "--second", "it is bad", "--draw")
    assert refused.status == 2 and "--draw" in refused.err and "model.pooling" in refused.err


def test_pairs_are_two_columns_or_two_options(command, paired, tmp_path):
    (tmp_path / "pairs.tsv").write_text("good film\tit is good\n\nbad book\tit is bad\n")
    said = command("classify", paired, tmp_path / "pairs.tsv")
    assert said.status == 0 and [line.split("\t")[0] for line in said.lines] == ["pos", "", "neg"]
    options = command("classify", paired, "--text", "bad book", "--second", "it is bad")
    assert options.lines == said.lines[2:]


def test_every_line_is_classified_whatever_it_contains(command, run, hostile):
    lines = hostile.read_bytes().split(b"\n")
    said = command("classify", run, hostile, "--at-once", 5)
    assert said.status == 0 and len(said.lines) == len(lines)
    assert "2 lines" in said.err and "UTF-8" in said.err
    assert mentions(said.err, "line 13", "20 of 10,000")
    records = list(map(json.loads, command("classify", run, hostile, "--json").lines))
    assert [each["label"] or "" for each in records] == [line.split("\t")[0] for line in said.lines]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("single.tsv",), ["single.tsv, line 2", "1 column", "--second"]),
        (("good.tsv", "wide.tsv"), ["wide.tsv, line 1", "3 columns"]),
        (("nowhere.tsv",), ["nowhere.tsv"]),
        (("--text", "one", "--second", "a", "--second", "b"), ["--second", "2 times"]),
        (("--text", "one"), ["--text, line 1", "1 column"]),
        (("good.tsv", "--second", "a"), ["--second"]),
        (("good.tsv", "--text", "one"), ["--text"]),
        (("good.tsv", "--json", "--draw"), ["--draw", "--json"]),
        (("good.tsv", "--checkpoint", "7"), ["7"]),
    ],
)
def test_invalid_input_exits_with_2(command, paired, tmp_path, monkeypatch, arguments, facts):
    (tmp_path / "good.tsv").write_text("good film\tit is good\n")
    (tmp_path / "single.tsv").write_text("good film\tit is good\none text\n")
    (tmp_path / "wide.tsv").write_text("a\tb\tc\n")
    monkeypatch.chdir(tmp_path)
    said = command("classify", paired, *arguments)
    assert said.status == 2 and all(fact in said.err for fact in facts), said.err


def test_unknown_words_are_reported_with_their_lines(command, run, paired):
    said = command("classify", run, "--text", "good film", "--text", "xxqq zzpp", "--json")
    known, unknown = map(json.loads, said.lines)
    assert said.status == 0 and (known["unknown"], unknown["unknown"]) == ([], ["xxqq", "zzpp"])
    assert mentions(said.err, "2 words", "'zzpp'", "line 2")
    both = command("classify", paired, "--text", "xxqq film", "--second", "it is zzpp")
    assert both.status == 0 and mentions(both.err, "xxqq", "zzpp") and both.err.count("line 1") == 2
    assert "vocabulary" not in command("classify", run, "--text", "good film").err


def test_columns_are_an_error_or_a_note_if_the_run_classifies_single_texts(command, run, tmp_path):
    for name in ("rows.tsv", "rows.txt", "indented.tsv"):
        (tmp_path / name).write_text("\tgood film\n" if name == "indented.tsv" else "pos\tgood\n" * 3)
    refused = command("classify", run, tmp_path / "rows.tsv")
    assert refused.status == 2 and mentions(refused.err, "rows.tsv", "line 1", "one")
    said = command("classify", run, tmp_path / "rows.txt")
    assert said.status == 0 and len(said.lines) == 3
    assert mentions(said.err, "rows.txt", "line 1", "2 more")
    indented = command("classify", run, tmp_path / "indented.tsv")
    assert indented.status == 0 and "tab" not in indented.err.replace("table", "")


def test_csv_files_are_read_by_the_names_of_their_columns(command, run, paired, tmp_path):
    rows = 'id,text,label\n1,"good film, really",pos\n2,"poor\nbook",neg\n'
    (tmp_path / "rows.csv").write_text(rows)
    named = command("classify", run, tmp_path / "rows.csv", "--json")
    texts = [json.loads(line)["texts"][0]["text"] for line in named.lines]
    assert named.status == 0 and len(texts) == 2 and "really" in texts[0] and "pos" not in texts[0]
    named_lines = command("classify", run, tmp_path / "rows.csv").lines
    (tmp_path / "alone.csv").write_text('"good film, really"\npoor book\n')
    assert len(command("classify", run, tmp_path / "alone.csv").lines) == 2
    (tmp_path / "two.csv").write_text("good film,it is good\n")
    assert command("classify", paired, tmp_path / "two.csv").status == 0
    (tmp_path / "other.csv").write_text(rows.replace("text", "review"))
    refused = command("classify", run, tmp_path / "other.csv")
    assert refused.status == 2 and "review" in refused.err and mentions(refused.err, "other.csv", "line 1")
    for columns in ("review", "2"):
        chosen = command("classify", run, tmp_path / "other.csv", "--columns", columns)
        assert chosen.status == 0 and chosen.lines[-2:] == named_lines, chosen.err


def test_the_column_of_the_text_is_recommended_as_a_command(command, run, paired, tmp_path):
    rows = ["review,sentiment", *(f"a film of {i} hours,{'good' if i % 2 else 'bad'}" for i in range(12))]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(rows))
    refused = command("classify", run, path)
    assert refused.status == 2 and f"regard classify {run} {path} --columns review" in refused.err
    assert len(command("classify", run, path, "--columns", "review").lines) == 12
    (tmp_path / "a.tsv").write_text("good\ta film\nbad\ta book\n")
    table = command("classify", run, tmp_path / "a.tsv", "--columns", 2)
    assert table.status == 0 and len(table.lines) == 2
    for more in (("--columns", "nothing"), ("--columns", "a,b")):
        assert command("classify", run, path, *more).status == 2
    assert command("classify", run, "--text", "a", "--columns", 1).status == 2
    assert command("classify", paired, path, "--columns", "review").status == 2
    assert command("classify", paired, path, "--columns", "review,sentiment").status == 0
    path.write_bytes("평,감정\n재미있는 영화였습니다,좋음\n".encode("cp949"))
    refused = command("classify", run, path)
    assert refused.status == 2 and f"regard classify {run} {path} --encoding cp949" in refused.err


def test_columns_of_a_test_file_are_recommended_and_accepted(command, run, tmp_path):
    path = tmp_path / "semi.csv"
    path.write_text("Text;Mood\n" + "".join(f"film {i};{('pos', 'neg')[i % 2]}\n" for i in range(12)))
    for words in (("--test-file", path), (path,)):
        refused = command("evaluate", run, *words)
        assert refused.status == 2 and "--columns Mood,Text" in refused.err
        assert command("evaluate", run, *words, "--columns", "Mood,Text").status == 0
    refused = command("evaluate", run, "--test-file", tmp_path / "a.txt", "--columns", "Mood,Text")
    assert refused.status == 2 and "--tsv" in refused.err


def test_empty_labels_are_left_out_by_the_printed_option(command, tmp_path):
    rows = [f"{('pos', 'neg', '')[at % 3]}\tfilm {at}\n" for at in range(12)]
    (tmp_path / "a.tsv").write_text("".join(rows))
    train = "train", "--task", "classification", "--tsv", tmp_path / "a.tsv", "--output", tmp_path / "run"
    refused = command(*train, "--dry-run")
    assert refused.status == 2 and "--set 'data.ignore=[\"\"]'" in refused.err
    assert command(*train, "--dry-run", "--set", 'data.ignore=[""]').status == 0


def test_second_is_refused_for_single_texts(command, run):
    said = command("classify", run, "--text", "one", "--second", "two")
    assert said.status == 2 and "--second" in said.err


def test_run_of_another_task_is_an_error(command, trained):
    said = command("classify", trained, "--text", "one")
    assert said.status == 2 and str(trained) in said.err and "translate" in commands(said.err)


def test_classification_run_is_refused_by_regard_translate(command, run):
    said = command("translate", run, "--text", "one")
    assert said.status == 2 and "classify" in commands(said.err) and str(run) in said.err


def test_train_resume_and_dry_run_commands(command, folder, tmp_path):
    options = [
        *("--task", "classification", "--set", f"data.train_file={folder / 'train.tsv'}"),
        *("--model", "gru", "--width", 6, "--steps", 2, "--batch-size", 9, "--output", tmp_path / "run"),
    ]
    dry = command("train", *options, "--dry-run")
    assert dry.status == 0 and "2 classes" in dry.out and not (tmp_path / "run").exists()
    said = command("train", *options)
    assert said.status == 0 and "classify" in commands(said.err) and "accuracy" in said.err
    resumed = command("train", "--output", tmp_path / "run", "--resume")
    assert resumed.status == 0 and mentions(resumed.err, "step 2")
    wrong = command("train", *options, "--set", "data.label=3")
    assert wrong.status == 2


def test_show_and_average_commands(command, run, tmp_path):
    shown = command("show", run)
    assert shown.status == 0 and "accuracy" in shown.out and "2 classes" in shown.out
    assert "classify" in commands(shown.out) and "texts" in shown.out
    assert "BLEU" not in command("show", run, run).out
    facts = json.loads(command("show", run, "--json").out)
    assert (facts["task"], facts["judged_by"]) == ("classification", "accuracy")
    mean = command("average", run, "--last", 2, "--output", tmp_path / "mean")
    assert mean.status == 0 and "classify" in commands(mean.out)
    assert regard.load(tmp_path / "mean", device="cpu").classify("good film").label == "pos"


def test_damaged_labels_are_an_error(command, run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "labels.json").unlink()
    said = command("classify", copy, "--text", "one")
    assert said.status == 2 and "labels.json" in said.err


def test_json_lines_files_are_read_by_their_fields(command, run, paired, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"label": "neg", "text": "bad film"}\n\n{"text": "good film"}\n')
    said = command("classify", run, tmp_path / "a.jsonl")
    assert said.status == 0 and [line.split("\t")[0] for line in said.lines] == ["neg", "", "pos"]
    (tmp_path / "b.jsonl").write_text('{"text": "good film", "second": "it is good"}\n')
    said = command("classify", paired, tmp_path / "b.jsonl", "--json")
    assert said.status == 0 and json.loads(said.lines[0])["texts"][1]["text"].split() == ["it", "is", "good"]
    (tmp_path / "c.ndjson").write_text('{"text": "bad film"}\n{"review": "bad film"}\n')
    for fields in ("c.ndjson", "line 2", "'text'", "review"):
        assert fields in command("classify", run, tmp_path / "c.ndjson").err
    (tmp_path / "d.jsonl").write_text('{"text": 3}\n')
    assert command("classify", run, tmp_path / "d.jsonl").status == 2
    said = command("classify", run, "--jsonl", tmp_path / "a.jsonl")
    assert said.status == 2 and "FILES" in said.err and "--json " not in said.err


def test_drawing_of_a_blank_line_says_once_that_it_is_not_classified(command, run, tmp_path):
    said = command("classify", run, "--text", " ", "--text", "good film", "--draw")
    assert said.status == 0 and said.out.count("classified") == 1
    blank = regard.load(run, device="cpu").classify(" ")
    blank.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text().count("not classified") == 1


def test_score_of_a_classifier_names_the_command_classify(command, run):
    for arguments in (("--text", "a"), ("--source", "a", "--target", "b")):
        said = command("score", run, *arguments)
        assert said.status == 2 and "classify" in commands(said.err)


def test_messages_about_a_csv_file_name_the_lines_of_the_file(command, run, tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"good\nfilm"\n2,xxqq\n3,\n')
    said = command("classify", run, tmp_path / "a.csv")
    assert said.status == 0 and len(said.lines) == 3
    assert mentions(said.err, "'xxqq' (line 4)") and "line 5: " in said.err


def test_files_are_read_with_the_encoding_and_the_columns_of_the_training_data(command, run, tmp_path):
    rows = ["pos,좋은 영화", "neg,나쁜 영화"]
    many = [f"{row} {number}" for number in range(10) for row in rows]
    (tmp_path / "train.csv").write_bytes("\n".join(many).encode("cp949") + b"\n")
    korean = _train(tmp_path, "korean", {"train_file": [str(tmp_path / "train.csv")], "encoding": "cp949"})
    (tmp_path / "a.csv").write_bytes("\n".join(rows).encode("cp949") + b"\n")  # without a header line
    (tmp_path / "a.txt").write_bytes("좋은 영화\n나쁜 영화\n".encode("cp949"))
    (tmp_path / "b.txt").write_text("좋은 영화\n나쁜 영화\n")
    written = [command("classify", korean, tmp_path / name) for name in ("a.csv", "a.txt", "b.txt")]
    assert all(said.status == 0 and said.lines == written[0].lines for said in written), written
    assert [line.split("\t")[0] for line in written[0].lines] == ["pos", "neg"]
    assert ["cp949" in said.err for said in written] == [True, True, False]
