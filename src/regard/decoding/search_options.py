"""build_search(): create the search method from command-line options such as --beam-size and --greedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.decoding.beam import GNMT, LENGTHS, MOST_ALPHA, Beam, Length
from regard.decoding.greedy import Greedy
from regard.decoding.rules import Rules
from regard.decoding.sampling import Sample
from regard.decoding.search import Search
from regard.errors import ArgumentError, UnknownName, message

BEAM_SIZE, LENGTH_PENALTY = 5, f"{GNMT().alpha:g}"
"""Default values of --beam-size and --length-penalty."""


def build_search(
    beam_size: int | None,
    length_penalty: str | None,
    n_best: int = 1,
    greedy: bool = False,
    max_length: int | None = None,
    sample: bool = False,
    **sampling: float | None,
) -> Search:
    """Return the search method for command-line options; raise ArgumentError if they cannot be combined.

    sampling: the values of the options temperature, top_k, top_p and seed.

    An option that is not on the command line is None. In the example, the beam size is 9, because the default
    beam size, 5, is too small for an n-best list of 9.

    >>> build_search(None, "average:1", n_best=9)
    Beam(size=9, best=9, length=Average(alpha=1.0), coverage=0.0, rules=Rules(minimum=1, ...))
    """
    sampling = {name: value for name, value in sampling.items() if value is not None}
    options = {
        "--beam-size": beam_size is not None,
        "--length-penalty": length_penalty is not None,
        "--greedy": greedy,
        "--sample": sample,
        "--n-best": n_best > 1,
        **{f"--{name.replace('_', '-')}": True for name in sampling},
    }
    allowed = {
        "--greedy": {"--greedy"},
        "--sample": {"--sample", "--n-best", "--temperature", "--top-k", "--top-p", "--seed"},
        "": {"--beam-size", "--length-penalty", "--n-best"},
    }
    method = "--greedy" if greedy else "--sample" if sample else ""
    wrong = [name for name, present in options.items() if present and name not in allowed[method]]
    if wrong:
        hint = "" if method else f"use it with --sample: --sample {wrong[0]} ..."
        problem = f"it cannot be combined with {method or 'beam search'}"
        raise ArgumentError(message(wrong[0], problem, hint=hint))
    rules = Rules(maximum=max_length)
    if greedy:
        return Greedy(rules)
    if sample:
        return Sample(**sampling, count=n_best, rules=rules)  # type: ignore[arg-type]
    return Beam(
        max(BEAM_SIZE, n_best) if beam_size is None else beam_size,
        n_best,
        _length(length_penalty),
        rules=rules,
    )


def _length(text: str | None) -> Length:
    """Return the length penalty for the text of the option --length-penalty.

    "0.6" is GNMT(0.6), "average:1" is Average(1.0), and None is GNMT().
    """
    if text is None:
        return GNMT()
    name, colon, number = text.rpartition(":")
    if colon and name not in LENGTHS:
        raise UnknownName("length penalty", name, LENGTHS)
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not abs(alpha) <= MOST_ALPHA:
        expected = f"a number from -{MOST_ALPHA} to {MOST_ALPHA}, or a name and a number: average:1"
        raise ArgumentError(message("--length-penalty", f"{text[:60]!r}", expected=expected))
    return LENGTHS[name or "gnmt"](alpha)


def describe_search(search: Search) -> str:
    """Return the name and beam size of a search as a short text, for HTML pages.

    >>> describe_search(Beam(size=5)), describe_search(Greedy())
    ('beam search, beam size 5', 'greedy search')
    """
    if isinstance(search, Beam):
        return f"beam search, beam size {search.size}"
    return "greedy search" if isinstance(search, Greedy) else "sampled"


def search_of(options: Mapping[str, Any]) -> Search:
    """Return the search for the values of --beam-size, --length-penalty, --greedy and --max-length.

    options: the values of all options of a command. A command need not have all of these options.
    """
    names = "beam_size", "length_penalty", "greedy", "max_length"
    return build_search(**{name: options[name] for name in names if name in options})
