"""The heads of a neural Turing machine: compute their attention weights on the tape, read, and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import attention, read
from regard.errors import ArgumentError, UnknownName, message, positive
from regard.look import Look
from regard.roles import Role
from regard.scores import Cosine
from regard.sites import scopes_at

__all__ = [
    "ADDRESSING",
    "CONTENT_SITE",
    "READ_SITE",
    "WRITE_SITE",
    "HeadLayout",
    "HeadParts",
    "Tape",
    "TapeSite",
    "initialize_machine",
]

ADDRESSING = ("both", "content", "location")
"""How heads find a slot: by its content, by its distance from the previous slot (location), or by both."""

INITIAL_HEADS: dict[str, dict[str, float]] = {
    "neutral": {},
    "forward": {"gate": -2.0, "gamma": 2.0, "shift": 1.0},
}
"""The initial biases of head parameters, for each value of the option `initial_heads`. A bias is added before
the activation function. The biases that are not listed are 0. The bias `shift` belongs to a move forward by
one slot."""

MOST_BETA, MOST_GAMMA = 100.0, 50.0
"""The largest key strength beta, and the largest sharpening exponent gamma."""

SMALLEST = 1e-16
"""Added to the shifted weights before the logarithm, so that log(0) does not occur."""

MOST_GRADIENT = 10.0
"""The backward pass clips the gradients of the state and of the head parameters at each step, element by
element, to [-MOST_GRADIENT, MOST_GRADIENT]. Otherwise they can overflow over many steps. Graves et al. (2014)
clip gradients to the same range."""

CONTENT_SITE, READ_SITE, WRITE_SITE = "tape.content", "tape.read", "tape.write"
"""The names for record() and intervene() of three kinds of attention: content addressing of all heads, the
read heads, and the write heads."""

MEMORY_ROLE = Role("memory", "step", "slot")


class HeadParts(NamedTuple):
    """The parameters of all heads at one step, after their activation functions.

    A parameter that the addressing does not use is None.

    add: (B, writes, M), the vectors that the write heads add to the slots. Their elements are in (-1, 1).
    erase: (B, writes, M), which fraction of each element of a slot the write heads erase, in (0, 1).
    gate: (B, H, 1), the interpolation gate g.
    beta: (B, H, 1), the key strength.
    gamma: (B, H, 1), the sharpening exponent.
    shift: (B, H, K), the distribution over the K = 2 r + 1 shifts by r, r - 1, ..., -r slots.
    key: (B, H, M), the key that is compared with the slots (content addressing).
    """

    add: Tensor
    erase: Tensor
    gate: Tensor | None
    beta: Tensor | None
    gamma: Tensor | None
    shift: Tensor | None
    key: Tensor | None


@dataclass(frozen=True)
class HeadLayout:
    """The number of heads, and where their parameters are in the output of the controller.

    reads, writes: number of read heads and of write heads. Read heads come first.
    width: size M of a slot.
    addressing: how heads find their slots. "content": a key is compared with the slots (Graves et al. 2014,
        eq. 5). "location": a head moves from its previous slot. "both": a gate interpolates between content
        and location.
    max_shift: r, the largest number of slots that a head moves in one step.

    >>> HeadLayout(reads=1, writes=1, width=20).size
    92
    """

    reads: int = 1
    writes: int = 1
    width: int = 20
    addressing: str = "both"
    max_shift: int = 1

    def __post_init__(self) -> None:
        if self.addressing not in ADDRESSING:
            raise UnknownName("addressing", self.addressing, ADDRESSING)
        positive(
            "HeadLayout()",
            reads=self.reads,
            writes=self.writes,
            slot_width=self.width,
            max_shift=self.max_shift,
        )

    @property
    def heads(self) -> int:
        return self.reads + self.writes

    @property
    def content(self) -> bool:
        """Whether heads compare a key with the slots: `addressing` is "content" or "both"."""
        return self.addressing != "location"

    @property
    def location(self) -> bool:
        """Whether heads move from their previous slot: `addressing` is "location" or "both"."""
        return self.addressing != "content"

    @property
    def shifts(self) -> int:
        return 2 * self.max_shift + 1

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The columns of each head parameter in the output of the controller, by the name of the parameter.

        Parameters with the same activation function are in adjacent columns, so that one call computes them.
        """
        heads, both = self.heads, self.content and self.location
        sizes = {
            "add": self.writes * self.width,
            "erase": self.writes * self.width,
            "gate": heads * both,
            "beta": heads * self.content,
            "gamma": heads * self.location,
            "shift": heads * self.shifts * self.location,
            "key": heads * self.width * self.content,
        }
        places, start = {}, 0
        for name, size in sizes.items():
            places[name] = slice(start, start + size)
            start += size
        return places

    @property
    def size(self) -> int:
        """The number of parameters of all heads together, which the controller outputs at each step."""
        return self.slices["key"].stop

    def fill_biases(self, biases: Tensor, name: str) -> None:
        """Set the initial biases of the head parameters (size,) to INITIAL_HEADS[name], in place."""
        for parameter, bias in INITIAL_HEADS[name].items():
            part = biases[self.slices[parameter]]
            if parameter == "shift" and self.location:
                part = part.view(-1, self.shifts)[:, self.max_shift - 1]
            part.fill_(bias)

    def sites(self) -> nn.ModuleDict:
        """Return a module for each attention on the tape, so that its name is declared."""
        names = ("content",) * self.content + ("read", "write")
        return nn.ModuleDict({name: TapeSite(f"tape.{name}") for name in names})

    def parts(self, values: Tensor) -> HeadParts:
        """Split a tensor (..., size) of head parameters into one tensor for each parameter, as views."""

        def part(name: str, last: int, present: bool) -> Tensor | None:
            return values[..., self.slices[name]].unflatten(-1, (-1, last)) if present else None

        add, erase = (values[..., self.slices[name]].unflatten(-1, (-1, self.width)) for name in VECTORS)
        return HeadParts(
            add,
            erase,
            part("gate", 1, self.content and self.location),
            part("beta", 1, self.content),
            part("gamma", 1, self.location),
            part("shift", self.shifts, self.location),
            part("key", self.width, self.content),
        )

    def activated(self, raw: Tensor) -> HeadParts:
        """Compute the head parameters from the output of the controller, (..., size).

        The activation functions are tanh for `add`, sigmoid for `erase` and `gate`, softplus for beta, 1 +
        softplus for gamma, and softmax for `shift`. beta is at most MOST_BETA, and gamma at most MOST_GAMMA,
        so that exp() and powers stay finite.
        """
        parts = self.parts(raw)
        beta, gamma = parts.beta, parts.gamma
        return HeadParts(
            torch.tanh(parts.add),
            torch.sigmoid(parts.erase),
            None if parts.gate is None else torch.sigmoid(parts.gate),
            None if beta is None else functional.softplus(beta).clamp(max=MOST_BETA),
            None if gamma is None else (1 + functional.softplus(gamma)).clamp(max=MOST_GAMMA),
            None if parts.shift is None else parts.shift.softmax(-1),
            parts.key,
        )


