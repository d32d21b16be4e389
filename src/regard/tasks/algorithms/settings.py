"""The settings of an algorithms run: the algorithmic task, the model, and the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from regard.errors import RegardError
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.training.settings import Clash, Section, Training

if TYPE_CHECKING:
    from regard.data.tape_tasks import TapeTask

Bits = Annotated[int, Field(ge=1, le=1000)]
Size = Annotated[int, Field(ge=1, le=10_000)]
Range = Annotated[list[Size], Field(min_length=2, max_length=2)]
RangeFromZero = Annotated[list[Annotated[int, Field(ge=0, le=10_000)]], Field(min_length=2, max_length=2)]


class AlgorithmsData(Section):
    """The algorithmic task, and the sizes of its sequences. Every batch is generated; no files are read.

    built_in: copy, repeat-copy, associative-recall, n-grams, priority-sort or overwrite.
    length: smallest and largest length of a sequence in training, such as [1, 20]. The length is the number
        of vectors. For some tasks, it is another number: items for associative-recall, bits for n-grams, keys
        for overwrite.
    repeats: smallest and largest number of repeats in training. Only for repeat-copy.
    changes: smallest and largest number of new values that are written for random keys. The default is one
        new value for half of the keys. Only for overwrite.
    width: number of bits of a vector.
    vectors: number of vectors of an item. Only for associative-recall.
    order: n of the n-grams: each bit depends on the n - 1 bits before it. Only for n-grams.
    epoch_batches: number of batches in an epoch. Sequences are generated, so this number can be chosen
        freely.
    """

    built_in: Literal[
        "copy", "repeat-copy", "associative-recall", "n-grams", "priority-sort", "overwrite"
    ] = "copy"
    length: Range | None = None
    repeats: Range | None = None
    changes: RangeFromZero | None = None
    width: Bits | None = None
    vectors: Annotated[int, Field(ge=1, le=100)] | None = None
    order: Annotated[int, Field(ge=2, le=12)] | None = None
    epoch_batches: Annotated[int, Field(ge=1, le=1_000_000)] = 1000

    @model_validator(mode="after")
    def _possible(self) -> AlgorithmsData:
        try:
            self.task()
        except RegardError as error:
            text = getattr(error, "message", None)
            problem = str(getattr(text, "problem", "") or error).splitlines()[0]
            raise Clash(problem, str(getattr(text, "expected", "")) or "an option of the task") from None
        return self

    def task(self) -> TapeTask:
        """Return the task that generates the sequences, with the options of this section."""
        from regard.data.tape_tasks import build_tape_task

        options: dict[str, Any] = {
            "length": self.length,
            "repeats": self.repeats,
            "changes": self.changes,
            "width": self.width,
            "vectors": self.vectors,
            "order": self.order,
        }
        return build_tape_task(self.built_in, **options)


class AlgorithmsModel(ModelSettings):
    """The section [model] of the settings: `name`, and further arguments of build_sequence_model()."""

    name: str = "ntm"


class AlgorithmsTraining(Training):
    """The training settings of an algorithms run. For the settings that all tasks have, see Training.

    Some settings have other defaults than in Training.

    best: the metric that selects the best checkpoint.
    precision: the default is float32, because half precision would round small attention weights of a head to
        0.
    """

    batch_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = 16
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    max_grad_norm: Annotated[float, Field(ge=0)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0, le=2**63 - 1)] = 100
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 1e-3
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "float32"
    best: Literal["loss", "bits", "bits_longest", "bits_longer", "wrong_bits"] = "bits"


class AlgorithmsEvaluation(Section):
    """How a model is evaluated during training.

    sequences: number of validation sequences of each kind. There are three kinds: sequences with random
        training sizes, with the largest training sizes, and with larger sizes.
    """

    sequences: Annotated[int, Field(ge=1, le=100_000)] = 64


class AlgorithmsSettings(RunSettings):
    """All settings of an algorithms run, with the sections and names of config.toml.

    >>> settings = AlgorithmsSettings()
    >>> settings.data.task().longest, settings.model.name, settings.training.best
    ({'length': 20}, 'ntm', 'bits')
    """

    fixed = ("task", "model", "data")
    for_outputs = ("task", "model", "data")
    always_shown = ("built_in",)
    no_data_hint = "--built-in copy, or another task"
    next_command = "regard solve {run} --draw"

    task: Literal["algorithms"] = "algorithms"
    data: AlgorithmsData = Field(default_factory=AlgorithmsData)
    model: AlgorithmsModel = Field(default_factory=AlgorithmsModel)
    training: AlgorithmsTraining = Field(default_factory=AlgorithmsTraining)
    evaluation: AlgorithmsEvaluation = Field(default_factory=AlgorithmsEvaluation)
