"""Terminal output of training: a live table, lines in a pipe, control characters, and broken consoles."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import types
from pathlib import Path

import pytest
from rich.console import Console, Group
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from regard.training.logs import live_table as module
from regard.training.logs import log as log_module
from regard.training.logs.live_table import (
    Display,
    Evaluated,
    Shown,
    in_bytes,
    in_time,
    in_words,
    perplexity,
)
from regard.training.logs.log import Log
from tests.facts import mentions

HOSTILE = (
    "[red]a[/red] [/] :smile: \x1b[2J\x1b]0;title\x07 \0 \x9b5m \u202ertl \u2028 \ud800 e\u0301 나 😀 \r\b"
)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the same terminal settings on every machine."""
    for name in ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(log_module, "memory", lambda: {"memory": 812 * 2**20, "cuda_memory": 2**34})


def on_terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=30, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def seen(console: Console) -> list[str]:
    """Return the lines that a terminal shows after processing the output."""
    rows: list[list[str]] = [[]]
    row = column = 0
    for part in re.finditer(r"\x1b\[([?\d;]*)([A-Za-z])|(.)", written(console), re.DOTALL):
        argument, code, character = part.groups()
        if character == "\n":
            row, column = row + 1, 0
            rows.extend([] for _ in range(row + 1 - len(rows)))
        elif character == "\r":
            column = 0
        elif character is not None:
            assert character >= " ", repr(character)
            rows[row][column:] = [*[" "] * (column - len(rows[row])), character, *rows[row][column + 1 :]]
            column += 1
        elif code == "A":
            row -= int(argument or 1)
            assert row >= 0
        elif code == "K":
            rows[row] = []
        else:
            assert code in "mhl", part[0]
    return ["".join(line).rstrip() for line in rows]


def step(log: Log, number: int, loss: float = 2.314) -> None:
    log.step(number, loss=loss, tokens=142, rate=3e-4, norm=0.5, parts={"guided": 0.25})


