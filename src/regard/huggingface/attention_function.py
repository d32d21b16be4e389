"""The attention function that transformers calls for models with attn_implementation="regard".

If nothing is recorded or changed, the call goes to transformers' own sdpa function, with the same arguments.
Otherwise it goes to regard.attention(), with the name and the role of the layer.

The name of a layer is its path in the model, such as "encoder.layer.0.attention.self". transformers passes
only the layer to the attention function, so the model is found by walking up the call stack: it is the
outermost module whose method is running and that contains the layer.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import sites
from regard.attention import attention
from regard.errors import ArgumentError, LookError, message
from regard.look import Look
from regard.masks.constructors import causal
from regard.masks.mask import Mask, dense
from regard.roles import CROSS, CROSS_ATTENTION, DECODER_SELF, ENCODER_SELF, READING_SELF, Role
from regard.scores import Score

__all__ = ["MOST_WEIGHTS", "FixedScale", "attention_function", "role_of", "site_of"]

MOST_WEIGHTS = 1 << 28
"""Maximum number of weights (B x H x T x S) of a layer for output_attentions=True: 1 GiB in float32."""

UNSUPPORTED = {
    "s_aux": "attention sinks, learned scores without a key (s_aux)",
    "indices": "sparse attention over selected keys (indices)",
    "block_indices": "sparse attention over selected blocks of keys (block_indices)",
}
"""Arguments that some models pass to the attention function, and that it does not support."""

CROSS_NAME = re.compile(r"cross|encoder_attn|enc_?dec", re.IGNORECASE)
"""What occurs in the names of cross-attention layers: crossattention, encoder_attn, EncDecAttention."""

IMAGE_SELF = Role("self", "image", "image")

_names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
"""For each model, a dict from id(module) to the path of the module."""

_sites: weakref.WeakKeyDictionary[nn.Module, tuple[str, Role]] = weakref.WeakKeyDictionary()
"""For each layer, its site and role in the last forward pass, for activation checkpointing."""

Function = Callable[..., tuple[Tensor, Tensor | None]]

_positions = threading.local()
"""Its attribute `last` is (number of queries, start) of the last self-attention call of a decoder."""


@dataclass(frozen=True)
class FixedScale(Score):
    """Inner product as score function, with the factor that a layer of transformers passes as `scaling`.

    score(q, k) = factor * q . k

    >>> FixedScale(0.5).scale(query_size=64)
    0.5
    """

    factor: float = 1.0

    def scale(self, query_size: int) -> float:
        return self.factor


@functools.cache
def attention_function() -> Function:
    """Return the function for transformers' AttentionInterface; needs transformers."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def regard_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        position_bias: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        for name in UNSUPPORTED:
            if options.get(name) is not None:
                raise _unsupported(module, UNSUPPORTED[name])
        wants_weights = _wants_weights(options)
        if softcap is None and not wants_weights and not sites.watched():
            # Older versions of transformers have no position_bias.
            added = {} if position_bias is None else {"position_bias": position_bias}
            return sdpa_attention_forward(
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                is_causal=is_causal,
                **added,
                **options,
            )
        if type(options.get("cache")).__name__ == "PagedAttentionCache":
            raise _unsupported(module, "a paged cache (continuous batching)")
        layer = _Layer(module, query, key, value, attention_mask, is_causal, position_bias)
        return layer.attend(dropout, scaling, softcap, wants_weights)

    return regard_attention


