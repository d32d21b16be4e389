"""Log: the output of a training run on the console, in log.jsonl, in TensorBoard files and for loggers.

A logger of a user is a function `logger(event, values)`. The events, and what `values` has:

start       settings (the sections of config.toml), resumed
step        metrics, such as {"training/loss": 2.1}: every training.log_every steps, means over these steps
evaluation  metrics, such as {"evaluation/bleu": 31.2}, and best: whether it is the best evaluation so far
checkpoint  path: the folder of a checkpoint that was written
end         status: "ended", "stopped" (it can be resumed) or "failed"

Each event also has run, the run folder, and step, the number of training steps so far. With several processes
(torchrun), the first one calls the logger. If a logger raises an error, the error is printed, the logger is
not called again, and training continues.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from rich.console import Console, RenderableType

from regard.errors import ArgumentError, message, printable
from regard.files.requirements import install_command
from regard.files.untrusted import naming_damage, open_regular, strict
from regard.training.logs.live_table import (
    TOKENS,
    Display,
    Evaluated,
    in_bytes,
    in_time,
    in_words,
    perplexity,
    progress_line,
)

REFRESH = 1.0
"""Seconds between two updates of the live table. An update takes about 5 milliseconds."""

NOTHING: Mapping[str, float] = {}


class Means:
    """Means of losses over several training steps, weighted by target tokens, and the speed of these steps.

    tokens: number of target tokens of the steps.
    timed, seconds: number of target tokens, and duration of the steps of this process. Checkpoints do not
        save them, so after a run is resumed, speed() uses only the new steps.
    sums: for "own" (loss and gradient norm) and "parts" (other losses), by name: the sum of the values, each
        multiplied by the target tokens of its step, and the number of these tokens.

    In this example, the first step has 30 target tokens and the loss 2. The second step has 10 target tokens
    and the loss 6. Each step takes one second:

    >>> means = Means()
    >>> means.add(30, 1.0, 2.0, None, {})
    >>> means.add(10, 1.0, 6.0, None, {"guided": 0.5})
    >>> means.of("own"), means.of("parts"), means.speed()
    ({'loss': 3.0}, {'guided': 0.5}, 20.0)
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Create means without steps, or with the steps that state() has saved."""
        self.tokens = self.timed = 0
        self.seconds = 0.0
        self.sums: dict[str, dict[str, tuple[float, int]]] = {"own": {}, "parts": {}}
        if state is not None:
            self.tokens = int(state["tokens"])
            for which, sums in self.sums.items():
                sums |= {name: (float(total), int(weight)) for name, (total, weight) in state[which].items()}

    def add(
        self, tokens: int, seconds: float, loss: float, norm: float | None, parts: Mapping[str, float]
    ) -> None:
        """Add the values of one training step. If the step has no target tokens, only its duration is added.

        tokens: number of target tokens of the step.
        seconds: duration of the step.
        loss: mean loss per target token.
        norm: gradient norm. None if it was not computed.
        parts: other losses by name, such as "guided", also per target token.
        """
        self.seconds += seconds
        self.tokens += tokens
        self.timed += tokens
        own = {"loss": loss} if norm is None else {"loss": loss, "norm": norm}
        for which, values in (("own", own), ("parts", parts)) if tokens else ():
            self._add(which, {name: (value * tokens, tokens) for name, value in values.items()})

    def _add(self, which: str, sums: Mapping[str, tuple[float, int]]) -> None:
        for name, (total, weight) in sums.items():
            before, weighed = self.sums[which].get(name, (0.0, 0))
            self.sums[which][name] = before + total, weighed + weight

    def of(self, which: str) -> dict[str, float]:
        """Return the means of "own" or of "parts", by name. A name without values is left out."""
        return {name: total / weight for name, (total, weight) in self.sums[which].items()}

    def speed(self) -> float | None:
        """Return the number of target tokens per second, or None if no step was added in this process."""
        return self.timed / self.seconds if self.seconds > 0 else None

    def joined(self, other: Means) -> Means:
        """Return a new Means object with the steps of this object and of `other`."""
        both = Means()
        for each in (self, other):
            both.tokens += each.tokens
            both.timed += each.timed
            both.seconds += each.seconds
            for which, sums in each.sums.items():
                both._add(which, sums)
        return both

    def state(self) -> dict[str, Any]:
        """Return the sums from which the means are computed, as a dict for JSON."""
        return {"tokens": self.tokens, **self.sums}


class Log:
    """The log of a training run: a live table or plain lines, JSON lines in a file, and TensorBoard curves.

    path: the file log.jsonl, to which records are appended. None: no file is written.
    total: number of steps of the run. None if it is not known yet. It can be set later.
    console: where to print. Default: standard output. On a terminal, a live table is shown inside the `with`
        block of the log. Otherwise, lines are printed.
    board: folder for TensorBoard files. None: no TensorBoard files are written.
    loggers: functions that are called for each event; see regard.training.logs.log.
    every: seconds between two printed lines.
    record: number of steps between two training records in log.jsonl. The losses of a record are means over
        the target tokens since the previous record.
    clock: a function that returns the time in seconds.

    Two runs with the same calls write the same records, except for time, speed and memory.

    >>> with Log(None, total=10, console=Console(width=100)) as log:
    ...     log.event("started", "two kinds of attention, one corpus")
    ...     log.evaluation(5, {"loss": 2.1, "bleu": 31.2}, best=True)
    two kinds of attention, one corpus
    evaluation at step 5  loss 2.100  BLEU 31.2  best so far
    """

    def __init__(
        self,
        path: Path | None,
        *,
        total: int | None = None,
        console: Console | None = None,
        board: Path | None = None,
        loggers: Sequence[Logger] = (),
        every: float = 10.0,
        record: int = 50,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total = total
        self.time_left: Callable[[], float] | None = None
        self.counted, self.has_perplexity = TOKENS, True
        self.every, self.record, self.clock = every, record, clock
        self.display = Display(Console(highlight=False) if console is None else console)
        self._journal = Journal(path, self._complain)
        boards = [] if board is None else [Board(board)]
        self._loggers = Loggers([*boards, *loggers], self._complain)
        self._status = "failed"
        self._recorded, self._recent, self._before = Means(), Means(), Means()
        self._step, self._rate = 0, 0.0
        self._first: tuple[int, float] | None = None
        self._mark = clock()
        self._due = self._roll = self._mark

    def __enter__(self) -> Log:
        self.display.total = self.total
        self._mark = self.clock()
        self.display.start()
        return self

    def flush(self) -> None:
        """Print the mean losses of steps that were not printed yet, or update the live table with them."""
        if self._recent.tokens:
            self._show(self.clock())

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            try:
                self.display.stop()
            finally:
                self.tell("end", self._step, status=self._status)

    def step(
        self,
        step: int,
        *,
        loss: float,
        tokens: int,
        rate: float,
        norm: float | None = None,
        parts: Mapping[str, float] = NOTHING,
    ) -> None:
        """Log a training step; call this after every step. Most calls write nothing and take microseconds.

        step: number of the step.
        loss: mean over the target tokens of the step.
        tokens: number of target tokens, in all processes.
        rate: learning rate.
        norm: gradient norm; None if it was not computed.
        parts: other losses by name, such as "guided".
        """
        now = self.clock()
        seconds = now - self._mark
        self._recorded.add(tokens, seconds, loss, norm, parts)
        self._recent.add(tokens, seconds, loss, norm, parts)
        self._step, self._rate, self._mark = step, rate, now
        if step % self.record == 0:
            self._write(step)
        if now >= self._due:
            self._show(now)

    def evaluation(
        self,
        step: int,
        scores: Mapping[str, float],
        *,
        best: bool = False,
        shown: Sequence[RenderableType] = (),
        **fields: object,
    ) -> None:
        """Log the scores of an evaluation: on the console, in log.jsonl and in TensorBoard files.

        step: number of the training step.
        scores: the scores by name, such as "bleu".
        best: whether the evaluation is the best so far.
        shown: text or pictures to print, such as sample translations.
        fields: further values of the record in log.jsonl.
        """
        row = Evaluated(step, {name: float(value) for name, value in scores.items()}, best)
        self.display.keep(row)
        if self.display.live and not shown:
            self.display.refresh()
        else:
            self.display.say(row.line(self.display.best_by), *shown)
        self._journal.write(
            {"kind": "evaluation", "step": step, **row.scores, "best": best, **fields, "time": time.time()}
        )
        metrics = {f"evaluation/{name}": value for name, value in row.scores.items()}
        self.tell("evaluation", step, metrics=metrics, best=best)
        self._mark = self.clock()  # the speed is measured without evaluations

    def event(self, kind: str, text: str, *, shown: RenderableType | None = None, **fields: object) -> None:
        """Log an event, such as the start of the run: print a text, and write a record to log.jsonl.

        kind: the kind of the event, e.g. "started".
        text: the message.
        shown: what to print instead of the text, e.g. a table.
        fields: further values of the record in log.jsonl.
        """
        self.display.say(text if shown is None else shown)
        self._journal.write({"kind": kind, "text": text, "time": time.time(), **fields})
        if kind in ("ended", "stopped"):
            self._status = kind
        self._mark = self.clock()

    def tell(self, event: str, step: int, **values: Any) -> None:
        """Call the loggers for an event that is neither printed nor written, such as a new checkpoint.

        step: number of training steps so far.
        values: the values of the event; see regard.training.logs.log.
        """
        self._step = step
        run = "" if self._journal.path is None else str(self._journal.path.parent)
        self._loggers(event, run=run, step=step, **values)

    def position(self) -> int:
        """Flush log.jsonl to the disk, and return its size in bytes. Checkpoints save it for rewind()."""
        return self._journal.position()

    def move(self, folder: Path) -> None:
        """Write later records to log.jsonl in `folder`, because the run folder was moved to this place."""
        if self._journal.path is not None:
            self._journal.path = folder / self._journal.path.name

    def rewind(self, position: int) -> None:
        """Truncate log.jsonl to its size at the checkpoint from which a run is resumed.

        The resumed run repeats the steps after the checkpoint, and logs them again.

        position: the size in bytes.
        """
        self._journal.rewind(position)

    def state(self) -> dict[str, Any]:
        """Return the sums of losses since the last record, and recent evaluations, as values for JSON.

        A resumed run loads this state with restore(). Then it writes the same records as a run without
        interruption.
        """
        rows = [each._asdict() for each in self.display.evaluations]
        state = strict({"since_record": self._recorded.state(), "evaluations": rows})
        assert isinstance(state, dict)
        return state

    def restore(self, state: Any, place: str = "state.json") -> None:
        """Set the sums of losses and the evaluations of the log to the values in a checkpoint.

        state: the result of state().
        place: for error messages: the path of the file with the state.
        """
        with naming_damage(place, "'log.state' is damaged", "restore this file from a copy"):
            recorded = Means(state["since_record"])
            rows = [(int(e["step"]), dict(e["scores"]), bool(e["best"])) for e in state["evaluations"]]
            evaluations = [
                Evaluated(step, {name: float(value) for name, value in scores.items()}, best)
                for step, scores, best in rows
            ]
        self._recorded, self.display.evaluations = recorded, evaluations
        self.display.refresh()

    def _complain(self, text: str) -> None:
        self.display.say(text, style="yellow")

    def _write(self, step: int) -> None:
        """Write mean losses since the last record to log.jsonl, and as points of the TensorBoard curves."""
        means, self._recorded = self._recorded, Means()
        own, parts = means.of("own"), means.of("parts")
        curves = {**parts, **own, "rate": self._rate}
        record: dict[str, object] = {"kind": "training", "step": step, "loss": None, **own}
        record |= {"parts": parts} if parts else {}
        record |= {"tokens": means.tokens, "rate": self._rate, "tokens_per_second": means.speed()}
        self._journal.write({**record, **memory(), "time": time.time()})
        if self._loggers:
            if "loss" in own and self.has_perplexity:
                curves["perplexity"] = perplexity(own["loss"])
            if (speed := means.speed()) is not None:
                curves["tokens_per_second"] = speed
            self.tell("step", step, metrics={f"training/{name}": value for name, value in curves.items()})

    def _show(self, now: float) -> None:
        """Update the live table, or print a line if there is none, with mean losses and the speed.

        The table shows means over a period of `every` to 2 * `every` seconds that ends now. A line shows
        means over the steps since the previous line.
        """
        if self.display.live:
            self.display.step, self.display.total = self._step, self.total
            self.display.cells = self._cells(self._before.joined(self._recent), now)
            if now >= self._roll + self.every:
                self._before, self._recent, self._roll = self._recent, Means(), now
            self.display.refresh()
            self._due = now + REFRESH
        else:
            self.display.say(progress_line(self._step, self.total, self._cells(self._recent, now)))
            self._recent = Means()
            self._due = now + self.every
        self._mark = self.clock()

    def _cells(self, means: Means, now: float) -> dict[str, str]:
        """Return mean losses over some steps, the speed and the remaining time as text.

        now: the time of the clock.

        If the length of the run is set in minutes, the remaining time is time_left(). Otherwise, it is
        estimated from the time since the first step, including evaluations.
        """
        own, left = means.of("own"), None
        if self.time_left is not None:
            left = self.time_left()
        elif self._first is None:
            self._first = self._step, now
        elif self.total is not None and self._step > self._first[0]:
            each = (now - self._first[1]) / (self._step - self._first[0])
            left = max(self.total - self._step, 0) * each
        loss = own.get("loss", float("nan"))
        values = {"loss": loss, "perplexity": perplexity(loss), **means.of("parts"), "norm": own.get("norm")}
        if not self.has_perplexity:
            del values["perplexity"]
        cells = {name: in_words(name, value) for name, value in values.items() if value is not None}
        cells["learning rate"] = f"{self._rate:.1e}"
        if (speed := means.speed()) is not None:
            cells[f"{self.counted}/s"] = f"{speed:,.0f}"
        if left is not None:
            cells["left"] = in_time(left)
        if sizes := memory():
            shown = (in_bytes(size) + " CUDA" * (name == "cuda_memory") for name, size in sizes.items())
            cells["memory"] = " + ".join(shown)
        return cells


def memory() -> dict[str, int]:
    """Return the memory use of this process in bytes, e.g. {"memory": 851443712}.

    "memory" is the resident memory. It is missing if it is unknown. "cuda_memory" is the peak of the memory
    that torch allocated on the GPU. It is missing if CUDA is not used.
    """
    sizes = {}
    if (held := resident()) is not None:
        sizes["memory"] = held
    if torch.cuda.is_initialized():
        sizes["cuda_memory"] = torch.cuda.max_memory_allocated()
    return sizes


def resident() -> int | None:
    """Return the resident memory of this process in bytes, or None if it is unknown.

    On systems without /proc, such as macOS, the result is the peak of the resident memory.
    """
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


HELD = 1000
"""Maximum number of records that are kept in memory while the log file cannot be written. Older records are
dropped."""

BLOCK = 1 << 16


class Journal:
    """A log file with one record (JSON object) per line.

    When a run is resumed from a checkpoint, the records after this checkpoint are removed with rewind().

    path: the file to which records are appended. None: nothing is written.
    complain: a function that is called with a message when writing fails for the first time. Records that
        were not written are written together with the next record.

    The file is opened again for each record and then closed. This costs little, because records are rare.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> journal = Journal(path, print)
    >>> journal.write({"kind": "training", "loss": float("nan")})
    >>> position = journal.position()
    >>> journal.write({"kind": "lost"})
    >>> journal.rewind(position)
    >>> print(path.read_text(), end="")
    {"kind": "training", "loss": "NaN"}
    """

    def __init__(self, path: Path | None, complain: Callable[[str], None]):
        self.path = path
        self.complain = complain
        self._held: deque[bytes] = deque(maxlen=HELD)
        self._whole = False
        self._failed = False
        self._size = path.stat(follow_symlinks=False).st_size if path is not None and path.is_file() else 0

    def write(self, record: Mapping[str, object]) -> None:
        """Append a record to the file. If it cannot be written, the next call tries again."""
        if self.path is None:
            return
        self._held.append(json.dumps(strict(record), allow_nan=False).encode("ascii") + b"\n")
        self._flush()

    def position(self) -> int:
        """Flush the log file to the disk, and return its size in bytes, for a later rewind()."""
        if self.path is None:
            return 0
        self._flush(to_disk=True)
        return self._size

    def rewind(self, position: int) -> None:
        """Truncate the log file to `position` bytes, and remove an incomplete last line.

        If the file is shorter than `position`, records are missing. Then complain() is called with a message.
        """
        self._held.clear()
        if self.path is None:
            return
        try:
            with self._opened() as file:
                size = file.seek(0, os.SEEK_END)
                if size > position:
                    file.truncate(position)
                self._size = _cut_to_lines(file)
                self._whole = True
        except OSError as error:
            self._fail(error)
            return
        if size < position:
            self.complain(
                f"{self.path.name} has only {size:,} of the {position:,} bytes it had at the checkpoint; "
                "training continues without the missing records"
            )

    def _opened(self) -> BinaryIO:
        assert self.path is not None
        return open(self.path, "a+b", buffering=0, opener=open_regular)

    def _flush(self, to_disk: bool = False) -> None:
        """Append the records that are not written yet, all of them or none."""
        try:
            with self._opened() as file:
                if not self._whole:
                    self._size, self._whole = _cut_to_lines(file), True
                content, end = b"".join(self._held), file.seek(0, os.SEEK_END)
                if content and file.write(content) != len(content):
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._held.clear()
                self._size = end + len(content)
                if to_disk:
                    os.fsync(file.fileno())
        except OSError as error:
            self._whole = False
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._failed and self.path is not None:
            self._failed = True
            self.complain(
                f"{self.path.name} cannot be written: {error.strerror or error}; training continues, "
                "and writing is tried again with the next record"
            )


def _cut_to_lines(file: BinaryIO) -> int:
    """Remove the last line if it has no newline, because a process was killed; return the file size."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(end - BLOCK, 0)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)
    return end


