"""Rules: constraints on the output, such as its length, repeated n-grams, and forbidden tokens.

A rule sets the log-probability of forbidden tokens to -inf. The other tokens keep their log-probabilities:
they are not renormalised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.errors import ArgumentError, message
from regard.models.base import Model

MOST_TOKENS = 100_000
"""The largest value of Rules(minimum=..., maximum=..., repeat=...)."""


def check_integers(call: str, **numbers: tuple[object, int] | tuple[object, int, int]) -> None:
    """Raise ArgumentError if an argument of a function is not an int, or is out of range.

    call: the name of the function, for the message.

    numbers: the arguments to check by name, as tuples (value, minimum) or (value, minimum, maximum).
    """
    for name, (number, least, *most) in numbers.items():
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not least <= number <= max(most, default=number)
        ):
            expected = f"an integer, {least} {f'to {most[0]:,}' if most else 'or more'}"
            raise ArgumentError(message(call, f"{name} is {number!r}", expected=expected))


@dataclass(frozen=True)
class LengthLimit:
    """The default maximum number of output tokens of a task: per_source_token * source length + constant.

    EOS counts as a token. Each task, such as translation, has its own limit. Rules(maximum=...) replaces it.

    >>> import torch
    >>> LengthLimit(per_source_token=2, constant=10).tokens(torch.tensor([3, 7]))
    tensor([16, 24])
    """

    per_source_token: int = 0
    constant: int = 100

    def __post_init__(self) -> None:
        bounds = {name: (value, 0, MOST_TOKENS) for name, value in vars(self).items()}
        check_integers("LengthLimit()", **bounds)

    def tokens(self, source_lengths: Tensor) -> Tensor:
        """Return the maximum number of output tokens of each sentence, (B,).

        source_lengths: (B,), the number of source tokens of each sentence.
        """
        return self.per_source_token * source_lengths + self.constant


TRANSLATION_LIMIT = LengthLimit(per_source_token=2, constant=10)
"""The default maximum length of a translation: 2 * source length + 10 tokens. Rules(maximum=...) replaces it.

