"""Graves, Wayne and Danihelka 2014, Neural Turing machines: heads, the whole machine, and its tasks."""

from __future__ import annotations

from math import exp, hypot

import pytest
import torch

import regard
from regard.data.tape_tasks import build_tape_task
from regard.layers.tape_heads import HeadLayout, HeadParts, Tape
from regard.models.turing_machine import NeuralTuringMachine
from regard.tasks.algorithms.task import sequence_bits

MEMORY = [[3.0, 4.0], [1.0, 0.0], [-0.5, 0.5], [0.0, 0.0]]
KEY, BETA = [1.0, 1.0], 2.0


def cosine(u: list[float], v: list[float]) -> float:
    """K[u, v] = u . v / (|u| |v|) (eq. 6); 0 for a blank slot."""
    length = hypot(*u) * hypot(*v)
    return (u[0] * v[0] + u[1] * v[1]) / length if length else 0.0


def addressed(beta: float) -> list[float]:
    """w_c(i) = exp(beta K[k, M(i)]) / sum_j exp(beta K[k, M(j)]) (eq. 5)"""
    powers = [exp(beta * cosine(KEY, slot)) for slot in MEMORY]
    return [power / sum(powers) for power in powers]


def read_by(weights: list[float]) -> list[float]:
    """r = sum_i w(i) M(i) (eq. 2)"""
    return [sum(weight * slot[d] for weight, slot in zip(weights, MEMORY, strict=True)) for d in (0, 1)]


def look_up(beta: float | torch.Tensor) -> regard.Attended:
    key, memory = torch.tensor([KEY]).double(), torch.tensor(MEMORY).double()
    return regard.attention(key, memory, score=regard.Cosine(beta), look=regard.Look(weights=True))


def test_content_addressing():
    # cosines: 7 / (5 sqrt 2), 1 / sqrt 2, 0 and, for the blank slot, 0
    assert [cosine(KEY, slot) for slot in MEMORY] == pytest.approx([7 / 50**0.5, 0.5**0.5, 0.0, 0.0])
    seen = look_up(BETA)
    assert seen.weights.flatten().tolist() == pytest.approx(addressed(BETA))
    assert seen.output.flatten().tolist() == pytest.approx(read_by(addressed(BETA)))


@pytest.mark.parametrize("beta", [0.0, 0.5, 50.0, 1000.0])
def test_key_strength_sharpens_the_weights(beta: float):
    seen = look_up(torch.tensor([beta]).double())
    assert seen.weights.flatten().tolist() == pytest.approx(addressed(min(beta, 500.0)), abs=1e-9)
    if beta == 1000.0:
        assert seen.output.flatten().tolist() == pytest.approx(MEMORY[0])


def test_read_with_shifted_and_sharpened_weights():
    """w~(i) = sum_j w(j) s(i - j) (eq. 8), w(i) = w~(i)^gamma / sum_j w~(j)^gamma (eq. 9), then eq. 2"""
    focus, shift, gamma = addressed(BETA), {1: 0.9, 0: 0.1}, 3.0
    moved = [sum(amount * focus[(i - by) % 4] for by, amount in shift.items()) for i in range(4)]
    sharp = [each**gamma / sum(other**gamma for other in moved) for each in moved]
    memory = torch.tensor(MEMORY).double()
    seen = regard.read(torch.tensor([sharp]).double(), memory, look=regard.Look(alignment=True))
    assert seen.output.flatten().tolist() == pytest.approx(read_by(sharp))
    assert seen.alignment.item() == 1  # slot 0 has the largest weight, and is shifted by one


BEFORE = [0.1, 0.2, 0.3, 0.4]
GATE, SHIFT, GAMMA = 0.25, [0.7, 0.2, 0.1], 2.5
ERASE, ADD = [0.5, 1.0], [-0.25, 0.75]


def moved_by_hand(gate: float = GATE) -> list[float]:
    """Content addressing, interpolation (eq. 7), circular shift (eq. 8) and sharpening (eq. 9)."""
    mixed = [gate * new + (1 - gate) * old for new, old in zip(addressed(BETA), BEFORE, strict=True)]
    by = {1: SHIFT[0], 0: SHIFT[1], -1: SHIFT[2]}
    shifted = [sum(amount * mixed[(i - steps) % 4] for steps, amount in by.items()) for i in range(4)]
    return [each**GAMMA / sum(other**GAMMA for other in shifted) for each in shifted]


def one_step(addressing: str) -> tuple[Tape, torch.Tensor]:
    """Return the tape after one step of a read head and a write head with the same parameters."""
    both = addressing == "both"

    def of_heads(*values: float) -> torch.Tensor:
        return torch.tensor([[values, values]], dtype=torch.float64)

    parts = HeadParts(
        torch.tensor([[ADD]], dtype=torch.float64),
        torch.tensor([[ERASE]], dtype=torch.float64),
        of_heads(GATE) if both else None,
        of_heads(BETA) if addressing != "location" else None,
        of_heads(GAMMA) if addressing != "content" else None,
        of_heads(*SHIFT) if addressing != "content" else None,
        of_heads(*KEY) if addressing != "location" else None,
    )
    tape = Tape(of_heads(*BEFORE), torch.tensor([MEMORY]).double())
    return tape.step(HeadLayout(width=2, addressing=addressing), parts)


def test_one_step_of_the_heads():
    tape, read = one_step("both")
    weights = moved_by_hand()
    assert tape.weights[0, 0].tolist() == pytest.approx(weights)
    assert read[0].tolist() == pytest.approx(read_by(weights))
    for i, weight in enumerate(weights):  # erase (eq. 3), then add (eq. 4)
        slot = [MEMORY[i][d] * (1 - weight * ERASE[d]) + weight * ADD[d] for d in (0, 1)]
        assert tape.memory[0, i].tolist() == pytest.approx(slot)


def test_content_only_and_location_only():
    assert one_step("content")[0].weights[0, 1].tolist() == pytest.approx(addressed(BETA))
    assert one_step("location")[0].weights[0, 1].tolist() == pytest.approx(moved_by_hand(gate=0.0))


def test_sizes_of_the_paper():
    """Table 1: copy with an LSTM controller of 100 units, 1 head and 128 x 20 slots has 67,561 parameters.

    Ours has fewer: it has one bias vector, not two, in the controller, and other initial states.
    """
    model = NeuralTuringMachine(9, 8, width=100, slots=128, slot_width=20, heads=1)
    assert 55_000 < sum(each.numel() for each in model.parameters()) < 67_561


@pytest.mark.slow
def test_a_small_machine_learns_to_copy():
    """Section 4.1, smaller: 4 bits, lengths 1 to 5.

    Length 10, which training never shows, costs less than half of the 40 bits of random guessing. Seeds 0 to
    3 need 0.05, 0.03, 0.04 and 0.04 bits at length 5, and 7.8, 18.5, 6.9 and 1.1 bits at length 10.
    """
    torch.manual_seed(0)
    task = build_tape_task("copy", width=4, length=(1, 5))
    options = {"width": 32, "slots": 16, "slot_width": 8, "initial_heads": "forward"}
    model = NeuralTuringMachine(task.input_size, task.target_size, **options)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(1500):
        generator = torch.Generator().manual_seed(step)
        batch = task.draw(16, task.sizes(generator), generator)
        logits, _ = model(batch.inputs)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits[batch.scored], batch.targets[batch.scored]
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    for length, limit in ((5, 0.5), (10, 20.0)):
        batch = task.draw(64, {"length": length}, torch.Generator().manual_seed(-1))
        scored = sequence_bits(model, batch)
        assert scored is not None and float(scored.bits.mean()) < limit
