"""regard align: links a line, what they are worth against those that people drew, and places of attention."""

from __future__ import annotations

import json
import shutil

import pytest
from rich.console import Console

from regard.data import korean_english
from regard.decoding import Choice
from regard.evaluation import read_links, score_links, symmetrise
from regard.tasks.translation import load_translator, train_translation


@pytest.fixture(scope="module")
def backward(tmp_path_factory):
    """A run of the other direction, with heads: a Transformer that says Korean. Nobody changes it."""
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
    """A copy of the trained run that may be changed."""
    return shutil.copytree(trained, tmp_path / "ours")


@pytest.fixture
def theirs(backward, tmp_path):
    """A copy of the run of the other direction that may be changed."""
    return shutil.copytree(backward, tmp_path / "theirs")


def given(folder):
    return "--source", folder / "test.ko", "--target", folder / "test.en"


def test_links_are_those_of_the_library(command, trained, korean):
    said = command("align", trained, *given(korean))
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    found = load_translator(trained, device="cpu").align(*sides)
    assert (said.status, said.err_but_unknown) == (0, "") and said.lines == [str(each) for each in found]


def test_links_are_judged_by_those_that_people_drew(command, trained, korean):
    said = command(
        "align", trained, *given(korean), "--alignment", korean / "test.links", "--out", korean / "out"
    )
    expected = score_links(read_links(korean / "out"), read_links(korean / "test.links"))
    assert (said.status, said.out, said.err_but_unknown) == (0, "", f"{expected}\n")
    itself = command("align", trained, *given(korean), "--alignment", korean / "out")
    assert itself.err_but_unknown.startswith("AER 0.00  precision 100.00  recall 100.00")
    lines = [links.written(base=1) for links in read_links(korean / "out")]
    (korean / "from-1").write_text("".join(f"{line}\n" for line in lines))
    assert (
        command("align", trained, *given(korean), "--alignment", korean / "from-1", "--base", 1).err
        == itself.err
    )
    wrong = command("align", trained, *given(korean), "--alignment", korean / "from-1")
    assert wrong.status == 2 and "--base 1" in wrong.err


