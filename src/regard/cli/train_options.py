"""The options of `regard train`, and the setting that each option sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.pair_file_options import Files, pair_option, train_option
from regard.errors import ArgumentError, message, printable
from regard.tasks.column_names import two_columns, two_names

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = ["SETTINGS", "check_exclusive", "settings_of"]

DATA, MODEL, TRAINING, RUN = "Data", "Model", "Training", "Run"
CHOSEN, HELD_OUT = "chosen automatically", "held out from the training pairs"
OF_MODEL = "the default of the model"
HELD_OUT_TEXT = "held out from the training text"
FIELDS_DEFAULT = "source,target; for classification, label,text"
MODEL_DEFAULT = "bahdanau; for language models and classification, lstm; for captioning, captioner"

SETTINGS = {
    "train_file": ("data.train_file",),
    "valid_file": ("data.valid_file",),
    "source": ("data.source",),
    "target": ("data.target",),
    "tsv": ("data.tsv",),
    "jsonl": ("data.jsonl",),
    "columns": ("data.columns",),
    "fields": ("data.fields",),
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
    """Convert options of `regard train` to nested settings of a task. Options that are None are left out.

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
        raise ArgumentError(message("--seeds", f"{printable(text)[:40]!r}", expected=expected))
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
        if not hasattr(kind, "model_fields"):  # e.g. a union of sections; its names are checked later
            return True
    return last in kind.model_fields or kind.model_config.get("extra") == "allow"


def _unknown_option(option: str, names: Sequence[str], task: type[RunTask]) -> ArgumentError:
    """Return the error for an option that a task does not have; its hint lists the task's data options."""
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
            raise ArgumentError(message("regard train", problem, expected=f"only one of {', '.join(both)}"))


def check_no_files(files: Sequence[str] | None) -> None:
    """Raise ArgumentError if files are named without an option, such as --source, that says what they are."""
    if not files:
        return
    named = {".tsv": "--tsv", ".jsonl": "--jsonl"}.get(Path(files[0]).suffix)
    hint = f"{named} {files[0]}" if named else "--source FILE --target FILE, or --tsv FILE"
    if len(files) == 2 and not named:
        hint = f"--source {files[0]} --target {files[1]}"
    raise ArgumentError(message(f"regard train {files[0]}", "files are named by options", hint=hint))


def _option(name: str, metavar: str, text: str, panel: str = DATA, **more: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)


