"""The data report counts problems, names the action for each, and agrees exactly with the pairs read."""

from __future__ import annotations

import io
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from regard.data import line_io, read_text
from regard.data.data_report import Report
from regard.data.pairs import Pairs, pairs_from_lists, read_pairs
from regard.data.read_text import KINDS, Choices
from regard.errors import DataError, UnknownName
from tests.facts import facts, mentions


def parallel(folder: Path, source: bytes, target: bytes, choices: Choices | None = None) -> Pairs:
    paths = folder / "a.ko", folder / "a.en"
    for path, data in zip(paths, (source, target), strict=True):
        path.write_bytes(data)
    return read_pairs(*paths, choices=choices)


def counts(report: Report) -> dict[str, int]:
    return {finding.kind: finding.count for finding in report.findings if finding.count}


def test_report_of_clean_pairs_has_no_findings(tmp_path):
    report = parallel(tmp_path, b"a\nb\n", b"c\nd\n").inspect()
    assert (report.read, report.kept, counts(report), report.refused) == (2, 2, {}, None)
    assert "2 pairs read, 2 kept" in str(report) and not any(each.count for each in report.findings)


def test_invalid_utf8_raises_with_file_line_and_byte(tmp_path):
    pairs = parallel(tmp_path, b"a\nb\nc\n", b"one\ntw\xe9 two\nthr\xe9\xe8\n")
    report = pairs.inspect()
    assert report["invalid"].count == 2 and report["invalid"].done == "refused"
    expected = r"(?s)a\.en, line 2: .*byte 3 of the line, 0xE9.*Latin-1.*twé two.*cp1252.*invalid=\"replace\""
    for use in (report.check, lambda: len(pairs), lambda: pairs.fingerprint, lambda: [*iter(pairs)]):
        with pytest.raises(DataError, match=expected):
            use()


@pytest.mark.parametrize(
    "name, line, expected",
    [
        ("tsv", b"ab\tc\xe9\tx", "byte 5 of the line, 0xE9"),
        ("tsv", b"\xe9\tc\tx", "byte 1 of the line, 0xE9"),
        ("jsonl", b'{"source": "a", "target": "\\n\xff"}', "byte 30 of the line, 0xFF"),
        ("jsonl", b'{"source": "\\ud800", "target": "b"}', "escape"),
    ],
)
def test_invalid_byte_is_counted_within_the_line_of_the_file(tmp_path, name, line, expected):
    path, fine = tmp_path / f"a.{name}", {"tsv": b"a\tb", "jsonl": b'{"source": "a", "target": "b"}'}[name]
    path.write_bytes(fine + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=facts(f"a.{name}", "line 2", "UTF-8") + f".*{expected}"):
        list(read_pairs(**{name: path}))


def test_hint_for_utf16_without_byte_order_mark(tmp_path):
    korean = "나는 학교에 갔다.\n비가 온다.\n".encode("utf-16-le")
    with pytest.raises(DataError, match=facts("a.ko", "UTF-16", "나는", "hint", "utf-16-le")):
        parallel(tmp_path, korean, b"one\ntwo\n").inspect()


def test_pairs_before_an_error_are_yielded(tmp_path):
    pairs = iter(parallel(tmp_path, b"a\nb\n", b"one\n\xe9\n"))
    assert next(pairs).target == "one"
    with pytest.raises(DataError, match="line 2"):
        next(pairs)


