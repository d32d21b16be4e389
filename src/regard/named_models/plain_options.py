"""The arguments of a model from plain options, for build_language_model() and build_classifier()."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from regard.errors import ArgumentError, UnknownName, message
from regard.options.attention_options import check_flags, model_arguments
from regard.options.transformer_options import Size, find_size

__all__ = ["plain_arguments"]

SIZE_OPTIONS = frozenset(field.name for field in fields(Size)) - {"decoder_layers"}
"""The options width, heads, inner and layers of "transformer", which override the fields of its `size`."""


def plain_arguments(
    call: str, name: str, kind: type, given: int, options: Mapping[str, Any], absent: Mapping[str, str]
) -> dict[str, Any]:
    """Return the keyword arguments of a model's class, given plain options. Raise an error for wrong ones.

    call: the call of the user, for error messages.
    name: the name of the model.
    given: number of arguments of the class that are not options.
    absent: options that only Transformers have -> why this model has not, for error messages.
    """
    direct = model_arguments(kind, given)
    check_flags(call, options, direct)
    of_size = SIZE_OPTIONS if "size" in direct else frozenset()
    for option in options:
        if option in absent and option not in direct:
            hint = f"{absent[option]}; remove this option, or use transformer"
            raise ArgumentError(message(call, f"{option} is not an option of {name}", hint=hint))
        if option not in {*direct, *of_size}:
            raise UnknownName(f"option of {name}", option, {*direct, *of_size})
    arguments = {option: value for option, value in options.items() if option not in of_size}
    if changes := {option: value for option, value in options.items() if option in of_size}:
        size = arguments.get("size", direct["size"])
        size = find_size(size) if isinstance(size, str) else size
        if not isinstance(size, Size):
            raise ArgumentError(message(call, f"size is {size!r}", expected="the name of a size, or a Size"))
        arguments["size"] = replace(size, **changes)
    return arguments
