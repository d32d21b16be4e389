"""site_of(): the name and the role of an attention layer of a Hugging Face model.

The name of a layer is its path in the model, such as "encoder.layer.0.attention.self". transformers passes
only the layer to the attention function, so the model is found by walking up the call stack: it is the
outermost module whose method is running and that contains the layer.
"""

from __future__ import annotations

import re
import sys
import weakref
from typing import Any

import torch
from torch import nn

from regard.roles import CROSS_ATTENTION, DECODER_SELF, ENCODER_SELF, READING_SELF, Role

__all__ = ["role_of", "site_of"]

CROSS_NAME = re.compile(r"cross|encoder_attn|enc_?dec", re.IGNORECASE)
"""What occurs in the names of cross-attention layers: crossattention, encoder_attn, EncDecAttention."""

IMAGE_SELF = Role("self", "image", "image")

_names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
"""For each model, a dict from id(module) to the path of the module."""

_sites: weakref.WeakKeyDictionary[nn.Module, tuple[str, Role]] = weakref.WeakKeyDictionary()
"""For each layer, its site and role in the last forward pass, for activation checkpointing."""


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
