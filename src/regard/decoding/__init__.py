"""Decoding: greedy, beam and sampled search, scoring and looking, written once against the model protocol."""

from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.observing import Observed, observe
from regard.decoding.penalties import GNMT, LENGTHS, Average, Length, coverage
from regard.decoding.rules import Rules
from regard.decoding.sample import Sample
from regard.decoding.search import Search, search

__all__ = [
    "Average",
    "Beam",
    "GNMT",
    "Greedy",
    "Hypothesis",
    "LENGTHS",
    "Length",
    "Observed",
    "Rules",
    "Sample",
    "Search",
    "coverage",
    "observe",
    "search",
]
