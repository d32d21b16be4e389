"""Choose the model size, batch size, learning rate and dropout of a translation run.

The choices depend on the amount of data, the length of the run and the training speed.

The rules come from short trainings on English-German sentence pairs. benchmarks/first_hour.py compares the
chosen settings with settings that were found by hand.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from regard.data import suggest_tokenizer
from regard.data.tokenizers.tokenizer import sides
from regard.options.transformer_options import SIZES
from regard.runs.run_task import Plan
from regard.tasks.batched_task import describe_plan, peak_rate, planned_tokens
from regard.tasks.translation.data import Corpus
from regard.tasks.translation.settings import DEFAULT_PAIRS
from regard.training.progress import EPOCHS, EVALUATION_PART, MIN_STEPS, RESERVED, epochs_text
from regard.training.settings import LENGTHS, merged

Options = dict[str, Any]
Speed = Callable[[Options, int | None], float]
"""A function speed(options, tokens) that measures the training speed of a model, in tokens per second.

options: the options of the model, for example {"width": 128}.
tokens: the batch size in tokens with padding; None if the settings have a batch size in sentences."""

FILLED = 0.9
"""Estimated fraction of the tokens of a batch that are not padding. Only one side is counted: the source or
the target, whichever has more tokens."""

STEPS = 800
"""Minimum number of steps of a planned run. Runs with fewer steps do not converge. The plan chooses the
largest batch size that leaves at least STEPS steps, or Recipe.steps."""

LARGEST_DECAY = 0.5
"""The largest weight decay that a plan chooses."""

BATCHES = {"cpu": (512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192)}
"""The batch sizes to choose from, in tokens, for each kind of device."""

USUAL_BATCH = {"cpu": 2048, "cuda": 4096}
"""The batch size in tokens of a run whose length is set in steps, for each kind of device."""

REPEATS = 8
"""Maximum useful number of epochs of a model. In a longer run, a larger model is better than more epochs."""

MEASUREMENTS = 3
"""Maximum number of model sizes whose speed is measured."""

TUNING_RATE = 3e-4
"""The learning rate of a run that starts from the weights of another run."""

SEEN_PAIRS, BLEU_WORDS = 1000, 4
"""If the targets look like labels, the best checkpoint is selected by exact match instead of BLEU.

