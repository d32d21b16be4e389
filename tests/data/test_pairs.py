"""Pairs are the same from every file format, lines end at "\\n" only, and iteration can be repeated."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import read_text
from regard.data.pair_blocks import INVISIBLE, Examiner, Origin
from regard.data.pairs import Pair, Pairs, pairs_from_dataset, pairs_from_lists, read_pairs
from regard.data.read_text import Choices
from regard.errors import ArgumentError, DataError, UnknownName
from tests.facts import facts, mentions

KOREAN = ["안녕.", "나는 학교에 갔다.", "비가 온다."]
ENGLISH = ["Hi.", "I went to school.", "It is raining."]
EXPECTED = [Pair(*two, number) for number, two in enumerate(zip(KOREAN, ENGLISH, strict=True), 1)]


def saved(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    return path


def parallel(folder: Path, source: bytes | str, target: bytes | str, choices: Choices | None = None) -> Pairs:
    return read_pairs(saved(folder, "a.ko", source), saved(folder, "a.en", target), choices=choices)


def lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def test_parallel_files_are_read_line_by_line(tmp_path):
    pairs = parallel(tmp_path, lines(KOREAN), lines(ENGLISH))
    assert list(pairs) == EXPECTED and len(pairs) == 3
    assert list(pairs) == EXPECTED, "second iteration"


def test_every_format_gives_the_same_pairs_and_fingerprint(tmp_path):
    both = list(zip(KOREAN, ENGLISH, strict=True))
    rows = [{"translation": {"ko": ko, "en": en}, "id": 1} for ko, en in both]
    jsonl = saved(tmp_path, "a.jsonl", lines([json.dumps(row) for row in rows]))
    tsv = saved(tmp_path, "a.tsv", lines([f"{en}\t{ko}\tCC BY" for ko, en in both]))
    named = saved(tmp_path, "b.tsv", lines(["en\tko", *(f"{en}\t{ko}" for ko, en in both)]))
    packed = [
        saved(tmp_path, f"packed.{i}", gzip.compress(lines(side).encode()))
        for i, side in enumerate((KOREAN, ENGLISH))
    ]
    formats = [
        parallel(tmp_path, lines(KOREAN), lines(ENGLISH)),
        read_pairs(*packed),
        read_pairs(tsv=tsv, columns=(2, 1)),
        read_pairs(tsv=named, columns=("ko", "en")),
        read_pairs(jsonl=jsonl, fields=("translation.ko", "translation.en")),
        pairs_from_dataset(rows, "translation.ko", "translation.en"),
        pairs_from_lists(KOREAN, ENGLISH),
    ]
    assert [list(pairs) for pairs in formats] == [EXPECTED] * len(formats)
    assert len({pairs.fingerprint for pairs in formats}) == 1


def test_several_files_are_read_one_after_the_other(tmp_path):
    sources = [saved(tmp_path, f"{i}.ko", f"{ko}\n") for i, ko in enumerate(KOREAN)]
    targets = [saved(tmp_path, f"{i}.en", en) for i, en in enumerate(ENGLISH)]
    assert list(read_pairs(sources, targets)) == EXPECTED
    assert read_pairs(sources, targets).fingerprint == pairs_from_lists(KOREAN, ENGLISH).fingerprint
    with pytest.raises(ArgumentError, match=facts("3 source", "2 target")):
        read_pairs(sources, targets[:2])


def test_the_same_file_as_source_and_target_raises(tmp_path):
    path, other = saved(tmp_path, "a.ko", "가\n"), saved(tmp_path, "a.en", "a\n")
    link = tmp_path / "link.ko"
    link.symlink_to(path)
    for source, target in ((path, path), (str(path), link), ([other, path], [path, link])):
        with pytest.raises(ArgumentError, match=facts("a.ko", "same")):
            read_pairs(source, target)
    assert len(read_pairs([path, other], [other, path])) == 2


@pytest.mark.parametrize("end", ["", "\n"])
def test_last_line_is_read_with_or_without_newline(tmp_path, end):
    assert len(parallel(tmp_path, "하나\n둘" + end, "one\ntwo")) == 2
    assert parallel(tmp_path, "하나\n둘" + end, "one\ntwo").inspect()["empty"].count == 0


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_a_newline_ends_a_line(tmp_path, inside):
    pairs = parallel(tmp_path, f"가{inside}나\n다\n", "one\ntwo\n")
    assert [pair.source for pair in pairs] == [f"가{inside}나", "다"]


def test_byte_order_marks_and_carriage_returns_are_removed(tmp_path):
    pairs = parallel(tmp_path, b"\xef\xbb\xbf" + "가\r\n나\r\n다\r".encode(), b"one\ntwo\nthree\n")
    assert [pair.source for pair in pairs] == ["가", "나", "다"]
    assert pairs.inspect()["return"].count == 3
    assert pairs.fingerprint == pairs_from_lists(["가", "나", "다"], ["one", "two", "three"]).fingerprint


def test_carriage_returns_are_removed_from_the_last_column(tmp_path):
    pairs = read_pairs(tsv=saved(tmp_path, "a.tsv", b"a\tb\r\nc\td\r\n"))
    assert [pair[:2] for pair in pairs] == [("a", "b"), ("c", "d")]
    assert pairs.inspect()["return"].count == 2


def test_gzip_is_detected_by_content(tmp_path):
    source = saved(tmp_path, "plain.gz", "가\n")
    target = saved(tmp_path, "packed.txt", gzip.compress(b"one") + gzip.compress(b"\n"))
    assert [pair[:2] for pair in read_pairs(source, target)] == [("가", "one")]


@pytest.mark.parametrize("spoil", [lambda data: data[:-6], lambda data: data[:12] + b"\0\0\0" + data[15:]])
def test_damaged_gzip_raises(tmp_path, spoil):
    packed = gzip.compress(b"one two three four five six seven\n" * 3)
    with pytest.raises(DataError, match=facts("a.en", "gzip", "damaged")):
        list(parallel(tmp_path, "가\n나\n다\n", spoil(packed)))


@pytest.mark.parametrize(
    "start, kind",
    [(b"\xff\xfe", "UTF-16"), (b"PK\x03\x04", "zip"), (b"BZh91AY&SY", "bzip2"), (b"\xfd7zXZ\0", "xz")],
)
def test_error_names_the_type_of_a_file_that_is_not_text(tmp_path, start, kind):
    with pytest.raises(DataError, match=f"a.ko: .*{kind}"):
        list(parallel(tmp_path, start + b"x\n", b"x\n", Choices(invalid="replace")))


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_utf16_without_byte_order_mark_is_detected(tmp_path, code):
    with pytest.raises(DataError, match=facts("a.en", "UTF-16") + f".*(?i:{code})"):
        list(parallel(tmp_path, "안녕.\n", "Hello.\n".encode(code)))


def test_hint_for_lines_that_end_with_carriage_returns_only(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=facts("a.ko", r"\n", "hint", r"tr '\r' '\n'")):
        list(parallel(tmp_path, "가\r나\r", "one\ntwo\n"))
    assert len(parallel(tmp_path, "가\r", "one")) == 1
    monkeypatch.setattr(read_text, "LONGEST_LINE", 100)
    with pytest.raises(DataError, match=facts("a.ko", "line 1", "hint", r"tr '\r' '\n'")):
        list(parallel(tmp_path, b"x\r" * 500, b"x\n"))


def test_a_too_long_line_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(read_text, "LONGEST_LINE", 100)
    monkeypatch.setattr(read_text, "BLOCK", 64)
    with pytest.raises(DataError, match=facts("a.ko", "line 1")):
        list(parallel(tmp_path, b"x" * 500, b"x\n"))


def test_a_missing_file_raises_immediately(tmp_path):
    saved(tmp_path, "a.en.gz", gzip.compress(b"x\n"))
    with pytest.raises(DataError, match=facts("a.en", "hint", "a.en.gz")):
        read_pairs(saved(tmp_path, "a.ko", "가\n"), tmp_path / "a.en")
    with pytest.raises(DataError, match="folder"):
        read_pairs(tsv=tmp_path)
    saved(tmp_path, "문장.csv", "가,Go\n")
    with pytest.raises(DataError, match=facts("문장.csv?")):
        read_pairs(tsv=tmp_path / "문장csv")
    (tmp_path / "zebras.csv").mkdir()  # not a file
    with pytest.raises(DataError) as caught:
        read_pairs(tsv=tmp_path / "zebra.csv")
    assert "zebras" not in str(caught.value)


def test_missing_and_conflicting_arguments_raise(tmp_path):
    path = saved(tmp_path, "a.tsv", "a\tb\n")
    for arguments in ({}, {"source": path}, {"tsv": path, "jsonl": path}, {"target": path, "tsv": path}):
        with pytest.raises(ArgumentError, match=facts("expected", "source", "target", "tsv", "jsonl")):
            read_pairs(**arguments)
    with pytest.raises(ArgumentError, match=facts("read_pairs()")):
        read_pairs(jsonl=[])
    for wrong in ({"tsv": 5}, {"jsonl": [path, 5]}, {"source": 5, "target": path}):
        with pytest.raises(ArgumentError, match="5"):
            read_pairs(**wrong)


@pytest.mark.parametrize("columns", [(0, 1), (1, -2), (1,), (1, "ko"), 1, (1, 2, 3), (2, 2), "ab", (1, True)])
def test_columns_are_two_numbers_or_two_names(tmp_path, columns):
    path = saved(tmp_path, "a.tsv", "a\tb\n")
    with pytest.raises(ArgumentError, match=facts("columns=", "expected")):
        read_pairs(tsv=path, columns=columns)
    assert len(read_pairs(tsv=path, columns=[2, 1])) == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_header_line_that_would_be_read_as_a_pair_raises(tmp_path, name):
    separator = "," if name.endswith("csv") else "\t"
    path = saved(tmp_path, name, f"german{separator}english\neins{separator}one\n")
    with pytest.raises(DataError, match=rf"{name}, line 1: ") as caught:
        read_pairs(tsv=path).inspect()
    assert mentions(caught.value, "columns=", '"german"', '"english"')
    assert [pair.target for pair in read_pairs(tsv=path, columns=("german", "english"))] == ["one"]


def test_missing_columns_raise(tmp_path):
    path = saved(tmp_path, "a.tsv", "en\tko\nHi.\t안녕.\nGo.\n")
    with pytest.raises(DataError, match=facts("a.tsv", "line 3", "1 column", 2, "columns=")):
        list(read_pairs(tsv=path, columns=("en", "ko")))
    with pytest.raises(DataError, match=facts("a.tsv", "line 1", "'de'", "en, ", "ko", "columns=")):
        list(read_pairs(tsv=path, columns=("en", "de")))
    kept = read_pairs(tsv=path, columns=("en", "ko"), choices=Choices(malformed="skip"))
    assert [pair.source for pair in kept] == ["Hi."]


@pytest.mark.parametrize(
    "line, expected",
    [
        ("[", "JSON"),
        ("[1]", "no field 'a'.* list"),
        ('{"b": "x"}', "no field 'a'.* b"),
        ('{"a": 3, "b": "x"}', "int"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_malformed_json_lines_raise(tmp_path, line, expected):
    path = saved(tmp_path, "a.jsonl", f'{{"a": "x", "b": "y"}}\n{line}\n')
    with pytest.raises(DataError, match=facts("a.jsonl", "line 2") + f".*{expected}"):
        list(read_pairs(jsonl=path, fields=("a", "b")))
    assert len(read_pairs(jsonl=path, fields=("a", "b"), choices=Choices(malformed="skip"))) == 1


def test_line_breaks_in_json_values_are_replaced(tmp_path):
    rows = [{"a": "one\r\ntwo\nthree", "b": None}, {"a": "nul\0", "b": "\ud800"}, {"a": "x\ny", "b": "z"}]
    path = saved(tmp_path, "a.jsonl", lines([json.dumps(row) for row in rows]) + "\n")
    report = read_pairs(jsonl=path, fields=("a", "b"), choices=Choices(invalid="skip")).inspect()
    counts = {finding.kind: finding.count for finding in report.findings if finding.count}
    assert counts == {"break": 2, "empty": 2, "nul": 1, "invalid": 1} and report.kept == 1
    kept = read_pairs(jsonl=path, fields=("a", "b"), choices=Choices(invalid="skip"))
    assert list(kept) == [Pair("x y", "z", 3)]


def test_fields_are_looked_up_by_their_full_name_first():
    rows = [{"a.b": "whole", "a": {"b": "nested"}, "c": ["zero", "one"]}]
    assert next(iter(pairs_from_dataset(rows, "a.b", "c.1")))[:2] == ("whole", "one")


def test_any_iterable_of_rows_is_a_dataset():
    class Rows:
        def __iter__(self):
            return iter([{"de": "Hallo.", "en": "Hi."}])

    assert len(pairs_from_dataset(Rows(), "de", "en")) == 1
    for wrong, expected in (
        ("wmt14", "load_dataset"),
        ({"train": []}, "hint: .*train"),
        (iter([]), "iterator"),
    ):
        with pytest.raises(ArgumentError, match=expected):
            pairs_from_dataset(wrong, "de", "en")
    with pytest.raises(DataError, match=facts("row 1", "'fr'", "de, ", "en")):
        list(pairs_from_dataset(Rows(), "fr", "en"))


def test_lists_of_different_lengths_raise():
    with pytest.raises(DataError, match=r"2 .* 1 "):
        pairs_from_lists(["a", "b"], ["c"])


def test_a_str_in_place_of_a_list_raises():
    for sources, targets in (("abc", "123"), (["abc"], "1")):
        with pytest.raises(ArgumentError, match="str"):
            pairs_from_lists(sources, targets)


def test_fingerprint_depends_on_content_and_choices(tmp_path):
    pairs = pairs_from_lists(KOREAN, ENGLISH)
    other = pairs_from_lists([*KOREAN[:2], "비가 온다!"], ENGLISH)
    shorter = pairs_from_lists(KOREAN, ENGLISH, Choices(longest=5))
    unused = pairs_from_lists(KOREAN, ENGLISH, Choices(ratio=2, uneven="keep"))
    swapped = pairs_from_lists(ENGLISH, KOREAN)
    part = pairs.only(numpy.array([True, False, True]), "part")
    prints = [each.fingerprint for each in (pairs, other, shorter, swapped, part)]
    assert len(set(prints)) == 5 and unused.fingerprint == pairs.fingerprint
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    assert parallel(moved, lines(KOREAN), lines(ENGLISH)).fingerprint == pairs.fingerprint


def test_selected_pairs_keep_their_numbers():
    pairs = pairs_from_lists(["가", "", "나", "다"], ["a", "b", "c", "d"])
    part = pairs.only(numpy.array([True, False, False, True]), "part")
    assert [pair.number for pair in part] == [1, 4] and len(part) == 2
    with pytest.raises(ArgumentError, match=facts("bool", "(4,)")):
        pairs.only(numpy.array([True]), "part")


def test_files_that_changed_after_the_check_raise(tmp_path):
    pairs = parallel(tmp_path, lines(KOREAN), lines(ENGLISH))
    assert len(pairs) == 3
    saved(tmp_path, "a.ko", lines([*KOREAN, "하나 더"]))
    with pytest.raises(DataError, match="changed"):
        list(pairs)


def test_a_deleted_file_raises(tmp_path):
    pairs = parallel(tmp_path, lines(KOREAN), lines(ENGLISH))
    (tmp_path / "a.en").unlink()
    for use in (list, len, iter):
        with pytest.raises(DataError, match=r"a\.en: "):
            [*(use(pairs) or ())]


def test_unknown_choices_raise():
    with pytest.raises(UnknownName, match=facts("invalid", "'ignore'")):
        Choices(invalid="ignore")
    with pytest.raises(UnknownName, match="empty"):
        Choices(empty="keep")
    with pytest.raises(ArgumentError, match=facts("longest", 0)):
        Choices(longest=0)
    with pytest.raises(ArgumentError, match=facts("ratio", "nan")):
        Choices(ratio=float("nan"))


SENTENCES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=30)


@pytest.mark.filterwarnings("ignore:(?s).*looks as if:regard.RegardWarning")
@given(st.lists(st.tuples(SENTENCES, SENTENCES), max_size=20), st.integers(3, 50))
def test_text_round_trip(tmp_path_factory, both, block):
    """Any text is read back unchanged, for any block size; only blank sides are dropped."""
    folder = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_text, "BLOCK", block)
        pairs = parallel(
            folder, lines([a for a, _ in both]), lines([b for _, b in both]), Choices(ratio=None)
        )
        read = list(pairs)
    both[:1] = [tuple(side.removeprefix("\ufeff") for side in two) for two in both[:1]]
    assert read == [
        Pair(*two, number)
        for number, two in enumerate(both, 1)
        if all(any(not c.isspace() and c not in INVISIBLE for c in side) for side in two)
    ]


def test_a_table_as_one_side_of_parallel_files_is_an_error(tmp_path):
    records = saved(tmp_path, "a.jsonl", '{"source": "Hi.", "target": "안녕."}\n' * 3)
    with pytest.raises(DataError, match=r"a\.jsonl") as caught:
        read_pairs(records, saved(tmp_path, "b", "one\ntwo\nthree\n"))
    assert "jsonl=" in str(caught.value)


def test_size_of_a_collection_is_its_number_of_rows_if_it_is_known():
    """The progress bar needs it: Chunk.reached counts rows."""
    rows = [("a", "b")] * 5000

    class Unsized:
        def __iter__(self):
            return iter(rows)

    examiners = Examiner(Choices(), keyed=False), Examiner(Choices(), keyed=False)
    for collection, size in ((rows, 5000), (Unsized(), 0)):
        origin = Origin.collection(collection)
        assert origin.size() == size
        assert [chunk.reached for chunk in origin.chunks(examiners)] == [4096, 5000]
