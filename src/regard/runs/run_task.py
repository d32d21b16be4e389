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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import ArgumentError, UnknownName, message, naming_place
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.training.checkpoints.checkpoints import Checkpoint
from regard.training.command_options import CommandOption
from regard.training.distributed import Processes
from regard.training.sampled_loss import check_estimator
from regard.training.setting_names import misplaced
from regard.training.task import Task

if TYPE_CHECKING:
    from regard.runs.run_commands import ChosenRun, Report, RunView, ViewOptions

__all__ = ["Plan", "ReadData", "RunTask", "StoredRun", "on_meta_device"]


class ReadData(Protocol):
    """The data of a run, read and checked, but not yet encoded. RunTask.read_data() returns it."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Hashes of the data, such as {"train": "5f3a..."}, to detect changes when a run is resumed."""

    @property
    def notes(self) -> Sequence[Any]:
        """Messages about the data for the log: text, or other objects that rich can print."""


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

    settings_type: all settings of a run, a subclass of RunSettings.
    files: names of the files that encode_data() writes to the run folder, such as tokenizers. Their hashes
        are in the manifest, and --init-from copies these files.
    paths: names of the settings in [data] whose values are paths. They are saved as absolute paths in
        config.toml, and nowhere else.
    fixed: prefixes of the settings that cannot change when a run is resumed with --change, such as "model.".
    for_outputs: prefixes of the settings that affect the outputs of a trained run, such as "model.".
    """

    settings_type: ClassVar[type[RunSettings]]
    files: ClassVar[tuple[str, ...]] = ()
    later_files: ClassVar[tuple[str, ...]] = ()
    """Names of the files that commands write to the run folder after training, such as alignment.json."""
    paths: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ("task", "model")
    for_outputs: ClassVar[tuple[str, ...]] = ("task", "model")
    next_command: ClassVar[str] = "regard show {run}"
    """The command that `regard train` suggests after training. {run} is replaced by the run folder."""
    always_shown: ClassVar[tuple[str, ...]] = ()
    """The data settings that `regard show` prints even if they have their default value."""
    size_names: ClassVar[tuple[str, ...]] = ()
    """The names of the sizes that sizes() returns, in the same order. For example, ("source", "target") for
    the vocabulary sizes of the source and of the target."""
    smallest_sizes: ClassVar[tuple[int, ...]] = ()
    """Small values for sizes(). A small model is built with them to check its options before data are
    read."""
    no_data_hint: ClassVar[str] = "set the training data in [data]"
    """The hint in the error message if a new run has no training data."""
    evaluate_options: ClassVar[tuple[CommandOption | str, ...]] = ()
    """The options of `regard evaluate` for runs of this task. An option that other commands have too is given
    as a str: its name with _ instead of -, such as "beam_size".
    """
    view_options: ClassVar[tuple[CommandOption | str, ...]] = ()
    """The options of `regard view` for runs of this task. All tasks also have the drawing options."""
    own_views: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Descriptions of the views of `regard view` that only this task has, by name."""

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
    def start_processes(cls, settings: Any, device: str) -> None:
        """Start processes that the training needs, before the data are read. Most tasks need none.

        settings: the settings of the run.
        device: the device to train on, such as "cuda".
        """

    @classmethod
    def start_batches(cls, settings: Any, corpus: Any, device: str) -> None:
        """Start to prepare the first batches in other processes, before the task is created.

        By default, nothing is started.

        settings: the settings of the run. Settings that plan() chooses may be missing.
        corpus: the result of encode_data().
        device: the device to train on, such as "cuda".
        """

    @classmethod
    def read_data(cls, settings: Any, fingerprints: Mapping[str, str] | None = None) -> ReadData:
        """Read and check the data of a run.

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
    def without_folders(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with the file names in place of paths, to show them or to share the run.

        settings: nested as in config.toml.
        """
        data = dict(settings.get("data") or {})
        for name in cls.paths:
            if isinstance(data.get(name), str):
                data[name] = os.path.basename(data[name])
            elif isinstance(data.get(name), list | tuple):
                data[name] = [os.path.basename(path) for path in data[name] if isinstance(path, str)]
        whole = {**settings, "data": data}
        if isinstance(settings.get("init_from"), str):
            whole["init_from"] = os.path.basename(settings["init_from"])
        return whole

    @classmethod
    def sizes(cls, corpus: Any) -> tuple[int, ...]:
        """Return the sizes of the data that the model depends on, such as the vocabulary sizes."""
        return ()

    @classmethod
    def stored_sizes(cls, folder: Path, settings: Any) -> tuple[int, ...]:
        """Return the same sizes as sizes(), but read from the files of a run folder, without the data."""
        return ()

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> nn.Module:
        """Build the model of a run, with random weights.

        The caller sets the random seed, or builds the model on the meta device to get only shapes.

        model: the section [model] of the settings.
        sizes: the result of sizes().
        """
        raise TypeError(f"{cls.__name__} does not implement build_model()")

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> Any:
        """Return the object that regard.load() returns for a run of this task, such as a translator."""
        raise TypeError(f"{cls.__name__} does not implement load()")

    @classmethod
    def check_load_options(cls, options: Mapping[str, Any]) -> None:
        """Raise an error if an option of regard.load() does not exist for this task.

        This method is called before the run folder is read. By default, all options are accepted.
        """

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> Report:
        """Evaluate a trained run for `regard evaluate`. By default, call evaluate() on the validation data.

        run: the run, or None if the command has no run. Only tasks that can evaluate files without a model
            accept None.
        options: the values of evaluate_options.
        """
        run_commands = importlib.import_module("regard.runs.run_commands")
        report: Report = run_commands.evaluate_validation(cls, run)
        return report

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        """Record the attention of a trained run for one input, for `regard view`.

        options: the values of view_options.
        drawing: the drawing options of `regard view`.
        """
        problem = f"the task {cls.task_name()} does not show attention"
        hint = f"implement {cls.__name__}.view_run()"
        raise ArgumentError(message("regard view", problem, hint=hint))

    @classmethod
    def task_name(cls) -> str:
        """Return the default of the setting `task`, such as "translation", or else the class name."""
        name = cls.settings_type.model_fields["task"].default
        return name if isinstance(name, str) and name else cls.__name__

    @classmethod
    def data_options(cls, options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Convert options of `regard train` that name data files to settings in [data].

        Override this method if the task has its own rules for these options. By default, nothing is
        converted.

        options: the value of each option, or None if it is not used. The keys are the names of the options
            with _ instead of -, such as "train_file".

        Returns the names of the converted options, and the resulting settings in [data].
        """
        return (), {}

    @classmethod
    def complete_settings(
        cls, settings: Mapping[str, Any], other: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Fill in settings of a new run that depend on other settings, before they are checked.

        settings: the settings of the user.
        other: the settings of the run of --init-from. None without --init-from.
        """
        return dict(settings)

    @classmethod
    def check_settings(cls, settings: Any) -> None:
        """Check the settings before the data are read. Raise ArgumentError if they contradict each other."""

    @classmethod
    def check_model(cls, settings: Any) -> None:
        """Check the model options of a new run by building a small model, before the data are read."""
        cls.outlined(settings)

    @classmethod
    def outlined(cls, settings: Any) -> Any:
        """Return the model with smallest_sizes on the meta device, where tensors use no memory.

        Raise ArgumentError if an option of the model is invalid, and UnknownName if the model has no such
        option. If it is a setting of another section, the message names it. An option may have the name of a
        setting: with memory networks, model.encoding is not data.encoding.
        """
        try:
            with on_meta_device(), naming_place("[model]"):
                model = cls.build_model(settings.model, cls.smallest_sizes)
        except UnknownName as error:
            unknown = [name for name in settings.model.options if name == error.name]
            raise misplaced(cls.settings_type, "model", unknown) or error from None
        check_memory(model)
        check_estimator(model, settings.training)
        return model

    @classmethod
    def check_resumed(cls, folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Raise an error if the new settings of a resumed run contradict the settings at its start.

        By default, nothing is checked.

        before: the settings at the start of the run.
        settings: the new settings.
        """

    @classmethod
    def fit_settings(cls, settings: Mapping[str, Any], data: Any) -> tuple[dict[str, Any], str]:
        """Choose settings of a new run that depend on its data, such as the kind of tokenizer.

        Return all settings, and a sentence about the choice for the log ("" if nothing was chosen).

        data: the result of read_data().
        """
        return dict(settings), ""

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], corpus: Any, device: str, processes: Processes, timed: bool = False
    ) -> Plan:
        """Choose the settings of a new run that the user has not set, such as the model size.

        timed: whether to measure the speed of training steps even if it is not needed to choose settings.
        """
        return Plan(dict(settings))

    def described(self) -> str:
        """Return the sizes that the model depends on as text for the log, such as "8,000 tokens"."""
        return ""

    def corpus_notes(self) -> Sequence[str]:
        """Return messages about the encoded data for the log."""
        return ()

    def largest_batch(self) -> Any:
        """Return the batch of the first epoch that needs the most memory. The default is the first batch."""
        return next(iter(self.batches(0)))

    @classmethod
    def describe_quality(cls, scores: Mapping[str, float], settings: Any, corpus: Any = None) -> str:
        """Return a sentence for the user about a trained model whose scores are poor, otherwise "".

        The default is "": no scores count as poor.

        scores: the scores of its checkpoint, the result of evaluate().
        corpus: the result of encode_data(), for advice. None: no advice.
        """
        return ""

    @classmethod
    def fixed_data(cls) -> tuple[str, ...]:
        """Return the settings in [data] that a run with --init-from copies from the other run."""
        return tuple(name.removeprefix("data.") for name in cls.fixed if name.startswith("data."))


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
