"""LSTMN: long short-term memory-network layers, which attend to their earlier states (Cheng et al. 2016)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import attention
from regard.dimensions import full_precision
from regard.errors import UnknownName, positive
from regard.layers.recurrent import Hidden
from regard.masks.constructors import window
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.roles import ENCODER_SELF, Role
from regard.scores import Additive
from regard.sites import scopes_at

__all__ = ["CONNECTIONS", "LSTMN", "LSTMNLayer", "WindowReading"]

CONNECTIONS = {
    "plain": "layer k + 1 reads the output h_t of layer k (eq. 10)",
    "skip": "layer k + 1 reads the output h_t of layer k and the input x_t of the first layer (section 3.2)",
    "gated": "as plain, and a gate adds the cell state c_t of layer k to the cell state of layer k + 1",
}
"""How the layers of LSTMN() are connected, for each value of its option `connections`. The numbers of
equations and sections refer to Cheng et al. (2016)."""


class LSTMNLayer(nn.Module):
    """One layer of a long short-term memory-network (Cheng et al. 2016, section 3.2).

    a_i = v . tanh(W_h h_i + W_x x_t + W_h~ h~_t-1),  s = softmax(a), over the steps i < t    (eq. 4 and 5)
    [h~_t; c~_t] = sum_i s_i [h_i; c_i]                                                       (eq. 6)
    [i; f; o; c^_t] = [sigma; sigma; sigma; tanh](W [h~_t, x_t] + b)                          (eq. 7)
    c_t = f * c~_t + i * c^_t,  h_t = o * tanh(c_t)                                           (eq. 8 and 9)

    The argument `added` of forward() is a sequence of vectors that are added to the cell states:

        c_t = added_t + f * c~_t + i * c^_t

    The hidden states h_i of earlier steps are called the hidden tape, and the cell states c_i the memory
    tape. At the first step, the tapes are empty, and h~ = c~ = 0. Each step makes one attention() call. Its
    query is [x_t; h~_t-1], its keys are the hidden states h_i, and its values are [h_i; c_i]. Each key is
    projected only once.

    input_size: size of the inputs x_t.
    width: size of h_t and c_t.
    hidden: size of the tanh layer of the score function. Default: width.
    lower: whether to add the cell state of the layer below (lower_t) to c_t, as in the depth-gated
        LSTM (Yao et al. 2015): c_t = r * lower_t + f * c~_t + i * c^_t. The gate r is sigma(W_r [h~_t, x_t] +
        b_r).
    site: name of the attention for record() and intervene().
    role: role of the attention for record() and intervene(). The kind of the role is "self": the tapes have
        one entry for each token that the layer has read.
    """

    def __init__(
        self,
        input_size: int,
        width: int,
        hidden: int | None = None,
        *,
        lower: bool = False,
        site: str = "lstmn.self",
        role: Role = ENCODER_SELF,
    ):
        super().__init__()
        self.width, self.site, self.role = width, site, role
        self.score = Additive(input_size + width, width, width if hidden is None else hidden)
        gates = 5 if lower else 4
        self.input = nn.Linear(input_size, gates * width)  # order: i, f, o, c^, r
        self.summary = nn.Linear(width, gates * width, bias=False)
        for square in self.summary.weight.data.split(width):
            nn.init.orthogonal_(square)

    def forward(
        self,
        x: Tensor,
        past: Memory,
        summary: Tensor,
        added: Tensor | None = None,
        tape: int | None = None,
        position: int = 0,
    ) -> tuple[Tensor, Tensor, Memory, Tensor]:
        """Read T steps of a sequence, beginning with the state `past` and `summary`.

        x: (B, T, input_size), the inputs.
        past: the tapes, which contain the hidden states h_i and the cell states c_i of S earlier steps. They
            are a Memory with the keys W_h h_i, (B, 1, S, hidden), and the values [h_i; c_i], (B, 1, S, 2
            width).
        summary: h~ of the step before x, (B, width).
        added: vectors (B, T, width) that are added to the cells c_t. In a layer built with lower=True, they
            are the cells of the layer below, and are multiplied by the gate r.
        tape: maximum number of earlier steps to attend to. None: all steps on the tapes.
        position: number of all steps before x, for record() and intervene(). It includes steps that are no
            longer on the tapes.

        Returns the outputs h_t (B, T, width), the cells c_t (B, T, width), the tapes after the last step, and
        h~ of the last step.
        """
        recorded = bool(scopes_at(self.site, self.role))
        if recorded and tape is not None:
            past = _with_dropped_steps(past, position)
        hidden, cells = [], []
        for t, (x_BI, gates_BG) in enumerate(zip(x.unbind(1), self.input(x).unbind(1), strict=True)):
            if not recorded:
                past = last_steps(past, tape)
            query_B11D = torch.cat((x_BI, summary), -1)[:, None, None]
            options = self._positions(past, tape) if recorded else {}
            read_BE = attention(query_B11D, past, site=self.site, role=self.role, **options).output[:, 0, 0]
            summary, cell = read_BE.chunk(2, -1)
            opened_BG = gates_BG + self.summary(summary)
            take, forget, show, new, *depth = opened_BG.split(self.width, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(new)
            if added is not None:
                cell = cell + (torch.sigmoid(depth[0]) * added[:, t] if depth else added[:, t])
            state = torch.sigmoid(show) * torch.tanh(cell)
            past = past.append(state[:, None, None], torch.cat((state, cell), -1)[:, None, None])
            hidden.append(state)
            cells.append(cell)
        return torch.stack(hidden, 1), torch.stack(cells, 1), last_steps(past, tape), summary

    @staticmethod
    def _positions(past: Memory, tape: int | None) -> dict[str, Any]:
        """Return the arguments `mask` and `start` of the attention() call of one step.

        These arguments are used while record() or intervene() is active. Then all steps so far are keys, so
        that key i is always step i. The mask hides all keys except the last `tape` keys.
        """
        return {"mask": Mask() if tape is None else window(left=tape), "start": past.length}

    def extra_repr(self) -> str:
        return f"site={self.site!r}"


class LSTMN(nn.Module):
    """A stack of long short-term memory-network layers (Cheng et al. 2016), which reads from left to right.

    At each step, a layer attends to its hidden states h_i and cell states c_i of earlier steps. These states
    are called the tapes of the layer. For the equations, see LSTMNLayer. The input of layer k + 1 is the
    output h_t of layer k (eq. 10). A sequence can be read in one call or step by step.

    input_size: size of the inputs x_t.
    width: size of the states of every layer.
    hidden: size of the tanh layer of the score functions. Default: width.
    depth: number of layers.
    connections: what layer k + 1 reads. "plain": the output of layer k. "skip": the output of layer k and the
        input x_t. "gated": the output of layer k; also, a gate adds the cell state of layer k to the cell
        state of layer k + 1.
    dropout: dropout probability between layers.
    tape: maximum number of earlier steps that a step can attend to. None: all steps since the initial state.
    site: the attention of layer k has the name "{site}.{k}.self" for record() and intervene().
    role: the role of all attention layers for record() and intervene().

    The state is a tuple of three tensors, for B sequences and S steps on the tapes:

    1. the tapes [h_i; c_i], (B, depth, S, 2 width);
    2. the projected keys W_h h_i, (B, depth, S, hidden);
    3. the summaries h~ of the last step, (B, depth, width).

    >>> import torch
    >>> layers, x = LSTMN(input_size=3, width=4, depth=2), torch.randn(2, 5, 3)
    >>> whole, _ = layers.run(x, layers.zeros(x))
    >>> state = layers.zeros(x)
    >>> for t in range(5):
    ...     output, state = layers.run(x[:, t : t + 1], state)
    >>> torch.allclose(output[:, 0], whole[:, 4], atol=1e-6), [tuple(each.shape) for each in state]
    (True, [(2, 2, 5, 8), (2, 2, 5, 4), (2, 2, 4)])
    """

    def __init__(
        self,
        input_size: int,
        width: int,
        *,
        hidden: int | None = None,
        depth: int = 1,
        connections: str = "skip",
        dropout: float = 0.0,
        tape: int | None = None,
        site: str = "lstmn",
        role: Role = ENCODER_SELF,
    ):
        super().__init__()
        self.hidden = width if hidden is None else hidden
        sizes = {"input_size": input_size, "width": width, "hidden": self.hidden, "depth": depth}
        positive("LSTMN()", dropout, **sizes, **({} if tape is None else {"tape": tape}))
        if connections not in CONNECTIONS:
            raise UnknownName("connections", connections, CONNECTIONS)
        self.width, self.connections, self.dropout, self.tape = width, connections, dropout, tape
        above = width + input_size if connections == "skip" else width
        self.layers = nn.ModuleList(
            LSTMNLayer(
                above if k else input_size,
                width,
                hidden,
                lower=k > 0 and connections == "gated",
                site=f"{site}.{k}.self",
                role=role,
            )
            for k in range(depth)
        )

    def zeros(self, like: Tensor) -> Hidden:
        """Return the initial state, in which there are no earlier steps.

        like: a tensor (B, ...) with the batch size, dtype and device of the state.
        """
        sizes = len(like), len(self.layers)
        tape, keys = like.new_zeros(*sizes, 0, 2 * self.width), like.new_zeros(*sizes, 0, self.hidden)
        return tape, keys, like.new_zeros(*sizes, self.width)

    def run(
        self, x: Tensor, state: Hidden, position: int = 0, added: Tensor | None = None
    ) -> tuple[Tensor, Hidden]:
        """Read T steps of B sequences; return the outputs (B, T, width) and the state after them.

        One call with T steps gives the same result as T calls with one step each.

        x: (B, T, input_size), the inputs; T is 1 or more.
        state: the state before x: the result of zeros() or of the previous run().
        position: number of steps before x. Only record() and intervene() use it.
        added: (B, T, width), vectors to add to the cell states c_t of the first layer, as in the deep fusion
            of an encoder-decoder (Cheng et al. 2016).
        """
        dtype = next(self.parameters()).dtype
        x, added = x.to(dtype), None if added is None else added.to(dtype)
        tapes_BLSE, keys_BLSA, summaries_BLM = (each.to(dtype) for each in state)
        gated = self.connections == "gated"
        output, cells, after = x, added, []
        with full_precision(x):
            for k, layer in enumerate(self.layers):
                if k:
                    output = functional.dropout(output, self.dropout, self.training)
                    output = torch.cat((output, x), -1) if self.connections == "skip" else output
                assert isinstance(layer, LSTMNLayer)
                keys, values = keys_BLSA[:, k : k + 1], tapes_BLSE[:, k : k + 1]
                past = Memory(keys, values, layer.score, Mask(), self.width)
                own = past, summaries_BLM[:, k], cells if not k or gated else None, self.tape, position
                output, cells, past, summary = layer(output, *own)
                after.append((past.value, past.key, summary[:, None]))
        return output, tuple(torch.cat(each, 1) for each in zip(*after, strict=True))

    def encode(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Read whole sequences; return the outputs (B, S, width) of the last layer, which are 0 for padding.

        x: (B, S, input_size), sequences padded at the end. No mask is needed, because tokens attend only to
            earlier tokens.
        lengths: number of tokens of each sequence, (B,).
        """
        states_BSM, _ = self.run(x, self.zeros(x))
        inside_BS1 = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        return torch.where(inside_BS1, states_BSM, 0.0)

    def last_step(self, state: Hidden) -> Hidden:
        """Return a copy of the state in which the tapes contain only the last step.

        state: a state from run().
        """
        tapes_BLSE, keys_BLSA, summaries_BLM = state
        last = (each[:, :, -1:].clone() for each in (tapes_BLSE, keys_BLSA))
        return *last, summaries_BLM


