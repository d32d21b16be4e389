"""TextBatch: every field is moved, selected and repeated, also fields that a subclass adds."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, Batch, TextBatch


@dataclass(frozen=True, eq=False)
class Labelled(TextBatch):
    """A batch with one more tensor and one more value."""

    label: Tensor | None = None
    name: str = ""


def batch() -> Labelled:
    plain = TextBatch.collate([[4, 5, 6], [7], []], index=[8, 3, 5])
    tensors = (plain.inputs, plain.targets, plain.lengths, plain.index)
    return Labelled(*tensors, carried=True, label=torch.tensor([[0.5], [1.5], [2.5]]), name="n")


def test_collate_adds_bos_and_eos():
    made = TextBatch.collate([[4, 5, 6], [7], []], index=[8, 3, 5])
    assert made.inputs.tolist() == [[BOS, 4, 5, 6], [BOS, 7, EOS, PAD], [BOS, EOS, PAD, PAD]]
    assert made.targets.tolist() == [[4, 5, 6, EOS], [7, EOS, PAD, PAD], [EOS, PAD, PAD, PAD]]
    assert made.lengths.tolist() == [4, 2, 1] and made.index.tolist() == [8, 3, 5]
    assert not made.carried and len(made) == 3 and made.count == 7
    pair = TextBatch.from_batch(Batch.collate([[9]], [[4, 5]]))
    assert torch.equal(pair.targets, TextBatch.collate([[4, 5]]).targets)


@pytest.mark.parametrize(
    "change, rows",
    [
        (lambda each: each.to("cpu"), [0, 1, 2]),
        (lambda each: each.select(torch.tensor([2, 0, 2, 2])), [2, 0, 2, 2]),
        (lambda each: each.select(torch.tensor([], dtype=torch.long)), []),
        (lambda each: each.repeat(2), [0, 0, 1, 1, 2, 2]),
        (lambda each: each.repeat(1), [0, 1, 2]),
    ],
)
def test_changes_apply_to_every_field(change, rows: list[int]):
    before, after = batch(), change(batch())
    assert type(after) is Labelled and len(after) == len(rows)
    tensors = [each.name for each in fields(before) if isinstance(getattr(before, each.name), Tensor)]
    assert tensors == ["inputs", "targets", "lengths", "index", "label"]
    for name in tensors:
        assert torch.equal(getattr(after, name), getattr(before, name)[rows]), name
    assert after.carried and after.name == "n"


def test_to_moves_every_tensor():
    moved = batch().to("meta")
    assert moved.label is not None
    each = (moved.inputs, moved.targets, moved.lengths, moved.index, moved.label)
    assert {tensor.device.type for tensor in each} == {"meta"} and moved.carried
