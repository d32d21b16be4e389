"""Search on preallocated tensors (slots): the same hypotheses as those of regard.decoding.beam, greedy and
sampling, but faster.

choice.py decides which decoder runs a search, and search_loop.py runs it. beams.py and slots.py keep the
hypotheses and choose the next tokens. transformer_decoder.py, bahdanau_decoder.py and recurrent_decoder.py
compute the steps of the models.
"""

import regard.decoding  # noqa: F401  # it imports modules of this package, so that it must be complete first
from regard.fast.search.choice import search_decoder, supports_int8
from regard.fast.search.recorded_attention import RecordedAttention
from regard.fast.search.search_loop import EarlyEnds, recorded_attention, slot_search

__all__ = [
    "EarlyEnds",
    "RecordedAttention",
    "recorded_attention",
    "search_decoder",
    "slot_search",
    "supports_int8",
]
