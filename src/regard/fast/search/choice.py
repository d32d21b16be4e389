"""search_decoder(): which decoder on preallocated tensors runs a search, or why none can."""

from __future__ import annotations

from torch import nn

from regard.data.batch import BOS, PAD
from regard.decoding.active_rows import device_of
from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.sampling import Sample
from regard.fast import enabled
from regard.fast.hooks import contains_hooks
from regard.fast.search.decoder import SlotDecoder
from regard.fast.search.linear import int8_available
from regard.fast.twin import plain_class
from regard.lazy_package import imported
from regard.models.base import Model
from regard.sites import open_scopes

__all__ = ["MOST_BEAMS", "decoder_for", "search_decoder", "supports_int8"]

TRANSFORMER = ("transformer_decoder.FusedTransformerDecoder", "transformer_decoder.TransformerDecoder")
DECODERS = {
    "regard.models.bahdanau.Bahdanau": ("bahdanau_decoder.BahdanauDecoder",),
    "regard.models.transformer.Transformer": TRANSFORMER,
    "regard.models.transformer_language.TransformerLanguageModel": TRANSFORMER,
}
"""The decoders on preallocated tensors that are written for a class of models, imported on first use.
The first one that supports a model is used, otherwise RecurrentDecoder."""

LAYERS = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.Identity, nn.RNN, nn.GRU, nn.LSTM)
FORWARDS = frozenset(kind.forward for kind in (*LAYERS, nn.ModuleList))
"""The method forward() of the classes of torch that the models of Regard consist of."""

MOST_BEAMS = 40
"""Maximum beam size on a CPU. Each beam is compared with the keys of all beams, so the time and memory of a
step grow with the square of the beam size. The simple search becomes faster between 32 and 100 beams."""


def search_decoder(model: Model, how: object, ends: object = None) -> type[SlotDecoder] | list[str]:
    """Return the class of the decoder with which slot_search() runs a search, or the reasons why it cannot.

    how: Greedy(...), Beam(...) or Sample(...).
    ends: the function that ends hypotheses before EOS; see search().

    >>> from regard.decoding import Beam
    >>> from regard.models.bahdanau import Bahdanau
    >>> search_decoder(Bahdanau(9, 9, 4), Beam(coverage=0.2))
    ['the search has a coverage penalty']
    """
    reasons = [] if enabled() else ["REGARD_FAST=0 is set"]
    if not isinstance(how, Beam | Greedy | Sample):
        return [*reasons, f"{type(how).__name__} is not Beam, Greedy or Sample"]
    if open_scopes():
        reasons.append("record() or intervene() is open")
    if contains_hooks(model):
        reasons.append("a module has hooks")
    if how.rules.repeat:
        reasons.append("Rules(repeat=...) is set")
    if isinstance(how, Beam):
        if how.coverage:
            reasons.append("the search has a coverage penalty")
        if ends is not None:
            reasons.append("hypotheses of beam search may end before EOS")
        if how.size > MOST_BEAMS and device_of(model).type == "cpu":
            reasons.append(f"the beam size is above {MOST_BEAMS}, the maximum on a CPU")
    excluded = {token for token in (PAD, BOS, *how.rules.forbidden) if 0 <= token < model.target_size}
    if model.target_size - len(excluded) < 2:
        reasons.append("the rules forbid all tokens but one")
    decoder = decoder_for(model)
    if isinstance(decoder, list):
        return [*reasons, *decoder]
    return reasons or decoder


def decoder_for(model: Model) -> type[SlotDecoder] | list[str]:
    """Return the class of the decoder on preallocated tensors for a model, or why there is none."""
    # All decoders but RecurrentDecoder read the weights of layers, and do not call the layers.
    known, reasons = _has_known_layers(model), list[str]()
    plain = plain_class(model)
    written = DECODERS.get(f"{plain.__module__}.{plain.__qualname__}", ()) if known else ()
    for path in (*written, "recurrent_decoder.RecurrentDecoder"):
        kind: type[SlotDecoder] = imported(f"regard.fast.search.{path}")
        own = kind.reasons(model)
        if not own:
            return kind
        reasons += own
    return list(dict.fromkeys(reasons if known else [*reasons, "it has replaced layers, such as LoRA"]))


def supports_int8(model: Model) -> bool:
    """Return whether the decoder of a model can use int8 weights; see Model.int8_steps."""
    decoder = decoder_for(model)
    return not isinstance(decoder, list) and decoder.int8 and int8_available()


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
