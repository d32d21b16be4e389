"""Turn the options of `regard train` into the settings of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, message, printable
from regard.tasks.column_names import two_columns, two_names

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = ["SETTINGS", "check_exclusive", "settings_of"]

SETTINGS = {
    "train_file": ("data.train_file",),
    "valid_file": ("data.valid_file",),
    "source": ("data.source",),
    "target": ("data.target",),
    "tsv": ("data.tsv",),
    "jsonl": ("data.jsonl",),
    "columns": ("data.columns",),
    "fields": ("data.fields",),
    "encoding": ("data.encoding",),
    "built_in": ("data.built_in",),
    "images": ("data.images",),
    "valid_source": ("data.valid_source",),
    "valid_target": ("data.valid_target",),
    "valid_tsv": ("data.valid_tsv",),
    "valid_jsonl": ("data.valid_jsonl",),
    "gold_alignments": ("data.alignments",),
    "tokenizer": ("data.tokenizer",),
    "vocab_size": ("data.source_vocab_size", "data.target_vocab_size", "data.vocab_size"),
    "task": ("task",),
    "model": ("model.name",),
    "width": ("model.width",),
    "dropout": ("model.dropout",),
    "score": ("model.score",),
    "select": ("model.select",),
    "position": ("model.position",),
    "minutes": ("training.minutes",),
    "steps": ("training.steps",),
    "epochs": ("training.epochs",),
    "patience": ("training.patience",),
    "batch_tokens": ("training.batch_tokens",),
    "batch_size": ("training.batch_size",),
    "learning_rate": ("training.learning_rate",),
    "label_smoothing": ("training.label_smoothing",),
    "guided": ("training.guided_alignment",),
    "estimator": ("training.estimator.name",),
    "precision": ("training.precision",),
    "tensorboard": ("training.tensorboard",),
    "seed": ("seed",),
    "seeds": ("seeds",),
    "init_from": ("init_from",),
}
"""Parameter of train() -> the settings that its option sets. A task need not have all these settings."""

EXCLUSIVE = (
    ("minutes", "steps", "epochs"),
    ("batch_tokens", "batch_size"),
    ("seed", "seeds"),
    ("minutes", "seeds"),
)
"""Groups of options that exclude each other: at most one option of a group may be used."""


def settings_of(options: Mapping[str, Any], task: type[RunTask]) -> dict[str, Any]:
    """Convert options of `regard train` to nested settings of a task. Options that are None are skipped.

    Raises ArgumentError for an option whose setting the task does not have.

    >>> from regard.tasks.task_table import find_task
    >>> task = find_task("translation")
    >>> settings_of({"columns": "2,1", "vocab_size": 8000, "seed": 1, "width": None, "resume": True}, task)
    {'data': {'columns': [2, 1], 'source_vocab_size': 8000, 'target_vocab_size': 8000}, 'seed': 1}
    """
    own, data = task.data_options(options)
    settings: dict[str, Any] = {"data": data} if data else {}
    for option, all_names in SETTINGS.items():
        value = options.get(option)
        if value is None or option in own:
            continue
        names = [name for name in all_names if _has_setting(task.settings_type, name)]
        if not names:
            raise _unknown_option(option, all_names, task)
        if option in ("columns", "fields"):
            value = [*(two_columns(value) if option == "columns" else two_names("--fields", value))]
        if option == "seeds":
            value = _seeds(str(value))
        for name in names:
            *sections, last = name.split(".")
            place = settings
            for section in sections:
                place = place.setdefault(section, {})
            text = str(value) if isinstance(value, Path) else value
            place[last] = [text] if option == "images" else text
    return settings


def _seeds(text: str) -> int | list[int]:
    """Return the value of --seeds: the number of seeds, or a list of seeds.

    >>> _seeds("5"), _seeds("1,2,3")
    (5, [1, 2, 3])
    """
    parts = [part.strip() for part in text.split(",")]
    parts = parts[:-1] if len(parts) > 1 and not parts[-1] else parts
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        expected = "the number of seeds, such as 5, or a list of seeds, such as 1,2,3"
        raise ArgumentError(
            message("--seeds", f"the value {printable(text)[:40]!r} is invalid", expected=expected)
        )
    return [int(part) for part in parts] if "," in text else int(text)


def _has_setting(kind: Any, name: str) -> bool:
    """Return whether a task has a setting of this name, such as "training.steps".

    The result is also True if the section, such as "training", accepts any name.

    kind: the class of all settings of the task.
    """
    *sections, last = name.split(".")
    for section in sections:
        field = kind.model_fields.get(section)
        if field is None:
            return False
        kind = field.annotation
        if not hasattr(kind, "model_fields"):  # e.g. EstimatorSettings | None; checked later
            return True
    return last in kind.model_fields or kind.model_config.get("extra") == "allow"


def _unknown_option(option: str, names: Sequence[str], task: type[RunTask]) -> ArgumentError:
    """Return the error for an option that a task does not have. Its hint lists the task's data options."""
    own, _ = task.data_options({})
    data = [
        f"--{other.replace('_', '-')}"
        for other, others in SETTINGS.items()
        if others[0].startswith("data.")
        and (other in own or any(_has_setting(task.settings_type, name) for name in others))
    ]
    label = task.settings_type.model_fields["task"].default
    label = label if isinstance(label, str) else task.__name__
    problem = f"the task {label} has no setting {' or '.join(names)}"
    hint = f"its options for data are {', '.join(data)}" if names[0].startswith("data.") and data else ""
    return ArgumentError(message(f"--{option.replace('_', '-')}", problem, hint=hint))


def check_exclusive(options: Mapping[str, Any]) -> None:
    """Raise ArgumentError if two options that exclude each other are used (see EXCLUSIVE)."""
    for names in EXCLUSIVE:
        both = [f"--{name.replace('_', '-')}" for name in names if options[name] is not None]
        if len(both) > 1:
            problem = f"{' and '.join(both)} cannot be combined"
            hint = ""
            if names == ("minutes", "seeds"):
                hint = "set the length of a run with several seeds by --steps or --epochs"
            expected = f"only one of {', '.join(both)}"
            raise ArgumentError(message("regard train", problem, expected=expected, hint=hint))
