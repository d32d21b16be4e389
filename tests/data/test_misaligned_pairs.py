"""A line that is missing in one of two parallel files is located; so are two missing lines, one in each."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import korean_english, read_pairs
from regard.data.data_report import Features, Report, lines_without_counterpart, shifted_lines

COUNT = 2000


def built_in() -> tuple[list[str], list[str]]:
    examples = list(korean_english("train", COUNT))
    return [each.source for each in examples], [each.target for each in examples]


def sorted_pairs() -> tuple[list[str], list[str]]:
    """Sorted by length, like Tatoeba's files: neighbouring lines have the same length and a similar start."""
    draw = random.Random(3)
    stems = ["".join(draw.choices("bdfgklmnprst", k=2)) + vowel for vowel in "aeiou" for _ in range(60)]
    sides = []
    for _ in range(COUNT):
        words = draw.choices(stems, k=draw.randint(2, 7))
        mark = draw.choice("..?!")
        sides.append((f"Tom {' '.join(words)}{mark}", f"Tom {' '.join(w[::-1] + 'en' for w in words)}{mark}"))
    sides.sort(key=lambda pair: (len(pair[0]), pair))
    return [a for a, _ in sides], [b for _, b in sides]


def strings() -> tuple[list[str], list[str]]:
    """All targets are distinct, so their words carry no information."""
    draw = random.Random(4)
    numbers = draw.sample(range(100_000), COUNT)
    names = ("nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return [" ".join(names[int(digit)] for digit in str(n)) for n in numbers], [str(n) for n in numbers]


CORPORA = {"built-in": built_in(), "sorted": sorted_pairs(), "strings": strings()}


def inspected(folder: Path, *sides: list[str]) -> Report:
    for name, lines in zip("ab", sides, strict=True):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_pairs(folder / "a", folder / "b").inspect()


def named(report: Report) -> tuple[int, str]:
    """Return the line and the file that the error names."""
    match = re.search(r"line ([\d,]+) of (\S+) .*no counterpart", str(report.refused))
    assert match is not None, str(report.refused)
    return int(match[1].replace(",", "")), Path(match[2]).name


@pytest.mark.parametrize("data", CORPORA)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("place", [0, 1, 1000, 1990])
def test_missing_line_is_located(tmp_path, data, side, place):
    lines = [list(each) for each in CORPORA[data]]
    gone = lines[1 - side][place]
    del lines[side][place]
    report = inspected(tmp_path, *lines)
    line, name = named(report)
    assert (
        name == "ab"[1 - side]
        and abs(line - (place + 1)) <= {"built-in": 2, "sorted": 20, "strings": 5}[data]
    )
    assert line != place + 1 or gone[:60] in str(report.refused)


def test_several_missing_lines_are_located(tmp_path):
    source, target = map(list, CORPORA["built-in"])
    for place in (1500, 700, 30):
        del source[place]
    error = str(inspected(tmp_path, source, target).refused)
    lines = [int(each.replace(",", "")) for each in re.findall(r"line ([\d,]+) of", error)]
    assert len(lines) == 3
    assert all(abs(line - place) <= 2 for line, place in zip(lines, (31, 701, 1501), strict=True))


@pytest.mark.parametrize("data", ["built-in", "sorted"])
def test_missing_end_of_a_file_is_reported(tmp_path, data):
    source, target = CORPORA[data]
    error = str(inspected(tmp_path, source, target[:-40]).refused)
    assert "no counterpart" not in error and f"end of {tmp_path / 'b'}" in error


def test_line_counts_of_unrelated_files_are_reported(tmp_path):
    error = str(inspected(tmp_path, CORPORA["built-in"][0], CORPORA["strings"][1][:-40]).refused)
    assert f"{COUNT:,} and {COUNT - 40:,}" in error


def test_a_long_missing_block_is_listed_in_part(tmp_path):
    source, target = map(list, CORPORA["built-in"])
    del target[400:450]
    error = str(inspected(tmp_path, source, target).refused)
    assert abs(named(inspected(tmp_path, source, target))[0] - 401) <= 2 and "47 more" in error


@pytest.mark.parametrize(("one", "other"), [(200, 600), (1500, 300), (5, 1990)])
def test_one_missing_line_in_each_file_is_located(tmp_path, one, other):
    source, target = map(list, CORPORA["built-in"])
    del source[one], target[other]
    report = inspected(tmp_path, source, target)
    assert report.refused is None and report.kept == COUNT - 1
    finding = report["misaligned"]
    assert abs(finding.count - abs(one - other)) <= 6
    (unmatched_source, unmatched_target) = [example.number for example in finding.examples]
    last, first = max(one, other), min(one, other)
    expected = (last, first) if one < other else (first, last)
    assert abs(unmatched_source - 1 - expected[0]) <= 4 and abs(unmatched_target - 1 - expected[1]) <= 4
    assert str(tmp_path / "b") in finding.examples[1].place
    assert "no counterpart" in finding.says


@pytest.mark.parametrize("data", CORPORA)
def test_aligned_pairs_are_not_reported(tmp_path, data):
    assert inspected(tmp_path, *CORPORA[data])["misaligned"].count == 0
    assert inspected(tmp_path, ["a"], ["b"])["misaligned"].count == 0
    assert inspected(tmp_path, ["a"] * 500, ["b"] * 500)["misaligned"].count == 0


def test_aligned_labels_are_not_reported(tmp_path):
    labels = [("good", "bad", "neither")[number * number % 3] for number in range(COUNT)]
    assert inspected(tmp_path, CORPORA["built-in"][1], labels)["misaligned"].count == 0


def features(lengths: numpy.ndarray) -> Features:
    none = numpy.zeros(len(lengths), numpy.uint8)
    return Features(lengths.astype(numpy.int32), none, none)


@given(st.integers(0, 1000), st.integers(50, 350), st.integers(1, 4), st.booleans())
def test_missing_lines_are_located_by_lengths_alone(seed, place, extra, flip):
    numbers = numpy.random.default_rng(seed)
    source = numbers.integers(5, 150, 400)
    target = source * numbers.uniform(0.9, 1.3, 400)
    less = features(numpy.delete(target, range(place, place + extra)))
    both = (less, features(source)) if flip else (features(source), less)
    missing = lines_without_counterpart(*both)
    assert len(missing) == extra and all(abs(each - place) <= 8 for each in missing)


def test_empty_files_have_no_missing_lines():
    empty = features(numpy.zeros(0))
    assert shifted_lines(empty, empty) is None
    assert lines_without_counterpart(empty, features(numpy.ones(2))) == []
