"""NeuralTuringMachine: a controller that reads and writes a tape through attention (Graves et al. 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.data.batch import BatchRows
from regard.dimensions import full_precision
from regard.layers.tape_heads import HeadLayout, Tape, clipped, initialize_machine
from regard.options.model_checks import check_slots, check_turing_machine, checked

__all__ = ["MachineState", "NeuralTuringMachine"]

BLANK = 1e-6
"""The initial value of all slots, unless the initial tape is learned."""


@dataclass(frozen=True, eq=False)
class MachineState(BatchRows):
    """The state of a neural Turing machine after a step: controller, reads, heads and tape.

    hidden, cell: (B, C), the state of the controller. A feed-forward controller does not use `cell`.
    reads: (B, R M), the vectors of size M that R read heads have read at the last step.
    weights: (B, H, N), the attention weights of H heads on N slots. Read heads come first.
    memory: (B, N, M), the slots of the tape.
    position: number of steps so far. intervene() needs it to select steps.
    """

    hidden: Tensor
    cell: Tensor
    reads: Tensor
    weights: Tensor
    memory: Tensor
    position: int = 0

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.hidden, self.cell, self.reads, self.weights, self.memory


class NeuralTuringMachine(nn.Module):
    """A neural Turing machine (Graves et al. 2014). For the equations, see regard.layers.tape_heads.Tape.

    h_t = controller(x_t, r_{t-1}, h_{t-1}),  w_t, r_t, M_t = heads(h_t, w_{t-1}, M_{t-1}),
    y_t = W [h_t; r_t] + b

    input_size, target_size: size of x_t and of y_t.
    controller: "lstm", or "feedforward" (a tanh layer, which has no state).
    width: number of hidden units of the controller.
    slots, slot_width: the size of the tape, N slots of size M.
    heads: number of read heads. The number of write heads is the same.
    addressing: "both", "content" or "location"; see HeadLayout.
    max_shift: the largest number of slots that a head moves in one step.
    initial_heads: the initial biases of the heads. "neutral": all biases are 0, for tasks that find slots by
        their content. "forward": at the start of training, heads move forward along the tape, for tasks that
        use slots in order. The initial gate g is 0.12, so heads mostly continue from their previous weights.
        The initial gamma is 3.1, so the weights stay sharp. If max_shift is 1, a move forward by one slot has
        the initial probability 0.58, and each other move 0.21.

    All heads start at slot 0. The initial states of the controller are learned. All slots start with the
    value 1e-6, because training converges best with a small constant (Collier and Beel 2018). So a longer
    tape can be used at any time: start(slots=...). With addressing = "content", the initial slots are learned
    instead: otherwise all slots would be equal, and heads could not distinguish them by content.

    The sites (names) for record() and intervene() are "tape.content", "tape.read" and "tape.write", with one
    attention call each per step.

    >>> model = NeuralTuringMachine(input_size=9, target_size=8, width=10, slots=16, slot_width=4)
    >>> logits, state = model(torch.zeros(2, 5, 9))
    >>> logits.shape, state.memory.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 16, 4]))
    """

    @checked(check_turing_machine)
    def __init__(
        self,
        input_size: int,
        target_size: int,
        *,
        controller: str = "lstm",
        width: int = 100,
        slots: int = 128,
        slot_width: int = 20,
        heads: int = 1,
        addressing: str = "both",
        max_shift: int = 1,
        initial_heads: str = "neutral",
    ):
        super().__init__()
        layout = HeadLayout(heads, heads, slot_width, addressing, max_shift)
        self.blank = BLANK
        self.layout, self.slots, self.width, self.initial_heads = layout, slots, width, initial_heads
        self.lstm = controller == "lstm"
        check_slots(slots, layout)
        columns, gates = heads * slot_width, 4 * width if self.lstm else width
        self.input = nn.Linear(input_size, gates)
        self.recurrent = nn.Parameter(torch.empty(columns + width * self.lstm, gates))
        self.heads = nn.Linear(width, layout.size)
        self.output = nn.Linear(width + columns, target_size)
        self.first_hidden = nn.Parameter(torch.zeros(width))
        self.first_cell = nn.Parameter(torch.zeros(width)) if self.lstm else None
        self.first_reads = nn.Parameter(torch.zeros(columns))
        self.first_memory = None if layout.location else nn.Parameter(torch.empty(slots, slot_width))
        self.tape = layout.sites()
        initialize_machine(self, initial_heads)

    def start(self, batch: int, slots: int | None = None) -> MachineState:
        """Return the state before the first step, for `batch` sequences.

        slots: number of slots of the tape. Default: the number of slots of the model. With addressing =
            "content", only the default is possible, because the initial slots are learned.
        """
        count = self.slots if slots is None else slots
        check_slots(count, self.layout, self.first_memory)
        cell = self.first_hidden if self.first_cell is None else self.first_cell
        weights_1HN = cell.new_zeros(1, self.layout.heads, count)
        weights_1HN[..., 0] = 1
        blank_NM = cell.new_full((count, self.layout.width), self.blank)
        memory_NM = blank_NM if self.first_memory is None else self.first_memory
        first = self.first_hidden[None], cell[None], self.first_reads[None], weights_1HN, memory_NM[None]
        return MachineState(*first).repeat(batch)

    def forward(self, x: Tensor, state: MachineState | None = None) -> tuple[Tensor, MachineState]:
        """Run the machine on sequences; return the logits (B, T, target_size) and the state after them.

        One call with T steps gives the same result as T calls with one step each.

        x: (B, T, input_size), the input vectors.
        state: the state after earlier steps of the same sequences. Default: start().
        """
        state = self.start(len(x)) if state is None else state
        with full_precision(x):
            return self.run(x.to(self.input.weight.dtype), state)

    def run(self, x: Tensor, state: MachineState) -> tuple[Tensor, MachineState]:
        """Return the result of forward(), in full precision."""
        hidden, cell, reads, *tape_parts = state.tensors
        tape, outputs = Tape(*tape_parts), []
        for position, inputs in enumerate(self.input(x).unbind(1), state.position):
            hidden, cell = self._controller(inputs, hidden, cell, reads)
            parts = self.layout.activated(clipped(self.heads(hidden)))
            tape, reads = tape.step(self.layout, parts, position)
            hidden, cell, reads = clipped(hidden), clipped(cell), clipped(reads)
            tape = Tape(*(clipped(each) for each in tape))
            outputs.append(torch.cat((hidden, reads), -1))
        logits = self.output(torch.stack(outputs, 1))
        return logits, MachineState(hidden, cell, reads, *tape, state.position + x.shape[1])

    def _controller(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, reads: Tensor
    ) -> tuple[Tensor, Tensor]:
        joined = torch.cat((reads, hidden), -1) if self.lstm else reads
        gates = inputs + joined @ self.recurrent
        if not self.lstm:
            return torch.tanh(gates), cell
        input_gate, forget_gate, output_gate, new = gates.split(self.width, -1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(new)
        return torch.sigmoid(output_gate) * torch.tanh(cell), cell
