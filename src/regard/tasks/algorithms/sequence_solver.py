"""SequenceSolver: answer random sequences, or sequences of the user, with a trained model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from regard.data.batch import TapeBatch
from regard.data.tape_tasks import Sizes, TapeTask
from regard.errors import ArgumentError, message
from regard.fast.twins import Twins
from regard.layers.tape_heads import READ_SITE, WRITE_SITE, check_tape
from regard.look import Look
from regard.models.turing_machine import MachineState, NeuralTuringMachine
from regard.sites import record
from regard.tasks.algorithms.data import generator_of, named_sizes
from regard.tasks.algorithms.solution import Solution

__all__ = ["SequenceSolver"]

MOST_VALUES = 20_000_000
"""Maximum number of recorded values of the tape, over all steps. If there are more, the contents of the tape
are not recorded."""


class SequenceSolver:
    """Answers sequences of one algorithmic task with a trained model.

    model: a model of build_sequence_model(), in eval mode.
    task: the task, for example copy.
    slots: number of slots of the tape of a neural Turing machine. Default: the number of slots of the model.
        With addressing = "content", only the default is possible.

    >>> from regard.data.tape_tasks import build_tape_task
    >>> from regard.named_models.sequence_models import build_sequence_model
    >>> task = build_tape_task("copy", width=3)
    >>> model = build_sequence_model("ntm", task.input_size, task.target_size, width=8, slots=8)
    >>> solution = SequenceSolver(model, task).solve({"vectors": ["101", "001"]})
    >>> solution.target, solution.read.shape
    (['101', '001'], (1, 5, 8))
    """

    def __init__(self, model: nn.Module, task: TapeTask, *, slots: int | None = None):
        self.model, self.task, self.slots = model, task, slots
        if slots is not None:
            if not isinstance(model, NeuralTuringMachine):
                raise ArgumentError(message("slots", "this model has no tape"))
            model.start(1, slots)

    @property
    def has_tape(self) -> bool:
        """Whether the model is a neural Turing machine, which reads and writes a tape."""
        return isinstance(self.model, NeuralTuringMachine)

    def solve(self, sequence: Mapping[str, Any], place: str = "solve()", *, look: bool = True) -> Solution:
        """Answer one sequence.

        sequence: the fields of the sequence, such as {"vectors": ["10110010", "01101001"]};
            docs/algorithms.md lists the fields of each task.
        place: where the sequence comes from, such as a file and a line, for error messages.
        look: whether the heads and the tape are recorded.
        """
        batch, sizes = self.task.given(sequence, place)
        self.check(sizes, place)
        return self.solve_batch(batch, sizes, look=look)[0]

    def generate(self, count: int, sizes: Sizes, seed: int = 0, *, look: bool = True) -> Iterator[Solution]:
        """Generate random sequences of one size, and yield the answer to each.

        count: number of sequences.
        sizes: the sizes of the sequences, for example {"length": 40}. For a size that is missing, the largest
            training size is used.
        seed: random seed of the sequences.
        look: whether the heads and the tape are recorded.
        """
        chosen = {**self.task.longest, **sizes}
        self.task.check_sizes(chosen, "the sizes")
        self.check(chosen, "the sizes")
        for number in range(count):
            batch = self.task.draw(1, chosen, generator_of(seed, number))
            yield from self.solve_batch(batch, chosen, look=look)

    def stream(
        self, sequences: Iterable[tuple[str, Mapping[str, Any]]], *, look: bool = False
    ) -> Iterator[Solution]:
        """Yield the answer to each sequence, in order.

        sequences: pairs (place, fields), as in solve(). The place is used in error messages.
        look: whether the heads and the tape are recorded.
        """
        for place, fields in sequences:
            yield self.solve(fields, place, look=look)

    def check(self, sizes: Sizes, place: str) -> None:
        """Raise ArgumentError if the tape has too few slots for sequences of the given sizes.

        place: for the error message: where the sizes come from (an option, or a file and a line).
        """
        if isinstance(self.model, NeuralTuringMachine):
            slots = self.slots or self.model.slots
            needed = self.task.slots(sizes)
            hint = f"use a longer tape: --slots {needed} of regard solve and regard evaluate, or "
            hint += f"slots={needed} of regard.load(); or train with more slots: model.slots"
            check_tape(slots, needed, place, f"a sequence of {named_sizes(sizes)}", hint)

    @torch.no_grad()
    def solve_batch(self, batch: TapeBatch, sizes: Sizes, *, look: bool = True) -> list[Solution]:
        """Answer a batch of sequences, all of the same sizes.

        look: whether the heads and the tape are recorded.
        """
        device = next(self.model.parameters()).device
        ready, notes = batch.to(device), tuple[str, ...]()
        heads: dict[str, Tensor] = {}
        if isinstance(self.model, NeuralTuringMachine):
            state = self.model.start(len(batch), self.slots)
            if look:
                logits, heads, notes = _recorded(self.model, ready.inputs, state)
            else:
                with Twins(self.model):
                    logits, _ = self.model(ready.inputs, state)
        else:
            logits, _ = self.model(ready.inputs)
        arrays = {name: each.double().cpu().numpy() for name, each in heads.items()}
        chances = torch.sigmoid(logits.double()).cpu().numpy()
        return [
            Solution(
                self.task.name,
                dict(sizes),
                _array(batch.inputs[row]),
                _array(batch.targets[row]),
                batch.scored[row].numpy(),
                chances[row],
                **{name: each[row] for name, each in arrays.items()},
                notes=notes,
            )
            for row in range(len(batch))
        ]


def _array(tensor: Tensor) -> Any:
    return numpy.asarray(tensor.double().cpu())


def _recorded(
    model: NeuralTuringMachine, inputs: Tensor, state: MachineState
) -> tuple[Tensor, dict[str, Tensor], tuple[str, ...]]:
    """Run a neural Turing machine step by step, and record its heads and its tape.

    Returns the logits (B, T, Y), a dict of recordings, and notes for the user. The dict has the attention
    weights of the heads ("write" and "read"). It also has the contents of the tape before the first step and
    after each step ("memory"), unless the sequence is too long.
    """
    whole = inputs.shape[1] * state.memory.numel() <= MOST_VALUES
    logits, tapes = [], [state.memory]
    with record(Look(weights=True), at="memory") as seen:
        for step in inputs.unbind(1):
            own, state = model(step[:, None], state)
            logits.append(own)
            if whole:
                tapes.append(state.memory)
    heads = {
        name: torch.stack([each.weights[:, :, 0] for each in seen[site]], 2)  # type: ignore[index]
        for name, site in (("write", WRITE_SITE), ("read", READ_SITE))
    }
    notes = () if whole else ("the contents of the tape were not recorded: the sequence is too long",)
    return torch.cat(logits, 1), heads | ({"memory": torch.stack(tapes, 1)} if whole else {}), notes
