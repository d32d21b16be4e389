"""Perplexity of language models: per token, per word, and bits per character.

For a recurrent model, which keeps its state between batches:
    text_loss(model, StreamBatches(text, streams=1).epoch(0), text)
For a Transformer, with sliding windows:
    text_loss(model, SlidingWindows(text, window, stride), text)
For separate documents:
    text_loss(model, DocumentBatches(text, shuffle=False).epoch(0), text)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.batch import PAD, TextBatch
from regard.data.encoded_text import EncodedText, TextCounts
from regard.errors import ArgumentError, message
from regard.models.base import State
from regard.models.language_base import LanguageModel
from regard.torch_modules.eval_mode import in_eval_mode


@dataclass(frozen=True)
class TextLoss:
    """The negative log-likelihood of a text, with properties that compute perplexities from it.

    total: the sum of -log p(x_t | x_1 ... x_t-1) over all tokens x_t, in nats.
    tokens: number of tokens, including EOS.
    counts: the numbers of lines, words and characters of the text; None if unknown.

    >>> loss = TextLoss(total=12 * math.log(2), tokens=6, counts=TextCounts(lines=1, words=2, characters=7))
    >>> loss.perplexity, round(loss.word_perplexity, 6), loss.bits_per_character
    (4.0, 16.0, 1.5)
    """

    total: float
    tokens: int
    counts: TextCounts | None = None

    @property
    def perplexity(self) -> float:
        """Perplexity per token of the tokenizer, EOS included: exp(total / tokens)."""
        return _exp(self.total / self.tokens)

    @property
    def word_perplexity(self) -> float:
        """Perplexity per word, exp(total / (words + lines)); the end of a line counts as a word.

        This is the perplexity that papers report for Penn Treebank. It does not depend on the tokenizer.
        """
        counts = self._counts("word_perplexity")
        return _exp(self.total / (counts.words + counts.lines))

    @property
    def bits_per_character(self) -> float:
        """Bits per character: total / log 2 / (characters + lines); each line end counts as a character."""
        counts = self._counts("bits_per_character")
        return self.total / math.log(2) / (counts.characters + counts.lines)

    def scores(self) -> dict[str, float]:
        """Return the loss per token and the perplexity as a dict from the name of a score to its value.

        If `counts` is known, the dict also has the word perplexity and the bits per character.
        """
        scores = {"loss": self.total / self.tokens, "perplexity": self.perplexity}
        if self.counts is None:
            return scores
        per_word, bits = self.word_perplexity, self.bits_per_character
        return {**scores, "word_perplexity": per_word, "bits_per_character": bits}

    def _counts(self, name: str) -> TextCounts:
        if self.counts is None:
            problem = f"{name} needs the number of words and characters"
            hint = "text_loss(model, batches, text) takes them from the text"
            raise ArgumentError(message("TextLoss", problem, hint=hint))
        return self.counts


def text_loss(
    model: LanguageModel, batches: Iterable[TextBatch], text: EncodedText | None = None
) -> TextLoss:
    """Compute the negative log-likelihood of a text with a language model, in eval mode.

    batches: the batches of the text, in order. All targets except PAD are counted. If batch.carried is True,
        the model continues from the recurrent state after the previous batch.
    text: the text that the batches are from. It is needed only for the perplexity per word and the bits per
        character.

    Raises ArgumentError if the number of targets differs from the number of tokens of `text`.

    In the example, the tokens are words, so the perplexity per token and per word are equal.

    >>> from regard.data.encoded_text import SlidingWindows
    >>> from regard.data.tokenizers import train_tokenizer
    >>> from regard.models import build_language_model
    >>> lines = ["a rose is a rose"]
    >>> text = EncodedText.from_lines(lines, train_tokenizer("word", lines), layout="continuous")
    >>> model = build_language_model("transformer", 7, width=8, heads=2, layers=1)
    >>> loss = text_loss(model, SlidingWindows(text, window=4, stride=2), text)
    >>> loss.tokens, loss.perplexity == loss.word_perplexity
    (6, True)
    """
    device = model.embedding.weight.device
    total, tokens, state = 0.0, 0, None
    with in_eval_mode(model), torch.no_grad():
        for batch in batches:
            tokens += batch.count
            state, losses_BT = token_losses(model, batch.to(device), state)
            total += losses_BT.double().sum().item()
    if not tokens:
        problem = "the batches have no target tokens"
        raise ArgumentError(message("text_loss()", problem, expected="at least one target that is not PAD"))
    if text is not None and tokens != text.token_count:
        problem = f"the batches have {tokens} target tokens, but the text has {text.token_count} tokens"
        hint = "use StreamBatches(streams=1) or SlidingWindows, in which every token is a target once"
        raise ArgumentError(message("text_loss()", problem, hint=hint))
    return TextLoss(total, tokens, None if text is None else text.counts)


def token_losses(model: LanguageModel, batch: TextBatch, state: State | None = None) -> tuple[State, Tensor]:
    """Return the recurrent state after a batch, and the loss of each target token, (B, T).

    The loss of a token is -log p, the negative logarithm of its probability; it is 0 where the token is PAD.

    state: the recurrent state after the previous batch. It is used only if batch.carried is True.

    >>> from regard.models import build_language_model
    >>> model = build_language_model("lstm", 6, width=4)
    >>> _, losses = token_losses(model, TextBatch.collate([[4, 5], [4]]))
    >>> losses.shape, losses[1, 2].item()  # the second text has only two targets
    (torch.Size([2, 3]), 0.0)
    """
    state, logits_BTV = model.read(batch, state)
    if logits_BTV.dtype in (torch.float16, torch.bfloat16):
        logits_BTV = logits_BTV.float()
    target_logits_BT = logits_BTV.gather(-1, batch.targets[..., None])[..., 0]
    losses_BT = logits_BTV.logsumexp(-1) - target_logits_BT
    return state, torch.where(batch.targets == PAD, 0.0, losses_BT)


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf
