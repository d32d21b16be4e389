"""FastLSTMNLayer: a layer of a long short-term memory-network, with all steps in one autograd function."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.dimensions import in_transform
from regard.fast.hooks import is_hooked
from regard.fast.recurrent.lstmn_steps import lstmn_steps
from regard.fast.twin import Twin
from regard.layers.lstmn import LSTMNLayer, last_steps
from regard.memory import Memory
from regard.sites import scopes_at

__all__ = ["FastLSTMNLayer"]


class FastLSTMNLayer(LSTMNLayer, Twin):
    """Run all steps of a layer without one attention() call per step; see lstmn_steps()."""

    def forward(
        self,
        x: Tensor,
        past: Memory,
        summary: Tensor,
        added: Tensor | None = None,
        tape: int | None = None,
        position: int = 0,
    ) -> tuple[Tensor, Tensor, Memory, Tensor]:
        plain = is_hooked(self.summary) or not isinstance(self.summary, nn.Linear)
        if plain or scopes_at(self.site, self.role) or in_transform() or torch.compiler.is_compiling():
            return LSTMNLayer.forward(self, x, past, summary, added, tape, position)
        of_input, of_summary = self.score.query_weight.tensor_split((x.shape[-1],))
        queries_BTA = x @ of_input
        query_BA = torch.addmm(queries_BTA[:, 0], summary, of_summary)
        joint_MN = torch.cat((self.summary.weight.T, of_summary), 1)
        keys_BSA, values_BSE, summary = lstmn_steps(
            self.input(x),
            query_BA,
            queries_BTA[:, 1:],
            past.key[:, 0],
            past.value[:, 0],
            added,
            (joint_MN, self.score.key_weight, self.score.vector),
            tape,
        )
        states_BTM, cells_BTM = values_BSE[:, past.length :].chunk(2, -1)
        past = replace(past, key=keys_BSA[:, None], value=values_BSE[:, None])
        return states_BTM, cells_BTM, last_steps(past, tape), summary