Targets look like labels if many of them are equal, and if their average length is less than BLEU_WORDS words.
Only the first SEEN_PAIRS pairs are examined. Exact match is also used if the tokenizer is "character".
"""

SHORT_MINUTES, SHORT_SENTENCES = 5, 200
"""Runs of at most SHORT_MINUTES minutes translate only SHORT_SENTENCES sentences at each evaluation,
so that evaluations take a small part of the run."""


class Recipe(NamedTuple):
    """The optimizer of one kind of model on one kind of device.

    rate: the learning rate for width 128 and batches of 1,024 tokens.
    power: the learning rate is multiplied by (128 / width) ** power.
    steps: minimum number of steps, see STEPS.
    memory: number of epochs after which weight decay has shrunk a weight by the factor e, at the peak of the
        learning rate (Wang and Aitchison 2024). So the decay is small if there is much text, and large if a
        small text is read many times. None: the weight decay is not chosen.
    """

    optimizer: str
    rate: float
    power: float
    steps: int = STEPS
    memory: float | None = None


@dataclass(frozen=True)
class Family:
    """The sizes and the optimizers to choose from, of one kind of model: Transformer or recurrent model.

    cpu: the optimizer on a CPU. Other devices: AdamW, whose steps can be captured in CUDA graphs.
    tokens_needed: a model should train on tokens_needed * width * layers tokens. With fewer tokens, a smaller
        model is better.
    widths: the sizes (width, layers), from small to large. `layers` is 0 if the model has no option `layers`.
    """

    cpu: Recipe
    others: Recipe
    tokens_needed: int
    widths: tuple[tuple[int, int], ...]


PLAIN = Recipe("adamw", 6e-3, 0.5)
RECURRENT = Family(PLAIN, PLAIN, 6_250, tuple((width, 0) for width in range(64, 1025, 32)))
BAHDANAU = replace(RECURRENT, cpu=Recipe("adamw", 1e-2, 0.5, steps=1500, memory=3.5))
TRANSFORMER = Family(
    Recipe("muon", 5e-3, 0.5, memory=3.5),
    Recipe("adamw", 3.5e-3, 1.0),
    5_000,
    ((64, 2), (128, 2), (128, 3), (192, 3), (256, 3), (256, 4), (384, 4), (512, 6)),
)
FAMILIES = {"bahdanau": BAHDANAU, "transformer": TRANSFORMER}
"""The family of each model, by the name of the model. All other models are of the family RECURRENT."""

SIZE_OPTIONS = ("width", "size", "layers", "embedding", "inner")
"""Options that determine the size of a model. If the user sets one of them, the plan chooses no size."""


@dataclass(frozen=True)
class Workload:
    """The amount of training data of a run, and the device that it trains on.

    pairs: number of training pairs.
    tokens: number of source tokens or of target tokens of one epoch, whichever is larger.
    device: cpu, cuda or mps.
    processes: number of training processes. Each process has different batches.
    target_tokens: number of target tokens of one epoch, for the text of the plan. None: equal to `tokens`.
    """

    pairs: int
    tokens: int
    device: str = "cpu"
    processes: int = 1
    target_tokens: int | None = None


def fill_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the defaults for the built-in corpus and for evaluations filled in.

    This function is called before the data are read. Settings of the user are not changed.

    >>> fill_data({"data": {"built_in": "korean"}})["data"]
    {'tokenizer': 'word', 'pairs': 20000, 'grammar': 2, 'built_in': 'korean'}
    """
    data = given.get("data", {})
    built_in: dict[str, Any] = {"tokenizer": "word", "pairs": DEFAULT_PAIRS, "grammar": 2}
    usual = built_in if data.get("built_in") else {}
    minutes = given.get("training", {}).get("minutes")
    evaluation: dict[str, Any] = {"lowercase": bool(data.get("lowercase"))}
    if minutes is not None and minutes <= SHORT_MINUTES:
        evaluation["sentences"] = SHORT_SENTENCES
    return merged({"data": usual, "evaluation": evaluation}, given)


def fit_to_text(given: Mapping[str, Any], pairs: Iterable[Any]) -> tuple[dict[str, Any], str]:
    """Choose the tokenizer and the metric that suit the text.

    Return the settings, and the reason for the tokenizer ("" if the user has set the tokenizer). BLEU counts
    sequences of up to four words. So BLEU is 0 for targets of one word, even if all of them are right. For
    very short targets, the best checkpoint is therefore selected by exact match.

    pairs: the training pairs. The function iterates over them twice.

    >>> settings, why = fit_to_text({}, [(f"{n} apples", str(n * n)) for n in range(100, 400)])
    >>> settings["data"]["tokenizer"], settings["training"]["best"]
    ('character', 'exact')
    """
    name, why = given.get("data", {}).get("tokenizer"), ""
    if name is None:
        name, reason = suggest_tokenizer(pairs)
        why = f"{name} tokenizer: {reason}"
    targets = [sides(pair)[1] for pair in islice(pairs, SEEN_PAIRS)]
    words = statistics.mean(len(target.split()) for target in targets) if targets else 0.0
    labels = words < BLEU_WORDS and len(set(targets)) < len(targets) / 2
    best = "exact" if name == "character" or labels else "bleu"
    return merged({"data": {"tokenizer": name}, "training": {"best": best}}, given), why


