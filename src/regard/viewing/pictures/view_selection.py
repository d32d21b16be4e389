"""Select from a Seen the sites, heads and words that a view draws."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, UnknownName, message
from regard.roles import matches
from regard.viewing.seen import Seen, Site
from regard.viewing.terminal_colors import clean
from regard.viewing.word_groups import SPACE, grouped

Word = int | str

_COUNTED = re.compile(r"(.+):(\d+)", re.DOTALL)
"""Pattern for a word with the number of its occurrence. For example, "the:2" is the second "the"."""

_INTEGER = re.compile(r"-?\d+")


class Chosen(NamedTuple):
    """The weights that a view draws: the weights of one attention layer (site), or a mean over several sites.

    weights: (T, S).
    rows, columns: the T queries and the S keys as text.
    about: the sites and heads as text, for example "decoder.cross, mean of 8 heads".
    kind: the kind of attention: "cross", "encoder", "decoder" or another name, as in Site.kind.
    """

    weights: NDArray[numpy.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    about: str
    kind: str


def matching(seen: Seen, site: str | None = None) -> list[Site]:
    """Return the sites (attention layers) of a Seen that match `site`.

    site: a role such as "cross", or a name with * as wildcard. None: the cross-attention sites. If there are
        none, the last site and all sites of the same kind (see Site.kind).

    >>> from regard.viewing import Seen, Site
    >>> seen = Seen([Site("decoder.cross", [[1.0]], ["a"], ["b"])], ["b"], ["a"], [0], [0])
    >>> [each.name for each in matching(seen, "*cross")]
    ['decoder.cross']
    """
    if not seen.sites:
        problem = "there are no sites: the model has no attention, or its weights were not recorded"
        hint = "use the layers of regard.layers; convert nn.MultiheadAttention with MultiHead.from_torch()"
        if seen.long:
            problem = "there are only sites of long sequences (Seen.long)"
            hint = "draw them with view='long'"
        raise ArgumentError(message("picture()", problem, hint=hint))
    names = [each.name for each in seen.sites]
    if site is None:
        crossing = [each for each in seen.sites if each.kind == "cross"]
        return crossing or [each for each in seen.sites if each.kind == seen.sites[-1].kind]
    found = [each for each in seen.sites if matches(site, each.name, each.role)]
    if not found:
        raise UnknownName("site", clean(site), names)
    return found


def mean_of(sites: Sequence[Site], head: int | None = None) -> Chosen:
    """Return the mean weights of sites (attention layers) with the same rows and columns.

    head: index of one head, which is used in each site. None: the mean over heads.
    """
    first = sites[0]
    for other in sites[1:]:
        if other.rows != first.rows or other.columns != first.columns:
            problem = f"{first.name} and {other.name} have different queries or keys and cannot be averaged"
            raise ArgumentError(message("picture()", problem, hint=f"draw one of them: site={first.name!r}"))
    weights = numpy.stack([_of_head(each, head) for each in sites]).astype(numpy.float64).mean(0)
    return Chosen(weights, first.rows, first.columns, _about(sites, head), first.kind)


def place_of(
    word: Word, words: Sequence[str], call: str = "picture()", side: str = "", others: Sequence[str] = ()
) -> int:
    """Return the index of a word in `words`.

    word: the text of the word, or its index. A negative index counts from the end. The text is compared with
        and without the space mark ▁ and the punctuation around a word. "cat" is the first occurrence, and
        "cat:2" is the second. If no word is equal to the text, and the text is an integer, it is used as an
        index.
    call: for the error message: the name of the public function.
    side: for the error message: whether `words` is the "source" or the "target".
    others: for a hint in the error message: the words of the other side.

    >>> words = ["▁a", "▁cat", "▁a"]
    >>> place_of("cat", words), place_of("a:2", words), place_of("▁a", words), place_of(-1, words)
    (1, 2, 0, 2)
    """
    for spelled in (words, list(map(_bare, words))) if isinstance(word, str) else ():
        index = _index_of(str(word), spelled, call)
        if index is not None:
            return index
    try:
        number = int(word)
    except ValueError:
        raise _unknown(str(word), words, side, others) from None
    if not -len(words) <= number < len(words):
        expected = f"0 to {len(words) - 1}, or a word: {', '.join(clean(_plain(each)) for each in words)}"
        problem = f"there is no {side} word {number}".replace("  ", " ")
        raise ArgumentError(message(call, problem, expected=expected))
    return number % len(words)


def rows_of(word: Word, site: Site, words: Sequence[str], call: str) -> list[int]:
    """Return the indices of the rows of a site that belong to a word. A word has a row for each subword.

    word: the text of a word or subword, or the index of a row.
    site: the attention layer. Its rows are subwords.
    words: the words that consist of these subwords, in order.
    call: the name of the public function, for error messages.
    """
    if not isinstance(word, str):
        return [place_of(word, site.rows, call)]
    groups = grouped(site.row_words or range(len(site.rows)))
    pieces = [[place] for place in range(len(site.rows))]
    for spelled, rows in ((words, groups), (site.rows, pieces), (list(map(_bare, words)), groups)):
        index = _index_of(word, spelled, call)
        if index is not None:
            return rows[index]
    if not _INTEGER.fullmatch(word):
        raise _unknown(word, words, "source" if site.kind == "encoder" else "target", site.columns)
    return [place_of(word, site.rows, call)]


def _index_of(word: str, words: Sequence[str], call: str) -> int | None:
    """Return the index of a word, or None if it does not occur. "cat:2" is the second occurrence of "cat"."""
    places = _places(word, words)
    if places:
        return places[0]
    counted = _COUNTED.fullmatch(word)
    places = _places(counted[1], words) if counted else []
    if not counted or not places:
        return None
    count = int(counted[2])
    if not 1 <= count <= len(places):
        problem = f"the word {clean(counted[1])!r} occurs {len(places)} times, not {count}"
        raise ArgumentError(message(call, problem, expected=f"1 to {len(places)} after the colon"))
    return places[count - 1]


def _places(word: str, words: Sequence[str]) -> list[int]:
    """Return the indices of the words that are equal to `word`.

    If there are none, the words are compared without the space mark ▁ of subwords.
    """
    exact = [place for place, each in enumerate(words) if each == word]
    return exact or [place for place, each in enumerate(words) if word and _plain(each) == word]


def _plain(piece: str) -> str:
    return piece.replace(SPACE, " ").strip() or piece


def _bare(word: str) -> str:
    """Return a word without the punctuation around it. A word that is only punctuation is not changed."""
    return re.sub(r"^[^\w<]+|[^\w>]+$", "", word) or word


def _unknown(word: str, words: Sequence[str], side: str, others: Sequence[str]) -> UnknownName:
    """Return the error for a word that is not in `words`. If it is in `others`, a hint says so.

    side: whether `words` is the "source" or the "target". `others` is the other sentence.
    """
    hint = ""
    if side and _index_of(word, list(map(_bare, map(_plain, others))), "") is not None:
        other = "target" if side == "source" else "source"
        hint = f"choose a {side} word; {clean(word)!r} is a {other} word"
    kind = f"{side} word" if side else "word"
    return UnknownName(kind, clean(word), {clean(_plain(each)) for each in words}, hint=hint)


def _of_head(site: Site, head: int | None) -> NDArray[numpy.float32]:
    if head is None:
        return site.weights.mean(0)
    if not 0 <= head < site.heads:
        expected = f"0 to {site.heads - 1}" if site.heads > 1 else "0 (it has one head)"
        raise ArgumentError(message("picture()", f"{site.name} has no head {head}", expected=expected))
    return site.weights[head]


def _about(sites: Sequence[Site], head: int | None) -> str:
    """Return sites (attention layers) and heads as text, for example "decoder.cross, mean of 8 heads"."""
    heads = sites[0].heads
    which = f"head {head}" if head is not None else f"mean of {heads} heads" if heads > 1 else ""
    name = (
        sites[0].name
        if len(sites) == 1
        else f"mean of {len(sites)} sites, {sites[0].name} to {sites[-1].name}"
    )
    return ", ".join(filter(None, (name, which)))
