"""The checks of a call of MultiHead."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.dimensions import autocast_on
from regard.errors import ArgumentError, message
from regard.memory import Memory
from regard.positions import Bias

__all__ = ["check_multihead"]


def check_multihead(
    layer: Any, query: Tensor, key: object, value: object, start: int | None, options: dict[str, Any]
) -> None:
    """Raise an ArgumentError if layer, a MultiHead, cannot compute a call with these arguments.

    query, key, value: the arguments of forward(). options: further arguments of attention().
    """
    keys = query if key is None else key
    inputs = [("query", query), ("key", keys)]
    if value is not None or not isinstance(keys, Memory):
        inputs.append(("value", keys if value is None else value))
    for name, tensor in inputs:
        if isinstance(tensor, Tensor):
            _check_input(name, tensor, getattr(layer, name), 2 if query.dim() == 2 else 3, layer.batch_first)
    position, problem, hint = layer.position, "", ""
    if key is None and start:
        problem, hint = (
            f"start={start}, but there is no Memory of earlier positions",
            "pass a Memory from remember(): layer(x, memory, start=t)",
        )
    elif isinstance(key, Memory) and value is not None:
        problem = "value is set, but the Memory already contains values"
        hint = "pass the values to remember(key, value) instead"
    elif isinstance(position, Bias) and options.get("bias") is not None:
        problem = f"bias is set, but this layer already adds the bias of {type(position).__name__}"
        hint = "create the layer with position=None, and pass the sum of the two biases as bias=..."
    if problem:
        raise ArgumentError(message("MultiHead()", problem, hint=hint))


def _check_input(name: str, tensor: Tensor, linear: nn.Module, dims: int, batch_first: bool) -> None:
    """Raise an ArgumentError if the shape or the dtype of an input does not match its projection.

    linear: an nn.Linear, or another module. If it has no in_features or weight, these are not checked.
    dims: number of dimensions that the input must have: 2 without a batch, otherwise 3.
    batch_first: that of the layer.
    """
    width = getattr(linear, "in_features", None)
    shown = {name: (tensor, "TM" if tensor.dim() == 2 else "BTM" if batch_first else "TBM")}
    if tensor.dim() != dims or (width is not None and tensor.shape[-1] != width):
        sizes = "length" if dims == 2 else "B, length" if batch_first else "length, B"
        expected = f"({sizes}, {'width' if width is None else width})"
        raise ArgumentError(message("MultiHead()", f"{name} has the wrong shape", shown, expected))
    weight = getattr(linear, "weight", None)
    if isinstance(weight, Tensor) and tensor.dtype != weight.dtype and not autocast_on(weight.device.type):
        raise ArgumentError(
            message(
                "MultiHead()",
                f"{name} and the weights of the layer have different dtypes",
                shown | {"weight": (weight, "MM")},
                hint="use layer.to(x.dtype) or torch.autocast",
            )
        )
