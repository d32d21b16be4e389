"""Settings: the sections that all tasks have; validate, merge and compare configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regard.errors import ArgumentError, Hint, Setting, message
from regard.training.command_options import CHOSEN, LOGS, CommandOption
from regard.training.setting_names import named_tables, unknown_setting

Part = Annotated[float, Field(ge=0, lt=1)]
Whole = Annotated[int, Field(ge=1, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Precision = Literal["auto", "float32", "tf32", "bfloat16"]

LENGTHS = ("steps", "epochs", "minutes")
"""The settings for the length of a run. At most one of them may be set."""

BATCHES = ("batch_tokens", "batch_size")
"""The settings for the batch size. At most one of them may be set."""

Model = TypeVar("Model", bound=BaseModel)


class Clash(ValueError):
    """Raised if two settings of a section contradict each other.

    problem: which settings, such as "batch_tokens and batch_size are both set".
    expected: what would be correct, such as "one of batch_tokens, batch_size".
    """

    def __init__(self, problem: str, expected: str):
        super().__init__(problem)
        self.expected = expected


class Section(BaseModel):
    """Base class for the sections (TOML tables) of config.toml.

    Unknown keys and values of a wrong type are errors.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), defer_build=True
    )


class BaselineSettings(Section):
    """The baseline that an estimator subtracts from the reward, and its options (see training/estimators.py).

    name: "moving-average": a moving average of the rewards. "learned": a network that predicts the reward
        from the input. "leave-one-out": the mean reward of the other samples of the example. "none": no
        baseline.
    decay: decay of the moving averages.
    hidden: for "learned" only, the size of the hidden layer.
    weight: for "learned" only, the weight of the loss that trains the network.
    """

    name: Literal["moving-average", "learned", "leave-one-out", "none"] = "moving-average"
    decay: Part | None = None
    hidden: Annotated[int, Field(ge=1, le=65536)] | None = None
    weight: Weight | None = None

    @model_validator(mode="after")
    def _known_options(self) -> BaselineSettings:
        known = {"moving-average": ("decay",), "learned": ("decay", "hidden", "weight")}.get(self.name, ())
        for option in ("decay", "hidden", "weight"):
            if getattr(self, option) is not None and option not in known:
                problem = f"{option} is not an option of the baseline {self.name}"
                raise Clash(problem, f"options of {self.name}: {', '.join(known) or 'none'}")
        return self


class EstimatorSettings(Section):
    """How hard attention (model.select = "hard") is trained; see training/estimators.py.

    name: gradient estimator for --select hard: reinforce. To set its number of samples: --set
        training.estimator.samples=4.
    baseline: the value that is subtracted from the reward: by default "leave-one-out", or the moving average
        of the rewards if `samples` is 1.
    scale: weight of the REINFORCE term.
    entropy: weight of the entropy of the attention. The entropy is maximised.
    samples: number of samples of each example. Each sample is one forward pass with newly sampled keys.
    expected: probability that an example uses softmax weights instead of sampled keys.

    The defaults were chosen on two small corpora: benchmarks/results/2026-11-18-hard-attention.md.

    >>> EstimatorSettings(baseline=BaselineSettings(name="learned")).options(features=8)["baseline"]
    {'name': 'learned', 'features': 8}
    """

    name: Annotated[str, CommandOption("--estimator")] = "reinforce"
    baseline: BaselineSettings = Field(default_factory=lambda: BaselineSettings(name="leave-one-out"))
    scale: Weight = 0.1
    entropy: Weight = 0.0
    samples: Annotated[int, Field(ge=1, le=1000)] = 2
    expected: Part = 0.5

    @model_validator(mode="before")
    @classmethod
    def _baseline_of_one_sample(cls, values: Any) -> Any:
        """Set the default baseline of a single sample, which has no other samples to compare it with."""
        if isinstance(values, Mapping) and values.get("samples") == 1 and "baseline" not in values:
            return {**values, "baseline": {"name": "moving-average"}}
        return values

    @model_validator(mode="after")
    def _known_name(self) -> EstimatorSettings:
        if self.name == "straight-through":
            raise Clash(
                "straight-through is a selection, not an estimator",
                'model.select = "straight-through" (--select straight-through) without an estimator',
            )
        if self.name != "reinforce":
            raise Clash(f"the estimator {self.name!r} is not known", 'name = "reinforce"')
        return self

    def options(self, features: int) -> dict[str, Any]:
        """Return these settings as the arguments of Reinforce.

        features: size of the input of a learned baseline.
        """
        baseline = {key: value for key, value in dict(self.baseline).items() if value is not None}
        if self.baseline.name == "learned":
            baseline["features"] = features
        options = {**dict(self), "baseline": baseline}
        del options["name"]
        return options


