"""Attention layers of transformers that do not use its AttentionInterface, so that Regard cannot record them.

Such a layer computes its weights in its own forward(), whatever attn_implementation is. They are found by
reading the source code of the layers.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

from torch import nn

__all__ = ["attention_layers", "unsupported_layers"]

INTERFACE = re.compile(r"\.get_interface\(|ALL_ATTENTION_FUNCTIONS\[self")
"""What the source code of a layer contains if it gets its attention function from the AttentionInterface; the
second form is that of transformers 5.0."""

OWN_ATTENTION = {
    r"scaled_dot_product_attention\(": "calls scaled_dot_product_attention of PyTorch itself, not by the "
    "AttentionInterface of transformers",
    r"softmax\(": "computes its weights in its own code, not by the AttentionInterface of transformers",
}
"""For each pattern in the source code of a layer that computes attention itself: what the layer does."""


def unsupported_layers() -> dict[str, str]:
    """Return the attention layers of the installed transformers that Regard cannot record, with the reason.

    The names are those of the model folder and of the class, such as "bloom.BloomAttention". Nothing is
    imported: the source files of transformers are read, which takes about a second.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return {}
    layers = {}
    for path in sorted((Path(found.origin).parent / "models").glob("*/modeling_*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "Attention" not in text:
            continue
        for statement in re.split(r"^(?=class |def |@)", text, flags=re.MULTILINE):
            layer = re.match(r"class (\w*Attention\w*)", statement)
            reason = _reason(statement) if layer is not None else None
            if layer is not None and reason is not None:
                layers[f"{path.parent.name}.{layer[1]}"] = reason
    return layers


def attention_layers(model: nn.Module) -> dict[str, str | None]:
    """Return the classes of the attention layers in a model, such as "BloomAttention".

    The value is why Regard cannot record the layers of this class; None if it can.
    """
    layers: dict[str, str | None] = {}
    for kind in {type(module) for module in model.modules()}:
        own = [base for base in kind.__mro__ if base.__module__.startswith("transformers.models.")]
        try:
            source = "\n".join(map(inspect.getsource, own))
        except (OSError, TypeError):  # there is no source code
            continue
        reason = _reason(source) if "Attention" in kind.__name__ else None
        if reason is not None or INTERFACE.search(source):
            layers[kind.__name__] = reason
    return dict(sorted(layers.items()))


def _reason(source: str) -> str | None:
    """Return why a layer with this source code cannot be recorded; None if it can, or has no attention."""
    if INTERFACE.search(source):
        return None
    for pattern, reason in OWN_ATTENTION.items():
        if re.search(pattern, source):
            return reason
    return None
