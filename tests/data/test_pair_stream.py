"""Pair streams: every pair is kept, invalid UTF-8 is counted, and errors name file and line."""

from __future__ import annotations

import gzip

import pytest

from regard.data.pairs import PairStream, in_batches
from regard.errors import DataError, Setting
from tests.facts import facts


def test_parallel_files_are_read_one_after_another(tmp_path):
    for name, content in (("a", b"1\r\n\n"), ("b", b"x\ny\xff"), ("c", b"2\n"), ("d", b"z\n")):
        (tmp_path / name).write_bytes(gzip.compress(content) if name == "b" else content)
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    pairs = PairStream.lines([a, c], [b, d])
    assert list(pairs) == [("1", "x"), ("", "y\ufffd"), ("2", "z")]
    assert (pairs.repaired, list(pairs.numbers)) == (1, [1, 2, 1]) and pairs.name == ", ".join((a, c, b, d))


@pytest.mark.parametrize(
    ("source", "target"), [(b"1\n2\n3\n", b"x\n"), (b"x\n", b"1\n2\n3\n"), (b"1\n", b"")]
)
def test_line_counts_that_differ_raise_with_file_and_line(tmp_path, source, target):
    (tmp_path / "a").write_bytes(source)
    (tmp_path / "b").write_bytes(target)
    read = []
    with pytest.raises(DataError) as caught:
        for pair in PairStream.lines([str(tmp_path / "a")], [str(tmp_path / "b")]):
            read.append(pair)
    short, long = ("a", "b") if len(source) < len(target) else ("b", "a")
    lines = (tmp_path / short).read_bytes().count(b"\n")
    assert len(read) == lines and caught.value.message.call == str(tmp_path / short)
    assert f"line {lines + 1}" in caught.value.message.problem
    assert str(tmp_path / long) in caught.value.message.problem


def test_rows_are_kept_whatever_they_contain(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"en\tko\nx\t\n\ny\xff\t" + b"k" * 5000 + b"\tz\n")
    pairs = PairStream.rows([str(tmp_path / "a.tsv")], None, ("ko", "en"))
    assert list(pairs) == [("", "x"), ("", ""), ("k" * 5000, "y\ufffd")]
    assert (pairs.repaired, list(pairs.numbers), pairs.name) == (1, [2, 3, 4], str(tmp_path / "a.tsv"))
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": null}\n{"a": "1\\n2", "b": "3"}\n')
    pairs = PairStream.rows(None, [str(tmp_path / "a.jsonl")] * 2, fields=("a", "b"))
    assert list(pairs) == [("x", ""), ("1 2", "3")] * 2 and (pairs.repaired, [*pairs.numbers]) == (
        0,
        [1, 2] * 2,
    )
    (tmp_path / "a.csv").write_text('ko,en\n"1\n2",x\n3,y\n')
    pairs = PairStream.rows([str(tmp_path / "a.csv")], None, ("ko", "en"))
    assert list(pairs) == [("1 2", "x"), ("3", "y")] and list(pairs.numbers) == [2, 4]


@pytest.mark.parametrize(
    ("name", "content", "columns", "line", "setting"),
    [
        ("a.tsv", "1\t2\nmissing\n3\t4\n", (1, 2), 2, "columns"),
        ("a.tsv", "en\tko\n1\t2\n\n3\n", ("ko", "en"), 4, "columns"),
        ("a.tsv", "1\t2\n", ("ko", "en"), 1, "columns"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n{"a": "x"}\n', (1, 2), 2, "fields"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n{"a": 3, "b": "y"}\n', (1, 2), 2, None),
        ("a.jsonl", "{\n", (1, 2), 1, None),
    ],
)
def test_malformed_rows_raise_with_file_and_line(tmp_path, name, content, columns, line, setting):
    (tmp_path / name).write_text(content)
    files = [str(tmp_path / name)]
    tsv, jsonl = (files, None) if name.endswith("tsv") else (None, files)
    read = []
    with pytest.raises(DataError) as caught:
        for pair in PairStream.rows(tsv, jsonl, columns, ("a", "b")):
            read.append(pair)
    header = int(isinstance(columns[0], str))
    assert len(read) == max(line - 1 - header, 0)
    text = caught.value.message
    assert text.call == f"{tmp_path / name}, line {line}"
    assert [part.name for part in text.hint if not isinstance(part, str)] == ([setting] if setting else [])


def test_missing_files_raise_before_reading(tmp_path):
    path = tmp_path / "nowhere.tsv"
    with pytest.raises(DataError, match=facts(path)):
        PairStream.rows([str(path)], None)


def test_batches_hold_all_pairs_in_order():
    pairs = [(str(number), f"{number}x") for number in range(7)]
    batches = list(in_batches(iter(pairs), 3))
    assert [len(sources) for sources, _ in batches] == [3, 3, 1]
    assert [pair for batch in batches for pair in zip(*batch, strict=True)] == pairs
    assert list(in_batches([], 3)) == []


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json"])
@pytest.mark.parametrize("encoding", ["cp949", "latin-1", "shift_jis"])
def test_rows_in_another_encoding_raise_and_a_few_invalid_bytes_do_not(tmp_path, name, encoding):
    text = {
        "cp949": "안녕하세요. 반갑습니다.",
        "latin-1": "Möchten Sie grüne Äpfel?",
        "shift_jis": "この能力を表示します。",
    }[encoding]
    first = [("Hello.", "Hello.")] * 3  # the first lines are ASCII
    rows = [*first, *((f"{text} {i}", "Hello.") for i in range(20))]
    tables = {
        "a.tsv": "".join(f"{a}\t{b}\n" for a, b in rows),
        "a.csv": "".join(f'"{a}","{b}"\n' for a, b in rows),
        "a.jsonl": "".join(f'{{"a": "{a}", "b": "{b}"}}\n' for a, b in rows),
        "a.json": "[" + ",\n".join(f'{{"a": "{a}", "b": "{b}"}}' for a, b in rows) + "]",
    }
    path = tmp_path / name
    path.write_bytes(tables[name].encode(encoding))
    files = ([str(path)], None) if name in ("a.tsv", "a.csv") else (None, [str(path)])
    with pytest.raises(DataError) as caught:
        list(PairStream.rows(*files, fields=("a", "b")))
    named = {"cp949": "cp949", "latin-1": "cp1252", "shift_jis": "cp932"}[encoding]
    hint = caught.value.message.hint
    assert [part.value for part in hint if isinstance(part, Setting)] == [named], caught.value
    assert str(path) in caught.value.message.call and text[:5] in caught.value.message.problem
    assert len(list(PairStream.rows(*files, fields=("a", "b"), encoding=encoding))) == 23
    path.write_bytes(tables[name].encode().replace(text.encode(), b"\xffHallo.", 1))
    pairs = PairStream.rows(*files, fields=("a", "b"))
    assert list(pairs)[3] == ("\ufffdHallo. 0", "Hello.") and pairs.repaired == 1
