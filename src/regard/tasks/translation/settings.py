"""The settings of a translation run: data, model, training and evaluation; and what quality to expect of it.

The quality is expected before training from the pairs, after it from the scores. All numbers were measured
with benchmarks/data_sizes.py: benchmarks/results/2026-11-19-data-sizes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from regard.data.column_names import two_columns, two_names
from regard.errors import ArgumentError, message
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.tasks.file_options import ENCODING, SOURCE, TARGET, VOCAB_SIZE
from regard.training.command_options import CHOSEN, CommandOption
from regard.training.settings import Clash, Part, Section, Training, Weight, Whole

MEASURED = {1_000: (1, 8), 3_000: (8, 17), 10_000: (12, 23)}
"""For each number of pairs: the test BLEU of Tatoeba (varied sentences) and of Multi30k (image captions)."""

FEW_PAIRS = 20_000
"""Maximum number of training pairs for which a note before training says what to expect of them.

With 20,000 pairs of Tatoeba, BLEU was 15 to 18 (benchmarks/results/2026-11-16-first-hour.md)."""

NARROW = 0.025
"""If the share of the words of the validation targets that are unseen in training is lower than this, the
language is narrow, and a model learns it from few pairs.

With 1,000 to 10,000 pairs, the share was 0.05 to 0.16 for Tatoeba and Multi30k. For the built-in corpus, it
was 0.012 with 1,000 pairs."""

POOR = {"mostly wrong": (0.0, 10.0, 30.0), "often wrong": (5.0, 20.0, 45.0)}
"""Statements about translations, each with the lowest BLEU, and the BLEU and the chrF below which it is made.

