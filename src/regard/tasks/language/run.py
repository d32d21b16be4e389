"""LanguageRun: a trained language model that generates text, scores lines and evaluates texts."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from regard.attended import Attended, Top
from regard.data.batch import EOS, PAD, UNK, TextBatch
from regard.data.encoded_text import EncodedText, SlidingWindows, StreamBatches, encode_text
from regard.data.tokenizers import Tokenizer
from regard.decoding import Beam, Greedy, Hypothesis, LengthLimit, Prompts, Sample, Search, search
from regard.decoding.rules import MOST_TOKENS, check_integers
from regard.errors import ArgumentError, message
from regard.evaluation.attribution import METHODS, Attribution, InputVectors, attribute
from regard.evaluation.perplexity import TextLoss, text_loss, token_losses
from regard.lazy_package import imported
from regard.look import Look
from regard.models.language_base import LanguageModel
from regard.roles import BySite
from regard.runs.stored_runs import LoadedRun
from regard.sites import Record, scope
from regard.tasks.language.settings import LanguageSettings
from regard.tasks.language.text_result import GeneratedText, ScoredText, TextResult
from regard.torch_modules.eval_mode import in_eval_mode
from regard.viewing import pooled_from_top
from regard.viewing.pictures.view_selection import matching
from regard.viewing.result import unknown_note
from regard.viewing.word_groups import grouped, spelled_or_space

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


AT_ONCE = 256
"""Number of prompts that stream() reads and continues together."""

CARRIED_WINDOW = 1024
"""Number of tokens that a recurrent model reads at once in an evaluation. The state is kept between these
parts."""

GENERATION_LIMIT = LengthLimit(constant=100)
"""The default maximum number of new tokens."""


LONG = 512
"""For a text with more tokens than this, only the TOP largest attention weights of each token are recorded.

This saves memory: with 8 heads and 2,048 tokens, all weights of a layer take 134 MB, the largest ones 6 MB.
"""

TOP = 32

LOGITS, WEIGHTS = 2**26, 2**20
"""Limits of the memory of one forward pass with B texts of T tokens, and with a vocabulary of V tokens.