def make_plan(given: Mapping[str, Any], work: Workload, speed: Speed, timed: bool = False) -> Plan:
    """Choose the settings of a translation run that the user has not set.

    given: the settings that the user has set.
    work: the amount of training data, and the device.
    speed: a function that measures the training speed of a model. It is called only if the length of the run
        is set in minutes, for at most MEASUREMENTS model sizes. Otherwise the plan does not depend on the
        speed of the machine.
    timed: whether to measure the speed of the chosen model if the length is set in steps or epochs.

    >>> work = Workload(pairs=20_000, tokens=250_000)
    >>> plan = make_plan({"training": {"minutes": 5}}, work, lambda model, tokens: 1.1e6 / model["width"])
    >>> plan.settings["model"]
    {'width': 192, 'dropout': 0.1}
    """
    model, training = given.get("model", {}), given.get("training", {})
    family = FAMILIES.get(model.get("name", "bahdanau"), RECURRENT)
    group = work.processes * training.get("accumulation_steps", 1)  # number of batches per step
    recipe = family.cpu if work.device == "cpu" else family.others
    batches, counted = _batches(training, work, group), training.get("batch_size") is not None
    fixed = any(model.get(name) is not None for name in SIZE_OPTIONS)
    part, measured = 1 - EVALUATION_PART - RESERVED, None
    if training.get("minutes") is not None:
        tokens = None if counted else batches[min(1, len(batches) - 1)]
        seconds = 60 * training["minutes"] * part
        size, measured = dict(model), 0.0
        if fixed:
            measured = speed(size, tokens) * work.processes
        else:
            size, measured = _timed_size(family, work, seconds, lambda option: speed(option, tokens))
        total = seconds * measured
        size = {} if fixed else size
    else:
        total = planned_tokens(training, work.tokens, batches[-1] * FILLED * group)
        size = {} if fixed else _options(_largest(family, work, lambda option: total))
    batch = _batch(batches, total / group, recipe.steps)
    steps, epochs = total / (batch * FILLED * group), total / max(work.tokens, 1)
    # No dropout for about two epochs or less. It grows with the epochs up to 0.3.
    dropout = round(20 * min(0.075 * math.log2(max(epochs, 2.0) / 2), 0.3)) / 20
    width = model.get("width", size.get("width"))
    if width is None:
        width = SIZES[model["size"]].width if model.get("size") in SIZES else 256
    rate = TUNING_RATE
    if given.get("init_from") is None:
        rate = peak_rate(recipe.rate, recipe.power, width, batch * group, steps)
    filled = {
        "model": {**size, "dropout": dropout},
        "training": {
            "batch_tokens": None if counted else batch,
            "learning_rate": rate,
            "warmup_steps": int(min(max(steps / 20, 20), 400 if family is TRANSFORMER else 100)),
        },
    }
    own = training.get("optimizer") is None and training.get("momentum") is None
    if own and given.get("init_from") is None:
        if recipe.optimizer != "adamw":
            filled["training"]["optimizer"] = recipe.optimizer
        if recipe.memory is not None:
            epoch = max(work.tokens, 1) / (batch * FILLED * group)  # steps of an epoch
            decay = 1 / (training.get("learning_rate", rate) * recipe.memory * epoch)
            filled["training"]["weight_decay"] = float(f"{min(decay, LARGEST_DECAY):.2g}")
    settings = merged(given, filled, given)
    share = 1.0 if work.target_tokens is None else work.target_tokens / max(work.tokens, 1)
    amount = f"about {share * total:,.0f} target tokens ({epochs_text(epochs)})"
    if measured is not None:
        minutes = training["minutes"]
        amount += f", {minutes:g} minute{'' if minutes == 1 else 's'}"
        amount += f" at {share * measured:,.0f} target tokens/s"
    elif timed:
        measured = speed(settings["model"], settings["training"].get("batch_tokens"))
    unit = (
        f"{training['batch_size']:,} sentences"
        if counted
        else f"{settings['training']['batch_tokens']:,} tokens"
    )
    text = describe_plan(settings, "bahdanau", unit, amount)
    return Plan(settings, text, epochs, None if measured is None else total / measured / part)


