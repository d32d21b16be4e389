"""`regard evaluate` for language models: the perplexity of text files, or of the validation text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.data.batch import TextBatch
from regard.data.encoded_text import EncodedText, SlidingWindows
from regard.data.progress_bar import advancing
from regard.errors import ArgumentError, message
from regard.evaluation.perplexity import TextLoss, text_loss
from regard.runs.run_commands import ChosenRun, RunReport, report_changed_data, score_table
from regard.runs.run_task import RunTask
from regard.tasks.file_options import ENCODING, TEST_FILE
from regard.tasks.language.data import TextLines, read_texts
from regard.tasks.language.run import LanguageRun, evaluation_batches
from regard.tasks.language.settings import LanguageSettings
from regard.training.command_options import CommandOption
from regard.training.settings import build, merged

__all__ = ["EVALUATE_OPTIONS", "evaluate_language", "evaluate_text"]

PANEL = "Language models"
MOST_TOKENS = 1_000_000

EVALUATE_OPTIONS: tuple[CommandOption | str, ...] = (
    TEST_FILE,
    ENCODING,
    CommandOption(
        "--window",
        "Number of tokens that the model reads at once.",
        "INT",
        int,
        shown_default="the window in training",
        least=1,
        most=MOST_TOKENS,
        panel=PANEL,
    ),
    CommandOption(
        "--stride",
        "Number of tokens by which the window moves, at most --window. A smaller stride is slower, but gives "
        "more context: each token is predicted from at least window - stride + 1 tokens, or from the "
        "beginning of the text.",
        "INT",
        int,
        shown_default="half of the window",
        least=1,
        most=MOST_TOKENS,
        panel=PANEL,
    ),
)
"""The options of `regard evaluate` for language models. A str is the name of an option that several commands
share."""


def _rows(loss: TextLoss, how: str, unknown: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table of scores. how: how the model reads the text."""
    counts = loss.counts
    yield "perplexity", f"{loss.perplexity:,.2f}", f"per token; {how}"
    if counts is not None:
        about = "per word; the end of a line counts as a word"
        yield "word perplexity", f"{loss.word_perplexity:,.2f}", about
        about = "the end of a line counts as a character"
        yield "bits per character", f"{loss.bits_per_character:.3f}", about
    yield "tokens", f"{loss.tokens:,}", "with </s> at the end of each line"
    yield "unknown tokens", f"{unknown:,}", f"{unknown / loss.tokens:.1%} of the tokens"
    if counts is not None:
        yield "words", f"{counts.words:,}", f"in {counts.lines:,} line{'s' * (counts.lines != 1)}"


def evaluate_language(task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
    """Compute the perplexity of text files, or of the validation text, with the model of a run.

    task: the task class.
    run: the run folder and the checkpoint to load; not None.
    options: the values of EVALUATE_OPTIONS. Without files, the text is the validation text of the run.
    """
    assert run is not None
    model: LanguageRun = run.load(task)
    if options["test_file"]:
        lines = TextLines(tuple(options["test_file"]), encoding=options.get("encoding"))
        name = lines.name
    else:
        split = read_texts(model.settings.data)
        report_changed_data(run.folder, split.fingerprints)
        lines, name = split.valid, "the validation text of the run"
    layout = model.settings.data.layout
    text = EncodedText.from_lines(lines, model.tokenizer, layout=layout, name=lines.name)
    return evaluate_text(model, text, name, window=options["window"], stride=options["stride"])


def evaluate_text(
    run: LanguageRun, text: EncodedText, name: str, *, window: int | None = None, stride: int | None = None
) -> RunReport:
    """Compute the perplexity of an encoded text with a trained language model.

    run: the trained model, with the settings of its run.
    text: the text as token ids.
    name: the name of the text in the report.
    window: number of tokens of a sliding window. Default: as in the evaluations during training.
    stride: number of tokens from the start of a window to the start of the next. Default: as in the
        evaluations during training.
    """
    settings = _with_windows(run, window, stride)
    with advancing("reading the text", text.token_count) as report:
        batches = evaluation_batches(text, settings)
        windows = _windows(batches)
        if stride is not None and windows is None:
            raise _useless_stride(stride, batches)
        loss = text_loss(run.model, _counted(batches, report), text)
    how = (
        "the recurrent state is carried through the text" if settings.carried else "each line is read at once"
    )
    if windows is not None:
        how = f"windows of {windows[0]:,} tokens, stride {windows[1]:,}"
    window, stride = windows or (None, None)
    values = {
        **loss.scores(),
        "tokens": loss.tokens,
        "unknown_tokens": text.unknown_count,
        **({} if loss.counts is None else loss.counts._asdict()),
        "window": window,
        "stride": stride,
    }
    return RunReport.of(run, name, values, score_table(_rows(loss, how, text.unknown_count)))


def _windows(batches: Any) -> tuple[int, int] | None:
    """Return the window and the stride of evaluation batches in tokens, for example (128, 64).

    Return None if there are no windows. There are two cases: a recurrent model reads the text from beginning
    to end, or each line is a document that fits into one window.
    """
    if not isinstance(batches, SlidingWindows):
        return None
    at_once = batches.text.layout == "documents" and batches.longest <= batches.window
    return None if at_once else (batches.window, batches.stride)


def _useless_stride(stride: int, windows: Any) -> ArgumentError:
    """Build the ArgumentError for --stride if it has no effect, because each line fits into one window."""
    longest = f"{windows.longest:,}"
    problem = f"the longest line has {longest} tokens and fits into one window of {windows.window:,} tokens"
    hint = f"leave --stride out, or use a --window below {longest}"
    return ArgumentError(message(f"--stride {stride}", problem, hint=hint))


def _with_windows(run: LanguageRun, window: int | None, stride: int | None) -> LanguageSettings:
    """Return the settings of a run with another evaluation window and stride. None keeps the old value.

    Raise ArgumentError in three cases: the model has too few positions for the window; the stride is larger
    than the window; a stride is set for a recurrent model, which reads the text from beginning to end.
    """
    settings, longest = run.settings, run.model.longest_target
    if stride is not None and settings.carried:
        problem = "this recurrent model carries its state through the text, so windows do not overlap"
        raise ArgumentError(message(f"--stride {stride}", problem, hint="leave --stride out"))
    if window is not None and longest is not None and window > longest:
        problem = f"the model has {longest:,} positions"
        raise ArgumentError(message(f"--window {window}", problem, expected=f"at most {longest:,}"))
    usual = settings.data.window if settings.data.layout == "continuous" else settings.data.max_length + 1
    read = window or settings.evaluation.window or usual or 1
    if stride is not None and stride > read:
        problem = f"the window has {read:,} tokens"
        raise ArgumentError(message(f"--stride {stride}", problem, expected=f"at most {read:,}"))
    stored = settings.evaluation.stride
    kept = {"window": window, "stride": stride or (None if stored is None else min(stored, read))}
    changed = {"evaluation": {name: value for name, value in kept.items() if value is not None}}
    return build(LanguageSettings, merged(settings.model_dump(), changed), "the settings")


def _counted(batches: Any, report: Any) -> Iterator[TextBatch]:
    """Yield the batches unchanged; after each one, call report() with the number of tokens read so far."""
    done = 0
    for batch in batches:
        yield batch
        done += batch.count
        report(done)
