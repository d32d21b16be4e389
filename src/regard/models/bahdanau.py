"""Bahdanau: the RNN encoder-decoder with additive attention of Bahdanau et al. (2014)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.dimensions import in_transform
from regard.errors import ArgumentError, Setting, UnknownName, message, positive
from regard.kernels.choice import by_kernel
from regard.layers.aligned_linear import call_linear
from regard.layers.attention_options import (
    ScoreOption,
    SelectOption,
    build_layer_score,
    select_argument,
)
from regard.layers.attentive_cell import attend_along
from regard.layers.attentive_cpu_steps import suits_cpu_steps
from regard.layers.gated_cell import GatedCell
from regard.layers.joint_linear import is_hooked
from regard.layers.recurrent import Recurrence, Recurrent, flip
from regard.layers.token_embedding import embed_tokens
from regard.masks.constructors import padding
from regard.memory import prepare, prepare_zero_padded
from regard.models.base import Encoded, Model, State, at_least_one, attend, words
from regard.roles import CROSS_ATTENTION
from regard.scores import Additive, Location, Score, learned_in
from regard.select import Soft, build_select
from regard.sites import scopes_at

__all__ = ["Bahdanau", "Maxout", "near_uniform"]


class Bahdanau(Model):
    """RNN encoder-decoder with additive attention from the previous decoder state (Bahdanau et al. 2014).

    h_j  = [forward_j; backward_j]                                   a bidirectional encoder
    s_0  = tanh(W_s backward_1)
    c_i  = sum_j alpha_ij h_j,  alpha_i = softmax_j(v . tanh(W_a s_{i-1} + U_a h_j))     (eq. 5 and 6)
    s_i  = GatedCell(e(y_{i-1}), s_{i-1}, c_i)                       (appendix A.2.2)
    t_i  = maxout(U_o s_i + V_o e(y_{i-1}) + C_o c_i),  p(y_i) = softmax(W_o t_i)

    e(y) is the embedding of the word y. U_a h_j does not depend on i, so it is computed once for each source.

    width: size of the states (n in the paper).
    embedding: size of the word embeddings (m in the paper). Default: width.
    hidden: hidden size of the additive score function. Default: width.
    encoder: "gru" uses torch.nn.GRU, which is faster; "paper" uses the paper's cell, one step at a time.
    score: the score function: a name, a mapping such as {"name": "cosine", "sharpness": 9.0}, or a Score. If
        it needs queries and keys of the same size, as dot does, the encoder states are projected to keys of
        size `width`.
    select: how scores become weights: a name, a mapping such as {"name": "softmax", "temperature": 0.5}, or a
        Select. In eval mode, "hard" reads the value with the highest score.

    Differs from the appendix of the paper, where t_i is computed from s_{i-1}. This model computes t_i from
    s_i, as in eq. 4 of the paper.

    >>> from regard.data.batch import Batch
    >>> model = Bahdanau(source_size=9, target_size=7, width=8)
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    small_steps = True
    steps_use_position = False
    site, role = "decoder.cross", CROSS_ATTENTION

    def __init__(
        self,
        source_size: int,
        target_size: int,
        width: int = 256,
        *,
        embedding: int | None = None,
        hidden: int | None = None,
        encoder: str = "gru",
        dropout: float = 0.0,
        score: ScoreOption = "additive",
        select: SelectOption = "softmax",
    ):
        super().__init__()
        if encoder not in ENCODERS:
            raise UnknownName("encoder", encoder, ENCODERS)
        inputs = width if embedding is None else embedding
        sizes = {"source_size": source_size, "target_size": target_size}
        alignment = width if hidden is None else hidden
        positive("Bahdanau()", dropout, **sizes, width=width, embedding=inputs, hidden=alignment)
        self.source_size, self.target_size, self.width = source_size, target_size, width
        self.source = words(source_size, inputs)
        self.target = words(target_size, inputs)
        self.encoder = ENCODERS[encoder](inputs, width)
        self.first = nn.Linear(width, width)
        self.score = _build_score(score, width, 2 * width, hidden)
        # Some score functions, such as dot, need queries and keys of the same size: project the keys.
        narrows = self.score.mismatch(width, 2 * width, 1) is not None
        self.score = _build_score(score, width, width, hidden) if narrows else self.score
        self.narrow = nn.Linear(2 * width, width, bias=False) if narrows else None
        self.sharpness = learned_in(self.score)
        self.longest_source = self.score.max_length if isinstance(self.score, Location) else None
        self.select = build_select(select)
        self.cell = GatedCell(inputs, width, context_size=2 * width)
        self.readout = Maxout(inputs + 3 * width, max(width // 2, 1), target_size, dropout)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        embedded_BSM = embed_tokens(self.source, source, 1.0, None, 0, self.dropout)
        states_BSE, backward_1 = self.encoder(embedded_BSM, lengths)
        values_BSE = self.dropout(states_BSE)
        keys_BSD = values_BSE if self.narrow is None else self.narrow(values_BSE)
        if isinstance(self.encoder, FastEncoder):
            memory = prepare_zero_padded(keys_BSD, values_BSE, self.score, padding(lengths))
        else:
            memory = prepare(keys_BSD, values_BSE, score=self.score, mask=padding(lengths))
        return Encoded(lengths, (memory,), (torch.tanh(self.first(backward_1)),))

    def start(self, encoded: Encoded) -> State:
        return State(hidden=encoded.first)

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        if is_hooked(self.readout):
            after, parts = self._readout_inputs(state, tokens, encoded)
            return after, self.readout(*parts)
        after, features_RTM = self.features(state, tokens, encoded)
        return after, self.readout.logits(features_RTM)

    def output_layer(self) -> nn.Module | None:
        return None if is_hooked(self.readout) else self.readout.output

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        after, parts = self._readout_inputs(state, tokens, encoded)
        return after, self.readout.features(*parts)

    def _readout_inputs(
        self, state: State, tokens: Tensor, encoded: Encoded
    ) -> tuple[State, tuple[Tensor, Tensor, Tensor]]:
        """Return the state after the tokens, and the inputs of the readout: states, contexts, embeddings."""
        embedded_RTM = embed_tokens(self.target, at_least_one(tokens), 1.0, None, 0, self.dropout)
        (s,) = state.hidden
        if self._can_fuse(embedded_RTM, state, encoded):
            # Store the gates in memory with the time dimension first: attend_along() reads in this order.
            gates_RTG = self.cell.gates(embedded_RTM.transpose(0, 1)).transpose(0, 1)
            states_RTM, contexts_RTE = attend_along(self.cell, gates_RTG, s, encoded.memories[0], self.site)
        else:
            gates_RTG = self.cell.gates(embedded_RTM)
            states_RTM, contexts_RTE = self._step_by_step(gates_RTG, s, state.position, encoded)
        after = State(state.position + tokens.shape[1], (states_RTM[:, -1],))
        return after, (states_RTM, contexts_RTE, embedded_RTM)

    def _step_by_step(
        self, gates_RTG: Tensor, s: Tensor, position: int, encoded: Encoded
    ) -> tuple[Tensor, Tensor]:
        states, contexts = [], []
        options = {**select_argument(self.select, self.training), "site": self.site, "role": self.role}
        for at, gates in enumerate(gates_RTG.unbind(1), position):
            context = attend(s[:, None], encoded.memories[0], start=at, **options).output[:, 0]
            s = self.cell(gates, s, context)
            states.append(s)
            contexts.append(context)
        return torch.stack(states, 1), torch.stack(contexts, 1)

    def _can_fuse(self, embedded_RTM: Tensor, state: State, encoded: Encoded) -> bool:
        """Return whether attend_along() can run the decoder. It is faster than one attention() call per step.

        All these conditions must be true:
        - The score function is additive and the selection is softmax, as in Bahdanau et al.
        - The model is trained on whole targets.
        - On a CPU, the steps can run without attention(); see suits_cpu_steps().
        - The decoder cell and its layers have no hooks.
        - None of these is active: torch.compile, a torch.func transform, record(), intervene().
        """
        if type(self.score) is not Additive or self.score.heads or self.select != Soft() or in_transform():
            return False
        if is_hooked(self.cell) or not self.cell.is_plain():
            return False
        trains = self.training and torch.is_grad_enabled()
        whole = state.position == 0 and len(embedded_RTM) == len(encoded)
        if not (trains and whole) or torch.compiler.is_compiling() or scopes_at(self.site, self.role):
            return False
        memory = encoded.memories[0]
        return embedded_RTM.device.type != "cpu" or suits_cpu_steps(memory, embedded_RTM.dtype)


def _build_score(score: ScoreOption, query_size: int, key_size: int, hidden: int | None) -> Score:
    """Create the score function, with small initial parameters.

    hidden: the hidden size of "additive" and "concat". It is ignored if `score` has an option "hidden".
    """
    name = score.get("name") if isinstance(score, Mapping) else score
    if hidden is not None and name not in ("additive", "concat"):
        problem = f"hidden is {hidden}, but this score has no hidden layer"
        hint = (
            "use ",
            Setting("build_model", "score", "additive"),
            " or ",
            Setting("build_model", "score", "concat"),
        )
        raise ArgumentError(message("Bahdanau()", problem, hint=hint))
    if isinstance(score, Mapping) and "hidden" in score and hidden is not None:
        problem = "hidden is set twice: as an option of the model and of the score"
        raise ArgumentError(message("Bahdanau()", problem))
    if name in ("additive", "concat"):
        options = score if isinstance(score, Mapping) else {"name": score}
        score = {"hidden": query_size if hidden is None else hidden, **options}
    built = build_layer_score(score, query_size, key_size)
    return built if isinstance(score, Score) else near_uniform(built)


def near_uniform(score: Score) -> Score:
    """Scale the initial parameters down, so that the attention weights are nearly uniform at first.

    With larger random parameters, some words would get high scores by chance. Training would then strengthen
    these random choices.
    """
    if isinstance(score, nn.Module):
        with torch.no_grad():
            for name, weight in score.named_parameters():
                weight.mul_(0.1 if name == "vector" or score.combine == "inner" else 0.5)
    return score


class Maxout(nn.Module):
    """Maxout output layer: W_o t with t_l = max(t~_{2l-1}, t~_{2l}) (Bahdanau et al. 2014, A.2.2).

    t~ is the output of a linear layer, with two elements for each element of t.

    inputs: size of the input.
    width: size of t.
    outputs: number of logits.

    >>> import torch
    >>> Maxout(inputs=6, width=4, outputs=9)(torch.randn(2, 6)).shape
    torch.Size([2, 9])
    """

    def __init__(self, inputs: int, width: int, outputs: int, dropout: float = 0.0):
        super().__init__()
        self.pairs = nn.Linear(inputs, 2 * width)
        self.output = nn.Linear(width, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits; see features() for the inputs."""
        return self.logits(self.features(*inputs))

    def features(self, *inputs: Tensor) -> Tensor:
        """Return t, after dropout.

        inputs: one or more tensors, whose concatenation along the last dimension is the input of the layer.
        """
        pairs = call_linear(self.pairs, *inputs)
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and by_kernel(pairs)):
            return self.dropout(pairs.unflatten(-1, (-1, 2)).amax(-1))
        from regard.kernels.recurrent.maxout import PairMaximum

        return self.dropout(PairMaximum.apply(pairs))

    def logits(self, features: Tensor) -> Tensor:
        """Return W_o t."""
        return call_linear(self.output, features)


class FastEncoder(nn.Module):
    """Bidirectional encoder with torch.nn.GRU, which is faster than PaperEncoder.

    Returns the states of both directions (B, S, 2 width), and the state of the backward direction at the
    first position. The states of the padding are 0.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.layers = Recurrent(Recurrence(width), inputs, both_ways=True)

    def forward(self, embedded_BSM: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers.encoded_states(embedded_BSM, lengths)


class PaperEncoder(nn.Module):
    """Bidirectional encoder with the cell of Bahdanau et al. 2014 (appendix A.1.1), one step at a time.

    Returns the same tensors as FastEncoder.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.forwards, self.backwards = GatedCell(inputs, width), GatedCell(inputs, width)

    def forward(self, embedded_BSM: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        forwards = self._run(self.forwards, embedded_BSM)
        backwards = flip(self._run(self.backwards, flip(embedded_BSM, lengths)), lengths)
        return torch.cat((forwards, backwards), -1), backwards[:, 0]

    def _run(self, cell: GatedCell, embedded_BSM: Tensor) -> Tensor:
        gates_BSG, states = cell.gates(embedded_BSM), []
        # Use the dtype of the gates: under autocast, it differs from the dtype of the inputs.
        state = gates_BSG.new_zeros(len(gates_BSG), cell.width)
        for gates in gates_BSG.unbind(1):
            state = cell(gates, state)
            states.append(state)
        return torch.stack(states, 1)


ENCODERS: dict[str, type[FastEncoder] | type[PaperEncoder]] = {"gru": FastEncoder, "paper": PaperEncoder}