class WindowReading(nn.Module):
    """read() of a language model with the attributes `layers`, an LSTMN, and `tape`."""

    def read(self, batch: Any, state: Any = None) -> tuple[Any, Tensor]:
        """Read a batch; return the state after it and the logits (B, T, V). See LanguageModel.read().

        If `tape` is "window", the returned state contains only the last token of the batch. So tokens of the
        next batch can attend to this token, but not to earlier tokens.
        """
        model: Any = super()
        after, logits_BTV = model.read(batch, state)
        if self.tape == "window":
            layers: Any = self.layers
            after = replace(after, hidden=layers.last_step(after.hidden))
        return after, logits_BTV


def last_steps(past: Memory, count: int | None) -> Memory:
    """Return a Memory with only the last `count` keys and values of `past`; None keeps all."""
    if count is None or past.length <= count:
        return past
    return replace(past, key=past.key[..., -count:, :], value=past.value[..., -count:, :])


def _with_dropped_steps(past: Memory, position: int) -> Memory:
    """Return a Memory with a key and a value for every step so far, so that key i belongs to step i.

    `past` may have lost the oldest steps. The keys and values of these steps are 0.

    position: number of all steps so far.
    """
    dropped = (0, 0, max(position - past.length, 0), 0)
    return replace(past, key=functional.pad(past.key, dropped), value=functional.pad(past.value, dropped))
