"""Search on preallocated tensors (slots): the same hypotheses as the simple search, but faster."""

from regard.decoding.slots.decoder_choice import slot_decoder, supports_int8
from regard.decoding.slots.recorded_attention import RecordedAttention
from regard.decoding.slots.slot_runs import recorded_attention, slot_search

__all__ = [
    "RecordedAttention",
    "recorded_attention",
    "slot_decoder",
    "slot_search",
    "supports_int8",
]