VECTORS = ("add", "erase")


class Tape(NamedTuple):
    """The tape of a neural Turing machine, and the weights of its heads, after a step.

    weights: (B, H, N), the attention weights of each head on the slots; read heads come first.
    memory: (B, N, M), the contents of N slots of size M.

    One step (Graves et al. 2014) computes, for each head:

        w_c(i) = softmax_i(beta K[k, M(i)])          content addressing   (eq. 5 and 6)
        w_g = g w_c + (1 - g) w_{t-1}                interpolation        (eq. 7)
        w~(i) = sum_j w_g(j) s(i - j)                circular shift       (eq. 8)
        w(i) = w~(i)^gamma / sum_j w~(j)^gamma       sharpening           (eq. 9)

    then read heads read, r = sum_i w(i) M(i) (eq. 2), and write heads erase and add (eq. 3 and 4):

        M(i) <- M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h

    Differs from the paper: reads of a step come before its writes; beta and gamma have upper limits;
    gradients are clipped at each step (MOST_GRADIENT), not only those of the parameters.
    """

    weights: Tensor
    memory: Tensor

    def step(self, layout: HeadLayout, parts: HeadParts, position: int = 0) -> tuple[Tape, Tensor]:
        """Compute the weights of all heads, read, then write.

        layout: the number of heads and their addressing.
        parts: the parameters of the heads at this step.
        position: the number of the step; intervene() selects steps by it.

        Returns the tape after the step, and the vectors that R read heads have read, (B, R M).
        """
        weights_BHN = self.addressed(layout, parts, position)
        site: dict[str, Any] = {"start": position, "role": MEMORY_ROLE}
        memory_BHNM = self.memory[:, None].expand(-1, layout.heads, -1, -1)
        reads, writes = weights_BHN.split((layout.reads, layout.writes), 1)
        slots = memory_BHNM[:, : layout.reads]
        read_BHTM = read(reads[:, :, None], slots, site=READ_SITE, **site).output
        if scopes_at(WRITE_SITE, MEMORY_ROLE):
            # record() and intervene() act on calls of read(). So call it for the write heads too, and use
            # only the weights that it returns, not its output.
            look = Look(weights=True, gradient=True)
            slots = memory_BHNM[:, layout.reads :]
            seen = read(writes[:, :, None], slots, look=look, site=WRITE_SITE, **site)
            assert seen.weights is not None
            writes = seen.weights[:, :, 0]
        return Tape(weights_BHN, self.written(writes, parts)), read_BHTM.flatten(1)

    def addressed(self, layout: HeadLayout, parts: HeadParts, position: int = 0) -> Tensor:
        """Return the attention weights of all heads on the slots for the next step, (B, H, N).

        For the arguments, see step().
        """
        content_BHN = None
        if parts.key is not None and parts.beta is not None:
            found = attention(
                parts.key[:, :, None],
                self.memory[:, None],
                score=Cosine(parts.beta),
                start=position,
                look=Look(weights=True, gradient=True),
                site=CONTENT_SITE,
                role=MEMORY_ROLE,
            )
            assert found.weights is not None
            content_BHN = found.weights[:, :, 0]
        if parts.shift is None or parts.gamma is None:
            assert content_BHN is not None
            return content_BHN
        gated_BHN = self.weights
        if content_BHN is not None and parts.gate is not None:
            gated_BHN = torch.lerp(self.weights, content_BHN, parts.gate.expand_as(content_BHN))
        shifted_BHN = shifted(gated_BHN, parts.shift)
        return torch.softmax(parts.gamma * torch.log(shifted_BHN + SMALLEST), -1)

    def written(self, writes_BHN: Tensor, parts: HeadParts) -> Tensor:
        """Return the slots after all write heads have erased and added, (B, N, M).

        writes_BHN: the weights of the write heads.
        parts: the parameters of the heads.
        """
        memory_BNM = self.memory
        for head in range(writes_BHN.shape[1]):
            memory_BNM = memory_BNM * (1 - writes_BHN[:, head, :, None] * parts.erase[:, head, None])
        return memory_BNM + writes_BHN.transpose(1, 2) @ parts.add


