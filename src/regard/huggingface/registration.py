"""register(): add the attention implementation "regard" to transformers; attach(): use it in a model.

Some attention layers of transformers compute their weights in their own forward(), whatever
attn_implementation is, so that Regard cannot record them. They are found by reading their source code.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from regard.errors import ArgumentError, RegardError, RegardWarning, message
from regard.files.requirements import install_command
from regard.huggingface.attention_function import attention_function
from regard.layers.multihead import MultiHead

__all__ = [
    "NAME",
    "attach",
    "attention_layers",
    "import_transformers",
    "register",
    "unregister",
    "unsupported_layers",
]

NAME = "regard"
"""The value of attn_implementation that register() adds."""

OLDEST = (5, 0)
"""The oldest version of transformers that this package supports."""

INTERFACE = re.compile(r"\.get_interface\(|ALL_ATTENTION_FUNCTIONS\[self")
"""What the source code of a layer contains if it gets its attention function from the AttentionInterface; the
second form is that of transformers 5.0."""

OWN_ATTENTION = {
    r"scaled_dot_product_attention\(": "calls scaled_dot_product_attention of PyTorch itself, not by the "
    "AttentionInterface of transformers",
    r"softmax\(": "computes its weights in its own code, not by the AttentionInterface of transformers",
}
"""For each pattern in the source code of a layer that computes attention itself: what the layer does."""

Model = TypeVar("Model", bound=nn.Module)


def register() -> None:
    """Add the attention implementation "regard" to transformers, for every model of this process.

    A model with attn_implementation="regard" can be recorded with record() and changed with intervene(). If
    neither is active, it calls transformers' own sdpa function. The function that builds masks is registered
    too: without it, transformers would ignore padding.

    >>> register()
    >>> from transformers import AttentionInterface
    >>> "regard" in AttentionInterface().valid_keys()
    True
    """
    import_transformers("register()")
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_function())
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def unregister() -> None:
    """Remove the attention implementation "regard" from transformers; without register(), do nothing.

    A model that still uses it cannot run after this. Call model.set_attn_implementation("sdpa") first.

    >>> register()
    >>> unregister()
    >>> from transformers import AttentionInterface
    >>> "regard" in AttentionInterface().valid_keys()
    False
    """
    import_transformers("unregister()")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(NAME, None)


def attach(model: Model) -> Model:
    """Set attn_implementation="regard" in a model that is already loaded, and return the model.

    model: a model of transformers (a PreTrainedModel).

    Raises ArgumentError if the attention layers of the model do not use transformers' AttentionInterface, so
    that nothing could be recorded. If only some of them do not use it, warns (RegardWarning). Both messages
    name the layers. attach() calls register().
    """
    import_transformers("attach()")
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        problem = f"model is a {type(model).__name__}"
        hint = "for a model with nn.MultiheadAttention layers, use: with regard.watch(model)"
        if isinstance(model, nn.Module) and any(isinstance(each, MultiHead) for each in model.modules()):
            hint = "layers of Regard need no attach(): with regard.record() as seen: model(...)"
        if isinstance(model, type):
            problem = f"model is the class {model.__name__}"
            hint = f"attach a model: attach({model.__name__}.from_pretrained(folder))"
        if isinstance(model, str):
            hint = f"load the model first: attach(transformers.AutoModel.from_pretrained({model!r}))"
        raise ArgumentError(
            message("attach()", problem, expected="a PreTrainedModel of transformers", hint=hint)
        )
    layers, name = attention_layers(model), type(model).__name__
    reasons = [f"{layer} {reason}" for layer, reason in layers.items() if reason is not None]
    hint = "regard.huggingface.unsupported_layers() lists all such layers of transformers"
    if len(reasons) == len(layers):
        problem = f"{name} has no attention layer that can be recorded"
        problem = f"{problem}: {'; '.join(reasons)}" if reasons else problem
        raise ArgumentError(message("attach()", problem, hint=hint if reasons else ""))
    if reasons:
        problem = f"not every attention layer of {name} can be recorded: {'; '.join(reasons)}"
        warnings.warn(message("attach()", problem, hint=hint), RegardWarning, stacklevel=2)
    if getattr(model.config, "output_attentions", False):
        problem = (
            "the config of the model sets output_attentions=True, and transformers itself allows this only "
            'with attn_implementation="eager"'
        )
        hint = (
            "set model.config.output_attentions = False, and pass output_attentions=True to the call of the "
            "model, or use regard.record()"
        )
        raise ArgumentError(message("attach()", problem, hint=hint))
    register()
    model.set_attn_implementation(NAME)
    # The encoder and the decoder of T5 have copies of the config, which older versions of transformers do not
    # change in set_attn_implementation().
    supported = {layer for layer, reason in layers.items() if reason is None}
    for layer in model.modules():
        config: Any = getattr(layer, "config", None)
        if type(layer).__name__ in supported and getattr(config, "_attn_implementation", NAME) != NAME:
            config._attn_implementation = NAME
    return model


def import_transformers(call: str) -> ModuleType:
    """Import and return transformers; raise RegardError if it is not installed or too old.

    call: the function that needs it, for the error message.
    """
    expected = "transformers " + ".".join(map(str, OLDEST)) + " or newer"
    hint = install_command("huggingface")
    try:
        import transformers
    except ImportError:
        raise RegardError(
            message(call, "transformers is not installed", expected=expected, hint=hint)
        ) from None
    version = str(transformers.__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        problem = f"transformers {version} is installed"
        raise RegardError(message(call, problem, expected=expected, hint=hint))
    return transformers


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
