"""RunTask: a task that can be trained in a run folder, resumed, loaded and shown.

To add a task, write a subclass of RunTask. Declare its settings and files, and implement read_data(),
encode_data(), build_model(), load(), and the methods of regard.training.Task. The code in runs/ does not
depend on any task.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import ArgumentError, UnknownName, message, naming_place
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.training.checkpoints.checkpoints import Checkpoint
from regard.training.command_options import CommandOption
from regard.training.settings import misplaced
from regard.training.task import Task

if TYPE_CHECKING:
    from regard.runs.run_commands import Changeable, ChosenRun, RunReport, RunView, ViewOptions
    from regard.training.distributed import Processes


@dataclass(frozen=True)
class Plan:
    """The complete settings of a run: the settings of the user, and the settings that the task has chosen.

    settings: nested dicts, like the sections of config.toml.
    text: a sentence about the settings that were chosen. "" if there are none.
    epochs: number of epochs of the run. None if it was not computed.
    seconds: duration of the run. None if the speed was not measured.
    """

    settings: dict[str, Any]
    text: str = ""
    epochs: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run folder to load: its settings, and the checkpoint to load the weights from.

    notes: messages about checkpoints that were skipped because they are damaged.
    """

    folder: Path
    settings: Any
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()


class RunTask(Task):
    """Base class of tasks that can be trained in a run folder, resumed, loaded and shown.

    The corpus, the result of encode_data(), may have two attributes: `sizes`, the sizes of the data that the
    model depends on (see smallest_sizes), and `notes`, messages about the encoded data for the log.
    """

    settings_type: ClassVar[type[RunSettings]]
    """All settings of a run, a subclass of RunSettings. It also says which settings are paths, and which
    must not change."""
    files: ClassVar[tuple[str, ...]] = ()
    """Names of the files that encode_data() writes to the run folder, such as tokenizers. Their hashes are in
    the manifest, and --init-from copies these files."""
    smallest_sizes: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """The names of the sizes that the model depends on, in the order of `sizes` of the corpus, each with a
    small value. For example, {"source tokens": 8, "target tokens": 8}. A small model is built with these
    values to check its options before data are read."""
    evaluate_options: ClassVar[tuple[CommandOption | str, ...]] = ()
    """The options of `regard evaluate` for runs of this task. An option that other commands have too is given
    as a str: its name with _ instead of -, such as "beam_size".
    """
    view_options: ClassVar[tuple[CommandOption | str, ...]] = ()
    """The options of `regard view` for runs of this task. All tasks also have the drawing options."""

    def __init__(
        self,
        model: Any,
        corpus: Any,
        settings: Any,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        """Create the task for training.

        corpus: the result of encode_data().
        settings: all settings of the run.
        device: the kind of device to train on, such as "cuda".
        """
        self.model, self.corpus, self.settings = model, corpus, settings

    @classmethod
    def start(cls, settings: Any, device: str, corpus: Any = None) -> None:
        """Start processes that prepare batches. By default, nothing is started.

        This method is called before the data are read, and again after they are encoded.

        settings: the settings of the run. Settings that plan() chooses may be missing.
        device: the device to train on, such as "cuda".
        corpus: the result of encode_data(). None before the data are read.
        """

    @classmethod
    def read_data(cls, settings: Any, fingerprints: Mapping[str, str] | None = None) -> Any:
        """Read and check the data of a run, without encoding them. Return them, for example as a Split.

        The result has two attributes. `fingerprints` are hashes of the data, such as {"train": "5f3a..."}, to
        detect changes when a run is resumed. `notes` are messages for the log: text, or other objects that
        rich can print.

        fingerprints: hashes of the data at the start of a resumed run. None for a new run.
        """
        raise TypeError(f"{cls.__name__} does not implement read_data()")

    @classmethod
    def encode_data(
        cls, data: Any, settings: Any, folder: Path, cache: Path | None = None, lines: int | None = None
    ) -> Any:
        """Encode the data, and return the result (the corpus) for the constructor of the task.

        If the files in `files`, such as tokenizers, are missing in the run folder, create them first.

        data: the result of read_data().
        settings: all settings of the run.
        folder: the run folder.
        cache: folder for encoded data. None: the default folder.
        lines: maximum number of lines to train a tokenizer on, for an estimate. None: all lines.
        """
        return data

    @classmethod
    def stored_sizes(cls, folder: Path, settings: Any) -> tuple[int, ...]:
        """Return the same sizes as `sizes` of the corpus, but read from the files of a run folder."""
        return ()

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> nn.Module:
        """Build the model of a run, with random weights.

        The caller sets the random seed, or builds the model on the meta device to get only shapes.

        model: the section [model] of the settings.
        sizes: the sizes of the data that the model depends on, see smallest_sizes.
        """
        raise TypeError(f"{cls.__name__} does not implement build_model()")

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> Any:
        """Return the object that regard.load() returns for a run of this task, such as a translator.

        The default is a LoadedModel, which has the trained model as its attribute `model`.

        options: further options of regard.load(). Raise an error for an option that does not exist.
        """
        loaded_run = importlib.import_module("regard.runs.stored_runs")
        if options:
            raise UnknownName(f"option of {cls.__name__}.load():", next(iter(options)), ())
        model = cls.build_model(run.settings.model, cls.stored_sizes(run.folder, run.settings))
        return loaded_run.LoadedModel(loaded_run.with_weights(model, run, device)).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        """Evaluate a trained run for `regard evaluate`. By default, call evaluate() on the validation data.

        If evaluate_options has TEST_FILE, --test-file replaces the setting data.valid_file.

        options: the values of evaluate_options.
        """
        run_commands = importlib.import_module("regard.runs.run_commands")
        report: RunReport = run_commands.evaluate_validation(cls, run, options.get("test_file"))
        return report

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        """Record the attention of a trained run for one input, for `regard view`.

        options: the values of view_options.
        drawing: the drawing options of `regard view`.
        """
        problem = f"the task {task_name(cls)} does not show attention"
        hint = f"implement {cls.__name__}.view_run()"
        raise ArgumentError(message("regard view", problem, hint=hint))

    def largest_batch(self) -> Any:
        """Return the batch of the first epoch that needs the most memory. The default is the first batch."""
        return next(iter(self.batches(0)))

    @classmethod
    def defaults(
        cls, settings: Mapping[str, Any], data: Any = None, other: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Fill in settings of a new run that depend on other settings or on its data.

        This method is called before the settings are checked, and again after the data are read. Return all
        settings, and messages about the choice for the log.

        settings: the settings of the user.
        data: the result of read_data(), for example to choose a tokenizer. None before the data are read.
        other: the settings of the run of --init-from. None without --init-from.
        """
        return dict(settings), ()

    @classmethod
    def check(cls, settings: Any, model: Any = None) -> None:
        """Raise ArgumentError if the settings contradict each other. The data are not read yet.

        model: for a new run, the model of the settings with smallest_sizes, on the meta device, where tensors
            use no memory. None for a resumed run.
        """

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], corpus: Any, device: str, processes: Processes, timed: bool = False
    ) -> Plan:
        """Choose the settings of a new run that the user has not set, such as the model size.

        timed: whether to measure the speed of training steps even if it is not needed to choose settings.
        """
        return Plan(dict(settings))


def task_name(task: type[RunTask]) -> str:
    """Return the default of the setting `task`, such as "translation", or else the name of the class."""
    name = task.settings_type.model_fields["task"].default
    return name if isinstance(name, str) and name else task.__name__


def sizes_of(corpus: Any) -> tuple[int, ...]:
    """Return the sizes of the data that the model depends on, such as the vocabulary sizes."""
    return tuple(getattr(corpus, "sizes", ()))


def named_sizes(task: type[RunTask], sizes: Sequence[int]) -> str:
    """Return sizes with their names as text, such as "8,000 source tokens, 8,000 target tokens"."""
    named = zip(sizes, task.smallest_sizes, strict=False)
    return ", ".join(f"{size:,} {name}" for size, name in named)


def smallest_model(task: type[RunTask], settings: Any) -> Any:
    """Return the model of the settings with smallest_sizes on the meta device, where tensors use no memory.

    Raise ArgumentError if an option of the model is invalid, and UnknownName if the model has no such option.
    If it is a setting of another section, the message names it. An option may have the name of a setting:
    with memory networks, model.encoding is not data.encoding.
    """
    from regard.training.estimators import check_estimator

    try:
        with on_meta_device(), naming_place("[model]"):
            model = built_model(task, settings.model, tuple(task.smallest_sizes.values()))
    except UnknownName as error:
        unknown = [name for name in settings.model.options if name == error.name]
        raise misplaced(task.settings_type, "model", unknown) or error from None
    check_memory(model)
    check_estimator(model, settings.training)
    return model


def built_model(task: type[RunTask], model: ModelSettings, sizes: tuple[int, ...]) -> Any:
    """Return the result of task.build_model(); raise ArgumentError if it raises TypeError.

    The model of a user's task may not have an option that is set. The models of Regard raise UnknownName.
    """
    try:
        return task.build_model(model, sizes)
    except TypeError as error:
        options = ", ".join(model.options) or "none"
        hint = f"the options that are set are: {options}; REGARD_TRACEBACK=1 shows where the error is"
        problem = f"the model {model.name} cannot be built: {error}"
        raise ArgumentError(message("[model]", problem, hint=hint)) from error


def check_memory(model: nn.Module) -> None:
    """Raise ArgumentError if the weights of the model, in float32, do not fit the memory of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return
    needed = 4 * sum(each.numel() for each in model.parameters())
    if needed > memory:
        problem = f"the model needs {needed / 1e9:,.0f} GB for its weights"
        expected = f"less than the {memory / 1e9:,.0f} GB of memory of this machine"
        raise ArgumentError(message("the settings", problem, expected=expected, hint="use a smaller model"))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Create tensors on the meta device inside the `with` block. Their initial values are not sampled.

    >>> with on_meta_device():
    ...     nn.Embedding(10**12, 512).weight.shape
    torch.Size([1000000000000, 512])
    """
    with torch.device("meta"), _WithoutSampling():
        yield


class ChangeableTask(RunTask):
    """A task whose trained runs `regard intervene` can change: change_run() gives it one input."""

    intervene_options: ClassVar[tuple[CommandOption | str, ...]] = ()
    """The options of `regard intervene` for runs of this task, which select the input of the model."""

    @classmethod
    def change_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> Changeable:
        """Load a trained run and one input, whose attention `regard intervene` changes.

        options: the values of intervene_options.
        """
        raise no_interventions(cls)


def no_interventions(task: type[RunTask]) -> ArgumentError:
    """Return the error for a task that `regard intervene` cannot change."""
    problem = f"the task {task_name(task)} has no interventions on the command line"
    hint = "derive it from ChangeableTask (regard.runs.run_task), or use regard.intervene() in Python"
    return ArgumentError(message("regard intervene", problem, hint=hint))


class _WithoutSampling(TorchFunctionMode):
    """Context manager in which normal_() does nothing to tensors on the meta device.

    Such tensors have no values. The first normal_() of a process on this device makes PyTorch import about
    900 modules, which takes seconds.
    """

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function in (Tensor.normal_, nn.init.normal_):
            tensor = arguments[0] if arguments else options["tensor"]
            if tensor.is_meta:
                return tensor
        return function(*arguments, **(options or {}))
