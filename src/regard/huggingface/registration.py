"""register(): add the attention implementation "regard" to transformers; attach(): use it in a model."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from regard.errors import ArgumentError, RegardError, RegardWarning, message
from regard.files.requirements import install_command
from regard.huggingface.attention_function import attention_function
from regard.huggingface.unsupported import attention_layers

__all__ = ["NAME", "attach", "import_transformers", "register", "unregister"]

NAME = "regard"
"""The value of attn_implementation that register() adds."""

OLDEST = (5, 0)
"""The oldest version of transformers that this package supports."""

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
        if isinstance(model, str):
            hint = f"load the model first: attach(transformers.AutoModel.from_pretrained({model!r}))"
        raise ArgumentError(
            message("attach()", problem, expected="a PreTrainedModel of transformers", hint=hint)
        )
    _check_layers(model)
    _check_config(model.config)
    register()
    model.set_attn_implementation(NAME)
    _set_in_layers(model)
    return model


def _set_in_layers(model: nn.Module) -> None:
    """Set the implementation in layers that have another config object than the model.

    The encoder and the decoder of T5 have copies of the config, which older versions of transformers do not
    change in set_attn_implementation().
    """
    supported = {name for name, reason in attention_layers(model).items() if reason is None}
    for layer in model.modules():
        config: Any = getattr(layer, "config", None)
        if type(layer).__name__ in supported and getattr(config, "_attn_implementation", NAME) != NAME:
            config._attn_implementation = NAME


def _check_layers(model: nn.Module) -> None:
    """Raise ArgumentError if no attention layer of the model can be recorded; warn if some cannot."""
    layers, name = attention_layers(model), type(model).__name__
    reasons = [f"{layer} {reason}" for layer, reason in layers.items() if reason is not None]
    hint = "regard.huggingface.unsupported_layers() lists all such layers of transformers"
    if len(reasons) == len(layers):
        problem = f"{name} has no attention layer that can be recorded"
        problem = f"{problem}: {'; '.join(reasons)}" if reasons else problem
        raise ArgumentError(message("attach()", problem, hint=hint if reasons else ""))
    if reasons:
        problem = f"not every attention layer of {name} can be recorded: {'; '.join(reasons)}"
        warnings.warn(message("attach()", problem, hint=hint), RegardWarning, stacklevel=3)


def _check_config(config: Any) -> None:
    """Raise ArgumentError if the config requests weights, which transformers allows only for eager."""
    if not getattr(config, "output_attentions", False):
        return
    problem = (
        "the config of the model sets output_attentions=True, and transformers itself allows this only with "
        'attn_implementation="eager"'
    )
    hint = (
        "set model.config.output_attentions = False, and pass output_attentions=True to the call of the "
        "model, or use regard.record()"
    )
    raise ArgumentError(message("attach()", problem, hint=hint))


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
