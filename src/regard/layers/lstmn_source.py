"""SourceTapes: the tapes of a source, read by an LSTMN in one direction or in both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.lstmn import LSTMN
from regard.layers.recurrent import flip
from regard.roles import REVERSED_SELF

__all__ = ["SourceTapes"]


class SourceTapes(nn.Module):
    """The LSTMN encoders of a source; a base class of models.

    With both_ways, a second encoder reads the source from the last word to the first. The states of both are
    concatenated and projected: g_j = W_both [forward_j; backward_j], and the cell states in the same way.
    """

    def set_up_tapes(self, inputs: int, width: int, both_ways: bool, *, memory: bool, **options: Any) -> None:
        """Create the encoders. memory: whether the model reads the cell states. options: those of LSTMN()."""
        self.encoder = LSTMN(inputs, width, **options, site="encoder")
        self.reversed = (
            LSTMN(inputs, width, **options, site="reversed", role=REVERSED_SELF) if both_ways else None
        )
        self.both_states = nn.Linear(2 * width, width, bias=False) if both_ways else None
        self.both_cells = nn.Linear(2 * width, width, bias=False) if both_ways and memory else None

    def read_tapes(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states g_j and the cell states alpha_j of the last layer, each (B, S, width).

        x: (B, S, inputs), the embeddings, padded at the end. The result also has states for padding.
        """
        states_BSM, cells_BSM = _tapes(self.encoder, x)
        if self.reversed is not None and self.both_states is not None:
            backward = _tapes(self.reversed, flip(x, lengths))
            backward_states_BSM, backward_cells_BSM = (flip(each, lengths) for each in backward)
            states_BSM = self.both_states(torch.cat((states_BSM, backward_states_BSM), -1))
            if self.both_cells is not None:
                cells_BSM = self.both_cells(torch.cat((cells_BSM, backward_cells_BSM), -1))
        return states_BSM, cells_BSM


def _tapes(encoder: LSTMN, x_BSI: Tensor) -> tuple[Tensor, Tensor]:
    _, (tapes_BLSE, *_) = encoder.run(x_BSI, encoder.zeros(x_BSI))
    states_BSM, cells_BSM = tapes_BLSE[:, -1].chunk(2, -1)
    return states_BSM, cells_BSM
