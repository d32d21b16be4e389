"""Options for the attention layers of a model, as in a configuration file.

Score function, selection and position scheme are set by name, or by a TOML table with name and options:

score = "cosine"                        select = "sparsemax"                position = "rotary"
score = {name = "cosine", sharpness=9}  select = {name="entmax", alpha=2}   position = "none"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import Any, Self, TypeVar

from regard.errors import ArgumentError, Setting, UnknownName, message
from regard.positions import POSITIONS, Position, Relative, Rotary, build_position
from regard.scores import SCORES, General, Location, Score, build_score
from regard.select import Select, Soft, build_select

__all__ = [
    "AttentionOptions",
    "PositionOption",
    "ScoreOption",
    "SelectOption",
    "build_layer_score",
    "build_model_position",
    "check_flags",
    "check_options",
    "check_position",
    "model_arguments",
    "select_argument",
]

ScoreOption = str | Mapping[str, Any] | Score
SelectOption = str | Mapping[str, Any] | Select
PositionOption = str | Mapping[str, Any] | Position | None

Built = TypeVar("Built")
_SOFT = Soft()


@dataclass(frozen=True)
class AttentionOptions:
    """Score function and selection of the attention layers of a model.

    An invalid option raises ArgumentError.

    score: a name in SCORES, a mapping with the name and its options, or a Score.
    select: a name in SELECTIONS, a mapping with the name and its options, or a Select.

    >>> AttentionOptions(score="cosine", select="entmax").select
    Sparse(alpha=1.5)
    """

    score: ScoreOption = "scaled_dot"
    select: SelectOption = "softmax"

    def __post_init__(self) -> None:
        object.__setattr__(self, "select", build_select(self.select))
        if not isinstance(self.score, Score):
            _named("score", self.score, SCORES)

    @property
    def selection(self) -> Select:
        assert isinstance(self.select, Select)
        return self.select

    @classmethod
    def checked(cls, model: type, options: Mapping[str, Any]) -> Self:
        """Create the options of a model from the keyword arguments of its class.

        The score function "location" raises ArgumentError: it ignores the keys, so the key projections of
        the model would not be trained.

        model: the class, such as Transformer.
        options: the keyword arguments, such as {"score": "cosine", "select": "entmax"}.
        """
        call, known = f"{model.__name__}()", signature(model).parameters
        names = [field.name for field in fields(cls)]
        for option in options:
            if option not in names:
                raise UnknownName(f"argument of {call}", option, {*known, *names})
        checked = cls(**options)
        if isinstance(build_layer_score(checked.score, 2, 2), Location):
            problem = "the score location ignores the keys, so the key projections would not be trained"
            raise ArgumentError(
                message(call, problem, hint="use another score, or the model luong or bahdanau")
            )
        return checked


def build_layer_score(score: ScoreOption, query_size: int, key_size: int, heads: int | None = None) -> Score:
    """Create the score function of one attention layer.

    score: a name in SCORES, a mapping with the name and its options, or a Score, which is returned unchanged.
    query_size, key_size: widths of query and key.
    heads: number of heads if each head has separate parameters. Default: all heads share the parameters.

    >>> build_layer_score({"name": "additive", "hidden": 7}, query_size=3, key_size=5).vector.shape
    torch.Size([7])
    """
    if isinstance(score, Score):
        return score
    name, options = _named("score", score, SCORES)
    if not options:
        return build_score(name, query_size, key_size, heads)
    sizes = {"query_size": query_size, "key_size": key_size, "heads": heads}
    return _create(f"score {name}", SCORES[name], sizes, options)


def build_model_position(
    position: PositionOption, width: int, heads: int, length: int = 1024, *, causal: bool = False
) -> Position | None:
    """Create the position scheme of a model, or return None for a model without positions.

    position: a name in POSITIONS, a mapping with the name and its options, or a Position, which is returned
        unchanged. "none" or None for a model without positions.
    width, heads: width of the model and number of its attention heads.
    length: maximum number of positions, for "learned" and "noise"; the other schemes have no maximum.
    causal: whether the self-attention is causal, as in a decoder. T5Bias then uses all its buckets for
        earlier positions.

    >>> build_model_position({"name": "rotary", "base": 500000.0}, width=64, heads=4)
    Rotary(size=16, base=500000, pairs='halves')
    """
    if position is None or position == "none":
        return None
    if isinstance(position, Position):
        return position
    name, options = _named("position scheme", position, POSITIONS, extra=("none",))
    if not options and name != "t5":
        return build_position(name, width, heads, length)
    size = width // heads
    sizes = {"width": width, "heads": heads, "length": length, "size": size, "values": size}
    return _create(f"position scheme {name}", POSITIONS[name], sizes | {"bidirectional": not causal}, options)


def check_position(call: str, position: Position | None, score: Score) -> None:
    """Raise ArgumentError if the position scheme cannot be used with the score function.

    Rotary and Relative need a score function that computes inner products of queries and keys. Rotary cannot
    be used with General. The other position schemes can be used with every score function.

    call: the call that the error message names, such as "Transformer()".
    """
    inner = score.combine == "inner" and not isinstance(score, Location)
    rotates = inner and not isinstance(score, General)
    if (isinstance(position, Rotary) and not rotates) or (isinstance(position, Relative) and not inner):
        known = "dot, scaled_dot or cosine" + (", general" if isinstance(position, Relative) else "")
        raise ArgumentError(
            message(
                call,
                f"{type(position).__name__} needs inner products of queries and keys, "
                f"which {type(score).__name__} does not compute",
                expected=f"one of the scores {known}",
                hint=(
                    "or use ",
                    Setting("build_model", "position", "sinusoidal"),
                    ", learned, noise, t5, alibi or none",
                ),
            )
        )


def select_argument(select: Select, training: bool) -> dict[str, Select]:
    """Return the keyword argument `select` of the attention() calls of a model, as {"select": ...}.

    The dict is empty for softmax, the default of attention(). In eval mode (training=False), the selection is
    deterministic. So if the result of a search is scored again by a forward pass, the scores are the same as
    in the search.

    >>> from regard.select import Hard
    >>> select_argument(Hard(), training=False), select_argument(Soft(), training=True)
    ({'select': Best()}, {})
    """
    if select == _SOFT:
        return {}
    return {"select": select if training else select.deterministic()}


def model_arguments(kind: type, sizes: int) -> dict[str, Any]:
    """Return a dict from the names of the arguments of a model's class to their default values.

    The value is None if the argument has no default. If the class has a parameter `**attention`, the dict has
    the fields of AttentionOptions instead: score and select. If the class has `options_type`, that is used
    instead of AttentionOptions.

    kind: the class of the model.
    sizes: number of leading arguments to leave out, such as vocabulary sizes.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in list(signature(kind).parameters.items())[sizes:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            options_type = getattr(kind, "options_type", AttentionOptions)
            arguments |= {field.name: field.default for field in fields(options_type)}
        else:
            arguments[name] = None if parameter.default is Parameter.empty else parameter.default
    return arguments


def check_flags(call: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ArgumentError if an option that is True or False by default has a value of another type.

    In a configuration file, the string "False" would otherwise count as true.

    call: the call that builds the model, for the error message.
    options: the options of the model.
    defaults: the result of model_arguments().
    """
    for option, value in options.items():
        if isinstance(defaults.get(option), bool) and not isinstance(value, bool):
            raise ArgumentError(message(call, f"{option} is {value!r}", expected="true or false"))


def check_options(call: str, model: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Check flags as check_flags() does, and raise UnknownName for an option that is not in `defaults`.

    model: the name of the model, for the error message.
    """
    check_flags(call, options, defaults)
    for option in options:
        if option not in defaults:
            raise UnknownName(f"option of {model}", option, defaults)


def _named(
    kind: str, value: str | Mapping[str, Any], known: Mapping[str, Any], extra: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any]]:
    """Split `value`, which is a name or a mapping, into the name and the other options.

    kind: what the name stands for, such as "score"; used in error messages.
    known: the known names.
    extra: more valid names, which an error message lists too.
    """
    if not isinstance(value, str | Mapping):
        raise ArgumentError(message(kind, f"got {value!r}", expected="a name, or a table with a name"))
    options: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
    name = options.pop("name", None)
    if name not in known:
        raise UnknownName(kind, name, (*known, *extra))
    return str(name), options


def _create(call: str, kind: type[Built], sizes: Mapping[str, Any], options: Mapping[str, Any]) -> Built:
    """Create an object of the class `kind`.

    call: what is created, such as "score cosine"; used in error messages.
    sizes: values for arguments of the class; names that are not arguments of the class are ignored.
    options: the other arguments, set by the user. An unknown name or an invalid value raises an error.
    """
    taken = signature(kind).parameters
    known = [name for name in taken if name not in sizes]
    for option, value in options.items():
        if option not in known:
            raise UnknownName(f"option of the {call}", option, known)
        expected = _expected(option, str(taken[option].annotation), value)
        if expected:
            raise ArgumentError(message(call, f"{option} is {value!r}", expected=expected))
    return kind(**{name: size for name, size in sizes.items() if name in taken}, **options)


def _expected(option: str, annotation: str, value: object) -> str:
    """Check the value of an option. Return "" if it is valid, otherwise a description of the valid values.

    An example of such a description is "an integer, 1 or more".

    option: the name of the option.
    annotation: the type annotation of the option, as text.
    """
    if annotation.startswith("str"):
        return "" if isinstance(value, str) else "a name"
    if annotation.startswith("int"):
        smallest = 0 if option == "seed" else 1
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= smallest
        return "" if whole else f"an integer, {smallest} or more"
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return "" if number else "a number greater than 0"
