"""Alignments and pictures have characters with a character tokenizer, and words with any other."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from regard.data.tokenizers import train_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased
from regard.decoding import Greedy, Rules, Translator, choices
from regard.errors import ArgumentError, UnknownName
from regard.models import build_model
from tests.facts import facts

DATE, ISO = "3 March 2021", "2021-03-03"


def translator(kind: str = "character", **options: object) -> Translator:
    lines = [DATE, ISO, "the end. of it."]
    tokenizer = train_tokenizer(kind, lines * 3, 300 if kind == "bpe" else None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("bahdanau", tokenizer.size, tokenizer.size, width=8, embedding=8)
    return Translator(model, tokenizer, tokenizer, **{"search": Greedy(Rules(maximum=9)), **options})


def drawn(what: object) -> str:
    page = io.StringIO()
    Console(file=page, width=120, color_system=None).print(what)
    return page.getvalue()


def test_a_date_is_aligned_by_character():
    scored = translator().score(DATE, ISO)
    assert scored.units == ("character", "character")
    assert scored.alignment.matrix.shape == (len(ISO), len(DATE))
    assert [target for _, target in scored.alignment.links] == list(range(len(ISO)))
    assert "".join(scored.source_units) == "3␣March␣2021" and "".join(scored.target_units) == ISO
    entry = scored.entry()
    assert entry.weights.shape == (10, 12)
    assert DATE in drawn(scored) and "␣" in drawn(scored)
    page = scored._repr_html_()
    assert "<span>M</span><span>a</span>" in page and '<th scope="col"><bdi>␣</bdi></th>' in page


def test_character_alignment_matrix_equals_the_attention():
    scored = translator().score(DATE, ISO)
    torch.testing.assert_close(scored.alignment.matrix, scored.attention["decoder.cross"][:-1, :-1])
    words = scored.seen().words()
    assert words.source == (*"3␣March␣2021", "</s>") and words.target == (*ISO, "</s>")


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_other_tokenizers_are_aligned_by_words(kind: str):
    scored = translator(kind).score(DATE, "2021 03 03")
    assert scored.units == ("word", "word") and scored.alignment.matrix.shape == (3, 3)
    assert scored.source_units == ["3", "March", "2021"] and scored.entry().texts is None


def test_unit_word_aligns_words_with_a_character_tokenizer():
    scored = translator(unit="word").score(DATE, ISO)
    assert scored.alignment.matrix.shape == (1, 3) and scored.target_units == [ISO]


def test_invalid_units_raise():
    with pytest.raises(UnknownName, match=facts("auto", "character", "morpheme", "word")):
        translator(unit="syllable")
    with pytest.raises(ArgumentError, match="character"):
        translator("bpe", unit="character")


def test_lowercased_tokenizer_keeps_the_unit_of_its_inner_tokenizer():
    tokenizer = Lowercased(train_tokenizer("character", [DATE.lower()]))
    assert tokenizer.unit == "character" and tokenizer.units(tokenizer.encode("3 M")) == [0, 1, 2]
    assert Lowercased(train_tokenizer("word", [DATE])).unit == "word"


def test_spaces_dropped_by_decode_are_not_units():
    tokenizer = train_tokenizer("character", ["a b"])
    a, space = tokenizer.encode("a b")[:2]
    tokens = [space, a, space, space, a, space, 3]
    assert tokenizer.decode(tokens) == "a a"
    assert tokenizer.units(tokens) == [-1, 0, 1, -1, 2, -1, -1]
    assert tokenizer.units([]) == [] and tokenizer.units([space]) == [-1]


def test_character_indices_continue_over_the_parts_of_a_split_line():
    line = "the end. of it. the end. of it."
    made = translator(longest=10)
    result = made.translate(line)
    assert len(result.passages) == 4
    numbers = [number for passage in result.passages for number in passage.source_words if number >= 0]
    spaces = {8, 15, 24}  # between sentences: in no part
    assert numbers == [number for number in range(len(line)) if number not in spaces]
    assert result.source_units == list(line.replace(" ", "␣"))
    rows = [number for passage in result.passages for number in passage.words if number >= 0]
    assert rows == sorted(set(rows)) and max(rows, default=-1) == len(result.text) - 1


def test_every_choice_aligns_characters():
    scored = translator().score(DATE, ISO)
    for choice in choices(scored.attention):
        assert scored.align(choice.site, choice.head, choice.shifted).matrix.shape[1] == len(DATE)