class Training(Section):
    """Training settings, for any task.

    At most one of minutes, steps and epochs may be set. By default, the number of epochs depends on the data.
    minutes are converted to a number of steps when the speed is known. Batch sizes are those of a process.

    minutes: train for this many minutes; the learning rate decays to zero at the end.
    steps: train for this many steps.
    epochs: train for this many epochs.
    batch_tokens: batch size in tokens, including padding.
    batch_size: batch size in sentence pairs, texts, captions, questions or windows of text, instead of
        --batch-tokens.
    accumulation_steps: number of batches per step.
    optimizer: "adamw" or "sgd". For "sgd", learning_rate must be set, and `momentum` may be set.
    learning_rate: peak learning rate: the highest of the schedule.
    schedule: how the learning rate changes after warmup_steps, when it has its peak. With "epoch-decay", it
        is constant for `decay_after` epochs. Then it is divided by `decay_factor` every `decay_every` epochs.
    beta2: second beta of AdamW.
    max_grad_norm: gradients with a larger norm are scaled down to this norm (0 or inf disables clipping).
    ema: decay of the moving average of the weights (0 disables it).
    estimator: for models with hard attention: "reinforce", or its options (see EstimatorSettings).
    precision: precision of the computation: float32, tf32 (float32 with TF32 matrix products), bfloat16 or
        auto (on GPUs that support bfloat16: tf32 for luong and lstmn, bfloat16 for other models; elsewhere:
        float32).
    compile: whether to use torch.compile. Without CUDA graphs (`capture`), the model is compiled again for
        each batch shape, which takes minutes.
    capture: whether to take training steps as CUDA graphs, one for each batch shape. "auto": on GPUs, if the
        loss can be captured.
    keep: number of checkpoints to keep.
    best: the metric that selects the best checkpoint. None: the default of the task.
    patience: stop after this many evaluations in a row without a better validation score.
    tensorboard: also write losses and scores for TensorBoard; to see them: tensorboard --logdir RUN.

    >>> Training(steps=100, learning_rate=1e-3).schedule
    'cosine'
    """

    minutes: Annotated[Positive | None, CommandOption("--minutes")] = None
    steps: Annotated[Whole | None, CommandOption("--steps")] = None
    epochs: Annotated[Positive | None, CommandOption("--epochs", shown_default=CHOSEN)] = None
    batch_tokens: Annotated[Tokens | None, CommandOption("--batch-tokens", shown_default=CHOSEN)] = 4096
    batch_size: Annotated[Count | None, CommandOption("--batch-size")] = None
    accumulation_steps: Count = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    momentum: Part = 0.0
    learning_rate: Annotated[Positive, CommandOption("--learning-rate", shown_default=CHOSEN)] = 1e-3
    schedule: Literal["constant", "cosine", "inverse-root", "epoch-decay"] = "cosine"
    decay_after: Annotated[int, Field(ge=0, le=1_000_000)] = 6
    decay_factor: Annotated[float, Field(ge=1, le=1e6)] = 1.2
    decay_every: Count = 1
    warmup_steps: Annotated[int, Field(ge=0, le=2**63 - 1)] = 200
    weight_decay: Weight = 0.01
    beta2: Annotated[float, Field(gt=0, lt=1)] = 0.98
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0  # 0 and inf disable clipping
    ema: Part = 0.0
    estimator: EstimatorSettings | None = None
    precision: Annotated[Precision, CommandOption("--precision")] = "auto"
    compile: bool = False
    capture: Literal[True, False, "auto"] = "auto"
    evaluate_every: Whole | None = None
    save_every: Whole | None = None
    log_every: Whole = 50
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = 2
    best: str | None = None
    patience: Annotated[Whole | None, CommandOption("--patience")] = None
    tensorboard: Annotated[bool, CommandOption("--tensorboard/--no-tensorboard", panel=LOGS)] = False

    @model_validator(mode="before")
    @classmethod
    def _one_batch_size(cls, values: Any) -> Any:
        """Set batch_tokens=None in the settings if batch_size is set. Raise Clash if both are set."""
        if not isinstance(values, Mapping):
            return values
        if values.get("batch_size") is None:
            return {name: value for name, value in values.items() if (name, value) != ("batch_tokens", None)}
        if values.get("batch_tokens") is not None:
            raise Clash("batch_tokens and batch_size are both set", f"one of {', '.join(BATCHES)}")
        return {**values, "batch_tokens": None}

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if sum(getattr(self, name) is not None for name in LENGTHS) > 1:
            raise ValueError(f"one of {', '.join(LENGTHS)}")
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> Training:
        if self.optimizer == "sgd" and "learning_rate" not in self.model_fields_set:
            raise Clash("optimizer is sgd, but learning_rate is not set", "a learning_rate, such as 1.0")
        if self.momentum and self.optimizer != "sgd":
            raise Clash(f"momentum is {self.momentum:g}, but optimizer is {self.optimizer}", "momentum = 0")
        return self


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings (dicts). Later dicts override earlier dicts. None values are ignored.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "b": None}})
    {'a': {'b': 1, 'c': 3}}
    """
    result = dict(first)
    for other in others:
        for key, value in other.items():
            if isinstance(value, Mapping):
                below = result.get(key)
                result[key] = merged(below if isinstance(below, Mapping) else {}, value)
            elif value is not None:
                result[key] = value
    return result


def without_alternatives(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Remove settings from `before` that cannot be combined with the settings in `new`; return the others.

    If `new` sets the length of the training (steps, epochs or minutes), all three settings are removed from
    `before`. If `new` sets the batch size (batch_tokens or batch_size), both settings are removed. If `new`
    sets `seed`, `seeds` is removed. If `new` sets `seeds`, `seed` is removed.

    >>> without_alternatives({"training": {"steps": 9, "ema": 0.1}}, {"training": {"minutes": 2.0}})
    {'training': {'ema': 0.1}}
    """
    if other := {"seed": "seeds", "seeds": "seed"}.get(next((n for n in ("seeds", "seed") if n in new), "")):
        before = {name: value for name, value in before.items() if name != other}
    training = new.get("training") or {}
    replaced = {
        name
        for names in (LENGTHS, BATCHES)
        if isinstance(training, Mapping) and any(training.get(name) is not None for name in names)
        for name in names
    }
    if not replaced:
        return dict(before)
    others = {name: value for name, value in before.get("training", {}).items() if name not in replaced}
    return {**before, "training": others}


