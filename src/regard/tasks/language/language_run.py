"""LanguageRun: a trained language model with its tokenizer, which scores lines and evaluates texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch

from regard.data.batch import EOS
from regard.data.encoded_text import EncodedText, encode_text
from regard.data.text_batch import TextBatch
from regard.data.text_batching import SlidingWindows, StreamBatches
from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError, message
from regard.evaluation.perplexity import TextLoss, text_loss, token_losses
from regard.evaluation.text_classifier import batches_by_length
from regard.look import Look
from regard.models.base import in_eval_mode
from regard.models.language_base import LanguageModel
from regard.models.language_models import build_language_model
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_task import StoredRun
from regard.sites import Record, scope
from regard.tasks.language.language_data import load_text_tokenizer
from regard.tasks.language.language_settings import LanguageSettings
from regard.tasks.language.sample_text import first_token
from regard.tasks.language.scored_text import ScoredText

__all__ = ["LanguageRun", "evaluation_batches", "load_language_run"]

LOGITS = 2**26
"""Maximum number of logits, B T V, that are in memory at the same time."""

CARRIED_WINDOW = 1024
"""Number of tokens that a recurrent model reads at once in an evaluation with a carried state."""


def evaluation_batches(text: EncodedText, settings: LanguageSettings) -> Iterable[TextBatch]:
    """Return batches that count every token of a text once, for text_loss().

    A recurrent model reads a continuous text from beginning to end. Otherwise the windows overlap, except
    where a document fits into one window.
    """
    window = settings.evaluation.window
    if settings.carried:
        return StreamBatches(text, min(window or CARRIED_WINDOW, text.token_count), 1).epoch(0)
    usual = settings.data.window if text.layout == "continuous" else settings.data.max_length + 1
    return SlidingWindows(text, window or usual or 1, settings.evaluation.stride)


class LanguageRun(LoadedRun):
    """A trained language model with the run that it comes from (see LoadedRun).

    model: in eval mode. tokenizer: that of the run.
    """

    settings: LanguageSettings

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer

    @property
    def first_token(self) -> int:
        """The input from which the first token of a line is predicted: BOS, or EOS in continuous text."""
        return first_token(self.settings.data.layout)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.embedding.weight.device

    @overload
    def score(self, lines: str, *, look: str | None = None) -> ScoredText: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, lines: Iterable[str], *, look: str | None = None) -> list[ScoredText]: ...

    def score(self, lines: str | Iterable[str], *, look: str | None = None) -> ScoredText | list[ScoredText]:
        """Compute the log-probability of one line, or of each of several lines, and of each token.

        Every line is read on its own: its first token is predicted from `first_token`, and EOS ends it.
        look: the attention layers (sites) whose weights are recorded, with * as wildcard. None records none.
        """
        texts = [lines] if isinstance(lines, str) else list(lines)
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str):
                problem = f"line {number} is of type {type(text).__name__}"
                raise ArgumentError(message("score()", problem, expected="a text (str)"))
        encoded = [self._encoded(number, text) for number, text in enumerate(texts, 1)]
        results: dict[int, ScoredText] = {}
        lengths = {row: len(tokens) + 1 for row, tokens in enumerate(encoded)}
        for rows in batches_by_length(lengths, max(LOGITS // self.tokenizer.size, 1)):
            batch = [(texts[row], encoded[row]) for row in rows]
            results.update(zip(rows, self._scored(batch, look), strict=True))
        ordered = [results[row] for row in range(len(texts))]
        return ordered[0] if isinstance(lines, str) else ordered

    def evaluate(self, files: str | Path | Sequence[str | Path]) -> TextLoss:
        """Compute the perplexity of text files, as in the evaluations of the training run."""
        text = encode_text(files, self.tokenizer, layout=self.settings.data.layout)
        return text_loss(self.model, evaluation_batches(text, self.settings), text)

    def _encoded(self, number: int, text: str) -> list[int]:
        tokens, longest = self.tokenizer.encode(text), self.model.longest_target
        if longest is not None and len(tokens) >= longest:
            problem = f"line {number} has {len(tokens)} tokens and EOS, but the model has {longest} positions"
            raise ArgumentError(message("score()", problem, hint="score shorter lines"))
        return tokens

    def _scored(self, lines: Sequence[tuple[str, list[int]]], look: str | None) -> Iterator[ScoredText]:
        """Score one batch of lines, each given with its tokens."""
        batch = TextBatch.collate([tokens for _, tokens in lines])
        inputs = batch.inputs.clone()
        inputs[:, 0] = self.first_token
        recording = nullcontext(Record()) if look is None else scope(Look(weights=True), at=look)
        with in_eval_mode(self.model), torch.no_grad(), recording as record:
            _, losses_BT = token_losses(self.model, replace(batch, inputs=inputs).to(self.device))
        if look is not None and record.called and not record:
            problem = f"look is {look!r}, which matches no site of {type(self.model).__name__}"
            hint = f"its sites are {', '.join(record.called)}; * is a wildcard"
            raise ArgumentError(message("score()", problem, hint=hint))
        weights = {
            site: calls[0].weights.float().cpu().numpy()
            for site, calls in record.items()
            if calls[0].weights is not None
        }
        scores = (-losses_BT).tolist()
        for row, (text, tokens) in enumerate(lines):
            size, whole = len(tokens) + 1, (*tokens, EOS)
            uncovered = not self.tokenizer.uncovered.isdisjoint(tokens)
            yield ScoredText(
                text,
                whole,
                tuple(self.tokenizer.pieces(whole)),
                tuple(scores[row][:size]),
                # Copied, because a view would keep the weights of the whole batch in memory.
                {site: each[row, ..., :size, :size].copy() for site, each in weights.items()},
                self.tokenizer.unknown(text) if uncovered else (),
            )


def load_language_run(run: StoredRun, device: str) -> LanguageRun:
    """Load the model and the tokenizer of a run."""
    tokenizer = load_text_tokenizer(run.folder, run.settings.data)
    model = build_language_model(run.settings.model.name, tokenizer.size, **run.settings.model.options)
    return LanguageRun(with_weights(model, run, device), tokenizer).from_run(run)
