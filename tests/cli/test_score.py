"""regard score: one log-probability per line, the perplexity of all lines, and invalid input."""

from __future__ import annotations

import json
import math

import pytest

from regard.tasks.translation import load_translator
from tests.facts import mentions


def sides(folder):
    return [(folder / f"test.{end}").read_text(encoding="utf-8").split("\n")[:-1] for end in ("ko", "en")]


def test_scores_equal_those_of_the_library(command, trained, korean):
    result = command("score", trained, "--source", korean / "test.ko", "--target", korean / "test.en")
    scored = load_translator(trained, device="cpu").score(*sides(korean))
    assert result.status == 0 and result.lines == [f"{each.score:.4f}" for each in scored]
    total, count = sum(each.score for each in scored), sum(len(each.token_scores) for each in scored)
    assert (
        result.err_but_unknown == f"perplexity {math.exp(-total / count):.2f}: {count:,} tokens in 12 lines\n"
    )


def test_tokens_option_prints_json_lines(command, trained, korean, tmp_path):
    arguments = "--source", korean / "test.ko", "--target", korean / "test.en", "--output", tmp_path / "out"
    result = command("score", trained, *arguments, "--tokens")
    assert (result.status, result.out) == (0, "")
    for line, target in zip((tmp_path / "out").read_text().splitlines(), sides(korean)[1], strict=True):
        record = json.loads(line)
        assert record["tokens"][-1] == "</s>" and len(record["tokens"]) == len(target.split()) + 1
        assert record["score"] == pytest.approx(sum(record["token_scores"]))


def test_json_option_prints_the_result_of_the_library(command, trained, korean):
    arguments = "--source", korean / "test.ko", "--target", korean / "test.en"
    result = command("score", trained, *arguments, "--json")
    scored = load_translator(trained, device="cpu").score(*sides(korean))
    assert result.status == 0
    for line, each, source in zip(result.lines, scored, sides(korean)[0], strict=True):
        record = json.loads(line)
        assert (record["source"], record["text"]) == (source, each.text) and record["pieces"] == list(
            each.pieces
        )
        assert record["score"] == pytest.approx(each.score, abs=1e-3)


def test_every_line_is_scored_whatever_it_contains(command, trained, hostile, tmp_path):
    lines = hostile.read_bytes().split(b"\n")
    (tmp_path / "reversed").write_bytes(b"\n".join(reversed(lines)) + b"\n")
    both = "--source", hostile, "--target", tmp_path / "reversed", "--max-source-length", 50
    result = command("score", trained, *both)
    assert result.status == 0 and len(result.lines) == len(lines)
    assert all(math.isfinite(float(line)) and float(line) < 0 for line in result.lines)
    assert "4 lines" in result.err and "UTF-8" in result.err
    assert mentions(result.err, "line 13", "49 of 10,000")
    assert len(command("score", trained, *both, "--tokens").lines) == len(lines)


def test_one_side_can_be_standard_input(command, trained, korean):
    text = (korean / "test.en").read_bytes()
    piped = command("score", trained, "--source", korean / "test.ko", "--target", "-", stdin=text)
    named = command("score", trained, "--source", korean / "test.ko", "--target", korean / "test.en")
    assert piped == named
    nothing = command("score", trained, "--source", "-", "--target", "/dev/null")
    assert nothing == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "--source and --target, or --tsv, or --jsonl"),
        (("--source", "test.ko"), "--target"),
        (("--source", "test.ko", "--target", "test.en", "--tsv", "odd.tsv"), "--tsv"),
        (("--source", "-", "--target", "-"), "-: "),
        (
            ("--source", "test.ko", "--source", "test.ko", "--target", "test.en"),
            "2 source files",
        ),
        (("--source", "test.ko", "--target", "nowhere"), "nowhere: "),
        (("--source", "test.ko", "--target", "short"), "short: there is no line 2, but test.ko "),
        (("--source", "short", "--target", "test.en"), "short: there is no line 2, but test.en "),
        (("--tsv", "odd.tsv"), "odd.tsv, line 2: 1 column"),
        (("--tsv", "odd.tsv"), "--columns"),
        (("--tsv", "odd.tsv", "--columns", "a,b"), "odd.tsv, line 1: "),
        (("--tsv", "odd.tsv", "--columns", "1"), "--columns: '1'"),
        (("--jsonl", "odd.jsonl"), "odd.jsonl, line 1: "),
        (("--tsv", "nowhere.tsv"), "nowhere.tsv: "),
    ],
)
def test_invalid_options_and_files_exit_with_2(command, trained, korean, monkeypatch, arguments, fact):
    (korean / "short").write_text("one\n")
    (korean / "odd.tsv").write_text("one\teins\ntwo\n")
    (korean / "odd.jsonl").write_text('{"source": "one"}\n')
    monkeypatch.chdir(korean)
    result = command("score", trained, *arguments)
    assert (result.status, result.out) == (2, "") and fact in result.err
    assert "--choose" not in result.err  # an option of regard data, not of this command


