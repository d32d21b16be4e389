"""LanguageRun: a trained language model that generates text, scores lines and evaluates texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch

from regard.data.batch import EOS, TextBatch
from regard.data.encoded_text import EncodedText, SlidingWindows, StreamBatches, encode_text
from regard.data.tokenizers import Tokenizer
from regard.decoding import Greedy, LengthLimit, Search
from regard.decoding.rules import MOST_TOKENS, check_integers
from regard.errors import ArgumentError, message, shown
from regard.evaluation.perplexity import TextLoss, text_loss
from regard.models.language_base import LanguageModel
from regard.named_models.language_models import build_language_model
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_commands import ChosenRun, LongTextView, ViewOptions, with_maps
from regard.runs.run_task import RunTask, StoredRun
from regard.tasks.language.data import load_text_tokenizer
from regard.tasks.language.observed_texts import observe_in_batches
from regard.tasks.language.settings import LanguageSettings
from regard.tasks.language.text_generator import (
    GENERATION_LIMIT,
    Generation,
    TextGenerator,
    checked_texts,
    never,
)
from regard.tasks.language.text_result import GeneratedText, ScoredText
from regard.tasks.language.text_stream import check_stop
from regard.training.command_options import CommandOption

__all__ = [
    "LanguageRun",
    "VIEW_OPTIONS",
    "evaluation_batches",
    "load_language_run",
    "view_language",
]

AT_ONCE = 256
"""Number of prompts that stream() reads and continues together."""

CARRIED_WINDOW = 1024
"""Number of tokens that a recurrent model reads at once in an evaluation. The state is kept between these
parts."""


def evaluation_batches(text: EncodedText, settings: LanguageSettings) -> Iterable[TextBatch]:
    """Divide a text into batches for text_loss(), so that every token counts exactly once in the loss.

    A recurrent model reads a continuous text from beginning to end, and keeps its state between windows. In
    all other cases, the model reads overlapping windows. The tokens in the overlap are only context, and are
    not counted again. A document that fits into one window is read at once.
    """
    window = settings.evaluation.window
    if settings.carried:
        return StreamBatches(text, min(window or CARRIED_WINDOW, text.token_count), 1).epoch(0)
    usual = settings.data.window if text.layout == "continuous" else settings.data.max_length + 1
    return SlidingWindows(text, window or usual or 1, settings.evaluation.stride)


class LanguageRun(LoadedRun):
    """A trained language model from a run folder. It generates text, scores lines and evaluates files.

    model: the model, in eval mode.
    tokenizer: the tokenizer of the run.
    """

    settings: LanguageSettings

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer

    @property
    def first_token(self) -> int:
        """The id of the token before the first token of a line: BOS, or EOS in a continuous text.

        The model predicts the first token of the line from it.
        """
        return self.settings.first_token

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.embedding.weight.device

    @property
    def generator(self) -> TextGenerator:
        """The object that generates text with this model and tokenizer."""
        return TextGenerator(self.model, self.tokenizer, self.first_token)

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompts: str,
        *,
        search: Search | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        look: str | None = None,
        on_text: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] | None = None,
        tokens_per_batch: int = 4096,
    ) -> GeneratedText: ...

    @overload
    def generate(
        self,
        prompts: Iterable[str],
        *,
        search: Search | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        look: str | None = None,
        on_text: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] | None = None,
        tokens_per_batch: int = 4096,
    ) -> list[GeneratedText]: ...

    def generate(
        self,
        prompts: str | Iterable[str],
        *,
        search: Search | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        look: str | None = None,
        on_text: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] | None = None,
        tokens_per_batch: int = 4096,
    ) -> GeneratedText | list[GeneratedText]:
        """Continue one prompt, or each of several prompts, up to the end of the line.

        prompts: the beginning of a text (str), or several beginnings.
        search: Greedy(...), Beam(...) or Sample(...). Default: Greedy().
        max_new_tokens: the maximum number of new tokens, EOS included. Default: search.rules.maximum if it is
            set, otherwise 100. Generation also ends when all positions of the model are used.
        stop: one or more stop strings. Generation ends at the first stop string; the result does not include
            it.
        look: the attention layers (sites) whose weights are recorded, with * as wildcard. None records
            nothing.
        on_text: a function that is called with each new piece of text as soon as it is generated. It can only
            be used with a single prompt.
        stopping: a function that is called after each token. When it returns True, generation ends, and
            prompts that were not begun are left out.
        tokens_per_batch: the maximum number of tokens of a batch: prompts and new tokens of all hypotheses.
        """
        texts = checked_texts("generate()", "prompt", prompts)
        options = self._generation(
            "generate()", search, max_new_tokens, stop, look, on_text, stopping, tokens_per_batch
        )
        results = self.generator.generate(texts, 0, options)
        return results[0] if isinstance(prompts, str) else results

    def stream(
        self,
        prompts: Iterable[str],
        at_once: int = AT_ONCE,
        *,
        search: Search | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        look: str | None = None,
        stopping: Callable[[], bool] | None = None,
        tokens_per_batch: int = 4096,
        skip_invalid: bool = False,
    ) -> Iterator[GeneratedText]:
        """Yield the continuation of each prompt. Prompts may be an iterator, e.g. over a file.

        at_once: the number of prompts that are read and continued together.
        skip_invalid: what to do with a prompt that has no known words or too many tokens. If True, its
            continuation is empty, with the stop reason "prompt". If False, an error is raised.

        For the other arguments, see generate().
        """
        check_integers("stream()", at_once=(at_once, 1))
        options = self._generation(
            "stream()", search, max_new_tokens, stop, look, None, stopping, tokens_per_batch
        )
        remaining, first = iter(prompts), 0
        while not options.stopping() and (chunk := list(itertools.islice(remaining, at_once))):
            texts = checked_texts("stream()", "prompt", chunk)
            yield from self.generator.generate(texts, first, replace(options, skip_invalid=skip_invalid))
            first += len(chunk)

    @staticmethod
    def _generation(
        call: str,
        search: Search | None,
        max_new_tokens: int | None,
        stop: str | Sequence[str],
        look: str | None,
        on_text: Callable[[str], None] | None,
        stopping: Callable[[], bool] | None,
        tokens_per_batch: int,
    ) -> Generation:
        """Check the arguments of generate() or stream(), and return them as a Generation."""
        how = Greedy() if search is None else search
        if not isinstance(how, Search):
            expected = "Greedy(...), Beam(...) or Sample(...)"
            raise ArgumentError(message(call, f"search is {search!r}", expected=expected))
        check_integers(call, tokens_per_batch=(tokens_per_batch, 1))
        limit = GENERATION_LIMIT
        if max_new_tokens is not None:
            check_integers(call, max_new_tokens=(max_new_tokens, 1, MOST_TOKENS))
            if how.rules.maximum is not None:
                problem = "max_new_tokens is set, and the rules of the search have a maximum"
                raise ArgumentError(message(call, problem, expected="one of them"))
            limit = LengthLimit(constant=max_new_tokens)
        # Do not write `stopping or ...`: before the first signal, an Interruption is false in a condition.
        requested = never if stopping is None else stopping
        return Generation(how, limit, check_stop(stop, call), look, requested, on_text, tokens_per_batch)

    @overload
    def score(self, lines: str, *, look: str | None = None) -> ScoredText: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, lines: Iterable[str], *, look: str | None = None) -> list[ScoredText]: ...

    def score(self, lines: str | Iterable[str], *, look: str | None = None) -> ScoredText | list[ScoredText]:
        """Compute the log-probability of one line or several lines, and of each of their tokens.

        Every line is read separately. Its first token is predicted from `first_token`, and its last token is
        EOS.

        lines: a line (str), or several lines.
        look: the attention layers (sites) whose weights are recorded, with * as wildcard. None records
            nothing.
        """
        texts = checked_texts("score()", "line", lines)
        encoded = [self.encode_line(text, f"score(), line {n}") for n, text in enumerate(texts, 1)]
        rows = [[self.first_token, *tokens, EOS] for tokens in encoded]
        observed = observe_in_batches(self.model, rows, look, "score()")
        described = self.generator.described
        results = [
            ScoredText(text, tuple(row[1:]), token_scores=each.token_scores, **described(row, each, text))
            for text, row, each in zip(texts, rows, observed, strict=True)
        ]
        return results[0] if isinstance(lines, str) else results

    def evaluate(self, files: str | Path | Sequence[str | Path]) -> TextLoss:
        """Compute the perplexity of text files, with the window and stride of evaluations during training."""
        text = encode_text(files, self.tokenizer, layout=self.settings.data.layout)
        return text_loss(self.model, evaluation_batches(text, self.settings), text)

    def encode_line(self, text: str, place: str) -> list[int]:
        """Return the token ids of a line to score, without EOS.

        text: the line.
        place: the file and line number, for error messages.

        Raise ArgumentError if the line, including EOS, has more tokens than the model has positions.
        """
        tokens, longest = self.tokenizer.encode(text), self.model.longest_target
        if longest is not None and len(tokens) >= longest:
            problem = f"the text has {len(tokens):,} tokens and EOS, but the model has {longest:,} positions"
            raise ArgumentError(message(place, problem, hint="score shorter lines"))
        return tokens


def load_language_run(run: StoredRun, device: str) -> LanguageRun:
    """Load the trained language model and the tokenizer of a run."""
    tokenizer = load_text_tokenizer(run.folder, run.settings.data)
    model = build_language_model(run.settings.model.name, tokenizer.size, **run.settings.model.options)
    return LanguageRun(with_weights(model, run, device), tokenizer).from_run(run)


VIEW_OPTIONS: tuple[CommandOption | str, ...] = ("text",)
"""The options of `regard view` for language models. All tasks also have the drawing options. A str is the
name of an option that several commands share."""

MATRIX = 256
"""Maximum number of tokens for a picture of the attention as a matrix, with a row for each token.

A longer text is drawn as a map, in which each cell is the largest weight in a block of tokens.
"""

LONGEST = 2048
"""Maximum number of tokens of a text to view."""


def view_language(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> LongTextView:
    """Record the self-attention of every layer while a language model reads a text, for `regard view`.

    task: the task class.
    run: the run folder and the checkpoint to load.
    options: the values of VIEW_OPTIONS.
    drawing: the drawing options.
    """
    model: LanguageRun = run.load(task)
    tokens = len(model.tokenizer.encode(options["text"])) + 1
    if tokens > LONGEST:
        problem = f"the text has {tokens:,} tokens"
        raise ArgumentError(message("--text", problem, expected=f"at most {LONGEST:,}"))
    seen = model.score(options["text"], look="*").seen()
    if not seen.sites and not seen.long:
        name = model.settings.model.name
        problem = f"the model {name} has no attention to view"
        hint = "choose a run of a model with attention, such as a transformer"
        raise ArgumentError(message(shown(run.folder), problem, hint=hint))
    return LongTextView(seen if seen.long or tokens <= MATRIX else with_maps(seen))
