"""slot_search(): beam search and greedy search on preallocated tensors. The same results, but faster.

The simple search in regard.decoding.beam and regard.decoding.greedy supports every model and every option.
It is the reference for this one: the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.data.batch import BOS, PAD, Batch
from regard.decoding.active_rows import ActiveRows, start_decoding
from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import ROOM, SearchResult
from regard.decoding.prompts import Prompts
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit
from regard.decoding.slots.beam_slots import BeamSlots
from regard.decoding.slots.decoder import SlotDecoder
from regard.decoding.slots.greedy_slots import GreedySlots
from regard.decoding.slots.hidden_decoder import HiddenDecoder
from regard.decoding.slots.search_slots import SearchSlots
from regard.decoding.slots.transformer_decoder import TransformerDecoder
from regard.models.base import Model
from regard.sites import open_scopes

__all__ = ["slot_search", "supports_slots"]

DECODERS: tuple[type[SlotDecoder], ...] = (TransformerDecoder, HiddenDecoder)
"""The decoders on preallocated tensors. The first one that supports a model is used."""

FIRST_LENGTH = 32
"""The number of positions of the first buffers. When they are full, buffers twice as long replace them."""

DROP = 8
"""Finished sentences are removed when at least 1 / DROP of the slots are done."""


def decoder_for(model: Model) -> type[SlotDecoder] | None:
    """Return the class of the decoder on preallocated tensors for a model; None if no class supports it."""
    return next((kind for kind in DECODERS if kind.supports(model)), None)


def supports_slots(model: Model, how: object, ends: object = None) -> bool:
    """Return whether slot_search() supports a model and the options of a search.

    It does not support sampling, the coverage penalty, Rules(repeat=...), hypotheses that end before EOS
    (`ends`), and the recording and editing of attention during the search.
    """
    if ends is not None or not isinstance(how, Beam | Greedy) or open_scopes():
        return False
    if how.rules.repeat or (isinstance(how, Beam) and how.coverage):
        return False
    permitted = set(range(model.target_size)) - {PAD, BOS, *how.rules.forbidden}
    return len(permitted) > 1 and decoder_for(model) is not None


def slot_search(
    model: Model,
    batch: Batch | Prompts,
    how: Beam | Greedy,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    limit: LengthLimit = TRANSLATION_LIMIT,
) -> SearchResult:
    """Run beam search or greedy search on a batch, on preallocated tensors. supports_slots() must be true.

    The arguments are those of search().
    """
    active, state, last_B1 = start_decoding(model, batch, how.rules, prefixes, 1, limit)
    longest, offset = int(active.limits.max()) if len(active) else 0, state.position
    slots = _allocated(model, how, active, offset, longest)
    rows = torch.arange(len(active), device=last_B1.device)
    slots.decoder.load(rows, active.encoded, state)
    slots.start(rows, last_B1[:, 0], active.limits, active.prefix, offset)
    best = how.best if isinstance(how, Beam) else 1
    result = SearchResult.empty(len(active), best, min(longest, ROOM), torch.device("cpu"))
    remaining = rows
    for step in range(longest):
        upto = offset + step + 1
        if upto >= slots.decoder.length:
            slots = slots.resized(None, min(2 * slots.decoder.length, offset + longest + 1))
        slots.step(upto)
        done = int(slots.done.sum())
        if done < slots.slots and done * DROP < slots.slots:
            continue
        if done:
            finished, running = slots.done.nonzero()[:, 0], (~slots.done).nonzero()[:, 0]
            outputs = slots.results(finished)
            result = result.with_room_for(outputs.tokens.shape[-1], longest)
            result.write(remaining[finished].cpu(), outputs)
            if not len(running):
                break
            remaining, slots = remaining[running], slots.resized(running, slots.decoder.length)
    return result.to(last_B1.device)


def _allocated(
    model: Model, how: Beam | Greedy, active: ActiveRows, offset: int, longest: int
) -> SearchSlots:
    """Return the slots of a search for the sentences in `active`, not yet started.

    offset: the number of tokens that the decoder has read already.
    longest: the maximum number of tokens of the outputs.
    """
    kind = decoder_for(model)
    assert kind is not None
    device, beams = active.index.device, how.size if isinstance(how, Beam) else 1
    source = max((memory.length for memory in active.encoded.memories), default=0)
    length = offset + min(FIRST_LENGTH, longest + 1)
    decoder = kind.build(model, len(active), beams, length, source)
    if isinstance(how, Beam):
        return BeamSlots(decoder, how, active.prefix.shape[1], longest, device)
    return GreedySlots(decoder, how, active.prefix.shape[1], device)