def test_pairs_in_one_file_are_scored_alike(command, trained, korean):
    options = "--source", korean / "test.ko", "--target", korean / "test.en"
    expected = command("score", trained, *options)
    pairs = list(zip(*sides(korean), strict=True))
    (korean / "test.tsv").write_text("".join(f"{en}\t{ko}\n" for ko, en in pairs), encoding="utf-8")
    (korean / "named.tsv").write_text("en\tko\n" + (korean / "test.tsv").read_text(encoding="utf-8"))
    (korean / "test.jsonl").write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs))
    for way in (
        ("--tsv", korean / "test.tsv", "--columns", "2,1"),
        ("--tsv", korean / "named.tsv", "--columns", "ko,en"),
        ("--jsonl", korean / "test.jsonl", "--fields", "a,b"),
    ):
        result = command("score", trained, *way)
        assert (result.status, result.out, result.err_but_unknown) == (
            0,
            expected.out,
            expected.err_but_unknown,
        )
    twice = command("score", trained, *options, *options)
    # Sums are rounded differently in larger batches, so the last digit can differ.
    scores = [float(line) for line in expected.lines]
    assert twice.status == 0 and list(map(float, twice.lines)) == pytest.approx(scores * 2, abs=1.5e-4)


def test_every_pair_of_one_file_is_scored_and_lines_are_counted(command, trained, tmp_path):
    """Empty and long sides and invalid UTF-8 are kept; a note names the line of the file."""
    (tmp_path / "odd.tsv").write_bytes(b"ko\ten\n\tHi.\nG\xff\tGo.\n" + b"a " * 99 + b"\tb\n\n")
    result = command(
        "score", trained, "--tsv", tmp_path / "odd.tsv", "--columns", "ko,en", "--max-source-length", 50
    )
    assert result.status == 0 and len(result.lines) == 4
    assert mentions(result.err, "1 line", "line 4", "49 of 99")


def test_pairs_before_a_malformed_line_are_kept_in_the_partial_output(command, trained, korean, tmp_path):
    line = "\t".join(side[0] for side in sides(korean))
    (tmp_path / "odd.tsv").write_text(f"{line}\n" * 4096 + "one column\n", encoding="utf-8")
    result = command("score", trained, "--tsv", tmp_path / "odd.tsv", "--output", tmp_path / "out")
    assert (
        result.status == 2
        and mentions(result.err, "odd.tsv", "line 4097")
        and not (tmp_path / "out").exists()
    )
    assert len((tmp_path / "out.part").read_text().splitlines()) == 4096


def test_files_of_pairs_are_recognised_without_an_option(command, trained, korean, tmp_path):
    source, target = sides(korean)
    (tmp_path / "s.tsv").write_text(
        "".join(f"{a}\t{b}\n" for a, b in zip(source, target, strict=True)), encoding="utf-8"
    )
    named = command("score", trained, "--tsv", tmp_path / "s.tsv")
    assert named.status == 0 and command("score", trained, tmp_path / "s.tsv").lines == named.lines
    assert command("score", trained, korean / "test.ko", korean / "test.en").lines == named.lines
    result = command("score", trained, korean / "test.ko")
    assert result.status == 2 and str(korean / "test.ko") in result.err and "--tsv" in result.err