LOGITS is the maximum number of logits (B T V). WEIGHTS is the maximum number of attention weights of each
head (B T T).
"""


class Options(TypedDict, total=False):
    """The keyword arguments of LanguageRun.generate()."""

    search: Search | None
    max_new_tokens: int | None
    stop: str | Sequence[str]
    look: str | None
    on_text: Callable[[str], None] | None
    stopping: Callable[[], bool] | None
    tokens_per_batch: int


def never() -> bool:
    """Return False: generation is not to be stopped early."""
    return False


class Generation:
    """The checked options of LanguageRun.generate() and stream(), which describe them.

    call: the public function that was called, for error messages.
    """

    def __init__(
        self,
        call: str,
        search: Search | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        look: str | None = None,
        on_text: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] | None = None,
        tokens_per_batch: int = 4096,
        skip_invalid: bool = False,
    ):
        self.search = how = Greedy() if search is None else search
        if not isinstance(how, Search):
            expected = "Greedy(...), Beam(...) or Sample(...)"
            raise ArgumentError(message(call, f"search is {search!r}", expected=expected))
        check_integers(call, tokens_per_batch=(tokens_per_batch, 1))
        self.limit = GENERATION_LIMIT
        if max_new_tokens is not None:
            check_integers(call, max_new_tokens=(max_new_tokens, 1, MOST_TOKENS))
            if how.rules.maximum is not None:
                problem = "max_new_tokens is set, and the rules of the search have a maximum"
                raise ArgumentError(message(call, problem, expected="one of them"))
            self.limit = LengthLimit(constant=max_new_tokens)
        self.stop, self.look, self.on_text = check_stop(stop, call), look, on_text
        # Do not write `stopping or ...`: before the first signal, an Interruption is false in a condition.
        self.stopping = never if stopping is None else stopping
        self.tokens_per_batch, self.skip_invalid = tokens_per_batch, skip_invalid
        self.new_tokens = how.rules.maximum or max(self.limit.constant, how.rules.minimum)
        self.hypotheses = how.size if isinstance(how, Beam) else how.count if isinstance(how, Sample) else 1


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

    def validation_texts(self, count: int) -> list[str]:
        read_texts = imported("regard.tasks.language.task.read_texts")  # which imports this module
        lines = (line for line in read_texts(self.settings.data).valid if line.strip())
        return list(itertools.islice(lines, count))

    @overload
    def generate(self, prompts: str, **options: Unpack[Options]) -> GeneratedText: ...  # type: ignore[overload-overlap]

    @overload
    def generate(self, prompts: Iterable[str], **options: Unpack[Options]) -> list[GeneratedText]: ...

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
        call = "generate()"
        options = Generation(call, search, max_new_tokens, stop, look, on_text, stopping, tokens_per_batch)
        results = self._continued(texts, 0, options)
        return results[0] if isinstance(prompts, str) else results

    def stream(
        self,
        prompts: Iterable[str],
        at_once: int = AT_ONCE,
        *,
        skip_invalid: bool = False,
        **options: Unpack[Options],
    ) -> Iterator[GeneratedText]:
        """Yield the continuation of each prompt. Prompts may be an iterator, e.g. over a file.

        at_once: the number of prompts that are read and continued together.
        skip_invalid: what to do with a prompt that has no known words or too many tokens. If True, its
            continuation is empty, with the stop reason "prompt". If False, an error is raised.

        For the other arguments, see generate().
        """
        check_integers("stream()", at_once=(at_once, 1))
        chosen = Generation("stream()", **options, skip_invalid=skip_invalid)
        remaining, first = iter(prompts), 0
        while not chosen.stopping() and (chunk := list(itertools.islice(remaining, at_once))):
            yield from self._continued(checked_texts("stream()", "prompt", chunk), first, chosen)
            first += len(chunk)

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
        results = [
            ScoredText(
                text, tuple(row[1:]), token_scores=each.token_scores, **self._described(row, each, text)
            )
            for text, row, each in zip(texts, rows, observed, strict=True)
        ]
        return results[0] if isinstance(lines, str) else results

    def attribute(
        self,
        scored: TextResult,
        methods: Iterable[str] = METHODS,
        *,
        site: str | None = None,
        head: int | None = None,
    ) -> Attribution:
        """Compute how much each word of a text depends on each earlier word, by erasure and gradients.

        It also works without attention. "attention" are the weights of the sites in scored.attention.

        scored: a result of score() or generate(), with at least two words.
        methods: names of attribution.METHODS.
        site: the attention layers (sites), see picture(). Default: all self-attention layers.
        head: the index of one head. Default: the mean over heads.
        """
        numbers, pieces = scored.word_numbers, scored.read_pieces
        words = [word for word in grouped(numbers) if numbers[word[0]] >= 0]
        ids = [*getattr(scored, "prompt_token_ids", ()), *scored.token_ids]
        if len(words) < 2 or len(ids) > LONG:
            problem = f"the text has {len(words):,} words and {len(ids):,} tokens"
            expected = f"at least 2 words, and at most {LONG} tokens"
            raise ArgumentError(message("attribute()", problem, expected=expected))
        inputs = [[place + 1 for place in word] for word in words[:-1]]  # input 0 is the first token
        targets_T = torch.tensor(ids, device=self.device)
        tokens = [self.first_token, *ids[:-1]]

        def scores(tokens_BT: Tensor) -> Tensor:
            lengths_B = torch.full((len(tokens_BT),), len(ids), device=self.device)
            batch = TextBatch(
                tokens_BT, targets_T.expand(len(tokens_BT), -1), lengths_B, torch.arange(len(tokens_BT))
            )
            logits_BTV = self.model(batch).float()
            return logits_BTV.gather(-1, batch.targets[..., None])[..., 0] - logits_BTV.logsumexp(-1)

        read = InputVectors.of_tokens(
            self.model, self.model.embedding, tokens, scores, logits=self.model.target_size
        )
        visible = numpy.tri(len(words), len(inputs), -1, dtype=bool)
        values = dict[str, NDArray[numpy.float64]]()
        if sites := scored.seen().sites:
            chosen = matching(replace(scored.seen(), sites=sites), site)
            weights_TT = numpy.mean(
                [each.weights.mean(0) if head is None else each.weights[head] for each in chosen], 0
            )
            by_row = numpy.stack([weights_TT[word].mean(0) for word in words])
            values["attention"] = numpy.stack([by_row[:, word].sum(1) for word in inputs], 1) * visible
        computed = attribute(read, words, inputs, methods)
        values |= {name: each * visible for name, each in computed.items()}
        names = tuple(spelled_or_space([pieces[place] for place in word]) for word in words)
        return Attribution(names, names[:-1], values, title=scored.whole_text, visible=visible)

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

    def encode_prompt(self, text: str, place: str) -> list[int]:
        """Return the token ids of a prompt.

        If the model was trained on continuous text, a line break in the prompt becomes EOS.

        text: the prompt.
        place: the file and line, or the call, for error messages.

        Raise ArgumentError if no word of the prompt is in the vocabulary, or if the prompt leaves no position
        of the model for a new token.
        """
        lines = text.split("\n") if self.first_token == EOS else [text]
        tokens = [token for line in lines for token in (EOS, *self.tokenizer.encode(line))][1:]
        if tokens and set(tokens) <= {UNK, EOS} and (unknown := self.tokenizer.unknown(text)):
            problem = f"no word of the prompt is {unknown_note(unknown).removeprefix('not ')}"
            raise ArgumentError(message(place, problem, expected="at least one word of the training text"))
        longest = self.model.longest_target
        if longest is not None and len(tokens) >= longest:
            problem = f"the prompt has {len(tokens):,} tokens"
            expected = f"fewer than {longest:,}, the number of positions of the model"
            raise ArgumentError(message(place, problem, expected=expected, hint="shorten the prompt"))
        return tokens

    def _continued(self, texts: Sequence[str], first: int, options: Generation) -> list[GeneratedText]:
        """Continue each prompt. When options.stopping() returns True, the remaining prompts are left out.

        Prompts of equal length are continued together. If a prompt is left out but a later one is not, its
        continuation is empty, with the stop reason "interrupted".

        texts: the prompts.
        first: the index of texts[0] among all prompts. The random numbers of Sample(...) depend on this
            index.
        options: how to generate.
        """
        prompts, results = dict[int, list[int]](), dict[int, GeneratedText]()
        for row, text in enumerate(texts):
            try:
                prompts[row] = self.encode_prompt(text, f"generate(), prompt {row + 1}")
            except ArgumentError:
                if not options.skip_invalid:
                    raise
                unknown = self.tokenizer.unknown(text)
                results[row] = GeneratedText(
                    "", (), (), (), unknown=unknown, prompt=text, stop_reason="prompt"
                )
        if options.on_text is not None and (
            len(texts) != 1 or isinstance(options.search, Beam) or options.hypotheses != 1
        ):
            problem = "on_text needs one prompt, and Greedy(...) or Sample(count=1)"
            raise ArgumentError(message("generate()", problem))
        found: dict[int, list[Hypothesis]] = {}
        for rows in self._batches(prompts, options):
            if found and options.stopping():
                break
            found.update(zip(rows, self._search(rows, prompts, first, options), strict=True))
        outputs = [(prompts[row], each) for row in found for each in found[row]]
        observed: Iterator[ObservedText | None] = iter([None] * len(outputs))
        if options.look is not None and outputs:
            rows_read = [[self.first_token, *prompt, *each.tokens] for prompt, each in outputs]
            observed = iter(observe_in_batches(self.model, rows_read, options.look, "generate()"))
        for row, hypotheses in found.items():
            own = [
                self._result(texts[row], prompts[row], each, next(observed), options) for each in hypotheses
            ]
            results[row] = replace(own[0], others=tuple(own[1:]))
        last = max(found, default=-1) if len(found) < len(prompts) else len(texts) - 1
        for row in set(range(last + 1)) - set(results):
            results[row] = GeneratedText("", (), (), (), prompt=texts[row], stop_reason="interrupted")
        return [results[row] for row in range(last + 1)]

    def _batches(self, prompts: Mapping[int, list[int]], options: Generation) -> Iterator[list[int]]:
        """Group prompts into batches: yield a list of keys of `prompts` for each batch.

        All prompts of a batch have the same number of tokens.
        """
        by_length: dict[int, list[int]] = {}
        for row, prompt in prompts.items():
            by_length.setdefault(len(prompt), []).append(row)
        for length, rows in by_length.items():
            tokens = (length + 1 + options.new_tokens) * options.hypotheses
            count = max(options.tokens_per_batch // tokens, 1)
            yield from (rows[at : at + count] for at in range(0, len(rows), count))

    def _search(
        self, rows: list[int], prompts: Mapping[int, list[int]], first: int, options: Generation
    ) -> list[list[Hypothesis]]:
        tokens = [prompts[row] for row in rows]
        batch = Prompts.collate(
            [[self.first_token, *each] for each in tokens], index=[first + row for row in rows]
        )
        observer, stream = None, TextStream(self.tokenizer, tokens[0], options.stop)
        if (on_text := options.on_text) is not None:

            def observer(generated: list[int]) -> None:
                if text := stream.push(generated):
                    on_text(text)

        ends = None
        if options.stop or on_text is not None:
            ends = StopCheck(self.tokenizer, tokens, options.stop, observer)
        stopping = None if options.stopping is never else options.stopping
        hypotheses = search(
            self.model, batch, options.search, look=None, limit=options.limit, ends=ends, stopping=stopping
        )
        if on_text is not None and (rest := stream.push(hypotheses[0][0].tokens, last=True)):
            on_text(rest)
        return hypotheses

    def _result(
        self,
        prompt: str,
        prompt_tokens: list[int],
        hypothesis: Hypothesis,
        observed: ObservedText | None,
        options: Generation,
    ) -> GeneratedText:
        whole = continuation(self.tokenizer, prompt_tokens, hypothesis.output_tokens)
        text = before_stop(whole, options.stop)
        stopped = len(text) < len(whole)
        longest, count = self.model.longest_target, len(hypothesis.tokens)
        if stopped or hypothesis.finished:
            reason = "stop" if stopped else "end"
        elif count >= options.new_tokens:
            reason = "length"
        else:
            full = longest is not None and len(prompt_tokens) + count >= longest
            reason = "positions" if full else "interrupted"
        notes = []
        if reason == "positions":
            notes.append(f"ended after {count} new tokens, because the model has {longest} positions")
        if reason == "end" and not hypothesis.output_tokens:
            notes.append("the continuation is empty: the model generated the end of the line at once")
        row = [self.first_token, *prompt_tokens, *hypothesis.tokens]
        described = self._described(row, observed, prompt, len(prompt_tokens))
        return GeneratedText(
            text,
            hypothesis.tokens,
            token_scores=hypothesis.token_scores,
            prompt=prompt,
            prompt_token_ids=tuple(prompt_tokens),
            prompt_pieces=tuple(self.tokenizer.pieces(prompt_tokens)),
            stop_reason=reason,
            ranking=hypothesis.ranking,
            notes=tuple(notes),
            **described,
        )

    def _described(
        self, row: Sequence[int], observed: ObservedText | None, text: str, prompt: int = 0
    ) -> dict[str, Any]:
        """Return the fields of a TextResult that are computed from its tokens and its attention, as a dict.

        row: the first token (BOS or EOS), the tokens of the prompt, and the tokens of the result.
        observed: the recorded attention; None if no attention was recorded.
        text: the input of the user: the prompt, or the line to score. Its unknown words become the field
            `unknown`.
        prompt: number of tokens of the prompt.
        """
        first, tokens = row[0], list(row[1:])
        pieces = self.tokenizer.pieces(tokens)
        first_piece = self.tokenizer.pieces([first])[0]
        given = tokens[:prompt] if prompt else tokens
        columns = (first_piece, *pieces[:-1])
        tops, roles = ({}, BySite[Any]()) if observed is None else (observed.top, observed.attention)
        rows = {site: columns if roles.role(site).rows == "input" else pieces for site in tops}
        return {
            "pieces": tuple(pieces[prompt:]),
            "attention": {} if observed is None else observed.attention,
            "long": tuple(pooled_from_top(site, top, rows[site], columns) for site, top in tops.items()),
            "unknown": () if self.tokenizer.uncovered.isdisjoint(given) else self.tokenizer.unknown(text),
            "word_numbers": tuple(self.tokenizer.units(tokens)),
            "first_piece": first_piece,
            "unit": self.tokenizer.unit,
            "bytewise": self.tokenizer.bytewise,
        }


def checked_texts(call: str, name: str, texts: str | Iterable[str]) -> list[str]:
    """Return the texts as a list; raise ArgumentError if one of them is not a str.

    call: the public function that was called, for the error message.
    name: the word for a text in the error message: "line" or "prompt".

    >>> checked_texts("score()", "line", "a rose")
    ['a rose']
    """
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        problem = f"{name}s is of type {type(texts).__name__}"
        raise ArgumentError(message(call, problem, expected="a text (str), or several texts"))
    several = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(several, 1):
        if not isinstance(text, str):
            problem = f"{name} {number} is of type {type(text).__name__}"
            raise ArgumentError(message(call, problem, expected="a text (str)"))
    return several


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


@dataclass(frozen=True, eq=False)
class ObservedText:
    """The result of a forward pass of a language model for one text of T tokens.

    token_scores: log p(x_t | x_1 ... x_t-1) of each token.
    attention: for each attention layer (site), all weights (H, T, T). If a text of the batch has more than
        LONG tokens, this field is empty, and `top` is recorded instead.
    top: for each site, the 32 largest weights of each token, (H, T, 32), and the indices of their keys,
        (H, T, 32).
    """

    token_scores: tuple[float, ...]
    attention: BySite[NDArray[Any]]
    top: dict[str, Top]


def observe_texts(
    model: LanguageModel, rows: Sequence[Sequence[int]], look: str | None, call: str
) -> list[ObservedText]:
    """Compute the log-probability of each token of some texts in one forward pass, and record the attention.

    model: the language model.
    rows: the tokens of each text. The first token (BOS, or EOS in continuous text) is only an input: it has
        no log-probability.
    look: the attention layers (sites) whose weights are recorded, with * as wildcard. None records nothing.
    call: the name of the public function that was called, for error messages.

    >>> from regard.models import build_language_model
    >>> model = build_language_model("transformer", 9, width=8, heads=2, layers=1)
    >>> (observed,) = observe_texts(model, [[2, 5, 6, 3]], "*self", "example()")
    >>> len(observed.token_scores), observed.attention["decoder.0.self"].shape
    (3, (2, 3, 3))
    """
    lengths = [len(row) - 1 for row in rows]
    longest = max(lengths)
    padded_BT = torch.tensor([[*row, *[PAD] * (longest + 1 - len(row))] for row in rows])
    index_B = torch.arange(len(rows))
    batch = TextBatch(padded_BT[:, :-1], padded_BT[:, 1:], torch.tensor(lengths), index_B)
    wanted = Look(top=TOP) if longest > LONG else Look(weights=True)
    recording = nullcontext(Record()) if look is None else scope(wanted, at=look)
    with in_eval_mode(model), torch.no_grad(), recording as record:
        _, losses_BT = token_losses(model, batch.to(model.embedding.weight.device))
    if look is not None and record.called and not record:
        problem = f"look is {look!r}, which matches no site of {type(model).__name__}"
        hint = f"its sites are {', '.join(record.called)}; * is a wildcard"
        raise ArgumentError(message(call, problem, hint=hint))
    scores = (-losses_BT).tolist()
    weights = {site: _all_weights(calls) for site, calls in record.items() if calls[0].weights is not None}
    tops = {site: _all_tops(calls) for site, calls in record.items() if calls[0].top is not None}
    return [
        ObservedText(
            tuple(scores[row][:size]),
            # Copy the weights, because a view would keep the weights of the whole batch in memory.
            BySite(
                {site: each[row, ..., :size, :size].numpy().copy() for site, each in weights.items()},
                record.roles,
            ),
            {site: Top(*(part[row, ..., :size, :].clone() for part in each)) for site, each in tops.items()},
        )
        for row, size in enumerate(lengths)
    ]


def observe_in_batches(
    model: LanguageModel, rows: Sequence[Sequence[int]], look: str | None, call: str
) -> list[ObservedText]:
    """Compute observe_texts() in several batches of texts of similar length, to limit the memory use."""
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    observed: dict[int, ObservedText] = {}
    while order:
        length = len(rows[order[0]]) - 1
        count = LOGITS // (length * model.target_size)
        if look is not None:
            count = 1 if length > LONG else min(count, WEIGHTS // length**2)
        batch, order = order[: max(count, 1)], order[max(count, 1) :]
        results = observe_texts(model, [rows[row] for row in batch], look, call)
        observed.update(zip(batch, results, strict=True))
    return [observed[row] for row in range(len(rows))]


def _all_weights(calls: list[Attended]) -> Tensor:
    """Concatenate the weights that the calls of one attention layer (site) recorded, to (B, H, T, S).

    A recurrent model calls a layer once per token, with 1 query and all keys so far. A Transformer calls a
    layer only once, with T queries. The weight of a key that is missing in a call is 0.
    """
    weights = [call.weights for call in calls if call.weights is not None]
    widest = max(*(each.shape[-1] for each in weights), sum(each.shape[-2] for each in weights))
    return torch.cat([pad(each, (0, widest - each.shape[-1])) for each in weights], -2).float().cpu()


def _all_tops(calls: list[Attended]) -> Top:
    tops = [call.top for call in calls if call.top is not None]
    widest = max(each.weights.shape[-1] for each in tops)
    weights = [pad(each.weights, (0, widest - each.weights.shape[-1])) for each in tops]
    keys = [pad(each.keys, (0, widest - each.keys.shape[-1]), value=-1) for each in tops]
    return Top(torch.cat(weights, -2).float().cpu(), torch.cat(keys, -2).cpu())
