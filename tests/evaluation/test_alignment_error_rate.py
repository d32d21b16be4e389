"""Links are parsed and written in Pharaoh format, and scored like hand computations."""

from __future__ import annotations

import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding import align
from regard.errors import ArgumentError, DataError
from regard.evaluation.alignment_error_rate import (
    AlignmentScore,
    Links,
    check_links,
    parse_links,
    read_links,
    score_links,
)
from tests.facts import facts, mentions

LINKS = st.frozensets(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def test_parse_sure_and_possible_links():
    links = parse_links(" 0-0\t1-2  1p3 4?5 ")
    assert links.sure == {(0, 0), (1, 2)}
    assert links.possible == {(0, 0), (1, 2), (1, 3), (4, 5)}
    assert parse_links("") == Links(frozenset())


def test_base_one_counts_words_from_one():
    assert parse_links("1-1 2p3", base=1) == parse_links("0-0 1p2")
    assert parse_links("0-0 1p2").written(base=1) == "1-1 2p3"


def test_link_that_is_sure_and_possible_is_sure():
    assert str(parse_links("1p1 1-1")) == "1-1"


def test_probabilities_of_links_are_ignored():
    assert parse_links("0-0:0.83 1-2:1 3p4:0.05") == parse_links("0-0 1-2 3p4")


@given(LINKS, LINKS, st.sampled_from([0, 1]))
def test_written_links_parse_to_the_same_links(sure, possible, base):
    links = Links(sure, possible)
    assert parse_links(links.written(base), base) == links
    assert links.turned().turned() == links


@pytest.mark.parametrize(
    "wrong",
    [
        "0",
        "0-",
        "a-b",
        "0-0,1-1",
        "0--1",
        "-1-0",
        "0-0-0",
        "1:2",
        "0-0:",
        "0-0:x",
        "0-0:.",
        "٣-٣",
        "0-\x1b[2J",
    ],
)
def test_invalid_links_raise_with_their_line(tmp_path, wrong):
    (tmp_path / "links").write_text(f"0-0\n0-0 {wrong}\n", encoding="utf-8")
    with pytest.raises(DataError, match=facts("links", "line 2", "'")) as caught:
        read_links(tmp_path / "links")
    assert "\x1b" not in str(caught.value)


def test_word_zero_raises_with_base_one(tmp_path):
    (tmp_path / "links").write_text("1-1\n2-0\n")
    with pytest.raises(DataError, match=facts("line 2", "'2-0'", "base=0")):
        read_links(tmp_path / "links", base=1)
    with pytest.raises(ArgumentError, match=facts("base", 2)):
        parse_links("1-1", base=2)


def test_read_links_reads_plain_and_gzip_files_with_empty_lines(tmp_path):
    (tmp_path / "links.gz").write_bytes(gzip.compress(b"0-0\r\n\n1-1"))
    assert [str(links) for links in read_links(tmp_path / "links.gz")] == ["0-0", "", "1-1"]
    (tmp_path / "odd").write_bytes(b"0-0\n\xff\n")
    with pytest.raises(DataError, match=facts("odd", "line 2", "UTF-8", "byte 1")):
        read_links(tmp_path / "odd")


def test_score_equals_a_hand_computation():
    """First sentence: A = 3, S = 2, A & S = 1, A & P = 2. Second: A = 2, S = 2, A & S = 2, A & P = 2."""
    drawn = [parse_links("0-0 1-1 2p2"), parse_links("0-1 1-0 5p5")]
    proposed = [parse_links("0-0 2-2 3-3"), [(0, 1), (1, 0)]]
    score = score_links(proposed, drawn)
    assert score == AlignmentScore(proposed=5, sure=4, hits=4, sure_hits=3)
    assert score.precision == pytest.approx(4 / 5)
    assert score.recall == pytest.approx(3 / 4)
    assert score.error_rate == pytest.approx(1 - (3 + 4) / (5 + 4))
    assert str(score).startswith("AER 22.22  precision 80.00  recall 75.00")


def test_without_possible_links_the_error_rate_is_one_minus_f1():
    score = score_links([[(0, 0), (1, 1), (2, 2)]], [parse_links("0-0 1-1 3-3 4-4")])
    f1 = 2 * score.precision * score.recall / (score.precision + score.recall)
    assert score.error_rate == pytest.approx(1 - f1)


def test_possible_links_of_a_hypothesis_are_ignored():
    assert score_links([parse_links("0-0 1p1")], [parse_links("0-0")]).error_rate == 0.0


def test_counts_are_summed_over_sentences_before_the_division():
    drawn = [parse_links("0-0"), parse_links("0-0 1-1 2-2")]
    score = score_links([[], [(0, 0), (1, 1), (2, 2)]], drawn)
    assert score.recall == pytest.approx(3 / 4) and score.error_rate == pytest.approx(1 - 6 / 7)


@pytest.mark.parametrize(
    "ours, theirs, expected", [("", "", (1, 1, 0)), ("", "0-0", (1, 0, 1)), ("0-0", "", (0, 1, 1))]
)
def test_scores_with_a_zero_denominator(ours, theirs, expected):
    score = score_links([parse_links(ours)], [parse_links(theirs)])
    assert (score.precision, score.recall, score.error_rate) == expected


@given(LINKS, LINKS, LINKS)
def test_scores_are_between_0_and_1(ours, sure, possible):
    score = score_links([ours], [Links(sure, possible)])
    assert 0 <= score.error_rate <= 1 and 0 <= score.precision <= 1 and 0 <= score.recall <= 1
    assert score_links([sure], [Links(sure, possible)]).error_rate == 0


def test_different_numbers_of_sentences_raise():
    with pytest.raises(ArgumentError, match=facts("proposed", 1, "drawn", 2)):
        score_links([[]], [parse_links(""), parse_links("")])


def test_many_links_past_the_end_of_a_sentence_raise():
    gold = [parse_links("0-0"), parse_links("1-2")]
    check_links(gold, [(1, 1), (2, 3)], "gold")
    with pytest.raises(DataError, match=facts("gold", "line 2", "1-2", "--base", 1)):
        check_links(gold, [(1, 1), (2, 2)], "gold")


@pytest.mark.parametrize(("first", "lines", "noted"), [(1, 20, True), (1, 19, False), (0, 20, False)])
def test_gold_alignments_without_word_0_are_noted(capsys, first, lines, noted):
    gold = [parse_links(f"{first}-1 2p2"), *[parse_links("1-1 2p2")] * (lines - 1), parse_links("")]
    check_links(gold, [(4, 4)] * len(gold), "gold")
    err = capsys.readouterr().err
    assert (err != "") == noted and mentions(err, "gold", "--base 1") == noted


def test_score_links_accepts_an_alignment():
    weights = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    result = align(weights, [0, 1, -1], [0, 1, -1])
    assert score_links([result], [parse_links("0-0 1-1")]).error_rate == 0


def test_links_past_the_end_of_a_sentence_raise():
    drawn = [parse_links("0-0"), parse_links("1-2")]
    assert score_links([[], []], drawn, lengths=[(1, 1), (2, 3)]).sure == 2
    with pytest.raises(DataError, match=r"(?s)sentence 2: .*1-2.*base="):
        score_links([[], []], drawn, lengths=[(1, 1), (2, 2)])


def test_links_as_text_are_refused_with_the_function_that_reads_them():
    with pytest.raises(ArgumentError, match="parse_links"):
        score_links(["0-0 1-1"], [parse_links("0-0")])
