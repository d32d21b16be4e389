"""regard evaluate: the scores are those of the library, of a run or of a file, in a table or in JSON."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from regard.data import korean_english
from regard.decoding import Greedy
from regard.evaluation import bleu, evaluate_corpus
from regard.tasks.translation import load_translator


def files(folder):
    return "--source", folder / "test.ko", "--target", folder / "test.en"


def test_a_run_is_judged_by_files(command, trained, korean):
    output = korean / "out"
    said = command(
        "evaluate", trained, *files(korean), "--alignment", korean / "test.links", "--json", "--out", output
    )
    assert said.status == 0
    found = json.loads(said.out)
    translations, references = (
        output.read_text().split("\n")[:-1],
        (korean / "test.en").read_text().split("\n")[:-1],
    )
    expected = evaluate_corpus(translations, references)
    assert [(each["name"], each["value"], each["signature"]) for each in found["scores"]] == [
        (each.name, each.value, each.signature) for each in expected
    ]
    assert translations == command("translate", trained, korean / "test.ko").lines
    scored = command("score", trained, *files(korean))
    assert scored.err_but_unknown.startswith(f"perplexity {found['perplexity']:.2f}:")
    aligned = command("align", trained, *files(korean), "--alignment", korean / "test.links")
    assert aligned.err_but_unknown.startswith(f"AER {100 * found['alignment']['error_rate']:.2f} ")
    assert found["sentences"] == 12 and found["run"]["step"] in (20, 40)


def test_the_table_says_the_same(command, trained, korean):
    said = command("evaluate", trained, *files(korean), "--greedy", "--moses", "en", "--lowercase", width=80)
    assert said.status == 0 and max(map(cell_len, said.lines)) <= 80
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
        assert name in said.out
    assert "AER" not in said.out and sorted(path.name for path in korean.iterdir()) == [
        "test.en",
        "test.ko",
        "test.links",
    ]


def test_the_built_in_corpus_has_its_links(command, trained, unseeing):
    for split in ("test", "long", "valid"):
        said = command("evaluate", trained, "--split", split, "--sentences", 4, "--greedy", "--json")
        found = json.loads(said.out)
        examples = list(korean_english(split, 4, version=1))
        translator = load_translator(trained, search=Greedy(), device="cpu")
        texts = [each.text for each in translator.translate([each.source for each in examples])]
        assert found["scores"][0]["value"] == bleu(texts, [each.target for each in examples]).value
        assert 0 < found["alignment"]["error_rate"] <= 1 and math.isfinite(found["perplexity"])
    said = command("evaluate", unseeing, "--split", "test", "--sentences", 4)
    assert said.status == 0 and "AER" not in said.out and "no alignment scores" in said.err


def test_a_run_is_evaluated_with_the_grammar_that_it_was_trained_with(command, trained, tmp_path):
    config = (trained / "config.toml").read_text()
    assert "grammar = 1\n" in config
    for name, version in (("", 1), ("grammar = 1\n", 1), ("grammar = 2\n", 2)):
        folder = Path(shutil.copytree(trained, tmp_path / f"run {name.strip()}"))
        (folder / "config.toml").write_text(config.replace("grammar = 1\n", name))
        (folder / "manifest.json").unlink()  # which knows that the run was trained with grammar 1
        said = command("evaluate", folder, "--split", "test", "--sentences", 4, "--greedy", "--json")
        examples = list(korean_english("test", 4, version=version))
        translator = load_translator(folder, search=Greedy(), device="cpu")
        texts = [each.text for each in translator.translate([each.source for each in examples])]
        score = bleu(texts, [each.target for each in examples]).value
        found = json.loads(said.out)
        assert found["scores"][0]["value"] == score and f"grammar {version}" in found["data"]


def test_translations_that_are_there_need_no_run(command, korean):
    said = command("evaluate", "--translations", korean / "test.en", "--target", korean / "test.en")
    assert said.status == 0 and "100.00" in said.out and "perplexity" not in said.out
    (korean / "other.en").write_text("something else entirely .\n" * 12)
    two = "--target", korean / "other.en", "--target", korean / "test.en"
    said = command("evaluate", "--translations", korean / "test.en", *two, "--json")
    first = json.loads(said.out)["scores"][0]
    assert first["value"] == pytest.approx(100) and first["signature"].startswith("nrefs:2|")
    named = command(
        "evaluate", "--translations", "-", *two, "--json", stdin=(korean / "test.en").read_bytes()
    )
    assert json.loads(named.out)["scores"] == json.loads(said.out)["scores"]


def test_whoever_waits_at_a_terminal_is_told_what_is_done(command, trained, korean, monkeypatch):
    assert "translating" not in command("evaluate", trained, *files(korean), "--greedy").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "translating 12 sentences" in command("evaluate", trained, *files(korean), "--greedy").err


def test_a_page_shows_what_people_wrote_beside_it(command, trained, korean):
    said = command("evaluate", trained, *files(korean), "--greedy", "--page", korean / "x.html")
    text = (korean / "x.html").read_text(encoding="utf-8")
    assert said.status == 0 and text.count("<dt>reference</dt>") == 12 and "<table" in text
    assert "greedy search" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--source and --target"),
        (("RUN",), "--source and --target"),
        (("--source", "test.ko", "--target", "test.en"), "--translations"),
        (("RUN", "--source", "test.ko"), "--source and --target"),
        (("RUN", "--target", "test.en", "--translations", "test.en"), "--translations: a run"),
        (("RUN", "--source", "test.ko", "--target", "short"), "test.ko has 12 lines|--source has 12 lines"),
        (("RUN", "--split", "test", "--target", "test.en"), "--split test"),
        (("RUN", "--split", "train"), "unknown split 'train'"),
        (("RUN", "--source", "test.ko", "--target", "test.en", "--tokenize", "13b"), "unknown tokenizer"),
        (("--translations", "short", "--target", "test.en"), "1 translations but 12 references"),
        (("--translations", "empty", "--target", "empty"), "nothing to score"),
        (("--translations", "test.en", "--target", "test.en", "--alignment", "test.links"), "--alignment"),
        (("--translations", "test.en", "--target", "test.en", "--out", "x"), "--faithfulness need a run"),
    ],
)
def test_what_cannot_be_judged_is_refused(command, trained, korean, monkeypatch, arguments, told):
    (korean / "short").write_text("one\n")
    (korean / "empty").write_text("")
    monkeypatch.chdir(korean)
    said = command("evaluate", *(trained if each == "RUN" else each for each in arguments))
    assert (said.status, said.out) == (2, "") and any(each in said.err for each in told.split("|"))


def test_a_run_on_other_data_has_no_built_in_split(command, trained, tmp_path):
    config = (trained / "config.toml").read_text()
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    replaced = config.replace('built_in = "korean"', 'source = ["a"]\ntarget = ["b"]')
    (other / "config.toml").write_text(replaced)
    (other / "manifest.json").unlink()
    said = command("evaluate", other, "--split", "test")
    assert said.status == 2 and "regard data korean --split test" in said.err