Source = Annotated[Files, pair_option("--source", DATA)]
Target = Annotated[Files, pair_option("--target", DATA)]
Tsv = Annotated[Files, train_option("--tsv", DATA)]
Jsonl = Annotated[Files, train_option("--jsonl", DATA)]
Columns = Annotated[str | None, train_option("--columns", DATA, show_default="1,2")]
Fields = Annotated[str | None, train_option("--fields", DATA, show_default=FIELDS_DEFAULT)]
BuiltIn = Annotated[
    str | None,
    _option("--built-in", "NAME", "Train on a built-in corpus (korean, or shapes for captioning)."),
]
Images = Annotated[
    Path | None,
    _option("--images", "FOLDER", "Captioning: folder of images.", show_default="that of --train-file"),
]
TrainFile = Annotated[Files, train_option("--train-file", DATA)]
ValidFile = Annotated[
    Files,
    _option(
        "--valid-file",
        "FILE",
        "File of the validation set, in the format of --train-file. May be repeated.",
        show_default=HELD_OUT_TEXT,
    ),
]
ValidSource = Annotated[
    Files,
    _option("--valid-source", "FILE", "Like --source, for the validation set.", show_default=HELD_OUT),
]
ValidTarget = Annotated[Files, _option("--valid-target", "FILE", "Like --target, for the validation set.")]
ValidTsv = Annotated[Files, _option("--valid-tsv", "FILE", "Like --tsv, for the validation set.")]
ValidJsonl = Annotated[Files, _option("--valid-jsonl", "FILE", "Like --jsonl, for the validation set.")]
GoldAlignments = Annotated[
    Files,
    _option(
        "--gold-alignments",
        "FILE",
        "File with word alignments of the training pairs, for --guided. Line N has the links of pair N: 0-2 "
        "links source word 0 to target word 2. May be repeated.",
    ),
]
Tokenizer = Annotated[
    str | None,
    _option(
        "--tokenizer",
        "NAME",
        "Tokenizer: unigram, bpe, word, closed-word (language models) or character.",
        show_default=CHOSEN,
    ),
]
VocabSize = Annotated[
    int | None,
    _option(
        "--vocab-size",
        "INT",
        "Vocabulary size; for translation, of the source and of the target.",
        show_default=CHOSEN,
        min=5,
    ),
]
TaskName = Annotated[
    str | None,
    _option(
        "--task",
        "NAME",
        "Task: translation, language, classification, captioning, or package.module:Class for a task of your "
        "own.",
        RUN,
        callback=bounds.none_if_default,
    ),
]
ModelName = Annotated[
    str | None,
    _option(
        "--model",
        "NAME",
        "Model. Translation: seq2seq, bahdanau, luong, lstmn or transformer. Language models "
        "and classification: lstm, gru, lstmn or transformer. Captioning: captioner.",
        MODEL,
        show_default=MODEL_DEFAULT,
        callback=bounds.none_if_default,
    ),
]
Width = Annotated[
    int | None,
    _option("--width", "INT", "Width of the model (hidden size).", MODEL, show_default=CHOSEN, min=1),
]
Dropout = Annotated[
    float | None,
    _option(
        "--dropout", "FLOAT", "Dropout probability.", MODEL, show_default=CHOSEN, callback=bounds.dropout
    ),
]
AttentionScore = Annotated[
    str | None,
    _option(
        "--score",
        "NAME",
        "Score function of the attention: dot, scaled_dot, general, additive, concat, cosine or location.",
        MODEL,
        show_default=OF_MODEL,
    ),
]
Selection = Annotated[
    str | None,
    _option(
        "--select",
        "NAME",
        "Selection of the attention: softmax, sparsemax, entmax, gate, straight-through, or hard (with "
        "--estimator); for captioning also none.",
        MODEL,
        show_default="softmax",
    ),
]
PositionScheme = Annotated[
    str | None,
    _option(
        "--position",
        "NAME",
        "Position scheme of a Transformer: sinusoidal, learned, noise, rotary, relative, t5, alibi or none.",
        MODEL,
        show_default=OF_MODEL,
    ),
]
Minutes = Annotated[
    float | None,
    _option(
        "--minutes",
        "FLOAT",
        "Train for this many minutes; the learning rate decays to zero at the end.",
        TRAINING,
        callback=bounds.finite,
    ),
]
Steps = Annotated[int | None, _option("--steps", "INT", "Train for this many steps.", TRAINING)]
Epochs = Annotated[
    float | None,
    _option(
        "--epochs",
        "FLOAT",
        "Train for this many epochs.",
        TRAINING,
        show_default=CHOSEN,
        callback=bounds.finite,
    ),
]
Patience = Annotated[
    int | None,
    _option(
        "--patience", "INT", "Stop after this many evaluations in a row without a new best score.", TRAINING
    ),
]
BatchTokens = Annotated[
    int | None,
    _option(
        "--batch-tokens", "INT", "Batch size in tokens, including padding.", TRAINING, show_default=CHOSEN
    ),
]
BatchSize = Annotated[
    int | None,
    _option("--batch-size", "INT", "Batch size in pairs or texts, instead of --batch-tokens.", TRAINING),
]
LearningRate = Annotated[
    float | None,
    _option(
        "--learning-rate",
        "FLOAT",
        "Peak learning rate: the highest of the schedule.",
        TRAINING,
        show_default=CHOSEN,
        callback=bounds.finite,
    ),
]
LabelSmoothing = Annotated[
    float | None,
    _option(
        "--label-smoothing",
        "FLOAT",
        "Label smoothing (0 disables it).",
        TRAINING,
        callback=bounds.finite_unless_default,
    ),
]
Guided = Annotated[
    float | None,
    _option(
        "--guided",
        "FLOAT",
        "Weight of the guided-alignment loss, which trains the attention on --gold-alignments (0 disables "
        "it).",
        TRAINING,
        callback=bounds.finite_unless_default,
    ),
]
EstimatorName = Annotated[
    str | None,
    _option(
        "--estimator",
        "NAME",
        "Gradient estimator for --select hard: reinforce. To set its number of samples: --set "
        "training.estimator.samples=2.",
        TRAINING,
    ),
]
Precision = Annotated[
    str | None,
    _option(
        "--precision",
        "NAME",
        "Precision: float32, tf32, bfloat16 or auto (bfloat16 on GPUs that support it).",
        TRAINING,
        callback=bounds.none_if_default,
    ),
]
Seed = Annotated[
    int | None, _option("--seed", "INT", "Random seed.", TRAINING, callback=bounds.none_if_default)
]
Seeds = Annotated[
    str | None,
    _option(
        "--seeds",
        "N",
        "Train N seeds together (0 to N - 1), or the seeds of a list such as 1,2,3; each is an ordinary run "
        "in the folder seed-0, seed-1 ... of --output.",
        TRAINING,
    ),
]
Output = Annotated[Path, _option("--output", "RUN", "Run folder to write.", RUN)]
Recipe = Annotated[
    Path | None,
    _option("--recipe", "FILE", "TOML file of settings (a recipe). Options override its settings.", RUN),
]
Assignments = Annotated[
    list[str] | None,
    _option(
        "--set",
        "NAME=VALUE",
        "Change one setting, e.g. training.ema=0.999. May be repeated. --dry-run lists all settings.",
        RUN,
    ),
]
Device = Annotated[
    str, _option("--device", "NAME", "Device: cpu, cuda (or gpu), mps, or auto (the fastest available).", RUN)
]
Threads = Annotated[
    int | None,
    _option(
        "--threads",
        "INT",
        "Number of CPU threads.",
        RUN,
        min=1,
        max=bounds.THREADS,
        callback=bounds.threads,
        show_default="the fastest on this machine, measured before training",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --output.", rich_help_panel=RUN)]
Change = Annotated[
    bool,
    typer.Option("--change", help="With --resume: accept changed settings or data.", rich_help_panel=RUN),
]
InitFrom = Annotated[
    Path | None,
    _option("--init-from", "RUN", "Start from the weights and tokenizers of this run folder.", RUN),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the data report, the settings and the estimated time, and exit.",
        rich_help_panel=RUN,
    ),
]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="FILE", hidden=True)]
"""Positional arguments, which regard train does not accept: check_no_files() raises an error for them."""