The samples in the result file show these translations. Both scores must be low: for languages without spaces
between words, BLEU is near 0 even for good translations, whose chrF is above 30."""

HELP = (
    "What helps: more pairs; --init-from with a run that was trained on more pairs of these languages; "
    "or a pretrained model, whose attention Regard can show (docs/huggingface.md)"
)

LONGER = "What helps: train longer, or check the data (regard data check)"


def unseen_share(train: Iterable[Any], valid: Iterable[Any]) -> float:
    """Return the share of the words of the validation targets that do not occur in the training targets.

    Words are compared in lower case and without punctuation, and every occurrence counts.

    >>> from regard.data import pairs_from_lists
    >>> train = pairs_from_lists(["가", "나"], ["The cat sleeps.", "A dog!"])
    >>> unseen_share(train, pairs_from_lists(["다"], ["The dog, a bird"]))
    0.25
    """
    known = {word for pair in train for word in _words(pair.target)}
    words = [word for pair in valid for word in _words(pair.target)]
    return sum(word not in known for word in words) / max(len(words), 1)


def _words(line: str) -> list[str]:
    return re.findall(r"\w+", line.lower())


def note_few_pairs(split: Any, settings: Mapping[str, Any]) -> str:
    """Return a note for the log before training if the pairs are too few for their language, otherwise "".

    There is no note for narrow language, for targets such as dates and labels (the best checkpoint is then
    selected by exact match), and for runs that start from the weights of another run.

    split: the pairs, with the attributes train and valid.
    settings: nested as in config.toml.
    """
    pairs = len(split.train)
    if pairs > FEW_PAIRS or settings.get("init_from") is not None or settings["training"]["best"] == "exact":
        return ""
    unseen = unseen_share(split.train, split.valid)
    if unseen < NARROW:
        return ""
    near = min(MEASURED, key=lambda count: abs(count - pairs))
    rows = [(low, high, count) for count, (low, high) in MEASURED.items() if count >= near]
    expected = ", ".join(f"{low} to {high} with {count:,} pairs" for low, high, count in rows)
    return (
        f"few pairs for ordinary language: {pairs:,} to train on, and {unseen:.1%} of the words of the "
        "validation targets do not occur in them. Expect poor translations: in tests from English to German, "
        f"BLEU was {expected}. {HELP}"
    )


def describe_quality(
    scores: Mapping[str, float], best: str, pairs: int | None = None, on: str = "validation set"
) -> str:
    """Return a sentence about a model with poor scores, otherwise "".

    scores: the scores of its checkpoint, such as {"bleu": 2.1, "chrf": 17.0}.
    best: the score that selects the best checkpoint. If it is exact match, BLEU does not suit the targets.
    pairs: number of training pairs, for advice. None: no advice.
    on: what the scores were measured on.

    >>> describe_quality({"bleu": 2.1, "chrf": 17.0}, "bleu")
    'BLEU 2.1, chrF 17.0 on the validation set: translations of this model are mostly wrong'
    >>> describe_quality({"bleu": 52.0, "chrf": 70.0}, "bleu")
    ''
    """
    if best == "exact" or not {"bleu", "chrf"} <= set(scores):
        return ""
    bleu, chrf = scores["bleu"], scores["chrf"]
    how = next((text for text, (low, high, most) in POOR.items() if low <= bleu < high and chrf < most), "")
    if not how:
        return ""
    text = f"BLEU {bleu:.1f}, chrF {chrf:.1f} on the {on}: translations of this model are {how}"
    if pairs is None:
        return text
    return f"{text}. {HELP if pairs <= FEW_PAIRS else LONGER}"


WAYS = {
    "source and target": ("source", "target"),
    "tsv": ("tsv",),
    "jsonl": ("jsonl",),
    "built_in": ("built_in",),
}
"""For each data format, the settings in [data] for its files."""

DEFAULT_PAIRS = 20_000
"""The default number of training pairs from the built-in corpus."""

ENGINE = CommandOption(
    "--engine",
    "What searches: regard, or ctranslate2, which is faster on a CPU for Transformers (extra ctranslate2). "
    "Options and results are the same.",
    "NAME",
    default="regard",
    panel="Checkpoint and device",
)
"""The option of the commands that translate."""

Vocabulary = Annotated[int, Field(ge=1, le=1_000_000)]


def ways_named(data: Mapping[str, Any]) -> list[str]:
    """Return the formats of the data files in the settings [data].

    >>> ways_named({"source": ["a.ko"], "tsv": ["b.tsv"]})
    ['source and target', 'tsv']
    """
    return [way for way, names in WAYS.items() if any(data.get(name) for name in names)]


class Data(Section):
    """The settings [data] of a translation run: files of sentence pairs, and how they are tokenized.

    The pairs are in parallel files (source, target), in TSV or CSV files (tsv, columns), in JSON or Parquet
    files (jsonl, fields), or in the built-in corpus (built_in = "korean").

    encoding: the encoding of the text files, such as "cp949". Default: UTF-8.
    pairs: number of training pairs of the built-in corpus (default: 20,000).
    grammar: version of the grammar of the built-in corpus. There is one, 2; the run folder records it.
    valid_source: like --source, for the validation set.
    valid_target: like --target, for the validation set.
    valid_tsv: like --tsv, for the validation set.
    valid_jsonl: like --jsonl, for the validation set.
    held_out: number of training pairs that are held out for validation if there are no validation files.
    alignments: file with word alignments of the training pairs, for --guided. Line N has the links of pair N:
        0-2 links source word 0 to target word 2 (morphemes if the setting data.alignment_unit is morpheme).
        May be repeated.
    alignment_unit: what the links in these files count: "word", "morpheme" or "character". With "morpheme", a
        side without morphemes counts words.
    problems: what to do with pairs that have problems, e.g. {"invalid": "replace"} (see regard.data.Choices).
    lowercase: whether to convert the text to lower case.
    tokenizer: "unigram", "bpe", "word", "character" or "morpheme" (Korean; the other side gets "unigram").
    source_vocab_size, target_vocab_size: maximum number of tokens of the source and of the target tokenizer.
    joint: whether source and target share one vocabulary.
    subword_sampling: strength of subword regularization (0 disables it).
    max_length: maximum number of tokens of each side. Longer pairs are dropped.
    """

    source: Annotated[list[str] | None, SOURCE] = None
    target: Annotated[list[str] | None, TARGET] = None
    tsv: Annotated[
        list[str] | None,
        CommandOption(
            "--tsv",
            "TSV or CSV file (see --columns). Translation: sentence pairs, instead of --source and --target. "
            "Classification: labelled texts. Captioning: images and captions. May be repeated.",
        ),
    ] = None
    jsonl: Annotated[
        list[str] | None,
        CommandOption(
            "--jsonl",
            "JSON lines, JSON or Parquet file (see --fields). Translation: sentence pairs, instead of "
            "--source and --target. Classification: labelled texts. Captioning: images and captions (JSON "
            "lines). Answering: stories and questions (JSON lines). May be repeated.",
        ),
    ] = None
    columns: Annotated[
        list[int] | list[str] | None,
        CommandOption(
            "--columns",
            "The columns of --tsv: numbers (the first column is 1) or names from the header line. "
            "Translation: source,target. Classification: label,text or, for pairs of texts, "
            "label,text,second. Captioning: image,caption (names).",
            "A,B",
            shown_default="1,2",
            parse=lambda text: [*two_columns(text)],
        ),
    ] = None
    fields: Annotated[
        list[str] | None,
        CommandOption(
            "--fields",
            "The fields of --jsonl: names, in the order of --columns. a.b is the field b inside the field a.",
            "A,B",
            shown_default="source,target; for classification, label,text",
            parse=lambda text: [*two_names("--fields", text)],
        ),
    ] = None
    encoding: Annotated[str | None, ENCODING] = None
    built_in: Annotated[
        Literal["korean"] | None,
        CommandOption(
            "--built-in",
            "Train on a built-in corpus. Translation: korean. Captioning: shapes. Algorithms: copy, "
            "repeat-copy, associative-recall, n-grams, priority-sort or overwrite.",
        ),
    ] = None
    pairs: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    grammar: Literal[2] | None = None
    valid_source: Annotated[
        list[str] | None, CommandOption("--valid-source", shown_default="held out from the training pairs")
    ] = None
    valid_target: Annotated[list[str] | None, CommandOption("--valid-target")] = None
    valid_tsv: Annotated[list[str] | None, CommandOption("--valid-tsv")] = None
    valid_jsonl: Annotated[list[str] | None, CommandOption("--valid-jsonl")] = None
    held_out: Whole | None = None
    alignments: Annotated[list[str] | None, CommandOption("--gold-alignments")] = None
    alignment_unit: Literal["word", "morpheme", "character"] = "word"
    problems: dict[str, Any] = Field(default_factory=dict)
    lowercase: bool = False
    tokenizer: Annotated[
        Literal["unigram", "bpe", "word", "character", "morpheme"] | None,
        CommandOption(
            "--tokenizer",
            "Tokenizer: unigram, bpe, word, closed-word (language models), character, or morpheme (Korean, "
            "translation).",
            shown_default=CHOSEN,
        ),
    ] = None
    source_vocab_size: Annotated[Vocabulary | None, VOCAB_SIZE] = None
    target_vocab_size: Annotated[Vocabulary | None, VOCAB_SIZE] = None
    joint: bool = False
    subword_sampling: Weight = 0.0
    max_length: Whole = 256

    @model_validator(mode="after")
    def _one_way(self) -> Data:
        formats, expected = ways_named(dict(self)), f"one of: {', '.join(WAYS)}"
        if not formats:
            raise Clash("no data are given", expected)
        if len(formats) > 1:
            raise Clash(f"the data are given in {len(formats)} formats: {', and '.join(formats)}", expected)
        for prefix in ("", "valid_"):
            sides = [f"{prefix}source", f"{prefix}target"]
            missing = [side for side in sides if not getattr(self, side)]
            if len(missing) == 1:
                problem = f"{missing[0]} is missing (--{missing[0].replace('_', '-')} FILE)"
                raise Clash(problem, " and ".join(sides))
        if self.joint and self.source_vocab_size != self.target_vocab_size:
            raise ValueError("equal values of source_vocab_size and target_vocab_size, because joint is true")
        return self


class TranslationModel(ModelSettings):
    """The settings [model] of a translation run: `name`, and further arguments of build_model()."""

    name: str = "bahdanau"


class TranslationTraining(Training):
    """The settings [training] of a translation run. For the settings that all tasks have, see Training.

    best: the metric that selects the best checkpoint.
    label_smoothing: label smoothing (0 disables it).
    word_dropout: probability of replacing a source or target input token by <unk>.
    guided_alignment: weight of the guided-alignment loss, which trains the attention on --gold-alignments or,
        without this option, on alignments learned from the training pairs (0 disables it).
    r_drop: weight of the R-Drop loss (0 disables it). Each step computes two forward passes of the batch with
        different dropout masks, and the model is trained to give similar output distributions in both.
    """

    best: Literal["loss", "perplexity", "bleu", "chrf", "exact"] = "bleu"
    label_smoothing: Annotated[Part, CommandOption("--label-smoothing")] = 0.1
    word_dropout: Part = 0.0
    guided_alignment: Annotated[Weight, CommandOption("--guided")] = 0.0
    r_drop: Weight = 0.0

    @model_validator(mode="after")
    def _r_drop_alone(self) -> TranslationTraining:
        other = "guided_alignment" if self.guided_alignment else "estimator" if self.estimator else ""
        if self.r_drop and other:
            raise Clash(f"r_drop and {other} are both set", f"r_drop = 0, or no {other}")
        return self


class Evaluating(Section):
    """The settings [evaluation] of a translation run: how the model is evaluated during training.

    sentences: maximum number of validation sentences to translate for BLEU, chrF and exact match.
    samples: number of translations to print. Short translations come first.
    beam_size: beam size of the search for the translations. 1 is greedy search.
    tokenize: the name of the tokenizer that sacreBLEU uses for BLEU.
    lowercase: whether to lowercase the text before it is scored.
    """

    sentences: Whole = 500
    samples: Annotated[int, Field(ge=0, le=100_000)] = 3
    beam_size: Annotated[int, Field(ge=1, le=5000)] = 1
    tokenize: str = "13a"
    lowercase: bool = False


TOKENS = ("lowercase", "tokenizer", "joint", "source_vocab_size", "target_vocab_size")
"""The data settings that define the vocabularies of the tokenizers. The weights of a model fit only one
vocabulary. So these settings must stay the same when a run is resumed, or when a model starts from the
weights of another run."""


class TranslationSettings(RunSettings):
    """All settings of a translation run, as in config.toml.

    >>> settings = TranslationSettings(data=Data(built_in="korean"))
    >>> settings.model.name, settings.training.batch_tokens
    ('bahdanau', 4096)
    """

    fixed = ("task", "model", *(f"data.{name}" for name in TOKENS))
    for_outputs = (
        "task",
        "model",
        "data.lowercase",
        "data.built_in",
        "data.grammar",
        "training.guided_alignment",
        "evaluation.tokenize",
        "evaluation.lowercase",
    )
    paths = (
        "source",
        "target",
        "tsv",
        "jsonl",
        "valid_source",
        "valid_target",
        "valid_tsv",
        "valid_jsonl",
        "alignments",
    )
    no_data_hint = "--source a.ko --target a.en, --tsv, --jsonl, or --built-in korean"
    next_command = 'regard translate {run} --text "..." --draw'

    task: Literal["translation"] = "translation"
    data: Data
    model: TranslationModel = Field(default_factory=TranslationModel)
    training: TranslationTraining = Field(default_factory=TranslationTraining)
    evaluation: Evaluating = Field(default_factory=Evaluating)

    @classmethod
    def check_resumed(cls, folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Raise ArgumentError if a run is resumed with data in another format than at its start.

        Without this check, the merged settings would contain data in both formats, for example source, target
        and tsv.
        """
        old, new = ways_named(before.get("data", {})), ways_named(settings["data"])
        if new and new != old:
            problem = f"the run was started with {' and '.join(old)}, not with {' and '.join(new)}"
            hint = "to continue the run, leave out the data options; for a new run, choose another --output"
            raise ArgumentError(message(f"{folder} cannot be resumed", problem, hint=hint))

    def describe_quality(self, scores: Mapping[str, float], corpus: Any = None) -> str:
        return describe_quality(scores, self.training.best, None if corpus is None else len(corpus.train))
