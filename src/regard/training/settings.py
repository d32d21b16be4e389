"""Settings: the sections that all tasks have; validate, merge and compare configurations; TOML files.

PEER_NAMES has the names of settings in other toolkits, for the error about an unknown setting.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regard.errors import ArgumentError, DataError, Hint, Setting, UnknownName, message, printable
from regard.files.untrusted import read_limited
from regard.training.command_options import CHOSEN, LOGS, CommandOption

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
    optimizer: "adamw", "muon" (Muon for matrices, AdamW for embeddings, output layer, biases and norms) or
        "sgd". For "sgd", learning_rate must be set, and `momentum` may be set.
    learning_rate: peak learning rate: the highest of the schedule.
    schedule: how the learning rate changes after warmup_steps, when it has its peak. With "epoch-decay", it
        is constant for `decay_after` epochs. Then it is divided by `decay_factor` every `decay_every` epochs.
    beta2: second beta of AdamW.
    max_grad_norm: gradients with a larger norm are scaled down to this norm (0 or inf disables clipping).
    ema: decay of the moving average of the weights (0 disables it).
    estimator: for models with hard attention: "reinforce", or its options (see EstimatorSettings).
    precision: precision of the computation: float32, tf32 (float32 with TF32 matrix products), bfloat16 or
        auto (on GPUs that support bfloat16: tf32 for luong and lstmn, bfloat16 for other models; on CPUs with
        avx512_bf16 or AMX: bfloat16 for bahdanau and transformer; elsewhere: float32).
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
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
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


PEER_NAMES = {
    "the learning rate is training.learning_rate": "lr learning_rate max_lr peak_lr",
    "the learning rate schedule is training.schedule": "lr_scheduler lr_scheduler_type scheduling",
    "warm-up is training.warmup_steps": (
        "warmup warmup_updates warmup_ratio learning_rate_warmup num_warmup_steps"
    ),
    "the batch size in tokens is training.batch_tokens": "max_tokens tokens_per_batch",
    "the batch size in sentences is training.batch_size": (
        "max_sentences per_device_train_batch_size train_batch_size bsz"
    ),
    "batches are measured in tokens by training.batch_tokens, in sentences by training.batch_size": (
        "batch_type"
    ),
    "gradient accumulation is training.accumulation_steps": (
        "gradient_accumulation_steps gradient_accumulation accum_count update_freq batch_multiplier "
        "accumulate_grad_batches grad_accum"
    ),
    "beta2 of AdamW is training.beta2": "adam_beta2 adam_betas betas",
    "the optimizer is training.optimizer (adamw or sgd)": "optim optimizer optimizer_type",
    "weight decay is training.weight_decay": "wd",
    "gradient clipping is training.max_grad_norm": (
        "clip_norm clip_grad_norm grad_clip gradient_clip_val gradient_clipping"
    ),
    "label smoothing is training.label_smoothing": "label_smoothing_factor smoothing_factor",
    "the weight of the guided-alignment loss is training.guided_alignment": (
        "lambda_align alignment_loss_weight guided_alignment_weight"
    ),
    "the weight of the R-Drop loss is training.r_drop": "reg_alpha rdrop_alpha r_drop_alpha",
    "the moving average of the weights is training.ema": "average_decay ema_decay moving_average",
    "mixed precision is training.precision=bfloat16": (
        "fp16 bf16 half amp use_amp mixed_precision model_dtype"
    ),
    "the length in epochs is training.epochs": "max_epoch max_epochs num_epochs num_train_epochs",
    "the length in steps is training.steps": "max_steps max_update max_updates train_steps updates",
    "the interval of evaluations is training.evaluate_every": (
        "eval_steps valid_steps validation_freq validate_interval eval_every"
    ),
    "the interval of checkpoints is training.save_every": (
        "save_steps save_checkpoint_steps save_interval save_interval_updates"
    ),
    "the interval of log records is training.log_every": (
        "logging_steps logging_freq log_interval report_every"
    ),
    "the number of checkpoints is training.keep": (
        "save_total_limit keep_checkpoint keep_last_epochs keep_best_ckpts"
    ),
    "the score that selects the best checkpoint is training.best": (
        "metric_for_best_model early_stopping_metric best_checkpoint_metric"
    ),
    "early stopping is training.patience": "early_stopping early_stopping_patience",
    "the random seed is seed": "random_seed manual_seed",
    "the model is model.name": "arch architecture model_type",
    "the width is model.width": (
        "width hidden_size hidden_dim d_model embed_dim rnn_size encoder_embed_dim decoder_embed_dim "
        "model_dim"
    ),
    "the number of layers is model.layers (transformer) or model.depth (seq2seq, luong)": (
        "layers num_layers n_layers num_hidden_layers num_encoder_layers encoder_layers "
        "num_decoder_layers enc_layers dec_layers"
    ),
    "the number of heads is model.heads": (
        "heads num_heads n_heads nhead num_attention_heads encoder_attention_heads"
    ),
    "the width of the feed-forward layers is model.inner": (
        "dim_feedforward ff_size ffn_dim transformer_ff d_ff intermediate_size encoder_ffn_embed_dim"
    ),
    "the width of the embeddings is model.embedding": "embedding_dim embedding_size word_vec_size",
    "dropout is model.dropout": "dropout dropout_rate dropout_prob hidden_dropout_prob",
    "the vocabulary sizes are data.source_vocab_size and data.target_vocab_size": (
        "vocab_size vocab src_vocab_size tgt_vocab_size voc_limit num_merges"
    ),
    "one vocabulary for both sides is data.joint": (
        "share_vocab joined_dictionary share_all_embeddings joint_vocab"
    ),
    "the maximum number of tokens of a source or target is data.max_length": (
        "max_len max_sent_length max_seq_length src_seq_length tgt_seq_length max_source_length "
        "max_target_length max_source_positions max_target_positions"
    ),
    "subword regularization is data.subword_sampling": "bpe_dropout nbest_size sp_alpha",
    "the training files are data.source and data.target": (
        "src tgt trg src_train tgt_train train_src train_tgt path_src path_tgt"
    ),
    "the validation files are data.valid_source and data.valid_target": (
        "valid_src valid_tgt src_valid tgt_valid dev"
    ),
    "the beam size is evaluation.beam_size": "beam beams num_beams beam_width",
}
"""For each setting, an answer with its name in Regard, and its names in other toolkits.

