"""Check gold alignments against their sentence pairs, and compute the alignment error rate."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.line_io import say
from regard.errors import DataError, message
from regard.evaluation import AlignmentScore, Links, past_the_end, score_links

__all__ = ["check_links", "evaluate_alignments"]

MAX_OUT_OF_RANGE = 0.05
"""Maximum fraction of sentence pairs with gold links that are out of range. A larger one raises DataError."""


def evaluate_alignments(
    links: Sequence[tuple[tuple[int, int], ...]],
    gold: Sequence[Links],
    words: Sequence[tuple[int, int]],
    place: str,
) -> AlignmentScore:
    """Check gold alignments with check_links(), and compute the alignment error rate of proposed links.

    links: the proposed links of each sentence pair.
    gold: the gold alignment of each pair.
    words: the number of source and target words of each pair.
    place: the file with the gold alignments, for error messages.
    """
    check_links(gold, words, place)
    return score_links(links, gold)


def check_links(gold: Sequence[Links], words: Sequence[tuple[int, int]], place: str) -> None:
    """Raise DataError if the gold alignments do not match the sentence pairs.

    They do not match in two cases: the number of alignments differs from the number of pairs; or many links
    are out of range, for example because the file counts words from 1. A few links that are out of range are
    treated as annotation errors: they are reported on standard error. In the score, they count as links that
    the model did not find, as in other tools.

    gold: the gold alignment of each pair.
    words: the number of source words and of target words of each pair.
    place: the file with the gold alignments, for error messages.
    """
    if len(gold) != len(words):
        problem = f"there are {len(gold):,} lines of gold alignments, but {len(words):,} sentence pairs"
        raise DataError(message(place, problem, expected="one line for each pair, empty if it has no links"))
    out_of_range = past_the_end(gold, words)
    if not out_of_range:
        return
    line, (source, target) = out_of_range[0]
    counts = f"{words[line][0]} source and {words[line][1]} target words"
    where, link = f"{place}, line {line + 1}", f"link {source}-{target}"
    if len({line for line, _ in out_of_range}) > MAX_OUT_OF_RANGE * len(gold):
        hint = "use --base 1 if words are counted from 1, or check whether the sides are swapped"
        raise DataError(message(where, f"{link} is out of range for {counts}", hint=hint))
    total = f"; {len(out_of_range)} such links in total" if len(out_of_range) > 1 else ""
    say(f"{where}: {link} is out of range for {counts}; the link counts as not found{total}")
