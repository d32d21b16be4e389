"""CapturedEncoding: encode the sources of a batch and load them into slots, as one CUDA graph.

An encoder launches a few hundred small kernels, as many as several decoding steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.data.batch import PAD
from regard.decoding.slots.decoder import SlotDecoder
from regard.decoding.slots.search_slots import SearchSlots
from regard.models.base import Encoded, Model, State

__all__ = ["CapturedEncoding"]


class CapturedEncoding:
    """The source tokens of B slots, and a captured function that encodes them and loads the decoder.

    source, lengths: (B, S) and (B,), the tokens and the number of tokens of each slot. An unused slot has one
        token, PAD.
    encoded, state: the results of the captured function: encoder output and first decoder state.
    failed: whether capturing has failed, so that sources are encoded without a graph.

    The object has no reference to the model: the slots of a model are kept only as long as the model.
    """

    def __init__(self, slots: int, source_length: int, device: torch.device):
        self.source = torch.full((slots, source_length), PAD, device=device)
        self.lengths = torch.ones(slots, dtype=torch.long, device=device)
        self.rows = torch.arange(slots, device=device)
        self.encoded, self.state = Encoded(self.lengths), State()
        self.replay: Callable[[], None] | None = None
        self.failed = False

    @classmethod
    def for_slots(cls, slots: SearchSlots) -> CapturedEncoding:
        """Return an object with the sizes of some slots."""
        return cls(slots.slots, slots.decoder.source_length, slots.last.device)

    def load(
        self,
        model: Model,
        decoder: SlotDecoder,
        source: Tensor,
        lengths: Tensor,
        capture: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        """Encode sources, and load them into the first slots of a decoder.

        source: (b, S), padded with PAD. lengths: (b,).
        capture: see CapturedSlots.
        """
        count, longest = source.shape
        self.source.fill_(PAD)
        self.lengths.fill_(1)
        self.source[:count, :longest] = source
        self.lengths[:count] = lengths
        if self.replay is None:
            self.replay = capture(lambda: self._encode(model, decoder))
        self.replay()

    def _encode(self, model: Model, decoder: SlotDecoder) -> None:
        decoder.refresh()
        self.encoded = model.encode(self.source, self.lengths)
        self.state = model.start(self.encoded)
        decoder.load(self.rows, self.encoded, self.state)
