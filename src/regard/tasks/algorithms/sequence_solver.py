"""SequenceSolver: answer sequences with a trained model. Solution: an answer, and the heads on the tape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from regard.data.batch import TapeBatch
from regard.data.tape_tasks import Sizes, TapeTask
from regard.errors import ArgumentError, message
from regard.evaluation.attribution import METHODS, Attribution, InputVectors, attribute
from regard.evaluation.erasure import HideKeys
from regard.fast.twins import Twins
from regard.layers.tape_heads import MEMORY_ROLE, READ_SITE, WRITE_SITE, check_tape
from regard.look import Look
from regard.models.turing_machine import MachineState, NeuralTuringMachine
from regard.sites import record, scope
from regard.tasks.algorithms.data import generator_of, named_sizes
from regard.viewing import Seen, Site
from regard.viewing.html_document import safe
from regard.viewing.result import Result
from regard.viewing.tape_run import TapeRun

LEAST_CHANCE = 2.0**-149
"""Lower limit of the probability of a right bit, so that its logarithm is finite. It is the smallest float32
number above 0."""

LEAST_READ, SLOTS_AT_ONCE = 0.01, 64
"""The smallest weight of a slot that a head reads, and the number of slots erased in one forward pass."""

MOST_VALUES = 20_000_000
"""Maximum number of recorded values of the tape, over all steps. If there are more, the contents of the tape
are not recorded."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Result):
    """The answer of a model to one sequence.

    The sequence has T steps, each with X input bits and Y output bits. The tape has N slots of M numbers.

    task: the name of the task, such as "copy".
    sizes: the sizes of the sequence, such as {"length": 20}.
    inputs: (T, X), the input of each step.
    targets: (T, Y), the right answer.
    scored: (T,), True at the steps whose answers are scored.
    chances: (T, Y), the probability that a bit of the answer is 1.
    write: (W, T, N), the weights of W write heads on the slots; None for a model without a tape.
    read: (R, T, N), the weights of R read heads on the slots; None for a model without a tape.
    memory: (T + 1, N, M), the tape before the first step and after each step; None if it was not recorded.
    notes: messages about the sequence.

    >>> ones = numpy.ones((2, 3))
    >>> solution = Solution("copy", {"length": 1}, ones, ones, numpy.array([False, True]), ones * 0.5)
    >>> solution.bits, solution.wrong_bits, solution.answer, solution.target
    (3.0, 3, ['000'], ['111'])
    """

    task: str
    sizes: dict[str, int]
    inputs: NDArray[numpy.float64]
    targets: NDArray[numpy.float64]
    scored: NDArray[numpy.bool_]
    chances: NDArray[numpy.float64]
    write: NDArray[numpy.float64] | None = None
    read: NDArray[numpy.float64] | None = None
    memory: NDArray[numpy.float64] | None = None
    notes: tuple[str, ...] = ()
    page_title = "A sequence on the tape"
    most = 100

    @cached_property
    def bits(self) -> float:
        """The cross-entropy in bits: the sum over all scored bits of -log2 p(right value)."""
        right = numpy.where(self.targets > 0.5, self.chances, 1 - self.chances)[self.scored]
        return float(-numpy.log2(numpy.maximum(right, LEAST_CHANCE)).sum()) + 0.0  # not -0.0

    @property
    def wrong_bits(self) -> int:
        """The number of scored bits for which the model prefers the wrong value."""
        return int(((self.chances > 0.5) != (self.targets > 0.5))[self.scored].sum())

    @property
    def answer(self) -> list[str]:
        """The answer of the model: the most probable bits of each scored step, such as "01101001"."""
        return [_text(each) for each in self.chances[self.scored]]

    @property
    def target(self) -> list[str]:
        """The right answer: for each scored step, the bits as text, such as "01101001"."""
        return [_text(each) for each in self.targets[self.scored]]

    @property
    def title(self) -> str:
        count = int(self.scored.sum()) * self.targets.shape[1]
        wrong = f"{self.wrong_bits:,} of {count:,} bits wrong"
        return f"{self.task}, {named_sizes(self.sizes)}: {wrong}, {self.bits:.4g} bits"

    def tape_run(self) -> TapeRun:
        """Return the recorded positions of the heads on the tape at each step, to draw or save them.

        Raises ArgumentError if the model has no tape, or if its heads were not recorded.
        """
        if self.read is None or self.write is None:
            problem = "this model has no tape, or its heads were not recorded"
            raise ArgumentError(message("Solution.tape_run()", problem, hint="use a model with name = ntm"))
        arrays = self.inputs, self.chances, self.scored, self.write, self.read, self.memory
        return TapeRun(*arrays, title=self.title, notes=self.notes)

    def seen(self, title: str = "") -> Seen:
        """Return the weights of the heads on the slots of the tape, to draw, explore or save them.

        Each head has a matrix with a row for each step and a column for each slot.

        title: the title of drawings. Default: the task, the sizes and the scores.
        """
        rows = tuple(f"{step}" for step in range(1, len(self.inputs) + 1))
        sites: tuple[Site, ...] = ()
        columns: tuple[str, ...] = ()
        for name, weights in ((READ_SITE, self.read), (WRITE_SITE, self.write)):
            if weights is not None:
                columns = tuple(f"{slot}" for slot in range(weights.shape[2]))
                own = weights.astype(numpy.float32)
                sites = (*sites, Site(name, own, rows, columns, role=MEMORY_ROLE))
        numbers = tuple(range(len(columns))), tuple(range(len(rows)))
        return Seen(sites, columns, rows, *numbers, title or self.title, self.notes, -self.bits)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer, its scores and the positions of the heads as a dict for JSON.

        The position of a head at a step is the index of the slot on which the head has the largest weight.
        """
        heads = {}
        for name, weights in (("read", self.read), ("write", self.write)):
            if weights is not None:
                heads[name] = weights.argmax(-1).tolist()
        return {
            "task": self.task,
            "sizes": dict(self.sizes),
            "answer": self.answer,
            "target": self.target,
            "probabilities": [[round(float(each), 6) for each in row] for row in self.chances[self.scored]],
            "bits": self.bits,
            "wrong_bits": self.wrong_bits,
            "slots": heads,
            "notes": list(self.notes),
        }

    def drawing(self) -> TapeRun:
        return self.tape_run()

    def page_entry(self) -> TapeRun:
        return self.tape_run()

    def __str__(self) -> str:
        return " ".join(self.answer)

    def __repr__(self) -> str:
        return f"Solution({self.title!r})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.read is None or self.write is None:
            yield Text(self.title, "bold")
            yield Text(f"answer {' '.join(self.answer)}")
            yield Text(f"right  {' '.join(self.target)}", "dim")
        else:
            yield self.tape_run()

    def _repr_html_(self) -> str:
        return f"<p>{safe(self.title)}</p>" if self.read is None else self.tape_run()._repr_html_()


def _text(values: NDArray[numpy.float64]) -> str:
    return "".join("1" if each > 0.5 else "0" for each in values)


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

    def attribute(self, solution: Solution, methods: Iterable[str] = METHODS) -> Attribution:
        """Compute how much each step of an answer depends on each step of the input.

        The log-probability of a step is that of its bits as the model answers them. An input is removed by
        setting its vector to 0.

        solution: an answer of this model.
        methods: names of attribution.METHODS.
        """
        self._check_answer(solution)
        (places,) = solution.scored.nonzero()
        vectors_TX = torch.from_numpy(solution.inputs).to(next(self.model.parameters()))
        read = InputVectors(
            self.model,
            vectors_TX,
            torch.zeros_like(vectors_TX[0]),
            lambda vectors_BTX: self._answer_scores(vectors_BTX, solution),
        )
        steps = range(len(vectors_TX))
        values = attribute(read, [[row] for row in range(len(places))], [[step] for step in steps], methods)
        names = tuple(f"{step + 1}" for step in steps)
        visible = places[:, None] >= numpy.arange(len(steps))
        return Attribution(
            tuple(names[place] for place in places),
            names,
            values,
            title=solution.title,
            removed="set to 0",
            notes=("rows: steps of the answer; columns: steps of the input",),
            visible=visible,
        )

    @torch.no_grad()
    def erase_slots(self, solution: Solution) -> Attribution:
        """Compute how much each step of an answer depends on each slot of the tape.

        A slot is removed by hiding it from every read head at every step. Slots from which no head reads a
        weight of at least LEAST_READ are left out.

        solution: an answer of this model, with recorded heads.
        """
        self._check_answer(solution)
        if solution.read is None:
            problem = "this model has no tape, or its heads were not recorded"
            raise ArgumentError(message("erase_slots()", problem, hint="use a model with name = ntm"))
        (places,) = solution.scored.nonzero()
        read_TN = solution.read.mean(0)[places]
        used = (read_TN >= LEAST_READ).any(0).nonzero()[0]
        inputs_TX = torch.from_numpy(solution.inputs).to(next(self.model.parameters()))
        scores = [self._answer_scores(inputs_TX[None], solution)]
        for first in range(0, len(used), SLOTS_AT_ONCE):
            slots = used[first : first + SLOTS_AT_ONCE].tolist()
            hidden_BTS = torch.zeros(len(slots), len(inputs_TX), solution.read.shape[-1], dtype=torch.bool)
            hidden_BTS[torch.arange(len(slots)), :, slots] = True
            with scope(edit=HideKeys(hidden_BTS.to(inputs_TX.device)), at=READ_SITE):
                scores.append(self._answer_scores(inputs_TX.expand(len(slots), -1, -1), solution))
        scores_BT = torch.cat(scores).double().cpu().numpy()
        values = {"attention": read_TN[:, used], "erasure": (scores_BT[:1] - scores_BT[1:]).T}
        return Attribution(
            tuple(f"{place + 1}" for place in places),
            tuple(map(str, used)),
            values,
            title=solution.title,
            removed="hidden from the read heads",
            notes=("rows: steps of the answer; columns: slots of the tape that a head reads",),
        )

    @torch.no_grad()
    def answer_scores(self, solution: Solution) -> list[float]:
        """Return the log-probability of the bits of each step of an answer; intervene() can change it."""
        inputs_TX = torch.from_numpy(solution.inputs).to(next(self.model.parameters()))
        scores: list[float] = self._answer_scores(inputs_TX[None], solution)[0].tolist()
        return scores

    def _check_answer(self, solution: Solution) -> None:
        if not solution.scored.any():
            raise ArgumentError(message("attribute()", "the sequence has no answer to score"))

    def _answer_scores(self, inputs_BTX: Tensor, solution: Solution) -> Tensor:
        """Return the log-probability of the bits of each step of an answer for other inputs, (B, steps)."""
        state: tuple[MachineState, ...] = ()
        if isinstance(self.model, NeuralTuringMachine):
            state = (self.model.start(len(inputs_BTX), self.slots),)
        logits_BTY, _ = self.model(inputs_BTX, *state)
        signs_TY = torch.from_numpy(numpy.where(solution.chances > 0.5, 1.0, -1.0)).to(logits_BTY)
        return logsigmoid(logits_BTY * signs_TY)[:, solution.scored].sum(-1)

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
