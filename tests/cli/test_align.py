"""regard align: links in Pharaoh format, their AER, sites and heads, and two directions."""

from __future__ import annotations

import json
import shutil

import pytest
from rich.console import Console

from regard.data import korean_english
from regard.decoding import Choice
from regard.evaluation import read_links, score_links, symmetrise
from regard.tasks.translation import load_translator, train_translation
from tests.facts import mentions


@pytest.fixture(scope="module")
def backward(tmp_path_factory):
    """A Transformer run from English to Korean; not modified by tests."""
    folder = tmp_path_factory.mktemp("backward")
    pairs = list(korean_english("train", 60))
    for name, lines in (("en", [each.target for each in pairs]), ("ko", [each.source for each in pairs])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settings = {
        "data": {"source": [str(folder / "en")], "target": [str(folder / "ko")], "tokenizer": "word"},
        "model": {"name": "transformer", "size": "tiny"},
        "training": {"steps": 2, "batch_tokens": 200, "evaluate_every": 2},
        "evaluation": {"sentences": 1, "samples": 0},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        train_translation(settings, folder / "run", console=Console(quiet=True))
    return folder / "run"


@pytest.fixture
def ours(trained, tmp_path):
    """A copy of the trained run, which a test may modify."""
    return shutil.copytree(trained, tmp_path / "ours")


@pytest.fixture
def theirs(backward, tmp_path):
    """A copy of the run of the opposite direction, which a test may modify."""
    return shutil.copytree(backward, tmp_path / "theirs")


def files(folder):
    return "--source", folder / "test.ko", "--target", folder / "test.en"


def test_links_equal_those_of_the_library(command, trained, korean):
    result = command("align", trained, *files(korean))
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    alignments = load_translator(trained, device="cpu").align(*sides)
    assert (result.status, result.err_but_unknown) == (0, "") and result.lines == [
        str(each) for each in alignments
    ]


def test_links_are_compared_with_gold_alignments(command, trained, korean):
    result = command(
        "align",
        trained,
        *files(korean),
        "--gold-alignments",
        korean / "test.links",
        "--output",
        korean / "out",
    )
    expected = score_links(read_links(korean / "out"), read_links(korean / "test.links"))
    assert (result.status, result.out, result.err_but_unknown) == (0, "", f"{expected}\n")
    itself = command("align", trained, *files(korean), "--gold-alignments", korean / "out")
    assert itself.err_but_unknown.startswith("AER 0.00 ")
    lines = [links.written(base=1) for links in read_links(korean / "out")]
    (korean / "from-1").write_text("".join(f"{line}\n" for line in lines))
    assert (
        command("align", trained, *files(korean), "--gold-alignments", korean / "from-1", "--base", 1).err
        == itself.err
    )
    wrong = command("align", trained, *files(korean), "--gold-alignments", korean / "from-1")
    assert wrong.status == 2 and "--base 1" in wrong.err


def test_gold_link_outside_its_sentence_is_reported_and_counted(command, trained, korean):
    many = korean / "many"
    many.mkdir()
    for name in ("test.ko", "test.en", "test.links"):
        lines = (korean / name).read_text(encoding="utf-8").split("\n")[:-1] * 2
        lines[23] += " 2-99" if name.endswith("links") else ""
        (many / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    result = command(
        "align", trained, *files(many), "--gold-alignments", many / "test.links", "--output", many / "out"
    )
    expected = score_links(read_links(many / "out"), read_links(many / "test.links"))
    assert result.status == 0 and result.err.endswith(f"\n{expected}\n")
    assert mentions(result.err, "line 24", "2-99") and expected.sure > 2 * 23


def test_every_pair_is_aligned_whatever_it_contains(command, trained, hostile, tmp_path):
    lines = hostile.read_bytes().split(b"\n")
    (tmp_path / "reversed").write_bytes(b"\n".join(reversed(lines)) + b"\n")
    page = tmp_path / "page.html"
    both = "--source", hostile, "--target", tmp_path / "reversed", "--max-source-length", 50, "--page", page
    result = command("align", trained, *both)
    assert result.status == 0 and len(result.lines) == len(lines)
    assert "4 lines" in result.err and "UTF-8" in result.err and "Wrote" in result.err
    assert page.read_text(encoding="utf-8").count("<article") == len(lines)


def test_site_and_head_are_selected(command, trained, korean):
    whole = command("align", trained, *files(korean))
    assert command("align", trained, *files(korean), "--site", "decoder.cross", "--head", 0).out == whole.out
    result = command("align", trained, *files(korean), "--site", "decoder.5.cross")
    assert result.status == 2 and "'decoder.5.cross'" in result.err and "decoder.cross" in result.err
    result = command("align", trained, *files(korean), "--head", 3)
    assert result.status == 2 and "head" in result.err and "3" in result.err


def test_runs_and_gold_alignments_that_do_not_fit_exit_with_2(command, trained, unseeing, korean):
    result = command("align", unseeing, *files(korean))
    assert (result.status, result.out) == (2, "") and "attention" in result.err
    (korean / "few").write_text("0-0\n")
    result = command(
        "align", trained, *files(korean), "--gold-alignments", korean / "few", "--output", korean / "out"
    )
    assert result.status == 2 and mentions(result.err, 1, 12)
    (korean / "strange").write_text("0=0\n" * 12)
    result = command("align", trained, *files(korean), "--gold-alignments", korean / "strange")
    assert (result.status, result.out) == (2, "") and "'0=0'" in result.err


@pytest.mark.parametrize("base", ["2", "-1"])
def test_base_must_be_0_or_1(command, trained, korean, base):
    result = command(
        "align", trained, *files(korean), "--gold-alignments", korean / "test.links", "--base", base
    )
    assert result.status == 2 and "--base" in result.err


def test_probabilities_and_threshold(command, trained, korean):
    plain = command("align", trained, *files(korean))
    result = command("align", trained, *files(korean), "--probabilities")
    assert (result.status, result.err_but_unknown) == (0, "")
    links = [[each.partition(":") for each in line.split()] for line in result.lines]
    assert [" ".join(link for link, _, _ in line) for line in links] == plain.lines
    assert all(0 < float(weight) <= 1 for line in links for _, _, weight in line)
    above = command("align", trained, *files(korean), "--probabilities", "--threshold", 0.1)
    weights = [float(each.partition(":")[2]) for line in above.lines for each in line.split()]
    assert weights and min(weights) >= 0.1
    refused = command("align", trained, *files(korean), "--threshold", 0)
    assert refused.status == 2 and "threshold" in refused.err


def test_translate_writes_alignments_with_probabilities(command, trained, korean):
    both = []
    for options in ((), ("--probabilities",)):
        links = korean / "links"
        result = command(
            "translate", trained, korean / "test.ko", "--greedy", "--alignments", links, *options
        )
        assert result.status == 0
        both.append(links.read_text().split())
    assert both[0] == [each.partition(":")[0] for each in both[1]]
    assert all(0 < float(each.partition(":")[2]) <= 1 for each in both[1])


def test_two_directions_are_symmetrised_as_in_the_library(command, trained, backward, korean):
    there = command("align", trained, *files(korean), "--output", korean / "there")
    back = command(
        "align",
        backward,
        *("--source", korean / "test.en", "--target", korean / "test.ko", "--output", korean / "back"),
    )
    assert there.status == back.status == 0
    both = list(zip(read_links(korean / "there"), read_links(korean / "back"), strict=True))
    for how in ("intersection", "grow-diag", None):
        options = () if how is None else ("--symmetrise", how)
        result = command("align", trained, *files(korean), "--backward", backward, *options)
        expected = [symmetrise(a, b.turned(), how or "grow-diag-final-and") for a, b in both]
        assert result.status == 0
        assert [set(line.split()) for line in result.lines] == [set(str(each).split()) for each in expected]
    judged = command(
        "align", trained, *files(korean), "--backward", backward, "--gold-alignments", korean / "test.links"
    )
    assert judged.err_but_unknown == f"{score_links(expected, read_links(korean / 'test.links'))}\n"


def test_shifted_aligns_by_the_next_step(command, trained, korean):
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    later = load_translator(trained, device="cpu", alignment=Choice(shifted=True)).align(*sides)
    result = command("align", trained, *files(korean), "--shifted")
    assert result.lines == [str(each) for each in later]
    assert result.out != command("align", trained, *files(korean), "--not-shifted").out


def test_choice_by_gold_alignments_is_saved_in_the_run(command, ours, korean):
    """The gold alignments are those of the next step, so the search must find that choice."""
    later = command("align", ours, *files(korean), "--shifted", "--output", korean / "later")
    assert later.status == 0
    result = command("align", ours, *files(korean), "--choose", korean / "later")
    assert result.status == 0 and mentions(result.lines[0], "AER", "0.00", "later")
    assert "decoder.cross" in result.err and str(ours) in result.err
    saved = json.loads((ours / "alignment.json").read_text(encoding="utf-8"))
    assert (saved["site"], saved["head"], saved["shifted"]) == ("decoder.cross", None, True)
    assert "later, 12 pairs" in saved["why"]
    expected = (korean / "later").read_text()
    assert command("align", ours, *files(korean)).out == expected
    assert load_translator(ours, device="cpu").alignment == Choice("decoder.cross", shifted=True)
    judged = command(
        "evaluate",
        ours,
        *(*files(korean), "--gold-alignments", korean / "later", "--greedy", "--json"),
    )
    assert json.loads(judged.out)["alignment"]["error_rate"] == 0
    assert command("align", ours, *files(korean), "--site", "*cross").out != expected
    (ours / "alignment.json").write_text('{"site": 3}')
    result = command("align", ours, *files(korean))
    assert result.status == 2 and "alignment.json: " in result.err


def test_choice_by_agreement_is_saved_in_both_runs(command, ours, theirs, korean):
    result = command("align", ours, *files(korean), "--backward", theirs, "--choose", "agreement")
    assert result.status == 0 and len(result.lines) == 8
    agreed = [float(line.split()[1]) for line in result.lines]
    assert agreed == sorted(agreed, reverse=True)
    first = [load_translator(each, device="cpu").alignment for each in (ours, theirs)]
    assert result.lines[0].endswith(f"  {first[0]}  |  {first[1]}")
    joined = command("align", ours, *files(korean), "--backward", theirs, "--symmetrise", "intersection")
    counts = [sum(len(line.split()) for line in joined.lines)]
    for run, order in ((ours, ("ko", "en")), (theirs, ("en", "ko"))):
        sides = "--source", korean / f"test.{order[0]}", "--target", korean / f"test.{order[1]}"
        counts.append(sum(len(line.split()) for line in command("align", run, *sides).lines))
    assert agreed[0] == pytest.approx(100 * 2 * counts[0] / (counts[1] + counts[2]), abs=0.006)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--symmetrise", "union"), "--symmetrise: "),
        (("--symmetrise", "unoin"), "'unoin'"),
        (("--choose", "agreement"), "--choose agreement: "),
        (("--choose", "test.links", "--head", 0), "--choose: "),
        (("--choose", "test.links", "--backward", "."), "--backward"),
        (("--choose", "nowhere.links"), "nowhere.links"),
    ],
)
def test_options_that_cannot_be_combined_exit_with_2(command, trained, korean, options, fact):
    result = command("align", trained, *files(korean), *options)
    assert (result.status, result.out) == (2, "") and fact in result.err


def test_choose_needs_one_line_of_links_per_pair(command, trained, unseeing, korean):
    (korean / "few").write_text("0-0\n")
    result = command("align", trained, *files(korean), "--choose", korean / "few")
    assert result.status == 2 and mentions(result.err, 1, 12)
    (korean / "empty").write_text("")
    nothing = "--source", korean / "empty", "--target", korean / "empty", "--choose", korean / "empty"
    result = command("align", trained, *nothing)
    assert result.status == 2 and f"{korean / 'empty'}: " in result.err
    result = command("align", unseeing, *files(korean), "--choose", korean / "test.links")
    assert result.status == 2 and "attention" in result.err
    assert not (trained / "alignment.json").exists() and not (unseeing / "alignment.json").exists()


def test_pairs_in_one_file_are_aligned_alike(command, trained, ours, korean, tmp_path):
    expected = command("align", trained, *files(korean)).out
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    pairs = list(zip(*sides, strict=True))
    (korean / "test.tsv").write_text("".join(f"{en}\t{ko}\n" for ko, en in pairs), encoding="utf-8")
    (korean / "test.jsonl").write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs))
    tsv = "--tsv", korean / "test.tsv", "--columns", "2,1"
    assert command("align", trained, *tsv).out == expected
    assert command("align", trained, "--jsonl", korean / "test.jsonl", "--fields", "a,b").out == expected
    (tmp_path / "links").write_text(expected)
    result = command("align", ours, *tsv, "--choose", tmp_path / "links")
    assert result.status == 0 and "AER 0.00" in result.lines[0]
    swapped = command(
        "align", trained, *tsv, "--output", tmp_path / "out", "--gold-alignments", tmp_path / "links"
    )
    assert "AER 0.00" in swapped.err and (tmp_path / "out").read_text() == expected


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ((), "--source and --target, or --tsv, or --jsonl"),
        (("--source", "test.ko"), "--target"),
        (("--source", "test.ko", "--target", "short"), "short: there is no line 2, but test.ko "),
        (("--tsv", "odd.tsv"), "odd.tsv, line 2: 1 column"),
        (("--jsonl", "odd.tsv"), "odd.tsv: "),
    ],
)
def test_invalid_pairs_exit_with_2(command, trained, korean, monkeypatch, options, fact):
    (korean / "short").write_text("one\n")
    (korean / "odd.tsv").write_text("one\teins\ntwo\n")
    monkeypatch.chdir(korean)
    result = command("align", trained, *options)
    assert (result.status, result.out) == (2, "") and fact in result.err
