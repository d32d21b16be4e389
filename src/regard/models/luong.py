"""Luong: the RNN encoder-decoder of Luong et al. (2015), with global or local attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.layers.luong_readouts import LATENT, READOUTS, Bridge, ReadoutSteps
from regard.layers.recurrent import Recurrence, Recurrent
from regard.layers.source_attention import SourceAttention, local_mask
from regard.masks.constructors import padding
from regard.memory import prepare
from regard.models.base import Encoded, Model, State, words
from regard.options.attention_options import ScoreOption, SelectOption
from regard.options.luong_views import Global, Monotonic, Predicted, ViewOption, build_view
from regard.options.model_checks import at_least_one, check_luong, checked
from regard.select import LocalP

__all__ = ["Global", "Luong", "Monotonic", "Predicted"]


class Luong(ReadoutSteps, Model, SourceAttention):
    """RNN encoder-decoder with attention from the current decoder state (Luong et al. 2015).

    h_t  = cell([e(y_{t-1}); h~_{t-1}], h_{t-1})                     with input feeding (section 3.3)
    c_t  = sum_s a_ts h_s,  a_t = softmax_s(score(h_t, h_s))          (eq. 7)
    h~_t = tanh(W_c [c_t; h_t]),  p(y_t) = softmax(W_s h~_t)          (eq. 5 and 6)

    h_t is the decoder state of step t, h_s the encoder state of word s, e(y) the embedding of the word y.

    recurrence: cell, width, depth and dropout of encoder and decoder.
    score: the score function, such as dot, general, concat or location: a name, a mapping such as {"name":
        "concat", "hidden": 64}, or a Score.
    select: how scores become weights: a name, a mapping such as {"name": "softmax", "temperature": 0.5}, or a
        Select. In eval mode, "hard" reads the value with the highest score. With the view "local-p", only
        softmax can be used.
    view: which source words a step can attend to: "global", "local-m" or "local-p". To set the distance, use
        {"name": "local-m", "reach": 4}, Monotonic(reach=4) or Predicted(reach=4).
    readout: "attentional" computes p(y_t) from h~_t as above; "affine" is softmax(W [c_t; h_t]) without h~_t;
        "latent" treats the attended word as a latent variable, and sums over it exactly:
        p(y_t) = sum_s a_ts softmax(W_s tanh(W_c [h_s; h_t])) (Deng et al. 2018, eq. 1 and 2). It has no input
        feeding, because the state would depend on all earlier choices. Time and memory grow with S times V.
    feeding: whether to use input feeding: h~_{t-1} (or [c; h] with "affine") is an input of the next step.
        Without input feeding, one attention() call computes all steps. Default: True, except for "latent".
    both_ways: whether the encoder is bidirectional. Its states are projected to `width` if the score function
        needs queries and keys of the same size.

    >>> from regard.data.batch import Batch
    >>> model = Luong(source_size=9, target_size=7, recurrence=Recurrence(width=8, cell="lstm"), score="dot")
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    @checked(check_luong)
    def __init__(
        self,
        source_size: int,
        target_size: int,
        recurrence: Recurrence | None = None,
        *,
        score: ScoreOption = "general",
        select: SelectOption = "softmax",
        view: ViewOption = "global",
        readout: str = "attentional",
        feeding: bool | None = None,
        both_ways: bool = False,
    ):
        super().__init__()
        settings = recurrence or Recurrence(cell="lstm")
        self.source_size, self.target_size = source_size, target_size
        self.feeding = feeding = readout not in LATENT if feeding is None else feeding
        self.view = build_view(view)
        self.steps_use_position = isinstance(self.view, Monotonic)
        width, inputs = settings.width, settings.embedding_width
        wide = 2 * width if both_ways else width
        self.source = words(source_size, inputs)
        self.target = words(target_size, inputs)
        self.encoder = Recurrent(settings, inputs, both_ways=both_ways)
        read = self.set_up_narrowed(width, wide, score, select)
        self.bridge = Bridge(width) if both_ways else None
        self.readout: Any = READOUTS[readout](read, width, target_size)
        self.decoder = Recurrent(settings, inputs + (self.readout.joined_size if feeding else 0))
        self.place = Place(width) if isinstance(self.view, Predicted) else None
        self.dropout = nn.Dropout(settings.dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        states_BSE, last = self.encoder.encode(self.dropout(self.source(source)), lengths)
        states_BSE = self.dropout(states_BSE if self.narrow is None else self.narrow(states_BSE))
        memory = prepare(states_BSE, score=self.score, mask=padding(lengths))
        return Encoded(lengths, (memory,), last if self.bridge is None else self.bridge(last))

    def start(self, encoded: Encoded) -> State:
        if not self.feeding:
            return State(hidden=encoded.first)
        feed = encoded.first[0].new_zeros(encoded.lengths.shape[0], self.readout.joined_size)
        return State(hidden=(*encoded.first, feed))

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        embedded_RTM, position = self.dropout(self.target(at_least_one(tokens))), state.position
        after = position + tokens.shape[1]
        if not self.feeding:
            states_RTM, hidden = self.decoder.run(embedded_RTM, state.hidden)
            contexts_RTE = self.attend_near(states_RTM, encoded, position).output
            return State(after, hidden), self.dropout(self.readout(contexts_RTE, states_RTM))
        hidden, fed_RM, joined = state.hidden[:-1], state.hidden[-1], []
        for at, word_RM in enumerate(embedded_RTM.unbind(1), position):
            inputs_RI = torch.cat((word_RM, fed_RM), -1)
            state_R1M, hidden = self.decoder.run(inputs_RI[:, None], hidden)
            context_R1E = self.attend_near(state_R1M, encoded, at).output
            fed_RM = self.readout(context_R1E, state_R1M)[:, 0]
            joined.append(fed_RM)
        return State(after, (*hidden, fed_RM)), self.dropout(torch.stack(joined, 1))

    def attend_near(self, states_RTM: Tensor, encoded: Encoded, position: int, **options: Any) -> Attended:
        """Attend from decoder states to the source words in view; the output is the contexts c_t (R, T, E).

        position: step of the first decoder state.
        options: further arguments of attention().
        """
        (memory,) = encoded.memories
        if isinstance(self.view, Monotonic):
            options["mask"] = local_mask(states_RTM, memory, position, self.view.reach)
        if isinstance(self.view, Predicted) and self.place is not None:
            places_BT = self.place(states_RTM).reshape(encoded.lengths.shape[0], -1)
            options["select"] = LocalP(places_BT * encoded.lengths[:, None], self.view.reach)
        return self.attend(states_RTM, memory, position, **options)


class Place(nn.Module):
    """Predict p_t / S from the decoder state h_t: sigma(v_p . tanh(W_p h_t)) (Luong et al. 2015, eq. 9).

    p_t is the source position to attend to, and S is the length of the source.
    """

    def __init__(self, width: int):
        super().__init__()
        self.hidden = nn.Linear(width, width, bias=False)
        self.vector = nn.Linear(width, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return torch.sigmoid(self.vector(torch.tanh(self.hidden(states)))).squeeze(-1)