class TapeSite(nn.Module):
    """Declares the name of an attention call on the tape, so that regard.sites.declared_sites() lists it.

    It has no parameters.

    site: the name, for example "tape.read".
    """

    def __init__(self, site: str):
        super().__init__()
        self.site, self.role = site, MEMORY_ROLE


def shifted(weights: Tensor, shift: Tensor) -> Tensor:
    """Move the weights of a head along the circular tape: w~(i) = sum_j w(j) s(i - j).

    weights: (..., N), the weights w on N slots.
    shift: (..., 2 r + 1), the weights s of moves by r, r - 1, ..., -r slots.

    >>> shifted(torch.tensor([1.0, 0, 0, 0]), torch.tensor([1.0, 0, 0]))  # by one slot
    tensor([0., 1., 0., 0.])
    """
    count, slots = shift.shape[-1], weights.shape[-1]
    padded = around(weights, count // 2)
    return sum(
        (padded[..., place : place + slots] * shift[..., place : place + 1] for place in range(count)),
        start=torch.zeros_like(weights),
    )


def around(weights: Tensor, radius: int) -> Tensor:
    """Pad weights (..., N) at both ends with `radius` weights of the opposite end (circular padding)."""
    return torch.cat((weights[..., -radius:], weights, weights[..., :radius]), -1)


def clipped_gradient(gradient: Tensor) -> Tensor:
    """Return a gradient, clipped to [-MOST_GRADIENT, MOST_GRADIENT]."""
    return gradient.clamp(-MOST_GRADIENT, MOST_GRADIENT)


class _Clipped(torch.autograd.Function):
    """Autograd function of clipped()."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return clipped_gradient(gradients[0])


def clipped(x: Tensor) -> Tensor:
    """Return `x`. The backward pass applies clipped_gradient() to its gradient."""
    result: Tensor = _Clipped.apply(x)
    return result


def check_tape(slots: int, needed: int, place: str, length: str, hint: str = "") -> None:
    """Raise ArgumentError if a tape has fewer slots than a sequence needs.

    slots: number of slots of the tape.
    needed: number of slots that the sequence needs.
    place: for the message: where the sequence comes from, such as an option or a line of a file.
    length: for the message: a description of the sequence, such as "a sequence of 150 vectors".
    hint: what to do. The default is advice for training.
    """
    if slots < needed:
        problem = f"{length} needs {needed:,} slots, but the tape has {slots:,}"
        hint = hint or "use a shorter sequence, or train with more slots: model.slots"
        raise ArgumentError(message(place, problem, hint=hint))


@torch.no_grad()
def initialize_machine(machine: Any, initial_heads: str) -> None:
    """Set all parameters of a NeuralTuringMachine to their initial values.

    Weight matrices are Xavier uniform, except the weight matrices for the hidden state of an LSTM, which are
    orthogonal. Biases are 0, except the biases in INITIAL_HEADS. The bias of the forget gate is 0 too: the
    tape, not the LSTM, has to store information for many steps.
    """
    columns = machine.first_reads.shape[0]
    for linear in (machine.input, machine.heads, machine.output):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    machine.layout.fill_biases(machine.heads.bias, initial_heads)
    nn.init.xavier_uniform_(machine.recurrent[:columns])
    if machine.lstm:
        for gate in machine.recurrent[columns:].split(machine.width, -1):
            nn.init.orthogonal_(gate)
    if machine.first_memory is not None:
        nn.init.normal_(machine.first_memory, std=0.5)
    for each in (machine.first_hidden, machine.first_cell, machine.first_reads):
        if each is not None:
            nn.init.uniform_(each, -0.1, 0.1)
