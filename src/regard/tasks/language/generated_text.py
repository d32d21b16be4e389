"""GeneratedText: a prompt and its continuation by a language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from regard.data.tokenizers.tokenizer import clean
from regard.tasks.language.text_result import TextResult
from regard.viewing.html_document import safe

__all__ = ["STOP_REASONS", "GeneratedText"]

STOP_REASONS = {
    "end": "the model generated the end of the line (EOS)",
    "stop": "a stop string was generated",
    "length": "the maximum number of new tokens was reached",
    "positions": "all positions of the model are used",
    "interrupted": "generation was interrupted",
    "prompt": "the model cannot read the prompt: all its words are unknown, or it is too long",
}
"""An explanation of each value of GeneratedText.stop_reason."""


@dataclass(frozen=True, eq=False, repr=False)
class GeneratedText(TextResult):
    """A prompt and its continuation by a language model.

    text: the continuation, with the space between prompt and continuation. A stop string is not included.
    token_ids: the id of each generated token, including EOS and the tokens of a stop string.
    pieces: the text of each generated token.
    token_scores: the log-probability of each generated token.
    attention: for each attention layer (site), the weights (H, T, T). T is the number of tokens of the prompt
        and the continuation together. See TextResult.
    long: the attention of a text with more than 512 tokens. Then `attention` is empty. See TextResult.
    unknown: the words of the prompt that are not in the vocabulary.
    prompt: the text of the prompt.
    prompt_token_ids: the id of each token of the prompt.
    prompt_pieces: the text of each token of the prompt.
    stop_reason: why generation ended, a key of STOP_REASONS: "end", "stop", "length", "positions",
        "interrupted" or "prompt". With "prompt", there is no continuation.
    ranking: the log-probability with length penalty. Continuations are sorted by this score.
    others: the other continuations of the n-best list, or the other samples.

    For the other fields, see TextResult.

    >>> text = GeneratedText(" CS", (6, 3), ("CS", "</s>"), (-0.25, -0.5), prompt="I learned")
    >>> str(text), text.log_probability, text.stop_reason
    ('I learned CS', -0.75, 'end')
    """

    prompt: str = field(default="", kw_only=True)
    prompt_token_ids: tuple[int, ...] = field(default=(), kw_only=True)
    prompt_pieces: tuple[str, ...] = field(default=(), kw_only=True)
    stop_reason: str = field(default="end", kw_only=True)
    ranking: float = field(default=0.0, kw_only=True)
    others: tuple[GeneratedText, ...] = field(default=(), kw_only=True)

    @property
    def read_pieces(self) -> tuple[str, ...]:
        return (*self.prompt_pieces, *self.pieces)

    @property
    def whole_text(self) -> str:
        """The prompt and its continuation, as one text."""
        before = clean(self.prompt)
        return f"{before}{self.text}" if before else self.text.lstrip()

    @property
    def continued(self) -> bool:
        """Whether the model could read the prompt. If not, `stop_reason` is "prompt", and `text` is empty."""
        return self.stop_reason != "prompt"

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        if self.continued:  # otherwise the prompt has no known word, and an error says so
            yield from super().unknown_words()

    def with_others(self, others: Iterable[GeneratedText]) -> GeneratedText:
        """Return a copy whose field `others` has these continuations of the same prompt."""
        return replace(self, others=tuple(others))

    def to_dict(self) -> dict[str, Any]:
        """Return TextResult.to_dict(), and also the prompt, the stop reason and the other texts.

        If there is no continuation (stop reason "prompt"), all scores are None.
        """
        unscored = {} if self.continued else {"log_probability": None, "perplexity": None}
        return {
            "prompt": self.prompt,
            **super().to_dict(),
            **unscored,
            "stop_reason": self.stop_reason,
            "ranking": self.ranking if self.continued else None,
            "prompt_token_ids": list(self.prompt_token_ids),
            "prompt_pieces": list(self.prompt_pieces),
            "others": [each.to_dict() for each in self.others],
        }

    @property
    def facts(self) -> tuple[str, ...]:
        if not self.continued:
            return (f"not continued: {STOP_REASONS[self.stop_reason]}",)
        return (f"{super().facts[0]}; ended because {STOP_REASONS[self.stop_reason]}",)

    def html_text(self) -> str:
        before = clean(self.prompt)
        return f"{safe(before)}<b>{safe(self.text if before else self.text.lstrip())}</b>"
