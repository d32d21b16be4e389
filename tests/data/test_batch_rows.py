"""BatchRows: every batch, state and search result is moved, selected and repeated with all of its fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import regard
from regard.data.batch import EOS, NO_LABEL, PAD, Batch, BatchRows, LabelledBatch, TextBatch
from regard.decoding.active_rows import ActiveRows
from regard.decoding.beam import Beams
from regard.decoding.forced_decoding import pieces_of
from regard.decoding.hypothesis import SearchResult
from regard.memory import Memory
from regard.models import Encoded, State
from regard.training.length_buckets import Shapes

CHANGES = {
    "to": (lambda rows: rows.to("cpu"), [0, 1, 2]),
    "select": (lambda rows: rows.select(torch.tensor([2, 0, 2, 2])), [2, 0, 2, 2]),
    "select none": (lambda rows: rows.select(torch.tensor([], dtype=torch.long)), []),
    "slice": (lambda rows: rows.select(slice(1, None)), [1, 2]),
    "repeat": (lambda rows: rows.repeat(2), [0, 0, 1, 1, 2, 2]),
    "detach": (lambda rows: rows.detach(), [0, 1, 2]),
}


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Story(Batch):
    """A batch with fields that Regard does not know."""

    image: Tensor | None = None
    facts: tuple[Tensor, ...] = ()
    pair: Pair | None = None
    name: str = ""


def memory() -> Memory:
    return regard.prepare(torch.randn(3, 4, 2), mask=regard.padding(torch.tensor([4, 2, 1])))


def story() -> Story:
    plain = Batch.collate([[4, 5], [6], []], [[7], [8, 9], []])
    image, fact = torch.randn(3, 2, 2), torch.randn(3, 1)
    return Story(**vars(plain), image=image, facts=(fact,), pair=Pair(fact + 1, fact + 2), name="n")


def encoded() -> Encoded:
    return Encoded(torch.tensor([4, 2, 1]), (memory(),), (torch.randn(3, 5),))


def beams() -> Beams:
    pool = SearchResult(torch.randint(9, (3, 2, 1)), torch.randn(3, 2, 1), torch.randn(3, 2))
    tokens, covered = torch.randint(9, (3, 2, 4)), torch.randn(3, 2, 6)
    return Beams(tokens, torch.randn(3, 2, 4), torch.randn(3, 2), covered, pool)


MADE = {
    "Batch": story,
    "TextBatch": lambda: TextBatch.collate([[4, 5], [6], []]),
    "LabelledBatch": lambda: LabelledBatch.collate([[4, 5], [6], []], labels=[1, 0, 1]),
    "Encoded": encoded,
    "State": lambda: State(7, (torch.randn(3, 2), torch.randn(3, 4)), (memory(),)),
    "ActiveRows": lambda: ActiveRows(
        torch.arange(3), torch.tensor([5, 6, 7]), torch.ones(3, 0).long(), encoded()
    ),
    "Beams": beams,
}


def leaves(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Memory):
        assert value.mask.lengths is not None
        return [value.key, value.value, value.mask.lengths]
    if isinstance(value, BatchRows):
        value = tuple(vars(value).values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, tuple) else []


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("made", MADE)
def test_changes_apply_to_every_tensor(made: str, change: str):
    before = MADE[made]()
    changed, rows = CHANGES[change]
    after = changed(before)
    assert type(after) is type(before) and len(leaves(after)) == len(leaves(before)) > 2
    for one, other in zip(leaves(after), leaves(before), strict=True):
        assert torch.equal(one, other[rows]) and one.dtype == other.dtype
    if isinstance(after, Story):
        assert after.name == "n" and type(after.pair) is Pair
    if isinstance(after, State):
        assert after.position == 7


def test_to_moves_memories_and_their_masks():
    moved = encoded().to("meta")
    assert {leaf.device.type for leaf in leaves(moved)} == {"meta"}


def test_detach_stops_gradients_of_memories():
    value = torch.randn(3, 2, 2, requires_grad=True)
    state = State(1, (value * 2,), (regard.prepare(value, value * 3),)).detach()
    assert not any(leaf.requires_grad for leaf in (state.hidden[0], state.past[0].key, state.past[0].value))


def test_added_fields_are_kept_by_batch_splitting_and_padding(monkeypatch: pytest.MonkeyPatch):
    batch = story()
    monkeypatch.setattr("regard.decoding.forced_decoding.LOGITS", 2 * batch.target.shape[1] * 9)
    parts = list(pieces_of(batch, 9))
    assert [part.image.shape[0] for part in parts] == [2, 1]  # type: ignore[attr-defined]
    assert torch.equal(parts[1].facts[0], batch.facts[0][2:])  # type: ignore[attr-defined]
    filled = Shapes(tokens=64, longest=8).filled(batch)
    assert isinstance(filled, Story) and filled.image is not None and batch.image is not None
    assert filled.image.shape == (8, 2, 2) and torch.equal(filled.image[:3], batch.image)
    assert (
        filled.source[3:].tolist() == [[EOS, *[PAD] * 7]] * 5
        and filled.source_lengths[3:].tolist() == [1] * 5
    )


def test_padded_to_does_not_change_the_batch_itself():
    batch = LabelledBatch.collate([[4], [5, 6]], [[7], []], labels=[1, 0])
    grown = batch.padded_to(2, 3)
    assert grown.first is not batch.first and torch.equal(grown.first, batch.first)
    grown = batch.padded_to(3, 4)
    assert grown.labels.tolist() == [1, 0, NO_LABEL] and len(batch.labels) == 2
    assert grown.second is not None and grown.second.tolist()[2] == [EOS, PAD, PAD, PAD]


def test_memories_cannot_get_rows():
    with pytest.raises(TypeError):
        encoded().add_rows(1)