If the translation must begin with a prefix, the length of the prefix is added.
"""


@dataclass(frozen=True)
class Rules:
    """Constraints on the output: its length, repeated n-grams, and forbidden tokens.

    minimum: the smallest number of tokens, EOS included.
    maximum: the largest number of tokens, EOS included. Default: the limit of the task, which is
        2 * source length + 10 for translations, plus the length of the prefix.
    repeat: no n-gram of this size may occur twice (no_repeat_ngram_size in Hugging Face). 0 disables this.
    forbidden: token ids that are never generated. PAD and BOS are always forbidden. Default: UNK.

    A prefix is a list of tokens that an output must begin with. The rules do not forbid tokens of a prefix.
    If the rules forbid every token, EOS is permitted.

    In the example, EOS (3) would come too early, and 4 would repeat the bigram (5, 4). The tokens 0 to 2 are
    PAD, UNK and BOS.

    >>> import torch
    >>> from regard.decoding import Rules
    >>> previous, scores = torch.tensor([[5, 4, 5]]), torch.zeros(1, 7)
    >>> Rules(minimum=9, repeat=2).permitted(scores, previous)
    tensor([[-inf, -inf, -inf, -inf, -inf, 0., 0.]])
    """

    minimum: int = 1
    maximum: int | None = None
    repeat: int = 0
    forbidden: tuple[int, ...] = (UNK,)

    def __post_init__(self) -> None:
        check_integers(
            "Rules()", minimum=(self.minimum, 1, MOST_TOKENS), repeat=(self.repeat, 0, MOST_TOKENS)
        )
        if self.maximum is not None:
            check_integers("Rules()", maximum=(self.maximum, 1, MOST_TOKENS))
            if self.maximum < self.minimum:
                problem = f"minimum = {self.minimum} is larger than maximum = {self.maximum}"
                raise ArgumentError(message("Rules()", problem))
        if not isinstance(self.forbidden, Iterable):
            problem = f"forbidden is {self.forbidden!r}"
            raise ArgumentError(message("Rules()", problem, expected="a tuple of token ids, such as (1,)"))
        object.__setattr__(self, "forbidden", tuple(self.forbidden))
        for token in self.forbidden:
            check_integers("Rules()", **{"a forbidden token": (token, 0)})
        if EOS in self.forbidden:
            hint = "to forbid EOS only before a given length, use minimum=..."
            raise ArgumentError(
                message("Rules()", "forbidden contains EOS, so no sentence could end", hint=hint)
            )

    def limits(
        self,
        model: Model,
        source_lengths: Tensor,
        prefix_lengths: Tensor | None = None,
        limit: LengthLimit = TRANSLATION_LIMIT,
        already_read: int = 0,
    ) -> Tensor:
        """Return the maximum number of output tokens of each sentence, (B,), EOS included.

        prefix_lengths: the number of tokens of each prefix; None if there are no prefixes.
        limit: the limit of the task, which is used if `maximum` is None.
        already_read: the number of tokens of the prompt, which count towards the maximum sequence length of
            the model.

        Raise ArgumentError if a prefix is not shorter than the maximum, or if the prompt is not shorter than
        the maximum sequence length of the model.
        """
        if self.maximum is None:
            limits = limit.tokens(source_lengths)
            limits = (limits if prefix_lengths is None else limits + prefix_lengths).clamp(min=self.minimum)
        else:
            limits = torch.full_like(source_lengths, self.maximum)
        if model.longest_target is not None:
            if already_read >= model.longest_target:
                problem = f"the prompt has {already_read} tokens"
                expected = f"fewer than {model.longest_target}, the maximum sequence length of the model"
                hint = "shorten the prompt"
                raise ArgumentError(message("search()", problem, expected=expected, hint=hint))
            limits = limits.clamp(max=model.longest_target - already_read)
        if prefix_lengths is not None and (prefix_lengths >= limits).any():
            worst = int((prefix_lengths - limits).argmax())
            raise ArgumentError(
                message(
                    "search()",
                    f"the prefix of sentence {worst} has {int(prefix_lengths[worst])} tokens",
                    expected=f"fewer than {int(limits[worst])}, the maximum length of the output",
                    hint="use a shorter prefix, or a larger Rules(maximum=...)",
                )
            )
        return limits

    def longest(self, model: Model, source_length: int, limit: LengthLimit = TRANSLATION_LIMIT) -> int:
        """Return the largest result of limits() for sources of up to `source_length` tokens without prefixes.

        It is computed on the host, so that it does not wait for a GPU.
        """
        longest = max(limit.per_source_token * source_length + limit.constant, self.minimum)
        longest = longest if self.maximum is None else self.maximum
        return longest if model.longest_target is None else min(longest, model.longest_target)

    def permitted(self, scores: Tensor, generated: Tensor, must: Tensor | None = None) -> Tensor:
        """Return log-probabilities (rows, V) with -inf for the tokens that the rules forbid.

        scores: (rows, V), the log-probabilities of the model.
        generated: (rows, t), the tokens generated so far.
        must: (rows,), the next token of the prefix of each row, or PAD for a row whose prefix has ended.
        """
        forbidden = forbidden_ids(self.forbidden, scores.shape[-1], scores.device)
        permitted_RV = scores.index_fill(-1, forbidden, -torch.inf)
        short = generated.shape[1] + 1 < self.minimum
        if short:
            permitted_RV[:, EOS] = -torch.inf
        if self.repeat:
            # For rows without a repeated n-gram, the token to forbid is PAD, which is forbidden anyway.
            permitted_RV.scatter_(1, _repeating_tokens(generated, self.repeat), -torch.inf)
        if short or self.repeat:
            stuck_R = permitted_RV.amax(-1) == -torch.inf
            permitted_RV[:, EOS] = torch.where(stuck_R, scores[:, EOS], permitted_RV[:, EOS])
        if must is not None:
            token = torch.arange(scores.shape[-1], device=scores.device)
            alone_RV = torch.where(token == must[:, None], scores, -torch.inf)
            permitted_RV = torch.where(must[:, None] == PAD, permitted_RV, alone_RV)
        return permitted_RV


def pad_prefixes(
    prefixes: Sequence[Sequence[int]] | None, sentences: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return the prefixes as one tensor (B, P), padded with PAD, and their lengths (B,).

    prefixes: for each sentence, the tokens that its output must begin with. None: no sentence has a prefix.
    sentences: the number of sentences, B.
    size: the vocabulary size. Raise ArgumentError for tokens outside the vocabulary.
    """
    rows = [list(prefix) for prefix in prefixes] if prefixes is not None else [[]] * sentences
    if len(rows) != sentences:
        problem = f"{len(rows)} prefixes for {sentences} sentences"
        raise ArgumentError(message("search()", problem, hint="use [] for a sentence without a prefix"))
    for number, row in enumerate(rows):
        for token in row:
            if token in (PAD, BOS, EOS) or not 0 <= token < size:
                problem = f"the prefix of sentence {number} has token {token}"
                expected = f"1 (UNK), or 4 to {size - 1}; 0, 2 and 3 are PAD, BOS and EOS"
                raise ArgumentError(message("search()", problem, expected=expected))
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(sentences, longest), lengths


@lru_cache(maxsize=8)
def forbidden_ids(forbidden: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """Return PAD, BOS and the ids in `forbidden` that are below `size`, as a sorted tensor.

    Cached: creating the tensor at every decoding step would synchronise the GPU.
    """
    return torch.tensor(sorted({PAD, BOS, *forbidden} & set(range(size))), device=device)


def _repeating_tokens(tokens: Tensor, size: int) -> Tensor:
    """Return the tokens that would repeat an n-gram if they were generated next, (rows, windows).

    tokens: (rows, t), the tokens generated so far.
    size: n, the size of the n-grams.

    Each window is an n-gram of `tokens`. If its first n - 1 tokens are equal to the last n - 1 tokens of the
    row, the result contains the last token of the window, otherwise PAD.
    """
    rows, length = tokens.shape
    if length < size:
        return tokens.new_full((rows, 1), PAD)
    windows_RWN = tokens.unfold(1, size, 1)
    last_R1N = tokens[:, length - size + 1 :].unsqueeze(1)
    same_RW = (windows_RWN[..., :-1] == last_R1N).all(-1)
    return torch.where(same_RW, windows_RWN[..., -1], PAD)
