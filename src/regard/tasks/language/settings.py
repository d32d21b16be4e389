"""The settings of a language model run: data, model, training and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from regard.runs.run_settings import ModelSettings, RunSettings
from regard.tasks.file_options import TOKENS, TRAIN_FILE, VALID_FILE, VOCAB_SIZE
from regard.training.settings import Clash, Part, Section, Training, Whole

Length = Annotated[int, Field(ge=1, le=1_000_000)]


class TextData(Section):
    """The settings [data] of a language model run: text files, and how they are tokenized and batched.

    train_file: the files of the training text, plain or gzip.
    valid_file: the files of the validation text.
    encoding: the encoding of the text files, such as "cp949". Default: UTF-8.
    held_out: number of lines at the end of the training text that are used for validation instead. Only
        without valid_file.
    layout: "documents": each line is a separate text. "continuous": the lines are one continuous text.
    window: number of tokens of a continuous text that the model reads at once.
    streams: number of parts into which a continuous text is divided for a recurrent model. The parts are read
        in parallel. In each part, the model keeps its state from one window to the next.
    lowercase: whether to convert the text to lower case.
    tokenizer: "unigram", "bpe", "word", "character" or "closed-word". "closed-word" is for a text in which
        rare words are already replaced by <unk>, as in Penn Treebank: its vocabulary has all words of the
        training text.
    vocab_size: maximum number of tokens of the tokenizer. The default depends on the kind of tokenizer.
    max_length: maximum number of tokens of a document. Longer training documents are dropped.
    """

    train_file: Annotated[list[str], TRAIN_FILE]
    valid_file: Annotated[list[str] | None, VALID_FILE] = None
    encoding: str | None = None
    held_out: Whole | None = None
    layout: Literal["documents", "continuous"] = "continuous"
    window: Length | None = None
    streams: Length | None = None
    tokenizer: Literal["unigram", "bpe", "word", "closed-word", "character"] | None = None
    vocab_size: Annotated[Length | None, VOCAB_SIZE] = None
    lowercase: bool = False
    max_length: Length = 1024

    @model_validator(mode="after")
    def _consistent(self) -> TextData:
        if not self.train_file:
            raise Clash("train_file is empty", "at least one text file (--train-file FILE)")
        if self.valid_file and self.held_out:
            raise Clash("valid_file and held_out are both set", "one of them")
        if self.layout == "documents" and (self.window or self.streams):
            name = "window" if self.window else "streams"
            raise Clash(f'{name} is set, but layout is "documents"', 'layout = "continuous"')
        return self


class LanguageModelSettings(ModelSettings):
    """The settings [model] of a language model run: `name`, and arguments of build_language_model()."""

    name: str = "lstm"


class LanguageTraining(Training):
    """The settings [training] of a language model run. For the settings that all tasks have, see Training.

    best: the metric that selects the best checkpoint.
    label_smoothing: weight of the uniform distribution in the target distribution of the loss.
    """

    best: Literal["loss", "perplexity", "word_perplexity", "bits_per_character"] = "perplexity"
    label_smoothing: Part = 0.0


class TextEvaluation(Section):
    """The settings [evaluation] of a language model run: how the model is evaluated during training.

    window: number of tokens that are read at once. Default: data.window, or data.max_length for documents.
    stride: number of tokens from the start of a window to the start of the next window. Default: half a
        window. A recurrent model has no stride for continuous text: it reads the text once from beginning to
        end, and keeps its state.
    samples: number of continuations to print at each evaluation. The model continues the beginnings of
        validation lines.
    """

    window: Length | None = None
    stride: Length | None = None
    samples: Annotated[int, Field(ge=0, le=100)] = 1


class LanguageSettings(RunSettings):
    """All settings of a language model run, as in config.toml.

    carried: whether the model starts each batch from its state after the previous batch.
    first_token: the id of the token before the first token of a line. 3 is EOS.

    >>> settings = LanguageSettings(data=TextData(train_file=["a.txt"]))
    >>> settings.model.name, settings.carried, settings.first_token
    ('lstm', True, 3)
    """

    fixed = ("task", "model", *TOKENS, "data.layout", "data.streams")
    for_outputs = ("task", "model", "data.lowercase", "data.layout")
    always_shown = ("layout",)
    no_data_hint = "--train-file a.txt"
    next_command = 'regard generate {run} --prompt "..."'

    task: Literal["language"] = "language"
    data: TextData
    model: LanguageModelSettings = Field(default_factory=LanguageModelSettings)
    training: LanguageTraining = Field(default_factory=LanguageTraining)
    evaluation: TextEvaluation = Field(default_factory=TextEvaluation)

    @classmethod
    def fixed_data(cls) -> tuple[str, ...]:
        return tuple(name.removeprefix("data.") for name in TOKENS)

    @property
    def carried(self) -> bool:
        """Whether the model starts each batch from its state after the previous batch.

        This is True if the model is recurrent and data.layout is "continuous".
        """
        return self.data.layout == "continuous" and is_recurrent(self.model.name)

    @property
    def first_token(self) -> int:
        """The id of the token before the first token of a line; the model predicts the first token from it.

        If each line is a document, it is BOS. In a continuous text, it is EOS, the last token of the line
        before.
        """
        from regard.data.batch import BOS, EOS

        return BOS if self.data.layout == "documents" else EOS


def is_recurrent(model: object) -> bool:
    """Return whether a language model is recurrent. The result for an unknown name is False.

    model: the name of the model, for example "lstm".
    """
    from regard.named_models.language_models import LANGUAGE_MODELS

    kind = LANGUAGE_MODELS.get(model) if isinstance(model, str) else None
    return kind is not None and kind.recurrent
