"""slot_decoder(): which decoder on preallocated tensors runs a search, if any."""

from __future__ import annotations

from torch import nn

from regard.data.batch import BOS, PAD
from regard.decoding.active_rows import device_of
from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.sampling import Sample
from regard.decoding.slots.bahdanau_decoder import BahdanauDecoder
from regard.decoding.slots.cpu_bahdanau_decoder import CpuBahdanauDecoder
from regard.decoding.slots.cpu_transformer_decoder import CpuTransformerDecoder
from regard.decoding.slots.decoder import SlotDecoder
from regard.decoding.slots.fused_transformer_decoder import FusedTransformerDecoder
from regard.decoding.slots.hidden_decoder import HiddenDecoder
from regard.decoding.slots.packed_linear import int8_available
from regard.decoding.slots.transformer_decoder import TransformerDecoder
from regard.fast.hooks import contains_hooks
from regard.models.base import Model
from regard.sites import open_scopes

__all__ = ["INT8_DECODERS", "MOST_BEAMS", "decoder_for", "slot_decoder", "supports_int8"]

DECODERS: tuple[type[SlotDecoder], ...] = (
    FusedTransformerDecoder,
    CpuTransformerDecoder,
    TransformerDecoder,
    CpuBahdanauDecoder,
    BahdanauDecoder,
    HiddenDecoder,
)
"""The decoders on preallocated tensors. The first one that supports a model is used."""

INT8_DECODERS = (CpuTransformerDecoder, TransformerDecoder, CpuBahdanauDecoder, BahdanauDecoder)
"""The decoders that can use int8 weights, see Model.int8_steps."""

LAYERS = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.Identity, nn.RNN, nn.GRU, nn.LSTM)
FORWARDS = frozenset(kind.forward for kind in (*LAYERS, nn.ModuleList))
"""The method forward() of the classes of torch that the models of Regard consist of."""

MOST_BEAMS = 40
"""Maximum beam size on a CPU. Each beam is compared with the keys of all beams, so the time and memory of a
step grow with the square of the beam size. The simple search becomes faster between 32 and 100 beams."""


def decoder_for(model: Model) -> type[SlotDecoder] | None:
    """Return the class of the decoder on preallocated tensors for a model; None if no class supports it."""
    # All decoders but HiddenDecoder read the weights of layers, and do not call the layers.
    kinds = DECODERS if _has_known_layers(model) else (HiddenDecoder,)
    return next((kind for kind in kinds if kind.supports(model)), None)


def _has_known_layers(model: Model) -> bool:
    """Return whether no submodule was replaced by a module of another class, such as a LoRA layer.

    It is also False if the method forward() of a class of torch was replaced, for example by a profiler.
    """
    kinds, waiting = set[type[nn.Module]](), list[nn.Module | None]([model])
    while waiting:  # in less than half the time of a loop over all_modules()
        module = waiting.pop()
        if module is not None:
            kinds.add(type(module))
            waiting.extend(module.__dict__["_modules"].values())
    return all(kind.__module__.startswith("regard.") or kind.forward in FORWARDS for kind in kinds)


def supports_int8(model: Model) -> bool:
    """Return whether the decoder of a model can use int8 weights; see Model.int8_steps."""
    return int8_available() and decoder_for(model) in INT8_DECODERS


def slot_decoder(model: Model, how: object, ends: object = None) -> type[SlotDecoder] | None:
    """Return the class of the decoder with which slot_search() runs a search; None if it cannot run it.

    It does not support the coverage penalty, Rules(repeat=...), beam search with hypotheses that end before
    EOS (`ends`), the recording and editing of attention during the search, modules with hooks, which it would
    not call, and on a CPU, more than MOST_BEAMS beams.
    """
    if not isinstance(how, Beam | Greedy | Sample) or open_scopes():
        return None
    if contains_hooks(model):
        return None
    if isinstance(how, Beam) and how.size > MOST_BEAMS and device_of(model).type == "cpu":
        return None
    if how.rules.repeat or (isinstance(how, Beam) and (how.coverage or ends is not None)):
        return None
    excluded = {token for token in (PAD, BOS, *how.rules.forbidden) if 0 <= token < model.target_size}
    return decoder_for(model) if model.target_size - len(excluded) > 1 else None
