"""check_first_lines() and columns_of_header(): header lines in TSV and CSV files of sentence pairs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from regard.errors import DataError, RegardWarning
from regard.tasks.file_checks import check_first_lines, columns_of_header
from tests.facts import facts

SENTENCES = ["Guten Tag.,Hello.", "Ich gehe nach Hause,I am going home", '"Ja, gut.",Yes.']
WORDS = ["Hund,dog", "Katze,cat", "Maus,mouse"]


def written(path: Path, *lines: str) -> list[str]:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(path)]


@pytest.mark.parametrize(
    ("header", "columns", "rows"),
    [
        ("Deutsch,English", (1, 2), WORDS),
        ("원문,번역문", (1, 2), []),
        ("nr,Satz,Satzpaar", (2, 3), [f"{number},{row}" for number, row in enumerate(WORDS)]),
        ("lang1,lang2,Text A,Text B,votes", (3, 4), [f"de,en,{row},{len(row)}" for row in WORDS]),
    ],
)
def test_a_header_is_an_error(tmp_path: Path, header: str, columns: tuple[int, int], rows: list[str]):
    cells = header.split(",")
    names = ",".join(cells[column - 1] for column in columns)
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        files = written(tmp_path / name, *(line.replace(",", separator) for line in (header, *rows)))
        with pytest.raises(DataError, match=rf"{name}, line 1(.|\n)*") as caught:
            check_first_lines(files, columns)
        first, second = names.split(",")
        assert f'columns=("{first}", "{second}")' in str(caught.value)


@pytest.mark.parametrize("columns", [(1, 2), (2, 1)])
def test_names_above_sentences_are_a_warning(tmp_path: Path, columns: tuple[int, int]):
    files = written(tmp_path / "a.csv", "Satz,Übersetzung", *SENTENCES)
    with pytest.warns(RegardWarning, match=facts("a.csv", "line 1")) as caught:
        check_first_lines(files, columns)
    assert "columns=" in str(caught[0].message) and "Übersetzung" in str(caught[0].message)


@pytest.mark.parametrize(
    "lines",
    [
        ["Geh.,Go.", *SENTENCES],
        ["Haus,house", *WORDS],
        ["Haus,house"],
        ["Hallo,Hello there my friend", *SENTENCES],
        ["Satz,Übersetzung", "1,2"],
        ["en route,unterwegs", "Ja,Yes", *SENTENCES],
        [],
    ],
)
def test_pairs_are_not_headers(tmp_path: Path, lines: list[str]):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_first_lines(written(tmp_path / "a.csv", *lines), (1, 2))
        check_first_lines(written(tmp_path / "a.csv", *lines), ("Satz", "Übersetzung"))
    assert caught == []


def test_invalid_bytes_after_the_first_line_are_not_an_error_here(tmp_path: Path):
    for name in ("a.tsv", "a.csv"):
        (tmp_path / name).write_bytes(b"Geh.\tGo.\nJa\xff.\tYes.\n")
        check_first_lines([str(tmp_path / name)], (1, 2))
        assert columns_of_header([str(tmp_path / name)], ["Deutsch", "English"], None) == ""


def test_columns_of_a_run_are_used_if_the_header_names_them(tmp_path: Path):
    one = written(tmp_path / "one.csv", "id,ko,en", "1,a,b")
    other = written(tmp_path / "other.tsv", "en\tde")
    assert columns_of_header(one, ["ko", "en"], None) == "ko,en"
    assert columns_of_header([*one, *other], ["ko", "en"], None) == ""
    assert columns_of_header(one, [2, 3], None) == columns_of_header(one, None, None) == ""
    assert columns_of_header(["-"], ["ko", "en"], None) == ""
