"""check_text_files(), report_tables() and check_separator(): files that are not what the option says."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import pytest

from regard.errors import DataError, RegardWarning
from regard.tasks.file_checks import check_separator, check_sides, check_text_files, report_tables
from tests.facts import facts, mentions

KOREAN = "나는 학교에 간다.\n그는 집에 있다.\n안녕하세요.\n"
GERMAN = "Grüße aus Köln\nEr geht über die Straße\nschöne Grüße\n"


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.ko", "a.ko.gz"])
@pytest.mark.parametrize("other", ["utf-8", "latin-1"])
def test_the_odd_file_is_converted_with_iconv(tmp_path: Path, name: str, other: str):
    odd = written(tmp_path / name, KOREAN, "cp949")
    with pytest.raises(DataError, match="CP949") as caught:
        check_text_files([odd, written(tmp_path / "a.de", GERMAN, other)])
    hint = str(caught.value).splitlines()[-1]
    assert mentions(hint, "iconv", "CP949", "UTF-8", name) and "encoding=" not in hint
    with pytest.raises(DataError):
        check_sides([str(odd)], [str(tmp_path / "a.de")], None, None)
    check_sides([str(odd)], [str(tmp_path / "a.de")], None, None, invalid="replace")


@pytest.mark.parametrize("text", ["Hello.\nGo on.\n", KOREAN, ""])
def test_files_of_one_encoding_are_accepted(tmp_path: Path, text: str):
    encoding = "cp949" if text == KOREAN else "ascii"
    files = [written(tmp_path / "a", KOREAN, "cp949"), written(tmp_path / "b", text, encoding)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_text_files([*files, "-", tmp_path / "missing", tmp_path])
        check_text_files([*files, written(tmp_path / "c", "Hello.\n")], "cp949")
    assert caught == []


def test_a_file_that_is_not_in_the_named_encoding_is_a_warning(tmp_path: Path):
    odd = written(tmp_path / "a.en", "It’s “late”.\n" + "Hello.\n" * 99)
    with pytest.warns(RegardWarning, match=r"a\.en.*UTF-8.*cp949") as caught:
        check_sides([str(written(tmp_path / "a.ko", KOREAN * 9, "cp949"))], [str(odd)], None, "cp949")
    assert "a.ko" not in str(caught[0].message) and len(caught) == 1


def test_a_table_is_reported(tmp_path: Path):
    table = written(tmp_path / "a.txt", "Go.\tGeh.\tx\n" * 12 + "one\n")
    with pytest.warns(RegardWarning, match=facts("a.txt", "3 columns")) as caught:
        check_sides([str(table)], None, None, None)
    assert "tsv=" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report_tables(["-", written(tmp_path / "b", "Go.\tGeh.\n" * 3 + "one\n" * 3)], "")
        report_tables([written(tmp_path / "c", "Go.\n" * 9), written(tmp_path / "d", "")], "")


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("a.jsonl", '{"ko": "가", "en": "a"}\n' * 4, "jsonl="),
        ("a.txt.gz", '{"ko": "가", "en": "a"}\n', "jsonl="),
        ("a.json", '[\n  {"ko": "가", "en": "a"}\n]\n', "jsonl="),
        ("a.parquet", "PAR1....", "jsonl="),
        ("a.csv", "ko,en\n가,a\n", "tsv="),
        ("a.tsv", "가\ta\n" * 2, "tsv="),
    ],
)
def test_a_table_is_not_read_as_sentences(tmp_path: Path, name: str, text: str, option: str):
    table = written(tmp_path / name, text)
    with pytest.raises(DataError, match=facts("sentence")) as caught:
        check_sides([str(table)], [str(table)], None, None)
    assert option in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json"])
def test_a_file_with_one_column_is_read_as_sentences(tmp_path: Path, name: str):
    plain = written(tmp_path / name, 'Go, please.\n{"\nOne\n')
    assert check_sides([str(plain), "-"], [str(tmp_path / "missing")], None, None) is None


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "semicolons"), (",", "commas"), ("|", "vertical bars")]
)
def test_another_separator_is_named(tmp_path: Path, separator: str, name: str):
    rows = [[f"Geh.{separator}Go."], [f"Ja.{separator}Yes."]]
    with pytest.raises(DataError, match=name) as caught:
        check_separator(tmp_path / "a.txt", rows)
    assert str(caught.value).endswith("a.csv")
    check_separator(tmp_path / "a.txt", [*rows, ["Nein.", "No."]])
    check_separator(tmp_path / "a.txt", [["Geh."], ["Ja; ja."]])
