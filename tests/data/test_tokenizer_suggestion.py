"""suggest_tokenizer() suggests characters for strings and subwords for sentences."""

from __future__ import annotations

import itertools
import random
import time
from datetime import date, timedelta

import pytest

from regard.data import korean_english, pairs_from_lists
from regard.data.tokenizers import READ, suggest_tokenizer

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
COUNT = 400

Given = list[tuple[str, str]]


def in_words(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{ONES[number // 100]} hundred" + (f" and {in_words(number % 100)}" if number % 100 else "")
    return f"{in_words(number // 1000)} thousand" + (f" {in_words(number % 1000)}" if number % 1000 else "")


def days() -> list[date]:
    draw = random.Random(0)
    return [date(1950, 1, 1) + timedelta(days=draw.randrange(36_000)) for _ in range(COUNT)]


def drawn(letters: str, shortest: int, longest: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(letters, k=draw.randint(shortest, longest))) for _ in range(COUNT)]


def dates() -> Given:
    return [(f"{day:%A}, {day.day} {day:%B %Y}", day.isoformat()) for day in days()]


def dates_to_words() -> Given:
    return [(target, source) for source, target in dates()]


def numbers() -> Given:
    return [(in_words(n), str(n)) for n in random.Random(0).sample(range(100_000), COUNT)]


def numbers_to_words() -> Given:
    return [(target, source) for source, target in numbers()]


def sums() -> Given:
    draw = random.Random(0)
    both = [(draw.randrange(1000), draw.randrange(1000)) for _ in range(COUNT)]
    return [(f"{a} + {b}", str(a + b)) for a, b in both]


def nucleotides() -> Given:
    strings = drawn("ACGT", 60, 300, 0)
    return [(each, ("coding", "non-coding")[each.count("G") % 2]) for each in strings]


def phonemes() -> Given:
    words = drawn("abcdefghijklmnopqrstuvwxyz", 3, 11, 0)
    return [(word, " ".join(f"{letter.upper()}H" for letter in word)) for word in words]


def ipa() -> Given:
    words = drawn("abcdefghijklmnopqrstuvwxyz", 3, 11, 0)
    table = str.maketrans("aeiour", "æɛɪɔʊɹ")
    return [(word, "ˈ" + word.translate(table)) for word in words]


def cipher() -> Given:
    english = [example.target for example in korean_english("train", COUNT)]
    names = drawn("bcdfghjklm", 4, 8, 1)
    lines = [f"{name} {line}" for name, line in zip(names, english, strict=True)]
    return [(line, "".join(chr(ord(c) + 1) if c.isalpha() else c for c in line)) for line in lines]


def built_in() -> Given:
    return [(each.source, each.target) for each in korean_english("train", COUNT)]


def english_to_korean() -> Given:
    return [(target, source) for source, target in built_in()]


def labels() -> Given:
    names = ("positive", "negative", "neutral", "mixed", "none")
    return [(each.target, names[number % 5]) for number, each in enumerate(korean_english("train", COUNT))]


def numbered_labels() -> Given:
    return [(each.target, str(number % 5)) for number, each in enumerate(korean_english("train", COUNT))]


def chinese() -> Given:
    """Lines without spaces, of 2,000 characters, with English translations."""
    lines = drawn("".join(map(chr, range(0x4E00, 0x4E00 + 2000))), 5, 25, 0)
    return [(line + "。", each[1]) for line, each in zip(lines, built_in(), strict=True)]


def english_to_japanese() -> Given:
    kana, kanji = map(chr, range(0x3041, 0x3097)), map(chr, range(0x4E00, 0x4E00 + 800))
    lines = drawn("".join(itertools.chain(kana, kanji)), 4, 18, 0)
    return [(each[1], line + "。") for line, each in zip(lines, built_in(), strict=True)]


def thai() -> Given:
    lines = drawn("".join(map(chr, range(0x0E01, 0x0E2F))), 8, 40, 0)
    return [(line, each[1]) for line, each in zip(lines, built_in(), strict=True)]


def short_sentences() -> Given:
    """Like the beginning of Tatoeba, whose files are sorted by length."""
    verbs = drawn("aeioubdfgklmnprst", 2, 6, 0)
    return [(f"{verb.title()} it!", f"{verb.title()}e es bitte!") for verb in verbs]


def shortest_sentences() -> Given:
    """Sentences of one word each."""
    verbs = drawn("aeioubdfgklmnprst", 2, 6, 0)
    return [(f"{verb.title()}!", f"{verb.title()}e!") for verb in verbs]


def titles_and_texts() -> Given:
    """A single unseen word as source, a long text as target."""
    return [(word, " ".join([line] * 5)) for (word, _), (_, line) in zip(phonemes(), built_in(), strict=True)]


CHARACTER = (
    dates,
    dates_to_words,
    numbers,
    numbers_to_words,
    sums,
    nucleotides,
    phonemes,
    ipa,
    cipher,
)
UNIGRAM = (
    built_in,
    english_to_korean,
    labels,
    numbered_labels,
    chinese,
    english_to_japanese,
    thai,
    short_sentences,
    shortest_sentences,
    titles_and_texts,
)


@pytest.mark.parametrize("make", CHARACTER)
def test_characters_are_suggested_for_strings(make):
    name, why = suggest_tokenizer(make())
    assert name == "character" and why and "\n" not in why


@pytest.mark.parametrize("make", UNIGRAM)
def test_subwords_are_suggested_for_sentences_and_labels(make):
    name, why = suggest_tokenizer(make())
    assert name == "unigram" and why and "\n" not in why


def test_pairs_objects_are_accepted():
    sources, targets = map(list, zip(*dates(), strict=True))
    assert suggest_tokenizer(pairs_from_lists(sources, targets))[0] == "character"


def test_subwords_are_suggested_for_too_few_pairs():
    assert suggest_tokenizer([])[0] == suggest_tokenizer(dates()[:5])[0] == "unigram"
    assert suggest_tokenizer([("", "")] * 100)[0] == "unigram"


def test_sorted_files_are_sampled_from_start_to_end():
    """A few numbers first, then many more sentences."""
    assert suggest_tokenizer(numbers() + 20 * built_in())[0] == "unigram"


def test_reading_and_time_are_bounded():
    begun = time.process_time()
    endless = itertools.cycle(built_in())
    assert suggest_tokenizer(endless)[0] == "unigram"
    assert time.process_time() - begun < 10 and next(endless) and READ <= 200_000
