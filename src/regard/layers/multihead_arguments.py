"""The checks of the arguments of MultiHead."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.dimensions import autocast_on
from regard.errors import ArgumentError, message
from regard.memory import Memory
from regard.positions import Bias

__all__ = ["check_arguments"]


def check_arguments(
    layer: Any, query: Tensor, key: object, value: object, start: int, options: dict[str, Any]
) -> None:
    """Raise an ArgumentError if layer, a MultiHead, cannot compute a call with these arguments.

    The tensors have the batch dimension first. options: further arguments of attention().
    """
    modules = layer._modules
    if key is None and value is None and not start and not options and query.dim() == 3:
        # Self-attention without options is frequent. Attributes are read from _modules, which is faster.
        width, dtype = query.shape[2], query.dtype
        for name in ("query", "key", "value"):
            linear = modules[name]
            weight = linear._parameters.get("weight")
            if weight is None or weight.dtype != dtype or linear.__dict__.get("in_features") != width:
                break
        else:
            return
    keys = query if key is None else key
    inputs = [("query", query), ("key", keys)]
    if value is not None or not isinstance(keys, Memory):
        inputs.append(("value", keys if value is None else value))
    for name, tensor in inputs:
        if isinstance(tensor, Tensor):
            _check_input(name, tensor, modules[name], layer.batch_first)
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


def _check_input(name: str, tensor: Tensor, linear: nn.Module, batch_first: bool) -> None:
    """Raise an ArgumentError if the shape or the dtype of an input does not match its projection.

    linear: an nn.Linear, or another module. If it has no in_features or weight, these are not checked.
    batch_first: that of the layer. The error message shows the shape in this layout.
    """
    width = getattr(linear, "in_features", None)
    if tensor.dim() != 3 or (width is not None and tensor.shape[2] != width):
        sizes = "B, length" if batch_first else "length, B"
        expected = f"({sizes}, {'width' if width is None else width})"
        shown = _shown(name, tensor, batch_first)
        raise ArgumentError(message("MultiHead()", f"{name} has the wrong shape", shown, expected))
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if tensor.dtype != weight.dtype and not autocast_on(weight.device.type):
        raise ArgumentError(
            message(
                "MultiHead()",
                f"{name} and the weights of the layer have different dtypes",
                _shown(name, tensor, batch_first) | {"weight": (weight, "MM")},
                hint="use layer.to(x.dtype) or torch.autocast",
            )
        )


def _shown(name: str, tensor: Tensor, batch_first: bool) -> dict[str, tuple[Tensor, str]]:
    """Return an input for an error message, in the layout of the layer. tensor: (B, length, width)."""
    if batch_first or tensor.dim() != 3:
        return {name: (tensor, "BTM")}
    return {name: (tensor.transpose(0, 1), "TBM")}
