"""Weights of several linear layers, one after another in memory, so that one product reads all of them.

Each parameter has a storage of its own (by DLPack), so that torch.save() and safetensors write it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

__all__ = ["Joint", "addresses", "joint_parameters", "joint_view", "make_adjacent"]

ALIGNMENT = 64
"""Parameters are made adjacent if the size of each is a multiple of this number of bytes. Kernels load 16
bytes at a time, and read aligned rows faster."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_wholes: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
"""By the address of each parameter that make_adjacent() has moved: the tensor of all of them."""


class Joint(NamedTuple):
    """The weights and biases of several linear layers, each as one tensor that shares their memory.

    places: address and shape of each parameter when this view was created.
    """

    places: list[tuple[int, torch.Size]]
    weight: Tensor
    bias: Tensor | None


def joint_parameters(parameters: Sequence[dict[str, Any]], kept: Joint | None) -> Joint | None:
    """Return the parameters of linear layers as one weight and one bias; None if they are not adjacent.

    parameters: "weight" and "bias" of each layer. They must need no gradient in this call.
    kept: the result of an earlier call, which is returned if no parameter has been moved since.
    """
    places = []
    for each in parameters:
        weight, bias = each["weight"], each["bias"]
        if type(weight) is not nn.Parameter or not weight.is_contiguous():
            return None
        places.append((weight.data_ptr(), weight.shape))
        if bias is not None:
            if not bias.is_contiguous():
                return None
            places.append((bias.data_ptr(), bias.shape))
    if kept is not None and kept.places == places:
        return kept
    weights, biases = ([each[name] for each in parameters] for name in ("weight", "bias"))
    weight, bias = joint_view(weights), None
    if weight is None:
        return None
    if any(each is not None for each in biases):
        bias = joint_view(biases) if all(type(each) is nn.Parameter for each in biases) else None
        if bias is None:
            return None
    return Joint(places, weight, bias)


def make_adjacent(layers: Sequence[nn.Module]) -> list[Tensor]:
    """Move the weights of linear layers to one block of memory, one after another, and so their biases.

    Returns the tensor of all weights, and that of all biases. As long as they exist, joint_view() returns the
    parameters as one tensor. The parameters remain the same objects with the same values.
    A layer at the beginning whose inputs have another width is left out. Nothing changes for parameters of
    different dtypes or devices, or if another process shares them.

    >>> layers = nn.Linear(16, 16), nn.Linear(16, 32)
    >>> wholes = make_adjacent(layers)
    >>> joint_view([each.weight for each in layers]).shape
    torch.Size([48, 16])
    """
    linear = [each for each in layers if type(each) is nn.Linear]
    while linear and linear[0].in_features != linear[-1].in_features:
        del linear[0]
    wholes = []
    for name in ("weight", "bias"):
        parameters = [each._parameters.get(name) for each in linear]
        movable = [each for each in parameters if each is not None and _can_move(each)]
        if len(movable) > 1 and len(movable) == len(linear):
            wholes.append(_move(movable))
    return [each for each in wholes if each is not None]


def addresses(layers: Sequence[nn.Module]) -> list[int]:
    """Return where the weights of linear layers are in memory."""
    weights = [each._parameters.get("weight") for each in layers if type(each) is nn.Linear]
    return [each.data_ptr() for each in weights if type(each) is nn.Parameter]


def _can_move(parameter: Tensor) -> bool:
    """Whether the values of a parameter can be moved to a part of a larger storage."""
    if type(parameter) is not nn.Parameter or parameter.device.type not in ("cpu", "cuda"):
        return False
    if parameter.layout is not torch.strided or not parameter.is_contiguous():
        return False
    if parameter.dtype not in DTYPES or not parameter.numel() or parameter.nbytes % ALIGNMENT:
        return False
    return not (parameter.is_cpu and parameter.is_shared())


def _move(parameters: Sequence[Tensor]) -> Tensor | None:
    """Move parameters to one tensor, and return it; None if they cannot be parts of one tensor."""
    first = parameters[0]
    if len({*map(id, parameters)}) < len(parameters):
        return None
    if any(
        each.dtype != first.dtype or each.device != first.device or each.shape[1:] != first.shape[1:]
        for each in parameters
    ):
        return None
    with torch.no_grad():
        whole = torch.cat([each.detach() for each in parameters])
        try:
            parts = [from_dlpack(part) for part in whole.split([len(each) for each in parameters])]
        except (BufferError, RuntimeError):  # for example, fake tensors
            return None
        for each, part in zip(parameters, parts, strict=True):
            each.data = part
            _wholes[each.data_ptr()] = whole
    return whole


def joint_view(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return adjacent weights (O, I) or biases (O,) as one tensor, without a copy; None if they are apart.

    The result has no gradient. The addresses are compared in each call, so the result always has the values
    of the parameters, also if they were moved or replaced.
    """
    first = place = tensors[0].data_ptr()
    whole = _wholes.get(first)
    if whole is None:
        return None
    rows = 0
    for each in tensors:
        if type(each) is not nn.Parameter or each.data_ptr() != place or each.dtype is not whole.dtype:
            return None
        if each.shape[1:] != whole.shape[1:] or each.device != whole.device or not each.is_contiguous():
            return None
        place += each.nbytes
        rows += each.shape[0]
    row = (first - whole.data_ptr()) // (whole.stride(0) * whole.element_size())
    return whole[row : row + rows] if row + rows <= len(whole) else None
