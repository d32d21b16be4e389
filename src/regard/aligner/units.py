"""How lines are split into the units that are aligned, and warnings about pairs that align badly."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice

from regard.aligner.vocabulary import word_form

__all__ = ["UNITS", "Words", "split_at_spaces", "warn_if_swapped", "warnings_about"]

Words = Callable[[list[str]], list[list[str]]]
"""A function that splits lines into words."""

FEW = 100
"""With fewer pairs, a note says that more pairs give better alignments."""

SAMPLED = 1000
"""Number of pairs that warn_if_swapped() reads."""


def split_at_spaces(lines: list[str]) -> list[list[str]]:
    """Split each line at spaces.

    >>> split_at_spaces(["a  b", ""])
    [['a', 'b'], []]
    """
    return [line.split() for line in lines]


def characters(lines: list[str]) -> list[list[str]]:
    """Split each line into words, and words with Chinese or Japanese letters into characters.

    >>> characters(["我 爱你 PyTorch"])
    [['我', '爱', '你', 'PyTorch']]
    """
    return [
        [unit for word in line.split() for unit in (word if any(map(_is_han, word)) else [word])]
        for line in lines
    ]


def morphemes(lines: list[str]) -> list[list[str]]:
    """Split each line with Korean letters into morphemes, and other lines at spaces.

    The package kiwipiepy finds the morphemes.
    """
    from regard.data.tokenizers.morphemes import analyzed_lines

    korean = [
        number for number, line in enumerate(lines) if any("\uac00" <= each <= "\ud7a3" for each in line)
    ]
    result = split_at_spaces(lines)
    for number, analysed in zip(korean, analyzed_lines([lines[each] for each in korean]), strict=True):
        result[number] = [morpheme.form for morpheme in analysed if morpheme.form.strip()]
    return result


UNITS: dict[str, Words] = {"word": split_at_spaces, "character": characters, "morpheme": morphemes}
"""Name of a unit -> the function that splits lines into such units."""


def warnings_about(
    pairs: Iterable[tuple[str, str]], alone: bool, say: Callable[[str], object]
) -> Iterator[tuple[str, str]]:
    """Yield pairs. After the last one, say what is unusual about them.

    alone: whether alignments are learned from these pairs only, and words are split at spaces.
    say: a function that is called with each warning.

    >>> list(warnings_about([("a", "a")] * 200, True, print))[0]
    in 200 of 200 pairs, source and target are equal: are both sides in the same language?
    ('a', 'a')
    """
    count, equal, unsplit = 0, 0, [0, 0]
    for pair in pairs:
        yield pair
        count += 1
        equal += pair[0] == pair[1] and bool(pair[0])
        for side in (0, 1):
            text = pair[side]
            unsplit[side] += len(text) > 9 and " " not in text and any(map(_is_han, text))
    if alone and 0 < count < FEW:
        say(
            f"{count:,} pair{'s' * (count > 1)}: alignments are learned from the pairs themselves, and are "
            "better with more pairs, or with a model of other pairs (--model)"
        )
    if 2 * equal > count:
        say(
            f"in {equal:,} of {count:,} pairs, source and target are equal: are both sides in the same "
            "language?"
        )
    for name, lines in zip(("source", "target"), unsplit, strict=True):
        if alone and 2 * lines > count:
            say(f"{lines:,} lines of the {name} have no spaces, so each is one word: --tokenizer character")


def warn_if_swapped(
    pairs: Iterable[tuple[str, str]],
    known: Sequence[Container[str]],
    split: Words,
    say: Callable[[str], object],
) -> Iterator[tuple[str, str]]:
    """Yield pairs. Before the first one, say whether source and target are probably swapped.

    They probably are if more than twice as many words are known only on the other side as only on their own.

    known: the words of the source and of the target that an aligner has learned (see word_form()).
    split: splits the texts into words.
    say: a function that is called with the warning.

    >>> list(warn_if_swapped([("the house", "das Haus")], ({"das", "haus"}, {"the"}), split_at_spaces, print))
    most words are known as words of the other side: are source and target swapped?
    [('the house', 'das Haus')]
    """
    iterator = iter(pairs)
    sample = list(islice(iterator, SAMPLED))
    straight = crossed = 0
    for side, (same, other) in enumerate((known, known[::-1])):
        forms = [word_form(word) for words in split([pair[side] for pair in sample]) for word in words]
        straight += sum(form in same and form not in other for form in forms)
        crossed += sum(form in other and form not in same for form in forms)
    if crossed > 2 * straight:
        say("most words are known as words of the other side: are source and target swapped?")
    yield from sample
    yield from iterator


def _is_han(letter: str) -> bool:
    return "\u3040" <= letter <= "\u30ff" or "\u4e00" <= letter <= "\u9fff"