def build(kind: type[Model], content: Mapping[str, Any], place: str) -> Model:
    """Validate nested settings, and return them as an instance of the class `kind`.

    An error message contains the name of the wrong setting. For an unknown name, it suggests a known name.

    kind: a pydantic class, such as Training.
    content: the nested settings.
    place: where the settings come from, e.g. the path of a config.toml, for error messages.
    """
    try:
        return kind.model_validate(named_tables(content))
    except ValidationError as error:
        raise _setting_error(kind, error.errors()[0], place) from None


def _setting_error(kind: type[BaseModel], first: Mapping[str, Any], place: str) -> Exception:
    """Return the error for a setting.

    kind: the class of all settings.
    first: the error of pydantic, as a dict.
    place: where the setting comes from.
    """
    keys = [
        str(key) for key in first["loc"] if "[" not in str(key)
    ]  # leave out type names such as list[int]: pydantic adds them if a setting may have several types
    if first["type"] == "extra_forbidden":
        return unknown_setting(kind, keys, first.get("input"), place)
    problem = f"{'.'.join(keys) or 'the configuration'} is {_short(first.get('input'))}"
    if first["type"] == "missing":
        problem = f"{'.'.join(keys)} is missing"
    elif first["type"] == "value_error":
        problem = f"the settings in [{'.'.join(keys)}] contradict each other"
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if isinstance(clash := first.get("ctx", {}).get("error"), Clash):
        section = f"[{'.'.join(keys)}]: " if keys else ""
        problem, expected = f"{section}{clash}", clash.expected
    hint: Hint = ""
    if place == "the settings" and len(keys) == 2:
        hint = ("check ", Setting(*keys))
    if first["type"] == "list_type":
        expected, hint = "a list", f"{'.'.join(keys)}={_listed(first.get('input'))}"
    return ArgumentError(message(place, problem, expected=expected, hint=hint))


