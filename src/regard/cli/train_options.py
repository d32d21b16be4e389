"""The options of `regard train`; train_settings.py turns their values into settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.pair_file_options import ENCODING, Files, pair_option, train_option

DATA, MODEL, TRAINING, RUN = "Data", "Model", "Training", "Run"
CHOSEN, HELD_OUT = "chosen automatically", "held out from the training pairs"
OF_MODEL = "the default of the model"
HELD_OUT_TEXT = "held out from --train-file"
FIELDS_DEFAULT = "source,target; for classification, label,text"
MODEL_DEFAULT = (
    "bahdanau; for language models and classification, lstm; for captioning, captioner"
    "; for answering, end-to-end; for algorithms, ntm"
)


def _option(name: str, metavar: str, text: str, panel: str = DATA, **more: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **more)


Source = Annotated[Files, pair_option("--source", DATA)]
Target = Annotated[Files, pair_option("--target", DATA)]
Tsv = Annotated[Files, train_option("--tsv", DATA)]
Jsonl = Annotated[Files, train_option("--jsonl", DATA)]
Columns = Annotated[str | None, train_option("--columns", DATA, show_default="1,2")]
Fields = Annotated[str | None, train_option("--fields", DATA, show_default=FIELDS_DEFAULT)]
TextEncoding = Annotated[str | None, _option("--encoding", "NAME", ENCODING, show_default="utf-8")]
BuiltIn = Annotated[
    str | None,
    _option(
        "--built-in",
        "NAME",
        "Train on a built-in corpus. Translation: korean. Captioning: shapes. Algorithms: copy, repeat-copy, "
        "associative-recall, n-grams, priority-sort or overwrite.",
    ),
]
Images = Annotated[
    Path | None,
    _option(
        "--images",
        "FOLDER",
        "Captioning: folder of the images that the caption files name.",
        show_default="folder of --train-file",
    ),
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
        "links source word 0 to target word 2 (morphemes if the setting data.alignment_unit is morpheme). "
        "May be repeated.",
    ),
]
Tokenizer = Annotated[
    str | None,
    _option(
        "--tokenizer",
        "NAME",
        "Tokenizer: unigram, bpe, word, closed-word (language models), character, or morpheme (Korean, "
        "translation).",
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
        "Task: translation, language, classification, captioning, answering, algorithms, or "
        "package.module:Class for a "
        "task of your own.",
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
        "and classification: lstm, gru, lstmn or transformer. Captioning: captioner. Answering: end-to-end "
        "or supervised. Algorithms: ntm, lstm or gru.",
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
        "Selection of the attention: softmax, sparsemax, entmax, gate, linear, straight-through, or hard "
        "(with --estimator); for captioning also none.",
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
        "--patience",
        "INT",
        "Stop after this many evaluations in a row without a better validation score.",
        TRAINING,
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
    _option(
        "--batch-size",
        "INT",
        "Batch size in sentence pairs, texts, captions, questions or windows of text, instead of "
        "--batch-tokens.",
        TRAINING,
    ),
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
        show_default="0.1 for translation, 0 for other tasks",
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
        "training.estimator.samples=4.",
        TRAINING,
    ),
]
Precision = Annotated[
    str | None,
    _option(
        "--precision",
        "NAME",
        "Precision: float32, tf32, bfloat16 or auto (on GPUs that support bfloat16: tf32 for luong and "
        "lstmn, bfloat16 for other models; elsewhere: float32).",
        TRAINING,
        show_default="auto; float32 for answering and algorithms",
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
        "Train N seeds together (0 to N - 1), or the seeds of a list such as 1,2,3. Each seed is an ordinary "
        "run in the folder seed-0, seed-1, ... of --output. Cannot be combined with --minutes.",
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
        "Change one setting, e.g. training.ema=0.999. May be repeated. --dry-run prints all settings, except "
        "model options with their default value.",
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
TensorBoard = Annotated[
    bool | None,
    typer.Option(
        "--tensorboard/--no-tensorboard",
        help="Also write losses and scores for TensorBoard; to see them: tensorboard --logdir RUN.",
        show_default="--no-tensorboard",
        rich_help_panel="Logs",
    ),
]
LoggerName = Annotated[
    list[str] | None,
    _option(
        "--logger",
        "MODULE:FUNCTION",
        "Call this function of yours for every event of the run, for example to log to Weights & Biases. May "
        "be repeated.",
        "Logs",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the data report, the settings and the estimated time, and exit.",
        rich_help_panel=RUN,
    ),
]
