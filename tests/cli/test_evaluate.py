"""regard evaluate: scores of a run or of a file of translations, as a table or as JSON."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard.cli.evaluate import _has_training_pairs, _with_files
from regard.data import korean_english
from regard.decoding import Greedy
from regard.evaluation import bleu, evaluate_corpus
from regard.tasks.task_table import find_task
from regard.tasks.translation import load_translator, train_translation
from tests.cli.conftest import SETTINGS
from tests.facts import commands, mentions

TABLE = "나는 학생이다 .\tI am a student .", "고양이가 잔다 .\tthe cat sleeps ."


def files(folder):
    return "--source", folder / "test.ko", "--target", folder / "test.en"


def test_scores_of_a_run_equal_those_of_the_library(command, trained, korean):
    output = korean / "out"
    result = command(
        "evaluate",
        trained,
        *files(korean),
        "--gold-alignments",
        korean / "test.links",
        "--json",
        "--output",
        output,
    )
    assert result.status == 0
    report = json.loads(result.out)
    translations, references = (
        output.read_text().split("\n")[:-1],
        (korean / "test.en").read_text().split("\n")[:-1],
    )
    expected = evaluate_corpus(translations, references)
    assert [(each["name"], each["value"], each["signature"]) for each in report["scores"]] == [
        (each.name, each.value, each.signature) for each in expected
    ]
    assert translations == command("translate", trained, korean / "test.ko").lines
    scored = command("score", trained, *files(korean))
    assert scored.err_but_unknown.startswith(f"perplexity {report['perplexity']:.2f}:")
    aligned = command("align", trained, *files(korean), "--gold-alignments", korean / "test.links")
    assert aligned.err_but_unknown.startswith(f"AER {100 * report['alignment']['error_rate']:.2f} ")
    assert report["sentences"] == 12 and report["run"]["step"] in (20, 40)


def test_precision(command, trained, korean):
    """The default is float32; another precision changes the perplexity, and must be known."""
    scores = {}
    for precision in ("float32", "bfloat16"):
        result = command("evaluate", trained, *files(korean), "--precision", precision, "--json")
        assert result.status == 0
        scores[precision] = json.loads(result.out)["perplexity"]
    default = json.loads(command("evaluate", trained, *files(korean), "--json").out)["perplexity"]
    assert scores["float32"] == default
    assert 0 < abs(scores["bfloat16"] / default - 1) < 0.05
    wrong = command("evaluate", trained, *files(korean), "--precision", "int3")
    assert wrong.status == 2 and "int3" in wrong.err


def test_threads(command, trained, korean, monkeypatch):
    used = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    few = "--split", "test", "--sentences", 1, "--greedy"
    assert command("evaluate", trained, *few, "--threads", 1).status == 0 and used == [1]
    assert command("evaluate", trained, *few).status == 0 and used == [1]


def test_letter_case_of_the_scores_is_that_of_the_run(command, trained, tmp_path):
    """Without --lowercase and --cased, evaluation.lowercase of the run holds."""
    lowercased, training = tmp_path / "run", {**SETTINGS["training"], "steps": 1, "warmup_steps": 0}
    settings = {**SETTINGS, "training": training, "evaluation": {**SETTINGS["evaluation"], "lowercase": True}}
    train_translation(settings, lowercased, console=Console(quiet=True))
    for run, options, case in (
        (trained, (), "mixed"),
        (trained, ("--lowercase",), "lc"),
        (lowercased, (), "lc"),
        (lowercased, ("--cased",), "mixed"),
    ):
        result = command("evaluate", run, "--split", "test", "--sentences", 1, "--greedy", "--json", *options)
        assert result.status == 0, result.err
        scores = {each["name"]: each["signature"].split("|") for each in json.loads(result.out)["scores"]}
        assert f"case:{case}" in scores["BLEU"] and f"case:{case}" in scores["chrF2"]


def test_pairs_in_one_file_give_the_same_scores(command, trained, korean):
    """TSV by number and by name, and JSON lines, with gold alignments, old option names, and no run."""
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    pairs = list(zip(*sides, strict=True))
    (korean / "test.tsv").write_text("".join(f"{en}\t{ko}\n" for ko, en in pairs), encoding="utf-8")
    (korean / "named.tsv").write_text("en\tko\n" + (korean / "test.tsv").read_text(encoding="utf-8"))
    (korean / "test.jsonl").write_text("".join(json.dumps({"t": {"a": a, "b": b}}) + "\n" for a, b in pairs))
    options = "--gold-alignments", korean / "test.links", "--json", "--beam-size", 2
    expected = json.loads(command("evaluate", trained, *files(korean), *options).out)
    for way in (
        ("--tsv", korean / "test.tsv", "--columns", "2,1"),
        ("--tsv", korean / "named.tsv", "--columns", "ko,en"),
        ("--jsonl", korean / "test.jsonl", "--fields", "t.a,t.b"),
    ):
        for place in (way, way[1:]):  # with the option for the file, and without
            report = json.loads(command("evaluate", trained, *place, *options).out)
            assert report["data"] == str(way[1])
            for name in ("sentences", "scores", "perplexity", "alignment"):
                assert report[name] == expected[name]
        result = command("evaluate", "--translations", korean / "test.en", *way, "--json")
        assert json.loads(result.out)["scores"][0]["value"] == pytest.approx(100)
    out = korean / "out"
    again = command("evaluate", trained, *files(korean), *options[:3], "--beam-size", 2, "--output", out)
    assert json.loads(again.out)["scores"] == expected["scores"] and out.exists()


def test_a_header_in_another_order_than_the_run_is_named_in_the_order_of_the_run(command, trained, korean):
    table = korean / "a.csv"
    table.write_text("English,Korean\nHi.,안녕.\n", encoding="utf-8")
    answer = command("evaluate", trained, table)
    assert answer.status == 2 and f"{table} --columns Korean,English" in answer.err
    assert "--columns English,Korean" not in answer.err
    table.write_text("source_text,translation\nHi.,안녕.\n", encoding="utf-8")
    answer = command("evaluate", trained, table)
    assert all(f"--columns {each}" in answer.err for each in ("source_text,t", "translation,s")), answer.err


def test_files_without_an_option(command, trained, korean):
    two = command("evaluate", trained, korean / "test.ko", korean / "test.en", "--json")
    assert two.status == 0 and json.loads(two.out)["sentences"] == 12
    rows = [line.split("\t") for line in ("ko\ten", *TABLE)]
    (korean / "a.csv").write_text("".join(f'"{ko}";"{en}"\n' for ko, en in rows), encoding="utf-8")
    (korean / "a.json").write_text(json.dumps([dict(zip(*(rows[0], row), strict=True)) for row in rows[1:]]))
    for name, option in (("a.csv", "--columns"), ("a.json", "--fields")):
        table = command("evaluate", trained, korean / name, option, "ko,en", "--json")
        assert table.status == 0 and json.loads(table.out)["sentences"] == 2, table.err
    given = {"test_file": None, "tsv": None, "jsonl": None, "columns": "label,text", "fields": None}
    for name in ("a.csv", "a.tsv.gz"):  # a classifier
        assert _with_files(find_task("classification"), [name], given) == given | {"tsv": [name]}
    assert _with_files(find_task("language"), ["a.csv"], {"test_file": None}) == {"test_file": ["a.csv"]}
    for words, facts in (
        ((korean / "test.ko",), (".tsv", "test.ko")),
        ((korean / "test.tsv", "--source", "a"), ("--source", "FILES")),
    ):
        refused = command("evaluate", trained, *words)
        assert refused.status == 2 and all(fact in refused.err for fact in facts)


def test_table_has_all_scores_and_fits_the_terminal(command, trained, korean):
    result = command(
        "evaluate", trained, *files(korean), "--greedy", "--moses", "en", "--lowercase", width=80
    )
    assert result.status == 0 and max(map(cell_len, result.lines)) <= 80
    for name in (
        "BLEU",
        "chrF2",
        "TER",
        "exact match",
        "Moses BLEU",
        "perplexity",
        "case:lc",
        "tok:moses-en",
    ):
        assert name in result.out
    assert "AER" not in result.out and sorted(path.name for path in korean.iterdir()) == [
        "test.en",
        "test.ko",
        "test.links",
    ]


def test_an_option_of_other_tasks_is_answered_with_the_right_command(command, trained):
    answer = command("evaluate", trained, "--test-file", "a.tsv")
    assert answer.status == 2 and "evaluate" in commands(answer.err)


def test_split_of_the_built_in_corpus_is_scored_with_its_alignments(command, trained, unseeing):
    for split in ("test", "long", "valid"):
        result = command("evaluate", trained, "--split", split, "--sentences", 4, "--greedy", "--json")
        report = json.loads(result.out)
        examples = list(korean_english(split, 4))
        translator = load_translator(trained, search=Greedy(), device="cpu")
        texts = [each.text for each in translator.translate([each.source for each in examples])]
        assert report["scores"][0]["value"] == bleu(texts, [each.target for each in examples]).value
        assert 0 < report["alignment"]["error_rate"] <= 1 and math.isfinite(report["perplexity"])
    result = command("evaluate", unseeing, "--split", "test", "--sentences", 4)
    assert result.status == 0 and "AER" not in result.out and "attention" in result.err


def test_translations_file_is_scored_without_a_run(command, korean):
    result = command("evaluate", "--translations", korean / "test.en", "--target", korean / "test.en")
    assert result.status == 0 and "100.00" in result.out and "perplexity" not in result.out
    (korean / "other.en").write_text("something else entirely .\n" * 12)
    two = "--target", korean / "other.en", "--target", korean / "test.en"
    result = command("evaluate", "--translations", korean / "test.en", *two, "--json")
    first = json.loads(result.out)["scores"][0]
    assert first["value"] == pytest.approx(100) and first["signature"].startswith("nrefs:2|")
    piped = command(
        "evaluate", "--translations", "-", *two, "--json", stdin=(korean / "test.en").read_bytes()
    )
    assert json.loads(piped.out)["scores"] == json.loads(result.out)["scores"]


def test_terminal_shows_that_translation_has_started(command, trained, korean, monkeypatch):
    assert "12 sentences" not in command("evaluate", trained, *files(korean), "--greedy").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "12 sentences" in command("evaluate", trained, *files(korean), "--greedy").err


def test_page_shows_each_reference(command, trained, korean):
    result = command("evaluate", trained, *files(korean), "--greedy", "--page", korean / "x.html")
    text = (korean / "x.html").read_text(encoding="utf-8")
    assert result.status == 0 and text.count("<dt>reference</dt>") == 12 and "<table" in text
    assert "greedy" in text


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "--source and --target"),
        (("RUN",), "--source and --target"),
        (("--source", "test.ko", "--target", "test.en"), "--translations"),
        (("RUN", "--source", "test.ko"), "--source and --target"),
        (("RUN", "--target", "test.en", "--translations", "test.en"), "--translations: "),
        (("RUN", "--source", "test.ko", "--target", "short"), "test.ko has 12 lines, short has 1 lines"),
        (("RUN", "--split", "test", "--target", "test.en"), "--split test"),
        (("RUN", "--split", "test", "--tsv", "test.tsv"), "--split test"),
        (("RUN", "--source", "test.ko", "--target", "test.en", "--tsv", "test.tsv"), "--tsv"),
        (("RUN", "--tsv", "test.tsv", "--jsonl", "test.tsv"), "--jsonl"),
        (("RUN", "--tsv", "odd.tsv"), "odd.tsv, line 2: "),
        (("RUN", "--tsv", "named.tsv"), "named.tsv, line 1: the line looks like a header"),
        (("RUN", "--jsonl", "odd.jsonl"), "odd.jsonl, line 1: "),
        (("RUN", "--tsv", "nowhere.tsv"), "nowhere.tsv: "),
        (("RUN", "--tsv", "odd.tsv", "--columns", "3"), "--columns: '3'"),
        (("RUN", "--source", "-", "--target", "-"), "-: "),
        (("RUN", "--source", "test.ko", "--target", "test.en", "--columns", "2,1"), "requires --tsv"),
        (("RUN", "--tsv", "odd.tsv", "--fields", "ko,en"), "--fields: requires --jsonl"),
        (("--translations", "short", "--target", "test.en", "--sentences", 5), "--sentences: "),
        (("RUN", "--source", "test.ko", "--target", "test.en", "--base", 1), "requires --gold-alignments"),
        (("RUN", "--split", "train"), "'train'"),
        (("RUN", "RUN"), "regard compare"),
        (("RUN", "--source", "test.ko", "--target", "test.en", "--tokenize", "13b"), "13b"),
        (("--translations", "short", "--target", "test.en"), "12"),
        (("--translations", "empty", "--target", "empty"), ""),
        (
            ("--translations", "test.en", "--target", "test.en", "--gold-alignments", "test.links"),
            "--gold-alignments",
        ),
        (("--translations", "test.en", "--target", "test.en", "--output", "x"), "--output"),
        (("--translations", "test.en", "--target", "test.en", "--precision", "float32"), "--precision: "),
        (("--translations", "test.en", "--target", "test.en", "--beam-size", "5"), "--beam-size: "),
        (("--translations", "test.en", "--target", "test.en", "--length-penalty", "1"), "--length-penalty: "),
        (("--translations", "test.en", "--target", "test.en", "--greedy"), "--greedy: "),
        (("--translations", "test.en", "--target", "test.en", "--max-source-length", "9"), "--max-source-"),
        (("--translations", "test.en", "--target", "test.en", "--batch-tokens", "9"), "--batch-tokens: "),
        (("--translations", "test.en", "--target", "test.en", "--checkpoint", "best"), "--checkpoint: "),
    ],
)
def test_invalid_options_and_files_exit_with_2(command, trained, korean, monkeypatch, arguments, fact):
    (korean / "short").write_text("one\n")
    (korean / "empty").write_text("")
    (korean / "odd.tsv").write_text("one\teins\ntwo\n")
    (korean / "named.tsv").write_text("ko\ten\n나는\tI\n")
    (korean / "odd.jsonl").write_text('{"source": "one"}\n')
    monkeypatch.chdir(korean)
    result = command("evaluate", *(trained if each == "RUN" else each for each in arguments))
    assert (result.status, result.out) == (2, "") and fact in result.err


def test_split_of_a_run_on_other_data_exits_with_2(command, trained, tmp_path):
    config = (trained / "config.toml").read_text()
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    replaced = config.replace('built_in = "korean"', 'source = ["a"]\ntarget = ["b"]')
    (other / "config.toml").write_text(replaced)
    (other / "manifest.json").unlink()
    result = command("evaluate", other, "--split", "test")
    assert result.status == 2 and mentions(result.err, "korean", "--split", "test")


def test_the_first_sentences_of_files_are_evaluated(command, trained, korean):
    options = ("--gold-alignments", korean / "test.links", "--sentences", 5, "--greedy", "--json")
    result = command("evaluate", trained, *files(korean), *options)
    assert result.status == 0 and json.loads(result.out)["sentences"] == 5
    result = command("evaluate", trained, *files(korean), "--sentences", 2, "--greedy", "--faithfulness")
    assert result.status == 0 and mentions(result.out, "2 references")


def test_swapped_languages_are_noted(command, trained, korean, tmp_path):
    note = "may be swapped"
    assert note not in command("evaluate", trained, *files(korean)).err
    swapped = "--source", korean / "test.en", "--target", korean / "test.ko"
    answer = command("evaluate", trained, *swapped)
    assert note in answer.err and "mostly wrong" not in answer.out
    more = "--init-from", trained, "--steps", 1, "--set", "data.held_out=4", "--set", "evaluation.sentences=2"
    result = command("train", *swapped, *more, "--output", tmp_path / "run")
    assert note in result.err + result.out


def test_messages_about_a_csv_file_name_the_lines_of_the_file(command, trained, tmp_path):
    (tmp_path / "a.csv").write_text(
        'source,target\n"나는\n학생이다 .",I am a student .\nzzqq,the cat sleeps .\n'
    )
    for name in ("evaluate", "score", "align"):
        options = ("--tsv", tmp_path / "a.csv", "--columns", "source,target")
        said = command(name, trained, *options)
        assert said.status == 0 and "'zzqq' (line 4)" in said.err, said.err


def test_a_workbook_is_named_with_what_to_do(command, trained, tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(100))
    for name in ("evaluate", "score"):
        said = command(name, trained, tmp_path / "a.xlsx")
        assert said.status == 2 and mentions(said.err, "a.xlsx", "Excel", "CSV")


@pytest.mark.parametrize("form", ["a.csv", "a.jsonl", "lines"])
def test_training_pairs_in_another_format_are_recognised(tmp_path, form):
    pairs = [(f"source {number}", f"target, {number}") for number in range(40)]
    trained = tmp_path / "train.tsv"
    trained.write_text("ko\ten\n" + "".join(f"{ko}\t{en}\n" for ko, en in pairs))
    data = {"tsv": [str(trained)], "columns": ["ko", "en"]}
    file, options = tmp_path / form, {"source": None, "target": None, "tsv": None, "jsonl": None}
    for known, chosen in ((True, pairs[5:30]), (False, [(ko, f"{en} x") for ko, en in pairs])):
        if form == "a.csv":
            file.write_text("id,en,ko\n" + "".join(f'1,"{en}",{ko}\n' for ko, en in chosen))
            options["tsv"] = [str(file)]
        elif form == "a.jsonl":
            file.write_text("".join(json.dumps({"source": ko, "target": en}) + "\n" for ko, en in chosen))
            options["jsonl"] = [str(file)]
        else:
            (tmp_path / "a.ko").write_text("".join(f"{ko}\n" for ko, _ in chosen))
            (tmp_path / "a.en").write_text("".join(f"{en}\n" for _, en in chosen))
            options |= {"source": str(tmp_path / "a.ko"), "target": [str(tmp_path / "a.en")]}
        assert _has_training_pairs(data, options) is known
    assert not _has_training_pairs({"built_in": "korean"}, options)
    trained.unlink()
    assert not _has_training_pairs(data, options)
