"""regard data split: every pair is in train, in test, or counted as dropped."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from regard.data import hold_out, read_pairs
from tests.cli.conftest import HOSTILE, CommandResult
from tests.facts import mentions


def pairs_in(folder: Path, part: str, names: tuple[str, str] = ("source", "target")) -> list[tuple[str, str]]:
    """Return the pairs in the files of one part, train or test."""
    pairs = read_pairs(folder / f"{part}.{names[0]}", folder / f"{part}.{names[1]}")
    return [(pair.source, pair.target) for pair in pairs]


def counts(result: CommandResult) -> list[int]:
    """Return the printed counts: training, held out, dropped by the check, duplicates, target held out."""
    (summary,) = (line for line in result.lines if "the split dropped " in line)
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", summary)]


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """A TSV file of 60 pairs of 40 sentences; some have two translations, some pairs are duplicates."""
    rows = [f"sentence {number % 40}\tSatz {number % 45}\tsomebody" for number in range(58)]
    path = tmp_path / "all.tsv"
    path.write_text("\n".join([*rows, rows[0], rows[1]]) + "\n", encoding="utf-8")
    return path


def test_parts_share_no_sentence_and_dropped_pairs_are_counted(command, repeated, tmp_path):
    result = command("data", "split", "--tsv", repeated, "--held-out", 12, "--output", tmp_path / "new")
    assert (result.status, result.err) == (0, "")
    train, test = (pairs_in(tmp_path / "new", part) for part in ("train", "test"))
    assert 0 < len(test) <= 12
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in test}
    assert counts(result)[:2] == [len(train), len(test)] and sum(counts(result)) == 60
    assert len(set(train)) == len(train) and len(set(test)) == len(test)


def test_split_equals_hold_out(command, repeated, tmp_path):
    command("data", "split", "--tsv", repeated, "--held-out", 5, "--seed", 3, "--output", tmp_path / "new")
    parts = hold_out(read_pairs(tsv=repeated), count=5, seed=3)
    for part, pairs in zip(("train", "test"), parts, strict=True):
        assert pairs_in(tmp_path / "new", part) == [(pair.source, pair.target) for pair in pairs]


def test_names_option_and_printed_options(command, repeated, tmp_path):
    out = tmp_path / "new"
    result = command(
        *("data", "split", "--tsv", repeated, "--columns", "2,1", "--names", "de,en", "--output", out),
        *("--held-out", 5),
    )
    assert sorted(path.name for path in out.iterdir()) == ["test.de", "test.en", "train.de", "train.en"]
    assert all(source.startswith("Satz") for source, _ in pairs_in(out, "train", ("de", "en")))
    options = next(line for line in result.lines if line.startswith("train: "))
    assert command("data", "check", *options.removeprefix("train: ").split()).status == 0


def test_errors_name_file_line_and_options(command, tmp_path):
    (tmp_path / "one.tsv").write_text("ein Satz\tone\nohne\n", encoding="utf-8")
    result = command("data", "split", "--tsv", tmp_path / "one.tsv", "--output", tmp_path / "new")
    assert result.status == 2 and f"{tmp_path / 'one.tsv'}, line 2: " in result.err
    assert "--columns" in result.err and "malformed=skip" in result.err
    assert not (tmp_path / "new").exists()


def test_every_format_gives_the_same_plain_text_files(command, repeated, tmp_path):
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


def test_every_sentence_is_written_on_one_line(command, tmp_path):
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
    result = command("data", "split", "--jsonl", path, "--held-out", 6, "--output", tmp_path / "new")
    assert result.status == 0
    train, test = (pairs_in(tmp_path / "new", part) for part in ("train", "test"))
    assert sum(counts(result)) == len(rows) and counts(result)[2] > 0
    expected = {tuple(" ".join(side.replace("\x00", " ").split()) for side in row) for row in rows}
    assert {tuple(" ".join(side.split()) for side in row) for row in train + test} <= expected


def test_overwrite_is_needed_and_input_files_are_never_overwritten(command, repeated, tmp_path):
    out = tmp_path / "new"
    out.mkdir()
    (out / "test.target").write_text("mine\n")
    way = "data", "split", "--tsv", repeated, "--held-out", 5, "--output", out
    result = command(*way)
    assert result.status == 2 and "test.target: " in result.err and "--overwrite" in result.err
    assert [path.name for path in out.iterdir()] == ["test.target"]
    assert command(*way, "--overwrite").status == 0 and (out / "test.target").read_text() != "mine\n"
    before = (out / "train.source").read_bytes()
    again = "--source", out / "train.source", "--target", out / "train.target", "--held-out", 2
    result = command("data", "split", *again, "--output", out, "--overwrite")
    assert result.status == 2 and f"{out / 'train.source'}: " in result.err
    assert (out / "train.source").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--tsv", "all.tsv", "--held-out", "1000"), "all.tsv: "),
        (("--tsv", "all.tsv", "--held-out", "0"), "--held-out"),
        (("--tsv", "all.tsv", "--names", "../en,de"), "--names: '../en,de'"),
        (("--tsv", "all.tsv", "--names", "en"), "--names: 'en'"),
        (("--tsv", "all.tsv", "--columns", "1,9"), "all.tsv, line 1: 3 columns"),
        (("--source", "all.tsv"), "--source and --target, or --tsv, or --jsonl"),
        (("--tsv", "nowhere.tsv"), "nowhere.tsv: "),
    ],
)
def test_invalid_options_and_files_exit_with_2(command, repeated, monkeypatch, tmp_path, arguments, fact):
    monkeypatch.chdir(tmp_path)
    result = command("data", "split", *arguments, "--output", "new")
    assert (result.status, result.out) == (2, "") and fact in result.err and "hold_out()" not in result.err
    assert not (tmp_path / "new").exists()


def test_labels_are_split_by_source_only(command, tmp_path):
    rows = "".join(f"sentence {number}\t{('good', 'bad')[number % 2]}\n" for number in range(300))
    (tmp_path / "labels.tsv").write_text(rows, encoding="utf-8")
    result = command(
        "data", "split", "--tsv", tmp_path / "labels.tsv", "--held-out", 30, "--output", tmp_path / "new"
    )
    assert (result.status, result.err) == (0, "") and mentions(result.out, "2 distinct")
    train, test = (pairs_in(tmp_path / "new", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (270, 30)
    assert {target for _, target in train} == {target for _, target in test} == {"good", "bad"}
