"""The settings of a run that answers questions about stories: data, model, training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from regard.runs.run_settings import ModelSettings, RunSettings
from regard.tasks.file_options import train_files
from regard.training.settings import Clash, Section, Training, Weight, Whole


class AnsweringData(Section):
    """The files of stories and questions.

    train_file: files of the training set. With several files, one model learns all of them (joint training).
        Each file is a task, and the error rate is reported for each task.
    valid_file: files of the validation set. Without valid_file, stories of the training set are held out.
    held_out: about how many questions of each task to hold out. Default: a tenth.
    format: babi or jsonl. By default, the format follows from the file names.
    encoding: the encoding of the text files, such as "cp949". Default: UTF-8.
    max_sentences: maximum number of sentences of a story. If a story is longer, only its last sentences are
        used.
    """

    train_file: Annotated[list[str], Field(min_length=1)]
    valid_file: list[str] | None = None
    encoding: str | None = None
    held_out: Whole | None = None
    format: Literal["babi", "jsonl"] | None = None
    max_sentences: Annotated[int, Field(ge=1, le=10_000)] = 50

    @model_validator(mode="after")
    def _one_validation_set(self) -> AnsweringData:
        if self.valid_file and self.held_out is not None:
            raise Clash("valid_file and held_out are both set", "one of valid_file, held_out")
        return self


class AnsweringModel(ModelSettings):
    """The section [model] of the settings: `name`, and further arguments of build_memory_network()."""

    name: str = "end-to-end"


class AnsweringTraining(Training):
    """The training settings of a memory network. For the settings that all tasks have, see Training.

    Some settings have other defaults than in Training.

    best: the metric that selects the best checkpoint.
    linear_start: number of epochs without softmax in the attention, at the start of training (0 disables it).
        Only the end-to-end network has a linear start. Evaluations always use the softmax, so their scores
        are poor during these epochs.
    """

    batch_tokens: None = None
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = 32
    weight_decay: Weight = 0.0
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "float32"
    best: Literal["loss", "error", "accuracy"] = "error"
    linear_start: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class AnsweringEvaluation(Section):
    """How a memory network is evaluated during training.

    samples: number of validation questions that are printed with their answers and the attention of each hop.
    """

    samples: Annotated[int, Field(ge=0, le=100_000)] = 1


class AnsweringSettings(RunSettings):
    """All settings of a run that answers questions, with the sections and names of config.toml.

    >>> settings = AnsweringSettings(data=AnsweringData(train_file=["qa1_train.txt"]))
    >>> settings.model.name, settings.training.best, settings.data.max_sentences
    ('end-to-end', 'error', 50)
    """

    fixed = ("task", "model", "data.max_sentences")
    for_outputs = ("task", "model", "data.max_sentences")
    no_data_hint = "--train-file qa1_single-supporting-fact_train.txt, a file of stories and questions"
    next_command = 'regard ask {run} --story FILE --question "..."'

    task: Literal["answering"] = "answering"
    data: AnsweringData
    model: AnsweringModel = Field(default_factory=AnsweringModel)
    training: AnsweringTraining = Field(default_factory=AnsweringTraining)
    evaluation: AnsweringEvaluation = Field(default_factory=AnsweringEvaluation)

    @classmethod
    def data_options(cls, options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        names = "jsonl", "valid_jsonl"
        return names, train_files({name: options.get(name) for name in ("train_file", "valid_file", *names)})
