"""Attention with random weights, to draw in tests, and the size of a PNG file."""

from __future__ import annotations

import struct

import numpy

from regard.viewing import Seen, Site, pooled

SOURCE, TARGET = ("나는", "고양이", "</s>"), ("I", "am", "a cat", "</s>")


def weights(*sizes: int) -> numpy.ndarray:
    raised = numpy.exp(3 * numpy.random.default_rng(1).normal(size=sizes))
    return raised / raised.sum(-1, keepdims=True)


def transformer(source: tuple[str, ...] = SOURCE) -> Seen:
    """Return attention of a Transformer of two layers and two heads, with random weights."""
    sites = []
    for layer in range(2):
        sites.append(Site(f"encoder.{layer}.self", weights(2, 3, 3), source, source))
        causal = numpy.tril(weights(2, 4, 4))
        sites.append(Site(f"decoder.{layer}.self", causal, TARGET, ("<s>", *TARGET[:-1])))
        sites.append(Site(f"decoder.{layer}.cross", weights(2, 4, 3), TARGET, source))
    long = pooled(
        "decoder.0.self", weights(2, 300, 300), list(map(str, range(300))), list(map(str, range(300)))
    )
    return Seen(sites, source, TARGET, (0, 1, -1), (0, 1, 2, -1), "I am a cat", long=(long,))


def pixels(content: bytes) -> tuple[int, int]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])