def test_table_is_redrawn_in_place():
    now, console = [0.0], on_terminal()
    with Log(None, total=10_000, console=console, clock=lambda: now[0]) as log:
        assert seen(console)[0].startswith("step  0/10,000  ")
        for number in range(1, 301):
            now[0] += 0.01
            step(log, number)
            if number % 100 == 0:
                scores = {"loss": 2.1, "perplexity": 8.17, "bleu": number / 10, "chrf": 50.06}
                log.evaluation(number, scores, best=number == 200)
        log.event("saved", "saved at step 300")
        print("not in the way")
    assert [line for line in seen(console) if line] == [
        "saved at step 300",
        "step  300/10,000  ━" + " " * 39 + "  3 %",
        " loss  perplexity  guided  norm  learning rate  target tokens/s      left                   memory",
        "2.314       10.11    0.25   0.5        3.0e-04           14,200  00:01:37  812 MiB + 16.0 GiB CUDA",
        "evaluation   loss  perplexity  BLEU  chrF",
        "       100  2.100        8.17  10.0  50.1",
        "       200  2.100        8.17  20.0  50.1  ★ best",
        "       300  2.100        8.17  30.0  50.1",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_table_has_whole_numbers(width: int):
    now, console = [0.0], on_terminal(width)
    with Log(None, total=10_000, console=console, clock=lambda: now[0]) as log:
        log.display.best_by = "bleu"
        for number in range(1, 201):
            now[0] += 0.01
            step(log, number)
        scores = {"loss": 2.1, "perplexity": 8.17, "bleu": 31.24, "chrf": 50.06, "ter": 61.08, "exact": 12.5}
        log.evaluation(200, scores, best=True)
    lines = [line for line in seen(console) if line]
    assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
    assert lines[0].split()[:2] == ["step", "200/10,000"] and lines[0].endswith("2 %")
    numbers = next(line for line in lines if line.startswith("2.314")).split()
    assert {"14,200", "00:01:38"} <= set(numbers)
    assert {"10.11", "0.25", "3.0e-04"} <= set(numbers) or width < 60
    evaluation = next(line for line in lines if line.split()[0] == "200").split()
    assert "31.2" in evaluation and "★" in evaluation
    assert {"2.100", "8.17", "50.1", "61.1", "12.5"} <= set(evaluation) or width < 60


def test_table_is_redrawn_at_most_once_per_second():
    now, console = [0.0], on_terminal()
    with Log(None, console=console, clock=lambda: now[0]) as log:
        step(log, 1)
        before = len(written(console))
        for number in range(2, 100):
            now[0] += 0.01
            step(log, number)
        assert len(written(console)) == before
        now[0] += 0.1
        step(log, 100)
        assert len(written(console)) > before and "step  100" in seen(console)


def test_table_shows_means_over_recent_steps():
    now, console = [0.0], on_terminal()
    with Log(None, console=console, clock=lambda: now[0], every=10.0) as log:
        for number in range(1, 200):
            now[0] += 1.0
            step(log, number, loss=9.0 if number < 150 else 1.0)
        assert any(line.startswith("1.000        2.72") for line in seen(console))


def test_best_evaluation_stays_in_the_table():
    display = Display(on_terminal())
    for number in range(1, 21):
        display.keep(Evaluated(number, {"loss": 1.0}, best=number in (3, 7)))
    assert [each.step for each in display.evaluations] == [7, 16, 17, 18, 19, 20]
    display.keep(Evaluated(21, {"bleu": 1.0}, best=True))
    assert [each.step for each in display.evaluations] == [17, 18, 19, 20, 21]
    display.start()
    display.stop()
    table = seen(display.console)
    assert "evaluation   loss  BLEU" in table and "        21          1.0  ★ best" in table


def test_samples_are_printed_above_the_table():
    console = on_terminal()
    with Log(None, total=10, console=console) as log:
        step(log, 1)
        log.evaluation(1, {"loss": 2.0}, shown=["a sample", Text("a drawing")])
        step(log, 2)
    lines = seen(console)
    assert lines[:3] == ["evaluation at step 1  loss 2.000", "a sample", "a drawing"]
    assert lines[3].startswith("step  2/10") and len([line for line in lines if "step" in line]) == 2


def test_progress_bar_of_another_console_is_drawn_below_the_table():
    console = on_terminal()
    other = Console(file=console.file, force_terminal=True, width=100, color_system=None)
    with Log(None, total=10, console=console) as log:
        step(log, 1)
        before = seen(console)
        with Progress(console=other, transient=True, auto_refresh=False) as bar:
            task = bar.add_task("translating", total=2)
            bar.update(task, completed=1, refresh=True)
            assert any(line.startswith("translating") for line in seen(console))
        assert [line for line in seen(console) if line] == [line for line in before if line]
        log.event("saved", "saved")
        assert seen(console)[:2] == ["saved", before[0]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_terminal_is_restored_after_an_error(error: type[BaseException], monkeypatch: pytest.MonkeyPatch):
    console = on_terminal()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    streams = sys.stdout, sys.stderr
    with pytest.raises(error), Log(None, total=10, console=console) as log:
        assert sys.stdout is not streams[0]  # redirected, so that print() writes above the table
        step(log, 1)
        raise error
    assert (sys.stdout, sys.stderr) == streams
    hidden, shown = written(console).rfind("\x1b[?25l"), written(console).rfind("\x1b[?25h")
    assert 0 <= hidden < shown and written(console)[shown:] == "\x1b[?25h"


def test_terminal_is_restored_after_an_interrupt_while_the_table_starts(monkeypatch: pytest.MonkeyPatch):
    console = on_terminal()
    drawn: list[int] = []

    def interrupted(display: Display) -> Text:
        drawn.append(1)
        if len(drawn) == 2:
            raise KeyboardInterrupt
        return Text("")

    monkeypatch.setattr(Display, "_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Log(None, console=console).__enter__()
    assert written(console).endswith("\x1b[?25h")


@pytest.mark.parametrize("way", ["dumb", "quiet", "jupyter", "forced colours", "piped", "not entered"])
def test_no_table_where_the_console_cannot_redraw(way: str, monkeypatch: pytest.MonkeyPatch):
    page = io.StringIO()
    if way == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    if way == "forced colours":
        monkeypatch.setenv("FORCE_COLOR", "1")
    options = {"dumb": {"force_terminal": True}, "quiet": {"force_terminal": True, "quiet": True}}
    options |= {"jupyter": {"force_jupyter": True}, "not entered": {"force_terminal": True}}
    shown: list[object] = []
    fake = types.SimpleNamespace(display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    log = Log(None, total=10, console=Console(file=page, width=200, **options.get(way, {})))
    if way == "not entered":
        step(log, 1)
    else:
        with log:
            step(log, 1)
    lines = re.sub(r"\x1b\[[\d;]*m", "", page.getvalue()).splitlines()
    if way in ("quiet", "jupyter"):
        assert lines == [] and len(shown) == (way == "jupyter")
    else:
        assert len(lines) == 1 and mentions(lines[0], "step 1/10", "loss 2.314") and "\x1b[?" not in lines[0]


def test_long_lines_stay_one_line_in_a_pipe():
    console = Console(file=io.StringIO(), width=20)
    Display(console).say("word " * 20 + "end")
    assert len(written(console).splitlines()) == 1
    sample = Group(Text("가나다 " * 50, no_wrap=True, overflow="ignore"))  # as a sample translation
    console = Console(file=io.StringIO(), width=60)
    Display(console).say(sample)
    assert written(console).split() == ["가나다"] * 50


def test_control_characters_and_markup_have_no_effect(tmp_path: Path):
    inner = Table(HOSTILE)
    inner.add_row(HOSTILE)
    for console in (on_terminal(), Console(file=io.StringIO(), width=200)):
        with Log(tmp_path / "log.jsonl", console=console) as log:
            step(log, 1)
            log.event("saved", HOSTILE, text_of=HOSTILE)
            log.evaluation(1, {HOSTILE: 1.0}, shown=[HOSTILE, Text(HOSTILE), inner, Group(HOSTILE)])
        text = re.sub(r"\x1b\[(\?25[lh]|\d*A|2K)|\r", "", written(console))  # sequences of rich itself
        assert text.count("[red]a[/red] [/]") >= 6
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]", text)
        text.encode("utf-8")


@pytest.mark.parametrize("encoding", ["ascii", "cp949", "utf-8"])
def test_characters_that_the_console_cannot_encode_are_replaced(encoding: str):
    for forced in (True, False):
        page = io.BytesIO()
        file = io.TextIOWrapper(page, encoding=encoding, newline="")
        with Log(None, total=5, console=Console(file=file, force_terminal=forced, width=100)) as log:
            step(log, 1)
            log.evaluation(1, {"loss": 1.0}, best=True, shown=[HOSTILE, "나는 학생이다"])
        text = page.getvalue().decode(encoding)
        assert "[red]a[/red]" in text and ("학생" in text) == (encoding != "ascii")


class Failing(io.StringIO):
    """A file whose write() raises `error` once it is set."""

    error: Exception | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), BrokenPipeError(), OSError(errno.EIO, "gone")]
)
def test_failing_console_does_not_end_the_run(
    error: Exception, forced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    page, path = Failing(), tmp_path / "log.jsonl"
    console = Console(file=page, force_terminal=forced, width=100)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)  # rich closes it when a pipe breaks
        with Log(path, console=console, every=0, record=1) as log:
            step(log, 1)
            before = page.getvalue()
            page.error = error
            log.event("saved", "unheard")
            step(log, 2)
            log.evaluation(2, {"loss": 1.0}, shown=["unheard"])
            step(log, 3)
    assert len(path.read_text().splitlines()) == 5
    assert page.getvalue() == before and os.path.getsize(tmp_path / "out") == 0