The toolkits are Hugging Face, fairseq, OpenNMT, JoeyNMT and PyTorch. If a user sets one of these names, the
error message contains the answer.
"""

ANSWERS = {name: answer for answer, names in PEER_NAMES.items() for name in names.split()}


def named_tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings in which training.estimator and training.estimator.baseline are tables.

    They may be only a name, such as "reinforce". It is replaced by a table to which options can be added:

    >>> named_tables({"training": {"estimator": {"name": "reinforce", "baseline": "none"}}})
    {'training': {'estimator': {'name': 'reinforce', 'baseline': {'name': 'none'}}}}
    """
    training = settings.get("training")
    if not isinstance(training, Mapping) or training.get("estimator") is None:
        return dict(settings)
    estimator = training["estimator"]
    table = {"name": estimator} if isinstance(estimator, str) else estimator
    if isinstance(table, Mapping) and isinstance(table.get("baseline"), str):
        table = {**table, "baseline": {"name": table["baseline"]}}
    return {**settings, "training": {**training, "estimator": table}}


def unknown_setting(kind: type[BaseModel], keys: list[str], value: Any, place: str) -> UnknownName:
    """Return the error for a setting that does not exist. It suggests a name that exists, if possible.

    kind: the pydantic class of the whole configuration.
    keys: the sections and the name of the setting, e.g. ["training", "lr"].
    value: the value of the unknown setting.
    place: where the setting comes from, e.g. the path of a config.toml.
    """
    end = "" if place == "the settings" else f" in {place}"
    path = [*keys, *value] if isinstance(value, Mapping) and len(value) == 1 else keys  # e.g. optimizer.lr
    if answer := _answer(path[-1]):
        name = ".".join(map(str, path))
        return UnknownName(f"setting{end}:" if end else "setting", name, (), answer=answer)
    where = f" in [{'.'.join(keys[:-1])}]{end}" if keys[:-1] else end
    known = section_of(kind, keys[:-1]).model_fields
    guess = _elsewhere(kind, keys[-1])
    if not guess and not difflib.get_close_matches(keys[-1], known, n=1):
        near = difflib.get_close_matches(keys[-1], [name for _, name in _names(kind)], n=1)
        guess = _elsewhere(kind, near[0]) if near else ""
    return UnknownName(f"setting{where}:" if where else "setting", keys[-1], known, guess=guess)


