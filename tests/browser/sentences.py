"""Test data: the attention of a small Transformer for a sentence, and for a long text."""

from __future__ import annotations

import numpy

from regard.viewing import Seen, Site, pooled_from_top

SOURCE = ("▁나", "는", "▁고", "양이", "를", "▁보", "았다", ".", "</s>")
SOURCE_WORDS = (0, 0, 1, 1, 1, 2, 2, 2, -1)
TARGET = ("▁I", "▁saw", "▁a", "▁c", "at", ".", "</s>")
TARGET_WORDS = (0, 1, 2, 3, 3, 3, -1)


def drawn(rows: int, columns: int, heads: int, seed: int) -> numpy.ndarray:
    return numpy.random.default_rng(seed).dirichlet(numpy.full(columns, 0.4), (heads, rows))


def sentence(layers: int = 2, heads: int = 3) -> Seen:
    """Return every kind of site, with heads, value norms and special tokens."""
    read, sites = ("<s>", *TARGET[:-1]), []
    norms = numpy.random.default_rng(9).uniform(0.5, 3.0, (heads, len(SOURCE)))
    for layer in range(layers):
        size = len(TARGET)
        past = numpy.tril(drawn(size, size, heads, 10 + layer))
        sites += [
            Site(f"encoder.{layer}.self", drawn(len(SOURCE), len(SOURCE), heads, layer), SOURCE, SOURCE),
            Site(f"decoder.{layer}.self", past, TARGET, read),
            Site(
                f"decoder.{layer}.cross", drawn(size, len(SOURCE), heads, 20 + layer), TARGET, SOURCE, norms
            ),
        ]
    return Seen(tuple(sites), SOURCE, TARGET, SOURCE_WORDS, TARGET_WORDS, "I saw a cat.", ("a note",), -2.5)


class Top:
    """A result of Look(top=k): each token attends to itself and to every 100th token before it."""

    def __init__(self, size: int, kept: int):
        place = numpy.arange(size)[:, None]
        before = place - numpy.arange(kept)
        before[:, 1:] = (place // 100 - numpy.arange(kept - 1)) * 100
        self.keys = numpy.where(before < 0, -1, before)[None]
        shares = 0.5 ** numpy.arange(1, kept + 1)
        self.weights = numpy.where(self.keys < 0, 0.0, shares)


def long_text(size: int = 8192, kept: int = 32) -> Seen:
    words = tuple(f"word{place}" for place in range(size))
    long = pooled_from_top("encoder.0.self", Top(size, kept), words, words)
    return Seen((), words, (), tuple(range(size)), (), "A long text", long=(long,))
