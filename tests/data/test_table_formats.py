"""Tables: CSV, JSON arrays, Parquet and nested JSON lines, as sentence pairs and as labelled texts."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import sys
import types
import zipfile

import pytest

from regard.data import Choices, read_labelled, read_pairs
from regard.data import table_formats as formats
from regard.errors import ArgumentError, DataError, RegardWarning
from tests.conftest import SKIPS
from tests.facts import facts

ROWS = [
    ("안녕하세요.", "Hello."),
    ('그는 "네"라고 했다.', 'He said "yes", twice.'),
    ("한 줄\n두 줄", "one; two"),
    ("끝.", "End."),
]


def as_csv(rows, delimiter=",", ends="\r\n"):
    page = io.StringIO(newline="")
    csv.writer(page, delimiter=delimiter, lineterminator=ends).writerows(rows)
    return page.getvalue()


def pairs_of(path, **more):
    return [(pair.source, pair.target) for pair in read_pairs(**more)]


EXPECTED = [(a.replace("\n", " "), b) for a, b in ROWS]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16"])
def test_csv_with_a_header_quotes_and_line_breaks(tmp_path, delimiter, encoding):
    path = tmp_path / "pairs.csv"
    rows = [("id", "ko", "en"), *((i, *row) for i, row in enumerate(ROWS))]
    path.write_bytes(as_csv(rows, delimiter).encode(encoding))
    pairs = read_pairs(tsv=path, columns=("ko", "en"), encoding=None if "utf-8" in encoding else encoding)
    assert [(pair.source, pair.target) for pair in pairs] == EXPECTED
    report = pairs.inspect()
    assert report.kept == 4 and report["break"].examples[0].place.endswith("pairs.csv, line 4")


def test_csv_without_a_header_with_a_separator_line_and_gzip(tmp_path):
    path = tmp_path / "pairs.csv.gz"
    path.write_bytes(gzip.compress(("sep=;\n" + as_csv([(b, a) for a, b in ROWS], ";")).encode()))
    assert pairs_of(path, tsv=path, columns=(2, 1)) == EXPECTED
    names = read_pairs(tsv=path, columns=("ko", "en"))
    with pytest.raises(DataError, match="'ko'"):
        list(names)


def test_columns_that_are_probably_meant_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(as_csv([("id", "한국어", "영어"), *((i, *row) for i, row in enumerate(ROWS))]).encode())
    with pytest.raises(DataError, match=facts("영문", "columns=", '"한국어"', '"영어"')):
        list(read_pairs(tsv=path, columns=("한국어", "영문")))
    rows = [("review", "label"), *[("재미있어요", "pos"), ("별로였다", "neg")] * 4]
    path.write_bytes(as_csv(rows).encode())
    with pytest.raises(DataError, match=facts("라벨", "label='label'", "text='review'")):
        read_labelled(path, label="라벨", text="리뷰")


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ('ko,en\na,b\n"a\nb",c\nonly\n', 5, "1 column"),
        ('ko,en\na,b\n"a" b,c\n', 3, "not valid CSV.*written twice"),
        ('ko,en\na,b\n"never closed,c\n\n', 3, ".*is not closed before the file ends"),
    ],
)
def test_csv_errors_name_file_and_line(tmp_path, content, line, problem):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=facts("a.csv", f"line {line}") + f".*{problem}"):
        list(read_pairs(tsv=path, columns=("ko", "en")))
    kept = read_pairs(tsv=path, columns=("ko", "en"), choices=Choices(malformed="skip")).inspect()
    assert kept["malformed"].count == 1
    with pytest.raises(DataError, match=facts("a.csv", f"line {line}") + f".*{problem}"):
        read_labelled(path, label="ko", text="en")


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"ensure_ascii": False, "separators": (",", ":")}])
def test_json_array(tmp_path, monkeypatch, style):
    monkeypatch.setattr("regard.data.read_text.BLOCK", 7)  # elements are divided between chunks
    path = tmp_path / "pairs.json"
    path.write_text(
        json.dumps([{"translation": {"ko": a, "en": b}} for a, b in ROWS], **style), encoding="utf-8"
    )
    fields = ("translation.ko", "translation.en")
    assert pairs_of(path, jsonl=path, fields=fields) == EXPECTED
    texts = read_labelled(path, label="translation.en", text="translation.ko")
    assert texts.labels[0] == "Hello." and texts[2].first == ROWS[2][0]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('[{"a": "x", "b": "y"},\n{"a": oops}]', "line 2: row 2 is not valid JSON"),
        ('[{"a": "x", "b": "y"}', "the JSON array is not complete"),
        ('[{"a": "x", "b": "y"},\n {"a": "x"}]', "row 2: no field 'b'"),
    ],
)
def test_json_array_errors_name_the_row(tmp_path, content, place):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DataError, match=f"a.json.*{place}"):
        list(read_pairs(jsonl=path, fields=("a", "b")))


def test_error_for_nested_fields_names_them_and_the_setting(tmp_path):
    path = tmp_path / "hf.jsonl"
    path.write_text(json.dumps({"id": 1, "translation": {"ko": "안녕.", "en": "Hi."}}) + "\n")
    with pytest.raises(
        DataError, match=facts("translation.ko", "fields=", "translation.ko", "translation.en")
    ):
        list(read_pairs(jsonl=path))
    (tmp_path / "lists.jsonl").write_text('["안녕.", "Hi."]\n["가.", "Go."]\n')
    assert pairs_of(path, jsonl=tmp_path / "lists.jsonl", fields=("0", "1")) == [
        ("안녕.", "Hi."),
        ("가.", "Go."),
    ]


def test_parquet_rows_are_read_with_pyarrow(tmp_path, monkeypatch):
    path = tmp_path / "pairs.parquet"
    path.write_bytes(b"PAR1...")
    asked = []

    class Table:
        def __init__(self, path):
            self.schema_arrow = types.SimpleNamespace(names=["id", "translation"])

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

        def iter_batches(self, size, columns, use_threads):
            asked.append((columns, use_threads))
            yield types.SimpleNamespace(
                to_pylist=lambda: [{"translation": {"ko": a, "en": b}} for a, b in ROWS]
            )

    module = types.ModuleType("pyarrow.parquet")
    module.ParquetFile = Table
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)
    monkeypatch.setitem(sys.modules, "pyarrow", types.SimpleNamespace(ArrowException=OSError, parquet=module))
    assert pairs_of(path, jsonl=path, fields=("translation.ko", "translation.en")) == EXPECTED
    assert asked == [(["translation"], False)]
    assert read_labelled(path, label="translation.en", text="translation.ko").labels[3] == "End."
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=facts(path, "pyarrow", "pip", "pyarrow>=")):
        list(read_pairs(jsonl=path))


def test_real_parquet_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason=SKIPS["pyarrow"])
    parquet = importlib.import_module("pyarrow.parquet")
    path = tmp_path / "pairs.parquet"
    table = pyarrow.table({"translation": [{"ko": a, "en": b} for a, b in ROWS], "id": [1, 2, 3, 4]})
    parquet.write_table(table, path)
    assert pairs_of(path, jsonl=path, fields=("translation.ko", "translation.en")) == EXPECTED
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=facts(path, "Parquet")):
        list(read_pairs(jsonl=path))


def test_workbook_is_an_error_that_recommends_csv(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as book:
        book.writestr("[Content_Types].xml", "x")
    with pytest.raises(DataError, match=facts("a.xlsx", "Excel", "CSV")):
        list(read_pairs(tsv=tmp_path / "a.xlsx"))


def test_tmx_is_an_error_that_recommends_tsv(tmp_path):
    (tmp_path / "a.tmx").write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE tmx>\n<tmx version="1.4"><body/></tmx>\n'
    )
    with pytest.raises(DataError, match=facts("a.tmx", "TMX", "TSV")):
        list(read_pairs(jsonl=tmp_path / "a.tmx"))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ({"train": [{"ko": "가", "en": "a"}]}, "field 'train'"),
        ({"ko": ["가", "나"], "en": ["a", "b"]}, "field 'ko'"),
    ],
)
def test_one_json_object_with_lists_is_an_error(tmp_path, content, fact, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False))
    with pytest.raises(DataError, match=fact) as error:
        list(read_pairs(jsonl=path, fields=("ko", "en")))
    assert "each" in str(error.value)


def test_one_row_with_a_list_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"ko": "가", "en": "a", "tokens": [{"id": 1}], "tags": ["x"]}))
    assert [pair.target for pair in read_pairs(jsonl=path, fields=("ko", "en"))] == ["a"]
    path.write_text('{"tags": ["x"], "ko": "가", "en": "a"}\n' * 2)
    assert len(list(read_pairs(jsonl=path, fields=("ko", "en")))) == 2


def test_a_file_of_another_kind_names_the_argument_that_reads_it(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" * 9)
    (tmp_path / "a.json").write_text('[{"a": "x", "b": "y"}]')
    with pytest.raises(DataError, match=facts("a.csv", "tsv=")):
        list(read_pairs(jsonl=tmp_path / "a.csv"))
    with pytest.raises(DataError, match=facts("a.json", "jsonl=")):
        list(read_pairs(tsv=tmp_path / "a.json"))
    (tmp_path / "a.tsv").write_bytes(b"PAR1...")
    with pytest.raises(DataError, match=facts("a.tsv", "Parquet", "jsonl=")):
        list(read_pairs(tsv=tmp_path / "a.tsv"))
    with pytest.raises(DataError, match=facts("a.csv", 'format="tsv"')):
        read_labelled(tmp_path / "a.csv", format="jsonl")
    with pytest.raises(DataError, match=facts("a.json", 'format="jsonl"')):
        read_labelled(tmp_path / "a.json", format="tsv")
    with pytest.raises(ArgumentError, match=facts("a.csv", "same", "tsv=")):
        read_pairs(tmp_path / "a.csv", tmp_path / "a.csv")


def test_json_array_of_lists_names_the_fields_to_use(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS))
    with pytest.raises(DataError, match=r'fields=\("0", "1"\)'):
        list(read_pairs(jsonl=path))
    assert pairs_of(path, jsonl=path, fields=("0", "1")) == EXPECTED


def test_labelled_csv_in_another_encoding(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_bytes(
        as_csv([("review", "label"), ("재미있어요, 정말", "pos"), ("별로\n였다", "neg")]).encode("cp949")
    )
    with pytest.raises(DataError, match=facts("reviews.csv", "line 2", "CP949", "재미있어요", "cp949")):
        read_labelled(path, label="label", text="review")
    texts = read_labelled(path, label="label", text="review", encoding="cp949")
    assert list(texts.labels) == ["pos", "neg"] and texts[1].first == "별로\n였다"


def test_rows_of_a_csv_file_are_read_lazily(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" * 5)
    rows = formats.csv_rows(path)
    assert next(rows) == formats.Row(1, ["a", "b"], "", path.stat().st_size)
    rows.close()


def test_tsv_cells_that_are_quoted_as_in_csv_are_named(tmp_path):
    path = tmp_path / "문장.txt"
    rows = [("한국어", "영문"), *ROWS[:2], *[("가.", "Go.")] * 5]
    path.write_bytes(as_csv(rows, "\t").encode("utf-16"))
    with pytest.warns(RegardWarning, match=facts("line 3", "CSV", "mv ", f"{path.stem}.csv")):
        assert len(read_pairs(tsv=path, columns=("한국어", "영문"), encoding="utf-16")) == 7
    with pytest.warns(RegardWarning, match="CSV"):
        read_labelled(path, label="한국어", text="영문", format="tsv", encoding="utf-16")
    path.write_bytes(as_csv([*rows, ROWS[2]], "\t").encode("utf-16"))  # a line break in a cell
    for malformed in ("error", "skip"):
        pairs = read_pairs(tsv=path, encoding="utf-16", choices=Choices(malformed=malformed))
        with pytest.raises(DataError, match=facts("line 9", "CSV", "mv ", ".csv")):
            list(pairs)


@pytest.mark.parametrize(
    "text",
    [
        '"Hallo.\t"Hello.\nTschüs."\tBye."\n',
        '"Ja!"\t"Yes!"\n',
        'Er sagt "ja".\tHe says ""yes"".\n"Ja""so"\t"Yes"\n',
        '""\t5" disk\n"a""b"\t6" disk\n',
    ],
)
def test_quotes_of_tsv_files_are_text(tmp_path, text):
    path = tmp_path / "a.tsv"
    path.write_text(text, encoding="utf-8")
    expected = [tuple(line.split("\t")) for line in text.splitlines()]
    assert pairs_of(path, tsv=path) == expected
