"""Convert generated tokens to text while a language model generates them, and end at stop strings."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError, message

CONTEXT = 8
"""Number of earlier tokens that are decoded together with new tokens. Without earlier tokens, a space before
the first new token would be lost."""

CHARACTER = 4
"""Maximum number of bytes of a character in UTF-8."""

INCOMPLETE = "\ufffd"
"""The character that decode() of a tokenizer returns for each byte of an incomplete character."""

MOST_STOPS, LONGEST_STOP = 100, 1000
"""Maximum number of stop strings, and of characters of a stop string."""


def check_stop(stop: Sequence[str], call: str) -> tuple[str, ...]:
    """Return the stop strings as a tuple.

    Raise ArgumentError if there are too many stop strings, or if a stop string is empty or too long.

    call: the public function that was called, for the error message.
    """
    if not isinstance(stop, Iterable):
        problem = f"stop is of type {type(stop).__name__}"
        raise ArgumentError(message(call, problem, expected="a text (str), or several texts"))
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stops:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP:
            expected = f"a text of 1 to {LONGEST_STOP} characters"
            raise ArgumentError(message(call, f"a stop string is not valid: {text!r:.60}", expected=expected))
    if len(stops) > MOST_STOPS:
        raise ArgumentError(message(call, f"{len(stops)} stop strings", expected=f"at most {MOST_STOPS}"))
    return stops


def continuation(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of `tokens`, which follow the tokens `before`.

    If there is a space between the two texts, the result begins with this space.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("word", ["I learned CS"])
    >>> continuation(tokenizer, tokenizer.encode("I learned"), tokenizer.encode("CS"))
    ' CS'
    """
    context = list(before[-CONTEXT:])
    old, new = tokenizer.decode(context), tokenizer.decode([*context, *tokens])
    return new[len(old) :] if new.startswith(old) else tokenizer.decode(tokens)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop string, or the whole text if it has no stop string.

    >>> before_stop("one. two; three", [";", "."])
    'one'
    """
    return text[: min((text.index(each) for each in stop if each in text), default=len(text))]


class StopCheck:
    """Ends hypotheses of a search that contain a stop string. It is called for each decoding step.

    prompts: the tokens of each prompt of the batch.
    stop: the stop strings.
    observer: a function that is called for each decoding step with the tokens of the first hypothesis of
        the first prompt, for example to print them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        stop: Sequence[str],
        observer: Callable[[list[int]], None] | None = None,
    ):
        self.tokenizer, self.prompts, self.stop, self.observer = tokenizer, prompts, stop, observer
        # Search only the last tokens: a stop string that ended earlier was found at an earlier step. Each
        # token has at least one byte, so a stop string has at most as many tokens as bytes.
        self.window = max((len(each.encode()) for each in stop), default=0) + CONTEXT

    def __call__(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Return which hypotheses end, a boolean tensor (b, K) for K hypotheses of each of b prompts.

        tokens: the tokens generated so far, (b, K, t).
        index: for each row of `tokens`, the index of its prompt, (b,).
        """
        if self.observer is not None:
            self.observer(tokens[0, 0].tolist())
        if not self.stop:
            return torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        length = tokens.shape[2]
        ended = []
        for row, hypotheses in zip(index.tolist(), tokens[..., -self.window :].tolist(), strict=True):
            before = self.prompts[row] if length <= self.window else ()
            texts = [continuation(self.tokenizer, before, each) for each in hypotheses]
            ended.append([any(stop in text for stop in self.stop) for text in texts])
        return torch.tensor(ended, device=tokens.device)


class TextStream:
    """Converts generated tokens to text piece by piece, for output while a text is generated.

    Two kinds of text are returned later. Bytes of an incomplete character are returned when the character is
    complete. Text that may be the beginning of a stop string is returned when the next tokens show that it is
    not a stop string. If a token adds a combining accent to a character that was returned already, only the
    accent is returned. So all pieces together are canonically equivalent (Unicode) to the text.

    In this example, the last three tokens are the three bytes of 낮. push() returns 낮 after the third byte:

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("bpe", ["low lower lowest"] * 9, size=280)
    >>> stream, tokens = TextStream(tokenizer, [], []), tokenizer.encode("low 낮")
    >>> [stream.push(tokens[: size + 1]) for size in range(len(tokens))][-3:]
    ['', '', ' 낮']
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str]):
        self.tokenizer, self.stop = tokenizer, stop
        self.context = list(before[-CONTEXT:])
        self.first, self.read = 0, len(self.context)
        self.kept, self.stopped = "", False

    def push(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Return the text that is new since the last call of push().

        tokens: all tokens generated so far.
        last: whether generation has ended. Then the rest of the text is returned, even if it is incomplete.
        """
        whole = [*self.context, *tokens]
        old = self.tokenizer.decode(whole[self.first : self.read])
        new = self.tokenizer.decode(whole[self.first :])
        incomplete = len(new) - len(new.rstrip(INCOMPLETE))
        if 0 < incomplete < CHARACTER and not last:
            return ""
        added = _added(old, new)
        if added:
            self.first, self.read = self.read, len(whole)
        if self.stopped:
            return ""
        pending = self.kept + added
        text = before_stop(pending, self.stop)
        self.stopped = len(text) < len(pending)
        sizes = range(len(text), 0, -1) if not last and not self.stopped else ()
        kept = next(
            (
                size
                for size in sizes
                if any(size < len(each) and each.startswith(text[-size:]) for each in self.stop)
            ),
            0,
        )
        self.kept = text[len(text) - kept :]
        return text[: len(text) - kept]


def _added(old: str, new: str) -> str:
    """Return the part of `new` that follows its common prefix with `old`.

    Usually, `new` begins with `old`, and the result is the text after `old`.
    """
    if new.startswith(old):
        return new[len(old) :]
    before, after = (unicodedata.normalize("NFD", text) for text in (old, new))
    if after.startswith(before):
        return after[len(before) :]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    return new[sum(1 for _ in same) :]