@pytest.mark.parametrize(
    "wrong", [b"\xff", b"\xe9", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
)
def test_invalid_utf8_can_be_replaced_or_skipped(tmp_path, wrong):
    source, target = b"a\nb" + wrong + b"\nc\n", b"x\ny\nz\n"
    replaced = parallel(tmp_path, source, target, Choices(invalid="replace"))
    assert [pair.source for pair in replaced] == ["a", "b" + wrong.decode("utf-8", "replace"), "c"]
    assert replaced.inspect()["invalid"].done == "repaired"
    before = replaced.fingerprint
    skipped = parallel(tmp_path, source, target, Choices(invalid="skip"))
    assert [pair.number for pair in skipped] == [1, 3] and skipped.inspect()["invalid"].dropped == 1
    assert before != skipped.fingerprint


def test_nul_is_replaced_by_a_space_by_default(tmp_path):
    source = b"a\0b\n\0\nc\n"
    pairs = parallel(tmp_path, source, b"x\ny\nz\n")
    assert [pair.source for pair in pairs] == ["a b", "c"]
    assert counts(pairs.inspect()) == {"nul": 2, "empty": 1}
    assert len(parallel(tmp_path, source, b"x\ny\nz\n", Choices(nul="skip"))) == 1
    with pytest.raises(DataError, match=facts("line 1", "NUL")):
        len(parallel(tmp_path, source, b"x\ny\nz\n", Choices(nul="error")))


@pytest.mark.parametrize(
    "blank", ["", " ", "\t", "\u3000", "\u00a0 \u2003", "\u200b \u200b \ufeff", "\x85", "\x1f"]
)
def test_a_side_of_invisible_characters_is_empty(tmp_path, blank):
    source, target = b"a\nb\nc\n", f"x\n{blank}\n y\u200b\n".encode()
    pairs = parallel(tmp_path, source, target)
    assert [pair.number for pair in pairs] == [1, 3]
    empty = pairs.inspect()["empty"]
    assert (empty.count, empty.dropped, empty.done) == (1, 1, "dropped")
    assert empty.examples[0].place.endswith("a.en, line 2") and empty.examples[0].number == 2
    with pytest.raises(DataError, match=facts("a.en", "line 2", "empty")):
        len(parallel(tmp_path, source, target, Choices(empty="error")))


def test_lengths_are_in_characters(tmp_path):
    source, target = "가나다라마\n가나다라마바\n".encode(), b"12345\n1\n"
    choices = Choices(longest=5)
    assert [pair.number for pair in parallel(tmp_path, source, target, choices)] == [1]
    report = parallel(tmp_path, source, target, choices).inspect()
    assert "over 5 characters" in report["long"].says and report["long"].dropped == 1
    assert len(parallel(tmp_path, source, target, Choices(longest=5, long="keep"))) == 2
    assert len(parallel(tmp_path, source, target, Choices(longest=None))) == 2
    with pytest.raises(DataError, match=facts("line 2", "over 5")):
        len(parallel(tmp_path, source, target, Choices(longest=5, long="error")))


def test_uneven_pairs_are_counted_and_kept_by_default():
    sources = ["x" * 20, "x" * 21, "x", "x" * 40, "x" * 41, ""]
    targets = ["y" * 40, "y" * 43, "y" * 20, "y" * 20, "y" * 20, "y" * 99]
    report = pairs_from_lists(sources, targets, Choices(ratio=2)).inspect()
    assert [example.number for example in report["uneven"].examples] == [2, 5]
    assert report["uneven"].count == 2 and report.kept == 5
    skipped = pairs_from_lists(sources, targets, Choices(ratio=2, uneven="skip"))
    assert [pair.number for pair in skipped] == [1, 3, 4]
    with pytest.raises(DataError, match=r"pair 2: .*21 .*43"):
        len(pairs_from_lists(sources, targets, Choices(ratio=2, uneven="error")))
    assert pairs_from_lists(sources, targets, Choices(ratio=None)).inspect()["uneven"].count == 0


def test_duplicate_pairs_are_counted_and_kept():
    sources = ["a", "a", "b", "", "a", "b", ""]
    targets = ["1", "2", "3", "4", "1", "3", "4"]
    duplicate = pairs_from_lists(sources, targets).inspect()["duplicate"]
    assert duplicate.count == 2 and [example.number for example in duplicate.examples] == [5, 6]
    assert duplicate.examples[0].place == "lists, pair 5"
    swapped = pairs_from_lists(["a", "b"], ["b", "a"]).inspect()
    assert swapped["duplicate"].count == 0


def test_equal_sides_are_counted_and_questioned_if_they_are_nearly_all(tmp_path):
    report = parallel(tmp_path, b"OK\none\n\ntwo\n", b"OK\neins\n\ntwo\n").inspect()
    equal = report["equal"]
    assert (equal.count, equal.done, report.kept) == (2, "kept", 3)
    assert [each.place.rpartition(", ")[2] for each in equal.examples] == ["line 1", "line 4"]
    assert "same file" not in str(report) and "are equal" in str(report)
    assert "same file" in str(parallel(tmp_path, b"a\nb\n", b"a\nb\n").inspect())


def test_a_pair_with_several_problems_is_dropped_once(tmp_path):
    choices = Choices(invalid="skip", longest=3, ratio=2, uneven="skip")
    report = parallel(tmp_path, b"\xffaaaa" + b"a" * 40 + b"\n\nok\n", b"b\nc\nno\n", choices).inspect()
    assert counts(report) == {"invalid": 1, "empty": 1, "long": 1, "uneven": 1}
    assert {finding.kind: finding.dropped for finding in report.findings if finding.dropped} == {
        "invalid": 1,
        "empty": 1,
    }
    assert (report.read, report.kept) == (3, 1)


def test_table_escapes_markup_and_control_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder is shown relative to the working directory
    folder = tmp_path / "[red]odd"
    folder.mkdir()
    report = parallel(folder, b"\x1b[2J[bold]\0\n", b"x\n").inspect()
    page = io.StringIO()
    Console(file=page, width=300, force_terminal=True).print(report)
    assert "[red]odd" in page.getvalue() and "\x1b[2J" not in page.getvalue()
    assert report["nul"].examples[0].text == "�[2J[bold] "
    with pytest.raises(UnknownName, match=facts("known", "empty")):
        report["void"]


def test_examples_are_the_first_three_with_the_beginning_of_their_text():
    sources = ["long " * 50] * 5
    finding = pairs_from_lists(sources, sources, Choices(longest=9)).inspect()["long"]
    assert finding.count == 5 and [example.number for example in finding.examples] == [1, 2, 3]
    assert finding.examples[0].text.endswith("…") and len(finding.examples[0].text) == 60


@pytest.mark.parametrize("short", [0, 1])
def test_different_line_counts_raise_with_the_line_without_counterpart(tmp_path, short):
    numbers = random.Random(5)
    texts = ["x" * numbers.randint(5, 120) for _ in range(300)]
    sides = [texts, [text + "y" * (len(text) // 3) for text in texts]]
    del sides[short][150]
    first, second = ("\n".join(side).encode() + b"\n" for side in sides)
    with pytest.raises(DataError) as caught:
        list(iter(parallel(tmp_path, first, second)))
    error = str(caught.value)
    assert f"{300 - (short == 0)} and {300 - (short == 1)}" in error
    assert str(tmp_path / "a.ko") in error and str(tmp_path / "a.en") in error
    assert mentions(error, "line 151", tmp_path / ("a.ko", "a.en")[1 - short])
    assert sides[1 - short][150][:60] in error


def test_error_says_that_the_end_of_a_file_is_missing(tmp_path):
    numbers = random.Random(6)
    texts = ["x" * numbers.randint(5, 120) for _ in range(300)]
    whole, cut = "\n".join(texts).encode(), "\n".join(texts[:200]).encode()
    report = parallel(tmp_path, whole, cut).inspect()
    assert report.refused is not None and f"end of {tmp_path / 'a.en'}" in str(report.refused)
    assert "300 and 200" in str(report.refused)


def test_unrelated_files_are_not_said_to_be_parallel(tmp_path):
    numbers = random.Random(7)
    sides = ["\n".join("x" * numbers.randint(5, 120) for _ in range(count)) for count in (300, 200)]
    error = str(parallel(tmp_path, *(side.encode() for side in sides)).inspect().refused)
    assert mentions(error, 300, 200) and "counterpart" not in error


def test_line_counts_are_a_short_row_and_the_hint_is_in_the_error_alone(tmp_path):
    report = parallel(tmp_path, b"a\nb\nc\n", b"x\n").inspect()
    finding = report["counts"]
    assert (finding.count, finding.done) == (2, "refused") and "3 and 1" in finding.says
    assert "3 and 1" in str(report) and "hint" not in str(report) and "hint" in str(report.refused)


def test_an_empty_file_and_a_full_one_raise(tmp_path):
    with pytest.raises(DataError, match="0 and 2"):
        len(parallel(tmp_path, b"", b"a\nb\n"))
    assert len(parallel(tmp_path, b"", b"")) == 0


def test_error_names_the_files_with_different_line_counts(tmp_path):
    paths = {name: tmp_path / name for name in ("1.ko", "2.ko", "1.en", "2.en")}
    for name, path in paths.items():
        path.write_text("a\nb\nc\n" if name == "2.en" else "a\nb\n")
    pairs = read_pairs([paths["1.ko"], paths["2.ko"]], [paths["1.en"], paths["2.en"]])
    with pytest.raises(DataError, match=facts("2.ko", "2.en", 2, 3)):
        list(iter(pairs))


LINES = st.lists(
    st.sampled_from(
        [b"", b" ", b"a\xff", b"a\0b", b"word", "말".encode(), b"long " * 20, b"\xe3\x80\x80", b"x\r"]
    ),
    max_size=12,
)
ODD = st.sampled_from(["error", "skip", "replace"])


@given(
    LINES,
    LINES,
    st.sampled_from(["error", "replace", "skip"]),
    ODD,
    st.sampled_from(["keep", "skip"]),
    st.integers(4, 64),
)
def test_the_report_and_the_pairs_agree(tmp_path_factory, sources, targets, invalid, nul, odd, block):
    """Counts add up, kept pairs are those iterated over for any block size, and both raise the same error."""
    folder = tmp_path_factory.mktemp("agree")
    both = list(zip(sources, targets, strict=False))
    choices = Choices(invalid=invalid, nul=nul, longest=50, long=odd, ratio=3, uneven=odd)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_text, "BLOCK", block)
        source, target = (b"".join(two[i] + b"\n" for two in both) for i in (0, 1))
        pairs = parallel(folder, source, target, choices)
        report = pairs.inspect()
        if report.refused is not None:
            with pytest.raises(DataError) as caught:
                list(iter(pairs))
            assert str(caught.value) == str(report.refused)
            return
        kept = list(iter(pairs))
    assert len(kept) == report.kept == len(pairs) and report.read == len(both)
    assert report.read - report.kept == sum(finding.dropped for finding in report.findings)
    assert report["duplicate"].count == len(kept) - len({pair[:2] for pair in kept})
    assert report["return"].count == sum(any(side.endswith(b"\r") for side in two) for two in both)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_bar_is_shown_on_a_terminal_only(tmp_path, monkeypatch, terminal):
    page = io.StringIO()
    monkeypatch.setattr(line_io, "PATIENCE", 0.0)
    monkeypatch.setattr(line_io, "Console", lambda **_: Console(file=page, force_terminal=terminal, width=80))
    parallel(tmp_path, b"a\n" * 50, b"b\n" * 50).inspect()
    assert ("checking pairs" in page.getvalue()) == terminal
    assert terminal or page.getvalue() == ""


def test_every_kind_has_its_own_bit_and_lists_its_default_first():
    bits = [kind.bit for kind in KINDS.values()]
    assert sorted(bits) == [1 << i for i in range(8)]
    assert all(Choices().done_with(name) == kind.may[0] for name, kind in KINDS.items())
    assert all(left & right == 0 for left, right in itertools.combinations(bits, 2))


def test_report_of_refused_pairs_says_so(tmp_path):
    source, target = tmp_path / "a.ko", tmp_path / "a.en"
    source.write_text("하나\n둘\n셋\n", encoding="utf-8")
    target.write_text("one\ntwo\n", encoding="utf-8")
    table = str(read_pairs(source, target).inspect())
    assert "refused" in table and "kept" not in table


def html(report: Report) -> str:
    return report._repr_mimebundle_([], [])["text/html"]


def test_notebook_shows_the_report_as_an_escaped_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder is shown relative to the working directory
    folder = tmp_path / "<b>&"
    folder.mkdir()
    report = parallel(folder, b"a\n\nc\n", b"d\ne\nf\n").inspect()
    shown = html(report)
    assert mentions(shown, "3 pairs", "2 kept", "empty")
    assert "<b>" not in shown and "&lt;b&gt;&amp;" in shown
    refused = parallel(folder, b"a\n\nc\n", b"d\ne\nf\n", Choices(empty="error")).inspect()
    assert refused.refused is not None and "refused" in html(refused)
    assert "none" in html(parallel(folder, b"a\n", b"d\n").inspect())
