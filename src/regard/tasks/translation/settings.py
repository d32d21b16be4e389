"""The settings of a translation run: the data, the model, the training, and how it is judged."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from regard.training.settings import Section, Training, Whole

__all__ = ["Data", "Evaluating", "ModelSettings", "TranslationSettings"]


class Data(Section):
    """Where the pairs are, and how they become tokens.

    source, target: parallel files; or tsv, or jsonl, with columns or fields; or built_in = "korean", with so
    many pairs. valid_...: pairs to judge by; without them, held_out pairs are kept apart. alignments: of the
    training pairs, in Pharaoh format. odd: what is done with odd pairs, the fields of regard.data.Choices.
    tokenizer: unigram, bpe, word or character; sizes as many as there should be tokens; joint is one
    vocabulary for both sides; sampling draws subwords anew each time. longest: tokens of a side; longer pairs
    are skipped, and counted.
    """

    source: list[str] | None = None
    target: list[str] | None = None
    tsv: list[str] | None = None
    jsonl: list[str] | None = None
    columns: list[int] | list[str] | None = None
    fields: list[str] | None = None
    built_in: Literal["korean"] | None = None
    pairs: Whole = 20_000
    valid_source: list[str] | None = None
    valid_target: list[str] | None = None
    valid_tsv: list[str] | None = None
    valid_jsonl: list[str] | None = None
    held_out: Whole | None = None
    alignments: list[str] | None = None
    odd: dict[str, Any] = Field(default_factory=dict)
    lowercase: bool = False
    tokenizer: Literal["unigram", "bpe", "word", "character"] | None = None
    source_size: Whole | None = None
    target_size: Whole | None = None
    joint: bool = False
    sampling: Annotated[float, Field(ge=0)] = 0.0
    longest: Whole = 256

    @model_validator(mode="after")
    def _one_way(self) -> Data:
        ways = (self.source is not None or self.target is not None, self.tsv, self.jsonl, self.built_in)
        if sum(map(bool, ways)) != 1 or (self.source is None) != (self.target is None):
            raise ValueError("one of: source and target, tsv, jsonl, built_in")
        if (self.valid_source is None) != (self.valid_target is None):
            raise ValueError("valid_source and valid_target together")
        if self.joint and self.source_size != self.target_size:
            raise ValueError("one size for both where joint is true")
        return self


class ModelSettings(Section):
    """Which model, by its name, and its options, as build_model() takes them."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = "bahdanau"

    @property
    def options(self) -> dict[str, Any]:
        """What build_model() is given besides the name."""
        return dict(self.model_extra or {})


class Evaluating(Section):
    """How a model is judged while it is trained, and how it translates after that.

    sentences: how many are translated for BLEU and chrF. beam: how many hypotheses meanwhile; 1 is greedy.
    samples: how many translations are shown. tokenize, lowercase: of BLEU.
    """

    sentences: Whole = 500
    samples: Annotated[int, Field(ge=0)] = 3
    beam: Whole = 1
    tokenize: str = "13a"
    lowercase: bool = False


class TranslationSettings(Section):
    """All that a translation run is made with: config.toml.

    init_from: the folder of the run whose weights it starts with.

    >>> settings = TranslationSettings(data=Data(built_in="korean"))
    >>> settings.model.name, settings.training.tokens
    ('bahdanau', 4096)
    """

    task: Literal["translation"] = "translation"
    seed: Annotated[int, Field(ge=0)] = 0
    init_from: str | None = None
    data: Data
    model: ModelSettings = Field(default_factory=ModelSettings)
    training: Training = Field(default_factory=Training)
    evaluation: Evaluating = Field(default_factory=Evaluating)
