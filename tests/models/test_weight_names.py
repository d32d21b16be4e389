"""Names and shapes of weights stay the same, so that older checkpoints can be loaded."""

from __future__ import annotations

import pytest

from tests.models.variants import make

Shapes = dict[str, tuple[int, ...]]


def cells(place: str, gates: int, *sizes: int, ways: int = 1) -> Shapes:
    """Weights of recurrent layers of torch with width 6, one layer for each input size."""
    shapes: Shapes = {}
    for layer, size in enumerate(sizes):
        for end in ("", "_reverse")[:ways]:
            shapes |= {
                f"{place}.weight_ih_l{layer}{end}": (6 * gates, size),
                f"{place}.weight_hh_l{layer}{end}": (6 * gates, 6),
                f"{place}.bias_ih_l{layer}{end}": (6 * gates,),
                f"{place}.bias_hh_l{layer}{end}": (6 * gates,),
            }
    return shapes


def linear(place: str, rows: int, columns: int) -> Shapes:
    return {f"{place}.weight": (rows, columns), f"{place}.bias": (rows,)}


def gated(place: str, size: int, context: int = 0) -> Shapes:
    shapes = linear(f"{place}.input", 18, size)
    shapes |= {f"{place}.context.weight": (18, context)} if context else {}
    return {**shapes, f"{place}.gate.weight": (12, 6), f"{place}.state.weight": (6, 6)}


def words(size: int) -> Shapes:
    return {"source.weight": (11, size), "target.weight": (11, size)}


def bahdanau(size: int, hidden: int) -> Shapes:
    """Weights of Bahdanau's model without its encoder."""
    return {
        **words(size),
        **linear("first", 6, 6),
        "score.query_weight": (6, hidden),
        "score.key_weight": (12, hidden),
        "score.vector": (hidden,),
        **gated("cell", size, context=12),
        **linear("readout.pairs", 6, size + 18),
        **linear("readout.output", 11, 3),
    }


def additive(place: str, query: int) -> Shapes:
    return {f"{place}.query_weight": (query, 6), f"{place}.key_weight": (6, 6), f"{place}.vector": (6,)}


def lstmn(place: str, size: int) -> Shapes:
    """Weights of an LSTMN layer of width 6."""
    shapes = {**additive(f"{place}.score", size + 6), **linear(f"{place}.input", 24, size)}
    return {**shapes, f"{place}.summary.weight": (24, 6)}


LUONG: Shapes = {**words(6), "readout.both.weight": (6, 12), **linear("readout.output", 11, 6)}

NAMES: dict[str, Shapes] = {
    "bahdanau": {**bahdanau(5, 7), **cells("encoder.layers.layers", 3, 5, ways=2)},
    "bahdanau paper": {**bahdanau(6, 6), **gated("encoder.forwards", 6), **gated("encoder.backwards", 6)},
    "lstmn deep": {
        **words(5),
        **lstmn("encoder.layers.0", 5),
        **lstmn("encoder.layers.1", 11),
        **lstmn("decoder.layers.0", 5),
        **lstmn("decoder.layers.1", 11),
        **additive("cross.score", 11),
        **linear("gate", 6, 11),
        **linear("readout.pairs", 6, 17),
        **linear("readout.output", 11, 3),
    },
    "lstmn both ways": {
        **words(5),
        **lstmn("encoder.layers.0", 5),
        **lstmn("reversed.layers.0", 5),
        **lstmn("decoder.layers.0", 5),
        "both_states.weight": (6, 12),
        "both_cells.weight": (6, 12),
        **additive("cross.score", 11),
        **linear("gate", 6, 11),
        **linear("readout.pairs", 6, 17),
        **linear("readout.output", 11, 3),
    },
    "luong general": {
        **LUONG,
        "score.weight": (6, 6),
        **cells("encoder.layers", 4, 6),
        **cells("decoder.layers", 4, 12),
    },
    "luong both ways dot": {
        **LUONG,
        "narrow.weight": (6, 12),
        **linear("bridge.both", 6, 12),
        **cells("encoder.layers", 4, 6, 12, ways=2),
        **cells("decoder.layers", 4, 12, 6),
    },
    "luong local-p unfed": {
        **LUONG,
        "score.weight": (6, 6),
        "place.hidden.weight": (6, 6),
        "place.vector.weight": (1, 6),
        **cells("encoder.layers", 3, 6),
        **cells("decoder.layers", 3, 6),
    },
    "seq2seq gru": {
        **words(6),
        **linear("readout", 11, 6),
        **cells("encoder.layers", 3, 6),
        **cells("decoder.layers", 3, 6),
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_weights_keep_their_names_and_shapes(name: str):
    assert {key: tuple(value.shape) for key, value in make(name).state_dict().items()} == NAMES[name]
