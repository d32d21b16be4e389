"""regard data split: what goes in comes out once, on one side, or is counted as left out."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.data import hold_out, read_pairs
from tests.cli.conftest import HOSTILE

COUNTS = re.compile(r"dropped: ([\d,]+) duplicates?, ([\d,]+) whose target is held out, ([\d,]+) by")


def pairs_in(folder: Path, part: str, names: tuple[str, str] = ("source", "target")) -> list[tuple[str, str]]:
    found = read_pairs(folder / f"{part}.{names[0]}", folder / f"{part}.{names[1]}")
    return [(pair.source, pair.target) for pair in found]


def left_out(said: str) -> Iterator[int]:
    counts = COUNTS.search(" ".join(said.split()))
    assert counts is not None
    return (int(count.replace(",", "")) for count in counts.groups())


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """60 pairs between tabs: 40 sentences, some twice with another translation, some pairs the same."""
    rows = [f"sentence {number % 40}\tSatz {number % 45}\tsomebody" for number in range(58)]
    path = tmp_path / "all.tsv"
    path.write_text("\n".join([*rows, rows[0], rows[1]]) + "\n", encoding="utf-8")
    return path


def test_no_sentence_is_on_both_sides_and_none_is_lost(command, repeated, tmp_path):
    said = command("data", "split", "--tsv", repeated, "--held-out", 12, "--output", tmp_path / "new")
    assert (said.status, said.err) == (0, "")
    train, test = (pairs_in(tmp_path / "new", part) for part in ("train", "test"))
    assert 0 < len(test) <= 12
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in test}
    assert len(train) + len(test) + sum(left_out(said.out)) == 60
    assert len(set(train)) == len(train) and len(set(test)) == len(test)
    assert f"{len(train)} training pairs, {len(test)} held out" in said.out


def test_it_is_the_split_that_python_makes(command, repeated, tmp_path):
    command("data", "split", "--tsv", repeated, "--held-out", 5, "--seed", 3, "--output", tmp_path / "new")
    made = hold_out(read_pairs(tsv=repeated), count=5, seed=3)
    for part, pairs in zip(("train", "test"), made, strict=True):
        assert pairs_in(tmp_path / "new", part) == [(pair.source, pair.target) for pair in pairs]


def test_files_are_named_as_wanted_and_told_as_options(command, repeated, tmp_path):
    out = tmp_path / "new"
    said = command(
        *("data", "split", "--tsv", repeated, "--columns", "2,1", "--names", "de,en", "--output", out),
        *("--held-out", 5),
    )
    assert sorted(path.name for path in out.iterdir()) == ["test.de", "test.en", "train.de", "train.en"]
    assert all(source.startswith("Satz") for source, _ in pairs_in(out, "train", ("de", "en")))
    told = next(line for line in said.lines if line.startswith("train: "))
    assert command("data", "check", *told.removeprefix("train: ").split()).status == 0


def test_what_is_wrong_is_told_as_an_option(command, tmp_path):
    (tmp_path / "one.tsv").write_text("ein Satz\tone\nohne\n", encoding="utf-8")
    said = command("data", "split", "--tsv", tmp_path / "one.tsv", "--output", tmp_path / "new")
    assert said.status == 2 and "--columns" in said.err and "--choose malformed=skip" in said.err
    assert not (tmp_path / "new").exists()


def test_every_form_gives_the_same_files_and_gzip_gives_plain_text(command, repeated, tmp_path):
    rows = [line.split("\t")[:2] for line in repeated.read_text().splitlines()]
    source, target, packed = tmp_path / "a", tmp_path / "b", tmp_path / "c.gz"
    source.write_text("".join(f"{row[0]}\n" for row in rows))
    target.write_text("".join(f"{row[1]}\n" for row in rows))
    packed.write_bytes(gzip.compress(repeated.read_bytes()))
    lines = tmp_path / "d.jsonl"
    lines.write_text("".join(json.dumps({"t": {"en": row[0], "de": row[1]}}) + "\n" for row in rows))
    ways = (
        ("--source", source, "--target", target),
        ("--tsv", packed),
        ("--jsonl", lines, "--fields", "t.en,t.de"),
        ("--tsv", repeated),
    )
    for number, way in enumerate(ways):
        assert command("data", "split", *way, "--held-out", 9, "--output", tmp_path / str(number)).status == 0
    for name in ("train.source", "train.target", "test.source", "test.target"):
        assert len({(tmp_path / str(number) / name).read_bytes() for number in range(len(ways))}) == 1


def test_hostile_sentences_stay_one_line_each(command, tmp_path):
    odd = [line.decode("utf-8", "replace") for line in HOSTILE if len(line) < 900]
    odd += [
        "tab\tinside",
        "a\nb",
        "a\r\nb",
        "ends in returns\r\r",
        "\x0b\x0c",
        "two\u2028three\u2029four\x85",
    ]
    rows = [(f"{number} {text}", f"{text} {number}") for number, text in enumerate(odd)]
    rows += [(text, f"only here {number}") for number, text in enumerate(odd)]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in rows))
    said = command("data", "split", "--jsonl", path, "--held-out", 6, "--output", tmp_path / "new")
    assert said.status == 0
    train, test = (pairs_in(tmp_path / "new", part) for part in ("train", "test"))
    assert len(train) + len(test) + sum(left_out(said.out)) == len(rows)
    assert "a side is empty" in said.out
    wanted = {tuple(" ".join(side.replace("\x00", " ").split()) for side in row) for row in rows}
    assert {tuple(" ".join(side.split()) for side in row) for row in train + test} <= wanted


def test_nothing_is_replaced_unless_told_and_never_what_is_read(command, repeated, tmp_path):
    out = tmp_path / "new"
    out.mkdir()
    (out / "test.target").write_text("mine\n")
    way = "data", "split", "--tsv", repeated, "--held-out", 5, "--output", out
    said = command(*way)
    assert said.status == 2 and "test.target: already exists" in said.err and "--overwrite" in said.err
    assert [path.name for path in out.iterdir()] == ["test.target"]
    assert command(*way, "--overwrite").status == 0 and (out / "test.target").read_text() != "mine\n"
    before = (out / "train.source").read_bytes()
    again = "--source", out / "train.source", "--target", out / "train.target", "--held-out", 2
    said = command("data", "split", *again, "--output", out, "--overwrite")
    assert said.status == 2 and "overwrite an input file" in said.err
    assert (out / "train.source").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tsv", "all.tsv", "--held-out", "1000"), "hold out fewer"),
        (("--tsv", "all.tsv", "--held-out", "0"), "--held-out"),
        (("--tsv", "all.tsv", "--names", "../en,de"), "--names: '../en,de'"),
        (("--tsv", "all.tsv", "--names", "en"), "--names: 'en'"),
        (("--tsv", "all.tsv", "--columns", "1,9"), "3 columns"),
        (("--source", "all.tsv"), "--source and --target, or --tsv, or --jsonl"),
        (("--tsv", "nowhere.tsv"), "there is no such file"),
    ],
)
def test_what_cannot_be_split_is_said(command, repeated, monkeypatch, tmp_path, arguments, told):
    monkeypatch.chdir(tmp_path)
    said = command("data", "split", *arguments, "--output", "new")
    assert (said.status, said.out) == (2, "") and told in said.err and "hold_out()" not in said.err
    assert not (tmp_path / "new").exists()


def test_labels_are_split_by_source_and_the_report_says_so(command, tmp_path):
    rows = "".join(f"sentence {number}\t{('good', 'bad')[number % 2]}\n" for number in range(300))
    (tmp_path / "labels.tsv").write_text(rows, encoding="utf-8")
    said = command(
        "data", "split", "--tsv", tmp_path / "labels.tsv", "--held-out", 30, "--output", tmp_path / "new"
    )
    assert (said.status, said.err) == (0, "") and "2 distinct targets" in said.out
    train, test = (pairs_in(tmp_path / "new", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (270, 30)
    assert {target for _, target in train} == {target for _, target in test} == {"good", "bad"}