@dataclass
class _Layer:
    """The tensors of one call of an attention layer, as transformers passes them to an attention function.

    query: (B, H, T, D). key: (B, K, S, D). value: (B, K, S, E).
    attention_mask: a bool tensor that is True where a query may see a key, or a tensor to add to the scores.
    is_causal: whether the attention is causal if there is no mask. Default: module.is_causal.
    position_bias: a tensor to add to the scores, as in T5.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Tensor | None
    is_causal: bool | None
    position_bias: Tensor | None

    def attend(
        self, dropout: float, scaling: float | None, softcap: float | None, wants_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run regard.attention(); return the output (B, T, H, E), and the weights if they are requested."""
        mask, bias = self._mask_and_bias()
        if wants_weights:
            self._check_size()
        query, score = self.query, FixedScale(float(self.query.shape[-1]) ** -0.5)
        if isinstance(scaling, Tensor):  # a learned factor
            query, score = query * scaling, FixedScale()
        elif scaling is not None:
            score = FixedScale(float(scaling))
        site, role = ("attention", None) if torch.compiler.is_compiling() else site_of(self.module)
        attended = attention(
            query,
            self.key,
            self.value,
            score=score,
            mask=mask,
            bias=bias,
            softcap=softcap,
            start=self._start(role is not None and role.kind == CROSS, mask),
            dropout=dropout,
            look=Look(weights=True) if wants_weights else None,
            site=site,
            role=role,
        )
        weights = None if attended.weights is None else attended.weights.to(query.dtype)
        return attended.output.transpose(1, 2).contiguous(), weights

    def _mask_and_bias(self) -> tuple[Mask | None, Tensor | None]:
        """Return mask and bias for attention(), by the rules of transformers' sdpa function.

        Without a mask tensor, a causal layer attends causally if it has more than one query. If there are
        more keys than queries, the rest of the keys are empty places of a static cache, and they are removed.
        """
        queries, bias = self.query.shape[2], self.position_bias
        if self.attention_mask is None:
            default = getattr(self.module, "is_causal", True)
            is_causal = default if self.is_causal is None else self.is_causal
            if queries == 1 or not is_causal:
                return None, bias
            if self.key.shape[2] > queries:
                self.key, self.value = self.key[:, :, :queries], self.value[:, :, :queries]
                bias = None if bias is None else bias[..., :queries]
            return causal(), bias
        if not isinstance(self.attention_mask, Tensor):
            kind = type(self.attention_mask).__name__
            problem = f"the attention mask is a {kind}"
            raise ArgumentError(message(type(self.module).__name__, problem, expected="a tensor, or None"))
        table = self.attention_mask
        table = table[(None,) * (4 - table.dim())][..., : self.key.shape[2]]
        if table.dtype == torch.bool:
            return dense(table), bias
        return None, table if bias is None else bias + table

    def _start(self, cross: bool, mask: Mask | None) -> int:
        """Return the position of the first query, which intervene() needs when the model has a cache.

        In self-attention, the last key that a query sees is its own position. In cross-attention, the keys
        are another sequence; the queries have the positions of the self-attention call before it.
        """
        queries, keys = self.query.shape[2], self.key.shape[2]
        last = getattr(_positions, "last", (0, 0))
        if cross:
            return last[1] if last[0] == queries else 0
        start = keys - queries if keys > queries else 0
        table = None if mask is None else mask.table
        if start and table is not None and sites.editing():  # a static cache has empty places at its end
            seen = table[:, :, 0].flatten(0, -2).any(0).nonzero()
            start = int(seen[-1]) if len(seen) else 0
        if not torch.compiler.is_compiling():
            _positions.last = queries, start
        return start

    def _check_size(self) -> None:
        """Raise LookError if the weights of this layer are too many to return (MOST_WEIGHTS)."""
        batch, heads, queries, _ = self.query.shape
        count = batch * heads * queries * self.key.shape[2]
        if count <= MOST_WEIGHTS:
            return
        problem = (
            f"output_attentions=True would return {count:,} weights of one {type(self.module).__name__} "
            f"(B x H x T x S = {batch} x {heads} x {queries} x {self.key.shape[2]})"
        )
        hint = "with regard.record(regard.Look(top=8, entropy=True, mass=True)) as seen: model(...)"
        expected = f"at most {MOST_WEIGHTS:,} weights per layer"
        raise LookError(message("model()", problem, expected=expected, hint=hint))


def _wants_weights(options: dict[str, Any]) -> bool:
    """Whether the caller of the model requests attention weights with output_attentions=True.

    Most models pass this argument on to the attention function. For the others, the collector of
    transformers, which gathers the weights of the layers, tells it.
    """
    if options.get("output_attentions"):
        return True
    if torch.compiler.is_compiling():
        return False
    collector = _collector()
    requested = (collector.get() if collector is not None else None) or {}
    return any(name.endswith("attentions") for name in requested)


@functools.cache
def _collector() -> Any:
    """Return transformers' collector of outputs; None in versions of transformers that have none."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return None
    return _active_collector


def _unsupported(module: nn.Module, feature: str) -> ArgumentError:
    problem = f"{type(module).__name__} uses {feature}, which Regard does not support"
    hint = 'load the model with attn_implementation="eager"'
    return ArgumentError(message('attn_implementation="regard"', problem, hint=hint))


@torch.compiler.disable  # a compiled model that is recorded runs the attention function uncompiled
def site_of(layer: nn.Module) -> tuple[str, Role]:
    """Return the site (path in the model) and the role of an attention layer whose forward() is running."""
    if torch._C._current_graph_task_id() != -1 and layer in _sites:
        return _sites[layer]  # a backward pass runs a part of the model again: the stack has no model
    for model in _running_modules():
        path = _path(model, layer)
        if path is not None:
            site = path or type(layer).__name__
            _sites[layer] = site, role_of(model, layer, site)
            return _sites[layer]
    return type(layer).__name__, READING_SELF


def role_of(model: nn.Module, layer: nn.Module, path: str) -> Role:
    """Return the role of an attention layer: self-attention or cross-attention, and of which sequences.

    path: the path of the layer in the model.
    """
    names = ".".join((*path.split(".")[-3:], type(layer).__name__))
    if getattr(layer, "is_cross_attention", False) or CROSS_NAME.search(names):
        return CROSS_ATTENTION
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return ENCODER_SELF if "decoder" not in path.split(".") else DECODER_SELF
    if getattr(model, "main_input_name", "") == "pixel_values":
        return IMAGE_SELF
    return READING_SELF if getattr(layer, "is_causal", True) else ENCODER_SELF


def _running_modules() -> list[nn.Module]:
    """Return the modules whose methods are running in this thread, the outermost first, without repeats."""
    modules: dict[int, nn.Module] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_argcount and frame.f_code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                modules[id(owner)] = owner
        frame = frame.f_back
    return list(modules.values())[::-1]


def _path(model: nn.Module, layer: nn.Module) -> str | None:
    """Return the path of a layer in a model; None if the model does not contain the layer."""
    for _ in range(2):
        paths = _names.get(model)
        if paths is None:
            paths = {id(module): name for name, module in model.named_modules()}
            _names[model] = paths
        path = paths.get(id(layer))
        if path is not None and _is_at(model, path, layer):
            return path.replace("_orig_mod.", "")  # torch.compile wraps a model in a module of this name
        del _names[model]  # the model may have changed since then
    return None


def _is_at(model: nn.Module, path: str, layer: nn.Module) -> bool:
    try:
        return model.get_submodule(path) is layer
    except AttributeError:
        return False