def _timed_size(
    family: Family, work: Workload, seconds: float, speed: Callable[[Options], float]
) -> tuple[Options, float]:
    """Return the options of the largest model that can train on enough tokens in `seconds`, and its speed.

    First, the speed of one size is measured, and the speed of the other sizes is estimated from it. Then the
    size that seems best is measured too, and the estimates are corrected. This is repeated until the choice
    does not change.
    """
    # On a GPU, measuring a size is slow, because kernels are compiled for it. So begin with the most probable
    # size there.
    best = _largest(family, work, lambda size: math.inf) if work.device == "cuda" else family.widths[2]
    measured: dict[tuple[int, int], float] = {}
    while best not in measured:
        measured[best] = speed(_options(best)) * work.processes
        if len(measured) == MEASUREMENTS:
            break

        def tokens(size: tuple[int, int]) -> float:
            near = min(measured, key=lambda other: abs(math.log(_cost(other) / _cost(size))))
            return seconds * measured[near] * _cost(near) / _cost(size)

        best = _largest(family, work, tokens)
    return _options(best), measured[best]


def _largest(family: Family, work: Workload, tokens: Callable[[tuple[int, int]], float]) -> tuple[int, int]:
    """Return the largest model size (width, layers) that suits the number of training pairs.

    A size is considered only if a model of this size can train on enough tokens.

    tokens: a function that returns how many tokens a model of a given size can train on.
    """
    most = 64 * (max(work.pairs, 100) / 100) ** 0.3
    fitting = [
        size
        for size in family.widths
        if size[0] <= most
        and tokens(size) >= min(family.tokens_needed * size[0] * max(size[1], 1), REPEATS * work.tokens)
    ]
    return max(fitting, key=_cost, default=family.widths[0])


def _cost(size: tuple[int, int]) -> float:
    """Estimate the training time per token of a model of size (width, layers), in arbitrary units."""
    width, layers = size
    return width * (1 + width / 512) * max(layers, 1)


def _options(size: tuple[int, int]) -> Options:
    """Return the options of build_model() for a model of size (width, layers), e.g. {"width": 128}."""
    width, layers = size
    if not layers:
        return {"width": width}
    return {"width": width, "layers": layers, "heads": max(width // 64, 4), "inner": 4 * width}


def _batches(training: Mapping[str, Any], work: Workload, group: int) -> tuple[int, ...]:
    """Return the batch sizes to choose from, in tokens. group: number of batches per training step."""
    device = work.device if work.device in BATCHES else "cpu"
    if training.get("batch_tokens") is not None:
        return (training["batch_tokens"],)
    if training.get("batch_size") is not None:  # converted to tokens, including padding
        return (round(training["batch_size"] * work.tokens / max(work.pairs, 1) / FILLED) or 1,)
    if training.get("steps") is not None:
        return (USUAL_BATCH[device],)
    if any(training.get(name) is not None for name in LENGTHS):
        return BATCHES[device]
    # No minutes, steps or epochs are set: the run lasts EPOCHS epochs, or longer if it needs MIN_STEPS steps.
    return (_batch(BATCHES[device], EPOCHS * work.tokens / group, MIN_STEPS),)


def _batch(batches: tuple[int, ...], total: float, steps: int = STEPS) -> int:
    """Return the largest batch size that leaves at least `steps` training steps in a run on `total` tokens.

    If there is no such batch size, return the first of `batches`.

    batches: the batch sizes to choose from, in tokens with padding.
    """
    return max((each for each in batches if total / (each * FILLED) >= steps), default=batches[0])


def target_tokens(corpus: Corpus) -> int:
    """Return the number of target tokens of an epoch, including EOS."""
    return int(corpus.train.target_lengths.sum()) + len(corpus.train)


def epoch_tokens(corpus: Corpus) -> int:
    """Return the number of source tokens or of target tokens of an epoch, whichever is larger."""
    return max(target_tokens(corpus), int(corpus.train.source_lengths.sum()) + len(corpus.train))