def misplaced(kind: type[BaseModel], section: str, names: Iterable[str]) -> UnknownName | None:
    """Return the error for the first name that is a setting of another section or of another toolkit.

    Returns None if there is no such name.

    kind: the pydantic class of the whole configuration.
    section: the section in which the names were used, e.g. "model". This section accepts any name, so without
        this check, a setting in the wrong section would be accepted.
    """
    for name in names:
        full, elsewhere = f"{section}.{name}", _elsewhere(kind, name)
        answer = _answer(name) or (f"the setting is {elsewhere}" if elsewhere else "")
        if answer and full not in answer:
            return UnknownName("setting", full, (), answer=answer)
    return None


def section_of(kind: type[BaseModel], keys: Iterable[str]) -> type[BaseModel]:
    """Return the pydantic class of a section of the settings.

    kind: the class of the whole configuration.
    keys: the path of the section, such as ["training", "estimator"]. The path ends before the first key that
        is unknown or not a section.
    """
    for key in keys:
        field = kind.model_fields.get(key)
        types = () if field is None else (field.annotation, *get_args(field.annotation))
        sections = [each for each in types if isinstance(each, type) and issubclass(each, BaseModel)]
        if not sections:
            break
        kind = sections[0]
    return kind


def _answer(name: object) -> str:
    """Return the answer for a name of another toolkit, e.g. "the beam size is evaluation.beam_size".

    Returns "" if the name is unknown.
    """
    return ANSWERS.get(str(name).lower().replace("-", "_"), "")


def _elsewhere(kind: type[BaseModel], name: str) -> str:
    """Return the full name of a setting, e.g. "training.steps" for "steps"; "" if no section has it."""
    return next((f"{section}{last}" for section, last in _names(kind) if last == name), "")


def _names(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield all settings in the sections of `kind` as pairs (section, name), e.g. ("training.", "steps")."""
    for key, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ((f"{key}.", name) for name in field.annotation.model_fields)


LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")

LINE = re.compile(r"\(at line (\d+)")
"""The line of a syntax error, in the message of tomllib."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read settings from a TOML file.

    Raises DataError if the file cannot be read. For a syntax error, the message says in which line it is.
    """
    try:
        content = read_limited(path, "config", named=True)
    except FileNotFoundError:
        folder, hint = Path(path).parent, ""
        if folder.name == "recipes" and not folder.exists():
            hint = "the recipes are in the repository of Regard, not in the installed package"
        raise DataError(message(str(path), "there is no such file", hint=hint)) from None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    return parse_toml(content, path)


def parse_toml(content: bytes, path: str | Path) -> dict[str, Any]:
    """Parse settings in TOML.

    content: the content of the file.
    path: the path of the file, for error messages.
    """
    try:
        text = content.decode("utf-8")
        if LONG_KEY.search(text):  # tomllib is slow for keys with many parts (a.b.c...): quadratic time
            raise ValueError("a key has more than 64 parts")
        settings = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(message(str(path), f"is not UTF-8 at byte {error.start + 1}")) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: invalid TOML, or a number with too many digits
        problem = "too many levels of nesting" if isinstance(error, RecursionError) else str(error)
        hint = "write the file in TOML: lines [section] and key = value, each key once, strings in quotes"
        if place := LINE.search(problem):
            line = text.split("\n")[int(place[1]) - 1].strip()
            problem = f"{problem}: {printable(line[:60])}"
        if Path(path).suffix in (".yaml", ".yml"):
            hint = f"YAML is not read; {hint}"
        raise DataError(message(str(path), problem, hint=hint)) from None
    return named_tables(settings)


def to_toml(content: Mapping[str, Any]) -> str:
    """Return settings as TOML, without the values that are None.

    >>> print(to_toml({"seed": 1, "data": {"source": ["a.ko"], "tsv": None}}).strip())
    seed = 1
    <BLANKLINE>
    [data]
    source = [
        "a.ko",
    ]
    """
    import tomli_w

    def without_none(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}

    return tomli_w.dumps(without_none(content))


def override(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse the values of the option --set, such as "training.steps=9", and return them as nested settings.

    A value is parsed as TOML. If it is not valid TOML, it is a string.

    >>> override(["training.learning_rate=0.001", "model.name=luong", "data.joint=true"])
    {'training': {'learning_rate': 0.001}, 'model': {'name': 'luong'}, 'data': {'joint': True}}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            problem, hint = (
                "this is not a setting of the form name=value",
                "--set training.learning_rate=0.001",
            )
            raise ArgumentError(message(f"--set {assignment}", problem, expected="a.b=value", hint=hint))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # ValueError also for integers of thousands of digits
            value = text
        place = settings
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ArgumentError(message(f"--set {assignment}", f"{key} has a value already"))
        place[keys[-1]] = value
    return named_tables(settings)
