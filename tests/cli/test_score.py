"""regard score: one number a line, the perplexity of them all, and lines that nobody would write."""

from __future__ import annotations

import json
import math
import re

import pytest

from regard.tasks.translation import load_translator


def sides(folder):
    return [(folder / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]


def test_scores_are_those_of_the_library(command, trained, korean):
    said = command("score", trained, "--source", korean / "test.ko", "--target", korean / "test.en")
    found = load_translator(trained, device="cpu").score(*sides(korean))
    assert said.status == 0 and said.lines == [f"{each.score:.4f}" for each in found]
    total, count = sum(each.score for each in found), sum(len(each.token_scores) for each in found)
    assert (
        said.err_but_unknown == f"perplexity {math.exp(-total / count):.2f}: {count:,} tokens in 12 lines\n"
    )


def test_tokens_are_lines_of_json(command, trained, korean, tmp_path):
    arguments = "--source", korean / "test.ko", "--target", korean / "test.en", "--out", tmp_path / "out"
    said = command("score", trained, *arguments, "--tokens")
    assert (said.status, said.out) == (0, "")
    for line, target in zip((tmp_path / "out").read_text().splitlines(), sides(korean)[1], strict=True):
        found = json.loads(line)
        assert found["tokens"][-1] == "</s>" and len(found["tokens"]) == len(target.split()) + 1
        assert found["score"] == pytest.approx(sum(found["token_scores"]))


def test_as_many_out_as_in_whatever_they_hold(command, trained, hostile, tmp_path):
    lines = hostile.read_bytes().split(b"\n")
    (tmp_path / "turned").write_bytes(b"\n".join(reversed(lines)) + b"\n")
    both = "--source", hostile, "--target", tmp_path / "turned", "--longest", 50
    said = command("score", trained, *both)
    assert said.status == 0 and len(said.lines) == len(lines)
    assert all(math.isfinite(float(line)) and float(line) < 0 for line in said.lines)
    assert "4 lines" in said.err and "UTF-8" in said.err
    assert re.search("line 13: source truncated to 49 of 10000 tokens", said.err)
    assert len(command("score", trained, *both, "--tokens").lines) == len(lines)


def test_one_side_may_be_standard_input(command, trained, korean):
    text = (korean / "test.en").read_bytes()
    given = command("score", trained, "--source", korean / "test.ko", "--target", "-", stdin=text)
    named = command("score", trained, "--source", korean / "test.ko", "--target", korean / "test.en")
    assert given == named
    nothing = command("score", trained, "--source", "-", "--target", "/dev/null")
    assert nothing == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--source", "-", "--target", "-"), "--source - --target -"),
        (("--source", "test.ko", "--target", "nowhere"), "there is no such file"),
        (
            ("--source", "test.ko", "--target", "short"),
            "the target ends after 1 lines",
        ),
        (
            ("--source", "short", "--target", "test.en"),
            "the source ends after 1 lines",
        ),
        (("--source", "test.ko"), "--target"),
    ],
)
def test_what_cannot_be_done_is_refused(command, trained, korean, monkeypatch, arguments, told):
    (korean / "short").write_text("one\n")
    monkeypatch.chdir(korean)
    said = command("score", trained, *arguments)
    assert (said.status, said.out) == (2, "") and told in said.err
