"""Options that several commands share: which part of the recorded attention is drawn."""

from __future__ import annotations

import numpy
import pytest

from regard.runs.run_commands import ViewOptions
from regard.viewing.seen import Seen, Site

SEEN = Seen(
    (Site("cross", [[[0.25, 0.25, 0.5]]], ("a",), ("b", "c", "</s>"), [[1.0, 2.0, 3.0]], (0,), (0, 0, -1)),),
    ("b", "c", "</s>"),
    ("a",),
    (0, 0, -1),
    (0,),
)


@pytest.mark.parametrize(
    ("options", "columns", "weights"),
    [
        ({"subwords": True}, ("b", "c", "</s>"), [0.25, 0.25, 0.5]),
        ({}, ("bc", "</s>"), [0.5, 0.5]),
        ({"specials": "hide"}, ("bc",), [0.5]),
        ({"specials": "renormalise"}, ("bc",), [1.0]),
        ({"specials": "hide", "subwords": True}, ("b", "c"), [0.25, 0.25]),
        ({"specials": "renormalise", "subwords": True}, ("b", "c"), [0.5, 0.5]),
        ({"by_values": True, "subwords": True}, ("b", "c", "</s>"), [0.25, 0.5, 1.5]),
    ],
)
def test_options_choose_the_weights_that_are_drawn(options, columns, weights):
    (site,) = ViewOptions(**options).prepared(SEEN).sites
    assert site.columns == columns
    numpy.testing.assert_allclose(site.weights, [[weights]], rtol=1e-6)