def test_cursor_is_shown_again_on_a_terminal_that_recovers():
    page = Failing()
    with Log(None, console=Console(file=page, force_terminal=True)) as log:
        page.error = OSError(errno.EIO, "gone")
        log.event("saved", "unheard")
        page.error = None
    assert page.getvalue().endswith("\x1b[?25h")


def test_closed_console_does_not_end_the_run(tmp_path: Path):
    with (tmp_path / "out").open("w") as file, Log(None, console=Console(file=file), every=0) as log:
        step(log, 1)
        file.close()
        step(log, 2)
    assert len((tmp_path / "out").read_text().splitlines()) == 1


def test_error_while_rendering_is_raised():
    class Wrong:
        def __rich__(self) -> str:
            raise ValueError("a wrong drawing")

    with pytest.raises(ValueError, match="a wrong drawing"):
        Display(Console(file=io.StringIO())).say(Wrong())


def test_shown_texts_keep_their_styles():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80)
    console.print(Shown(Text("bold", style="bold")))
    assert written(console) == "\x1b[1mbold\x1b[0m\n"


def test_numbers_are_formatted():
    assert in_time(751.2) == "00:12:31" and in_time(360_000) == "100:00:00"
    assert in_bytes(812 * 2**20) == "812 MiB" and in_bytes(2**34) == "16.0 GiB"
    assert in_words("loss", 2.3144) == "2.314" and in_words("perplexity", 2e9) == "2.0e+09"
    assert in_words("perplexity", perplexity(800.0)) == "inf" and in_words("other", 0.123456) == "0.1235"
    assert module.ROWS == 5