def check_names(kind: type[BaseModel], content: Mapping[str, Any], place: str) -> None:
    """Raise UnknownName if nested settings have a name that `kind` does not have.

    Values are not checked, and settings may be missing.

    kind: a pydantic class, such as Training.
    content: the nested settings.
    place: where the settings come from, e.g. the path of a config.toml, for error messages.
    """
    for each in _errors(kind, content):
        if each["type"] == "extra_forbidden":
            raise _setting_error(kind, each, place) from None


def check_types(kind: type[BaseModel], sources: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ArgumentError if a value has a wrong type or is out of range; the message says where it was set.

    Settings may be missing, and whether they contradict each other is not checked. A single value in place of
    a list is no error, because the settings of data files accept it.

    kind: a pydantic class, such as Training.
    sources: nested settings, by the place where they come from. A setting of an earlier place overrides that
        of a later place.
    """
    for each in _errors(kind, merged({}, *reversed(list(sources.values())))):
        if each["type"] in ("missing", "value_error", "extra_forbidden", "list_type"):
            continue
        for place, content in sources.items():
            if _has(content, each["loc"]):
                raise _setting_error(kind, each, place) from None


def _errors(kind: type[BaseModel], content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    try:
        kind.model_validate(content)
    except ValidationError as error:
        return error.errors()
    return ()


def _has(content: Any, keys: Sequence[int | str]) -> bool:
    """Return whether nested settings have a value for keys such as ("training", "steps").

    Keys after the first value that is not a section, such as the index in a list, are ignored.
    """
    for key in keys:
        if not isinstance(content, Mapping):
            break
        content = content.get(str(key))
    return content is not None


def _listed(value: Any) -> str:
    """Return a value as a TOML array, for a hint: e.g. '["a.ko"]' for "a.ko", and '[1,2]' for "1,2"."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    whole = all(isinstance(part, str) and part.isdecimal() for part in parts)
    return f"[{','.join(map(str, parts) if whole else map(json.dumps, parts))}]"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def differences(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> list[str]:
    """Compare nested settings, and return a text such as "training.steps: 1 -> 3" for each difference.

    above: the section of the settings, with a dot, such as "training.". "" if they are all settings of a run.

    >>> differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2, "d": "x"})
    ['a.b: 1 -> 3', "d: not set -> 'x'"]
    """
    lines = []
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key), after.get(key)
        name = f"{above}{key}"
        if all(value is None or isinstance(value, Mapping) for value in (old, new)) and (old or new):
            lines += differences(old or {}, new or {}, f"{name}.")
        elif old != new:
            shown = ["not set" if value is None else _short(value) for value in (old, new)]
            lines.append(f"{name}: {shown[0]} -> {shown[1]}")
    return lines
