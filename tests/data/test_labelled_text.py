"""Labelled texts from every format, plain or gzip; bad input names the file, the line, the known labels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from regard.data import LabelledText, Labels, labelled_from_lists, read_labelled
from regard.data.labelled_text import FORMATS, likely_columns
from regard.errors import ArgumentError, DataError, UnknownName

ROWS = [("pos", "it works .", "it does"), ("neg", "it fails .", "it does not"), ("pos", "fine .", "so so")]


def write(path: Path, text: str) -> Path:
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def tsv(rows: list[tuple[str, ...]], header: str = "") -> str:
    return "".join(f"{line}\n" for line in ([header] if header else []) + ["\t".join(row) for row in rows])


def assert_raises(kind: type[Exception], call, *parts: str) -> str:
    """Check that a call raises this error with all these parts in its message; return the message."""
    with pytest.raises(kind) as caught:
        call()
    assert not [part for part in parts if part not in str(caught.value)], str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_columns_by_number_and_by_name(tmp_path: Path, end: str):
    plain = write(tmp_path / f"plain.tsv{end}", tsv(ROWS))
    named = write(tmp_path / f"named.txt{end}", tsv(ROWS, "gold\tpremise\thypothesis"))
    single = [LabelledText(first, None, label) for label, first, _ in ROWS]
    pairs = [LabelledText(first, second, label) for label, first, second in ROWS]
    assert list(read_labelled(plain)) == single
    assert list(read_labelled(plain, label=1, text=2, second=3)) == pairs
    by_name = read_labelled(named, "tsv", label="gold", text="premise", second="hypothesis")
    assert list(by_name) == pairs and by_name.pairs and by_name.place(2).endswith(f"named.txt{end}, line 4")
    swapped = read_labelled(plain, label=1, text=3, second=2)
    assert (swapped.firsts, swapped.seconds) == (by_name.seconds, by_name.firsts)
    assert by_name.texts == by_name.firsts + by_name.seconds


def test_json_lines_with_nested_fields_and_labels_that_are_not_strings(tmp_path: Path):
    rows = [
        {"label": 1, "text": "it works\nwell", "more": {"gold": True, "both": ["a", "b"]}},
        {"label": 0, "text": "it fails", "more": {"gold": False, "both": ["c", "d"]}},
    ]
    path = write(tmp_path / "a.jsonl.gz", "".join(f"{json.dumps(row)}\n" for row in rows))
    assert list(read_labelled(path)) == [
        ("it works\nwell", None, "1"),
        ("it fails", None, "0"),
    ]
    nested = read_labelled(path, label="more.gold", text="more.both.0", second="more.both.1")
    assert list(nested) == [("a", "b", "true"), ("c", "d", "false")]


def test_label_first(tmp_path: Path):
    path = write(tmp_path / "stsa.train.gz", "4 a stirring , funny film\r\n1 flat .\n")
    texts = read_labelled(path, "label-first")
    assert list(texts) == [("a stirring , funny film", None, "4"), ("flat .", None, "1")]
    assert texts.label_set().names == ("1", "4")


def test_several_files_are_one_data_set(tmp_path: Path):
    one, other = write(tmp_path / "a.tsv", tsv(ROWS)), write(tmp_path / "b.tsv", tsv(ROWS[1:]))
    texts = read_labelled([one, other])
    assert len(texts) == 5 and texts.labels == ("pos", "neg", "pos", "neg", "pos")
    assert texts.place(4).endswith("b.tsv, line 2") and texts.place(2).endswith("a.tsv, line 3")
    part = texts.select([4, 0])
    assert list(part) == [texts[4], texts[0]] and part.place(0) == texts.place(4)
    assert part.fingerprint != texts.fingerprint == read_labelled([one, other]).fingerprint
    assert "5 texts" in repr(texts)


def test_empty_texts_are_counted_or_raise(tmp_path: Path):
    path = write(tmp_path / "a.tsv", "pos\tgood\n\nneg\t \u3000\nneg\tbad\n")
    texts = read_labelled(path)
    assert (len(texts), texts.empty, texts.ignored) == (2, 2, 0) and texts.place(1).endswith("line 4")
    assert_raises(DataError, lambda: read_labelled(path, empty="error"), "a.tsv, line 2", "empty")
    pairs = write(tmp_path / "b.tsv", "pos\tgood\t\nneg\ta\tb\npos\tb\tc\n")
    assert read_labelled(pairs, label=1, text=2, second=3).empty == 1
    first = write(tmp_path / "c.txt", "1\n0 fine\n1 bad\n")
    assert read_labelled(first, "label-first").empty == 1


def test_labels_to_ignore(tmp_path: Path):
    path = write(tmp_path / "a.tsv", "pos\tgood\n-\tunclear\nneg\tbad\n")
    texts = read_labelled(path, ignore=["-"])
    assert texts.labels == ("pos", "neg") and texts.ignored == 1
    everything = lambda: read_labelled(path, ignore=["-", "pos", "neg"])  # noqa: E731
    assert_raises(DataError, everything, "a.tsv", "no text is left", "3")
    assert_raises(ArgumentError, lambda: read_labelled(path, ignore="-"), "ignore")


@pytest.mark.parametrize(
    ("name", "content", "options", "parts"),
    [
        ("a.tsv", "", {}, ["a.tsv", "no texts", "empty"]),
        ("a.tsv", "label\ttext\n", {"label": "label", "text": "text"}, ["a.tsv", "no texts", "header"]),
        ("a.tsv", "", {"label": "label", "text": "text"}, ["a.tsv", "no texts", "empty"]),
        ("a.tsv", "p\tgood\np\n", {}, ["a.tsv, line 2", "1 column", "2"]),
        ("a.tsv", "p\tgood\n\tbad\n", {}, ["a.tsv, line 2", "label is empty"]),
        ("a.tsv", "gold\ttext\np\tgood\n", {"label": "label", "text": "text"}, ["line 1", "label", "gold"]),
        ("a.jsonl", '{"label": "p", "text": "a"}\n{"label"\n', {}, ["a.jsonl, line 2", "JSON"]),
        ("a.jsonl", '{"label": "p", "txt": "a"}\n', {}, ["a.jsonl, line 1", "'text'", "txt"]),
        ("a.jsonl", '{"label": 0.5, "text": "a"}\n', {}, ["a.jsonl, line 1", "float"]),
        ("a.jsonl", '{"label": null, "text": "a"}\n', {}, ["a.jsonl, line 1", "label is empty"]),
        ("a.jsonl", '{"label": "p", "text": 3}\n', {}, ["a.jsonl, line 1", "text", "int"]),
        ("a.tsv", "p\tgood\np\tb\\xffad\n", {}, ["a.tsv, line 2", "UTF-8"]),
    ],
)
def test_bad_files_name_file_and_line(tmp_path: Path, name: str, content: str, options, parts: list[str]):
    path = tmp_path / name
    path.write_bytes(content.encode().replace(b"\\xff", b"\xff"))
    assert_raises(DataError, lambda: read_labelled(path, **options), *parts)


def test_bad_arguments(tmp_path: Path):
    path = write(tmp_path / "a.tsv", tsv(ROWS))
    other = write(tmp_path / "a.txt", tsv(ROWS))
    assert_raises(ArgumentError, lambda: read_labelled(other), "a.txt", *FORMATS)
    assert_raises(UnknownName, lambda: read_labelled(path, "csv"), "csv", *FORMATS)
    assert_raises(UnknownName, lambda: read_labelled(path, empty="keep"), "keep", "skip")
    for options in ({"label": 0}, {"label": "a"}, {"text": 1}, {"second": 1}, {"text": -1}, {"label": True}):
        assert_raises(ArgumentError, lambda options=options: read_labelled(path, **options), "columns")
    assert_raises(ArgumentError, lambda: read_labelled(other, "jsonl", label=1, text=2), "names of fields")
    assert_raises(ArgumentError, lambda: read_labelled(other, "label-first", label=1), "label-first")
    assert_raises(ArgumentError, lambda: read_labelled([]), "empty")
    assert_raises(ArgumentError, lambda: read_labelled([b"a.tsv"]), "a.tsv", "not a path")
    assert_raises(DataError, lambda: read_labelled(tmp_path / "b.tsv"), "b.tsv", "no such file")


def test_one_class_and_one_class_per_text_are_errors(tmp_path: Path):
    path = write(tmp_path / "a.tsv", "p\tgood\np\tbad\n")
    assert_raises(DataError, lambda: read_labelled(path).label_set(), "a.tsv", "'p'", "two")
    many = write(tmp_path / "b.tsv", "".join(f"{number}\tsome text\n" for number in range(12)))
    assert_raises(DataError, lambda: read_labelled(many).balance(), "b.tsv", "12 different labels")
    assert len(read_labelled(many).select(range(9)).label_set()) == 9


def test_likely_columns_are_named_by_the_header_or_numbered(tmp_path: Path):
    rows = [f"{number},{number % 3},a text of some length {number}\n" for number in range(40)]
    assert likely_columns(write(tmp_path / "a.csv", "".join(["id,stars,body\n", *rows]))) == "stars,body"
    assert likely_columns(write(tmp_path / "b.csv", "".join(rows))) == "2,3"
    assert likely_columns(write(tmp_path / "c.csv", "".join(rows[:2]))) == ""
    assert likely_columns(write(tmp_path / "d.csv", "")) == ""
    rows = [
        f"{at},2024-01-0{at % 2 + 1},a longer text {at},{('good', 'bad', '')[at % 3]}\n" for at in range(40)
    ]
    path = write(tmp_path / "e.csv", "".join(["id,date,review,mood\n", *rows]))
    assert likely_columns(path) == "mood,review"
    parts = ["line 4", "empty", "12 other labels", "ignore"]
    assert_raises(DataError, lambda: read_labelled(path, label="mood", text="review"), *parts)
    assert len(read_labelled(path, label="mood", text="review", ignore=[""])) == 27


def test_label_that_training_never_had(tmp_path: Path):
    labels = Labels(("neg", "pos"))
    path = write(tmp_path / "valid.tsv", "pos\tgood\nneutral\tso so\n")
    parts = ["valid.tsv, line 2", "'neutral'", "neg, pos"]
    assert_raises(DataError, lambda: read_labelled(path).label_indices(labels), *parts)
    many = Labels(tuple(f"class{number:02}" for number in range(30)))
    text = assert_raises(DataError, lambda: read_labelled(path).label_indices(many), "class19", "10 more")
    assert "class20" not in text


def test_lists():
    texts = labelled_from_lists(["good", "", "bad"], ["p", "p", "n"], seconds=["a", "b", "c"])
    assert list(texts) == [("good", "a", "p"), ("bad", "c", "n")] and texts.empty == 1
    assert_raises(DataError, lambda: labelled_from_lists(["a"], []), "1 texts", "0 labels")
    assert_raises(ArgumentError, lambda: labelled_from_lists(["a"], [1]), "labels")
    assert_raises(ArgumentError, lambda: labelled_from_lists("a", ["p"]), "texts")
    single = labelled_from_lists(["ab"], ["p"])
    pair = labelled_from_lists(["a"], ["p"], seconds=["b"])
    assert len({single.fingerprint, pair.fingerprint, labelled_from_lists(["b"], ["p"]).fingerprint}) == 3