def test_a_slip_of_whoever_drew_the_links_is_said_and_counted(command, trained, korean):
    many = korean / "many"
    many.mkdir()
    for name in ("test.ko", "test.en", "test.links"):
        lines = (korean / name).read_text(encoding="utf-8").split("\n")[:-1] * 2
        lines[23] += " 2-99" if name.endswith("links") else ""
        (many / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    said = command("align", trained, *given(many), "--alignment", many / "test.links", "--out", many / "out")
    expected = score_links(read_links(many / "out"), read_links(many / "test.links"))
    assert said.status == 0 and "counts as not found" in said.err and said.err.endswith(f"\n{expected}\n")
    assert "line 24: link 2-99 " in said.err and expected.sure > 2 * 23


def test_as_many_out_as_in_whatever_they_hold(command, trained, hostile, tmp_path):
    lines = hostile.read_bytes().split(b"\n")
    (tmp_path / "turned").write_bytes(b"\n".join(reversed(lines)) + b"\n")
    page = tmp_path / "page.html"
    both = "--source", hostile, "--target", tmp_path / "turned", "--longest", 50, "--page", page
    said = command("align", trained, *both)
    assert said.status == 0 and len(said.lines) == len(lines)
    assert "4 lines" in said.err and "UTF-8" in said.err and "Wrote" in said.err
    assert page.read_text(encoding="utf-8").count("<article") == len(lines)


def test_places_and_heads_are_chosen_by_name(command, trained, korean):
    whole = command("align", trained, *given(korean))
    assert command("align", trained, *given(korean), "--site", "decoder.cross", "--head", 0).out == whole.out
    said = command("align", trained, *given(korean), "--site", "decoder.5.cross")
    assert said.status == 2 and "unknown site 'decoder.5.cross'" in said.err and "decoder.cross" in said.err
    said = command("align", trained, *given(korean), "--head", 3)
    assert said.status == 2 and "unknown head" in said.err


def test_what_cannot_be_aligned_is_refused(command, trained, unseeing, korean):
    said = command("align", unseeing, *given(korean))
    assert (said.status, said.out) == (2, "") and "no attention to its source" in said.err
    (korean / "few").write_text("0-0\n")
    said = command("align", trained, *given(korean), "--alignment", korean / "few", "--out", korean / "out")
    assert said.status == 2 and "1 lines" in said.err and "12 pairs" in said.err
    (korean / "strange").write_text("0=0\n" * 12)
    said = command("align", trained, *given(korean), "--alignment", korean / "strange")
    assert (said.status, said.out) == (2, "") and "'0=0'" in said.err


@pytest.mark.parametrize("base", ["2", "-1"])
def test_words_are_counted_from_0_or_1(command, trained, korean, base):
    said = command("align", trained, *given(korean), "--alignment", korean / "test.links", "--base", base)
    assert said.status == 2 and "--base" in said.err


def test_weights_and_a_threshold(command, trained, korean):
    plain = command("align", trained, *given(korean))
    said = command("align", trained, *given(korean), "--probabilities")
    assert (said.status, said.err_but_unknown) == (0, "")
    links = [[each.partition(":") for each in line.split()] for line in said.lines]
    assert [" ".join(link for link, _, _ in line) for line in links] == plain.lines
    assert all(0 < float(weight) <= 1 for line in links for _, _, weight in line)
    above = command("align", trained, *given(korean), "--probabilities", "--threshold", 0.1)
    weights = [float(each.partition(":")[2]) for line in above.lines for each in line.split()]
    assert weights and min(weights) >= 0.1
    refused = command("align", trained, *given(korean), "--threshold", 0)
    assert refused.status == 2 and "threshold is 0" in refused.err


def test_translations_are_written_with_weights_too(command, trained, korean):
    both = []
    for asked in ((), ("--probabilities",)):
        links = korean / "links"
        said = command("translate", trained, korean / "test.ko", "--greedy", "--alignments", links, *asked)
        assert said.status == 0
        both.append(links.read_text().split())
    assert both[0] == [each.partition(":")[0] for each in both[1]]
    assert all(0 < float(each.partition(":")[2]) <= 1 for each in both[1])


def test_two_directions_are_joined_as_the_library_does(command, trained, backward, korean):
    there = command("align", trained, *given(korean), "--out", korean / "there")
    back = command(
        "align",
        backward,
        *("--source", korean / "test.en", "--target", korean / "test.ko", "--out", korean / "back"),
    )
    assert there.status == back.status == 0
    both = list(zip(read_links(korean / "there"), read_links(korean / "back"), strict=True))
    for how in ("intersection", "grow-diag", None):
        asked = () if how is None else ("--symmetrise", how)
        said = command("align", trained, *given(korean), "--backward", backward, *asked)
        expected = [symmetrise(a, b.turned(), how or "grow-diag-final-and") for a, b in both]
        assert said.status == 0
        assert [set(line.split()) for line in said.lines] == [set(str(each).split()) for each in expected]
    judged = command(
        "align", trained, *given(korean), "--backward", backward, "--alignment", korean / "test.links"
    )
    assert judged.err_but_unknown == f"{score_links(expected, read_links(korean / 'test.links'))}\n"


def test_one_step_later_is_read_where_that_is_asked(command, trained, korean):
    sides = [(korean / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]
    later = load_translator(trained, device="cpu", alignment=Choice(shifted=True)).align(*sides)
    said = command("align", trained, *given(korean), "--shifted")
    assert said.lines == [str(each) for each in later]
    assert said.out != command("align", trained, *given(korean), "--not-shifted").out


def test_what_is_chosen_by_links_is_kept_in_the_run(command, ours, korean):
    """The links to choose by are those of the later step, so that is what must be found."""
    later = command("align", ours, *given(korean), "--shifted", "--out", korean / "later")
    assert later.status == 0
    said = command("align", ours, *given(korean), "--choose", korean / "later")
    assert said.status == 0 and "AER 0.00" in said.lines[0] and "one step later" in said.lines[0]
    assert "decoder.cross, all heads, one step later" in said.err
    kept = json.loads((ours / "alignment.json").read_text(encoding="utf-8"))
    assert (kept["site"], kept["head"], kept["shifted"]) == ("decoder.cross", None, True)
    assert "later, 12 pairs" in kept["why"]
    wanted = (korean / "later").read_text()
    assert command("align", ours, *given(korean)).out == wanted
    assert load_translator(ours, device="cpu").alignment == Choice("decoder.cross", shifted=True)
    judged = command(
        "evaluate",
        ours,
        *(*given(korean), "--alignment", korean / "later", "--greedy", "--json"),
    )
    assert json.loads(judged.out)["alignment"]["error_rate"] == 0
    assert command("align", ours, *given(korean), "--site", "*cross").out != wanted
    (ours / "alignment.json").write_text('{"site": 3}')
    said = command("align", ours, *given(korean))
    assert said.status == 2 and "alignment.json" in said.err and "damaged" in said.err


def test_what_both_directions_agree_on_is_kept_in_both(command, ours, theirs, korean):
    said = command("align", ours, *given(korean), "--backward", theirs, "--choose", "agreement")
    assert said.status == 0 and len(said.lines) == 8
    agreed = [float(line.split()[1]) for line in said.lines]
    assert agreed == sorted(agreed, reverse=True)
    first = [load_translator(each, device="cpu").alignment for each in (ours, theirs)]
    assert said.lines[0].endswith(f"  {first[0]}  |  {first[1]}")
    joined = command("align", ours, *given(korean), "--backward", theirs, "--symmetrise", "intersection")
    counts = [sum(len(line.split()) for line in joined.lines)]
    for run, order in ((ours, ("ko", "en")), (theirs, ("en", "ko"))):
        sides = "--source", korean / f"test.{order[0]}", "--target", korean / f"test.{order[1]}"
        counts.append(sum(len(line.split()) for line in command("align", run, *sides).lines))
    assert agreed[0] == pytest.approx(100 * 2 * counts[0] / (counts[1] + counts[2]), abs=0.006)


@pytest.mark.parametrize(
    "asked, said",
    [
        (("--symmetrise", "union"), "--symmetrise: "),
        (("--symmetrise", "unoin"), "unknown symmetrisation 'unoin'"),
        (("--choose", "agreement"), "two directions"),
        (("--choose", "test.links", "--head", 0), "--choose: "),
        (("--choose", "test.links", "--backward", "."), "one run"),
        (("--choose", "nowhere.links"), "nowhere.links"),
    ],
)
def test_what_does_not_go_together_is_refused(command, trained, korean, asked, said):
    found = command("align", trained, *given(korean), *asked)
    assert (found.status, found.out) == (2, "") and said in found.err


def test_choosing_needs_as_many_links_as_pairs(command, trained, unseeing, korean):
    (korean / "few").write_text("0-0\n")
    said = command("align", trained, *given(korean), "--choose", korean / "few")
    assert said.status == 2 and "1 lines" in said.err and "12 pairs" in said.err
    (korean / "empty").write_text("")
    nothing = "--source", korean / "empty", "--target", korean / "empty", "--choose", korean / "empty"
    assert "no pairs" in command("align", trained, *nothing).err
    said = command("align", unseeing, *given(korean), "--choose", korean / "test.links")
    assert said.status == 2 and "nothing to choose" in said.err
    assert not (trained / "alignment.json").exists() and not (unseeing / "alignment.json").exists()