Logger = Callable[[str, Mapping[str, Any]], object]
"""A function that is called with the name and the values of each event of a training run."""


class Loggers:
    """The loggers of a run. A logger that raises an error is left out from then on.

    complain: a function that prints a message.

    >>> loggers = Loggers([lambda event, values: print(event, values)], print)
    >>> loggers("step", run="runs/x", step=50, metrics={"training/loss": 2.5})
    step {'run': 'runs/x', 'step': 50, 'metrics': {'training/loss': 2.5}}
    """

    def __init__(self, loggers: Sequence[Logger], complain: Callable[[str], None]):
        self.loggers, self.complain = list(loggers), complain

    def __bool__(self) -> bool:
        return bool(self.loggers)

    def __call__(self, event: str, **values: Any) -> None:
        for logger in list(self.loggers):
            try:
                logger(event, values)
            except Exception as error:  # code of the user, which must not end the training
                self.loggers.remove(logger)
                function = getattr(logger, "__qualname__", type(logger).__qualname__)
                name = f"the logger {getattr(logger, '__module__', '')}:{function}"
                name = logger.name if isinstance(logger, Board) else name
                text = printable(f"{type(error).__name__}: {error}").strip()
                self.complain(f"{name} failed: {text}; training continues without it")


def import_logger(name: str) -> Logger:
    """Import the logger that --logger names, "module:function". Modules of the current folder are found too.

    >>> import_logger("builtins:print")
    <built-in function print>
    """
    module, _, function = name.partition(":")
    expected = "module:function, such as tracking:log for the function log() of tracking.py"
    if not module or not function.isidentifier():
        raise ArgumentError(
            message("--logger", f"the value {printable(name)!r} is invalid", expected=expected)
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        logger = getattr(importlib.import_module(module), function)
    except Exception as error:  # code of the user
        problem = f"{name} cannot be imported: {type(error).__name__}: {printable(str(error))}"
        raise ArgumentError(message("--logger", problem, expected=expected)) from error
    if not callable(logger):
        raise ArgumentError(message("--logger", f"{name} is not a function", expected=expected))
    return logger


class Board:
    """A logger that writes the metrics of a training run, such as the loss over the steps, for TensorBoard.

    folder: the folder for the files. It is created with the first metrics.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "board"
    >>> board = Board(folder)
    >>> board("step", {"step": 50, "metrics": {"training/loss": 2.5}})
    >>> board("end", {"step": 50, "status": "ended"})
    >>> len(list(folder.iterdir()))
    1
    """

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                message("Log(board=...)", "TensorBoard is not installed", hint=install_command("board"))
            ) from error
        self.folder, self.name = folder, f"writing TensorBoard files to {folder.name}"
        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def __call__(self, event: str, values: Mapping[str, Any]) -> None:
        if "metrics" in values:
            if self._writer is None:
                if self.folder.is_symlink():  # which may lead outside the run folder
                    problem = "is a symbolic link, not a folder"
                    raise OSError(errno.EINVAL, problem, str(self.folder))
                self.folder.mkdir(parents=True, exist_ok=True)
                # A resumed run repeats the steps after its checkpoint. purge_step hides the earlier points of
                # these steps.
                self._writer = self._open(str(self.folder), purge_step=values["step"])
            for name, value in values["metrics"].items():
                self._writer.add_scalar(name, value, values["step"])
        elif self._writer is not None and event == "checkpoint":
            self._writer.flush()
        elif self._writer is not None and event == "end":
            self._writer.close()
            self._writer = None
