"""The language modelling task: data, batches of text, the loss, and evaluation with perplexity."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from rich.text import Text
from torch import Tensor

from regard.data.batch import UNK, TextBatch
from regard.data.encoded_text import (
    DocumentBatches,
    EncodedText,
    SlidingWindows,
    StreamBatches,
    WindowBatches,
)
from regard.data.line_io import advancing, table_note
from regard.data.read_text import read_lines
from regard.data.tokenizers.tokenizer import SPECIALS
from regard.decoding import Prompts, Rules, Sample, search
from regard.errors import ArgumentError, DataError, Setting, message, shown
from regard.evaluation.attribution import Attribution, attribution_views, page_of
from regard.evaluation.perplexity import TextLoss, text_loss
from regard.models.base import State
from regard.models.language_base import LanguageModel, detached
from regard.named_models.language_models import build_language_model
from regard.runs.run_commands import (
    Changeable,
    ChosenRun,
    LongTextView,
    RunReport,
    RunView,
    ViewOptions,
    report_changed_data,
    score_table,
    with_maps,
)
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, StoredRun
from regard.runs.stored_runs import with_weights
from regard.tasks.batched_task import (
    BatchedTask,
    describe_plan,
    peak_rate,
    planned_tokens,
    shared_plan,
    training_speed,
    unless_stopped,
)
from regard.tasks.corpus import TOKENIZER, Corpus, Split, evenly, text_tokenizer
from regard.tasks.file_options import ENCODING, TEST_FILE
from regard.tasks.language.run import LanguageRun, evaluation_batches
from regard.tasks.language.settings import LanguageSettings, TextData, is_recurrent
from regard.training.command_options import CommandOption
from regard.training.distributed import Processes
from regard.training.estimators import (
    Reinforce,
    RowLosses,
    embedding_features,
    sampled_loss,
)
from regard.training.losses import cross_entropy, model_loss, sequence_losses
from regard.training.progress import EVALUATION_PART, RESERVED, epochs_text
from regard.training.settings import build, merged
from regard.training.task import CarriedState, Evaluation, Loss

HELD_OUT, HELD_OUT_PART = 5000, 20
"""By default, HELD_OUT lines are held out for validation, but at most 1 / HELD_OUT_PART of all lines.

Blank lines are not counted."""


@dataclass(frozen=True)
class TextLines:
    """A range of lines of text files. Each iteration reads the files again.

    files: the files, read one after the other. Lines are counted from 0, and the count continues over all
        files.
    start: the first line.
    stop: the line after the last line; None reads to the end of the last file.
    encoding: the encoding of the files; None is UTF-8.
    """

    files: tuple[str, ...]
    start: int = 0
    stop: int | None = None
    encoding: str | None = None

    def __iter__(self) -> Iterator[str]:
        lines = itertools.chain.from_iterable(read_lines(file, self.encoding) for file in self.files)
        return itertools.islice(lines, self.start, self.stop)

    @property
    def name(self) -> str:
        """The files as text for messages, for example "a.txt and 2 more files"."""
        more = len(self.files) - 1
        return shown(self.files[0]) + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")

    @cached_property
    def scan(self) -> tuple[str, int, int]:
        """A hash of the text, its number of lines, and its number of words that are written as <unk>.

        The text is read once. Raise DataError if all lines are blank.
        """
        digest, count, with_text, unknown = hashlib.blake2b(digest_size=16), 0, 0, 0
        for line in self:
            digest.update(line.encode() + b"\n")
            count += 1
            with_text += bool(line.strip())
            unknown += line.split().count(SPECIALS[UNK]) if SPECIALS[UNK] in line else 0
        if not with_text:
            raise DataError(message(self.name, "there is no text", expected="at least one line with text"))
        return digest.hexdigest(), count, unknown

    @property
    def fingerprint(self) -> str:
        return self.scan[0]


@dataclass(frozen=True, eq=False)
class TextSplit(Split[TextLines]):
    """The training text and the validation text of a language model run."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the log: the number of training and validation lines, and tables read as text."""
        train, valid = self.train.scan[1], self.valid.scan[1]
        held = ", held out from the end of the training text" if self.is_held_out else ""
        training = f"{train:,} training line{'s' * (train != 1)}"
        tables = [note for file in self.train.files if (note := table_note(file))]
        return (f"{training}, {valid:,} validation line{'s' * (valid != 1)}{held}", *tables)


def read_texts(data: TextData) -> TextSplit:
    """Return which lines of which files are the training text and the validation text.

    Without valid_file, the last lines of the training files are the validation text. All files are read once,
    to count and hash their lines.
    """
    whole = TextLines(tuple(data.train_file), encoding=data.encoding)
    if data.valid_file:
        split = TextSplit(whole, TextLines(tuple(data.valid_file), encoding=data.encoding))
        split.fingerprints  # noqa: B018 - reads the files, and raises the error for a text without words
        return split
    numbers = [number for number, line in enumerate(whole) if line.strip()]
    count = data.held_out or max(min(HELD_OUT, len(numbers) // HELD_OUT_PART), 1)
    if not numbers:
        raise DataError(message(whole.name, "there is no text", expected="at least one line with text"))
    if count >= len(numbers):
        lines = f"{count:,} line{'s' * (count != 1)}"
        problem = f"{lines} cannot be held out for validation; lines with text: {len(numbers):,}"
        raise DataError(message(whole.name, problem, hint="set a validation file: --valid-file FILE"))
    first = numbers[-count]
    return TextSplit(replace(whole, stop=first), replace(whole, start=first), is_held_out=True)


FEW_TOKENS = 10_000
"""With fewer training tokens, a log message says that more text is needed."""


@dataclass(frozen=True, eq=False)
class TextCorpus(Corpus):
    """The data of a language model run: the training and the validation text as token ids.

    longest: maximum number of tokens of a document. Longer training documents are dropped.
    """

    longest: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Log messages: the numbers of tokens, unknown validation tokens and dropped training documents."""
        notes = [f"{self.train.token_count:,} training tokens, {self.valid.token_count:,} validation tokens"]
        unknown = self.valid.unknown_count
        if list(self.tokenizer.encode(SPECIALS[UNK])) == [UNK]:
            unknown -= self.split.valid.scan[2]  # words that are written as <unk> in the text do not count
        if unknown > 0:
            notes.append(f"{unknown / self.valid.token_count:.1%} of the validation tokens are unknown words")
        offsets = self.train.lines.offsets
        dropped = int(((offsets[1:] - offsets[:-1]) > self.longest).sum())
        if self.train.layout == "documents" and dropped:
            many = "1 training document is" if dropped == 1 else f"{dropped:,} training documents are"
            notes.append(f"{many} dropped: more than {self.longest:,} tokens")
        if self.train.token_count < FEW_TOKENS:
            few = f"little text: {self.train.token_count:,} training tokens, which the model learns by heart"
            notes.append(f"{few}. More text helps, and longer training does not")
        return tuple(notes)


MATRIX = 256
"""Maximum number of tokens for a picture of the attention as a matrix, with a row for each token.

A longer text is drawn as a map, in which each cell is the largest weight in a block of tokens.
"""

LONGEST = 2048
"""Maximum number of tokens of a text to view."""

PROMPT, CONTINUATION, TOP_K = 8, 30, 20
"""An evaluation prints some continuations of prompts. A prompt has at most PROMPT tokens. Its continuation
has at most CONTINUATION tokens, and is generated by top-k sampling with k = TOP_K."""


class RecurrentState(CarriedState):
    """The recurrent state with which a model continues each of the parallel parts (streams) of a text.

    streams: number of parts.
    """

    def __init__(self, streams: int | None):
        self.streams = streams
        self._last: State | None = None
        self._before: WeakKeyDictionary[TextBatch, State] = WeakKeyDictionary()

    def of(self, batch: TextBatch) -> State:
        """Return the state from which a batch continues."""
        if batch not in self._before:
            assert self._last is not None, "a batch continues a batch that was not read"
            self._before[batch] = self._last
        return self._before[batch]

    def keep(self, batch: TextBatch, state: tuple[Tensor, ...]) -> None:
        before = self._before[batch].position if batch.carried else 0
        self._last = State(before + batch.inputs.shape[1], state)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._last is None else _named(self._last)

    def load(self, tensors: dict[str, Tensor], place: str) -> None:
        state = _state(tensors)
        rows = {len(each) for each in state.hidden}
        if rows != {self.streams}:
            problem = f"the recurrent state has {rows.pop() if rows else 'no'} rows"
            expected = f"{self.streams} rows, the number of streams"
            raise DataError(message(place, problem, expected=expected, hint="use an older checkpoint"))
        self._last = state


class LanguageTask(BatchedTask):
    """Trains a language model on text files, and evaluates it on the validation text.

    For a recurrent model, a continuous text is divided into parts (streams), which are read in parallel.
    The attribute `state` keeps the state after a batch, and loss() starts the next batch from it. Checkpoints
    contain the state. On a GPU, the training steps of a recurrent model are captured in CUDA graphs, for
    continuous texts and for documents.
    """

    model: LanguageModel
    settings_type = LanguageSettings
    counted = "tokens"
    metrics = MappingProxyType(
        {"loss": "lower", "perplexity": "lower", "word_perplexity": "lower", "bits_per_character": "lower"}
    )
    best = "perplexity"
    files = (TOKENIZER,)
    smallest_sizes = MappingProxyType({"tokens": 8})
    evaluate_options = (
        TEST_FILE,
        ENCODING,
        CommandOption(
            "--window",
            "Number of tokens that the model reads at once.",
            "INT",
            int,
            shown_default="the window in training",
            least=1,
            most=1_000_000,
            panel="Language models",
        ),
        CommandOption(
            "--stride",
            "Number of tokens by which the window moves, at most --window. A smaller stride is slower, but "
            "gives more context: each token is predicted from at least window - stride + 1 tokens, or from "
            "the beginning of the text.",
            "INT",
            int,
            shown_default="half of the window",
            least=1,
            most=1_000_000,
            panel="Language models",
        ),
    )
    view_options = intervene_options = ("text",)

    def _set_up(self, device: str) -> None:
        data, training, text = self.settings.data, self.settings.training, self.corpus.train
        if self.settings.carried:
            hint = "use ", Setting("data", "layout", "documents"), ", or the model transformer"
            if self._processes.world > 1:
                problem = "a recurrent state can be carried from batch to batch in one process only"
                raise ArgumentError(message(f"{self._processes.world} processes", problem, hint=hint))
            if training.compile:
                problem = "a recurrent state that is carried from batch to batch cannot be compiled"
                raise ArgumentError(message("training.compile", problem, hint=hint))
            self.state = RecurrentState(data.streams)
        self.check(self.settings)  # check again: the plan has chosen the window and the streams
        # Batches of a continuous text need no padding: all have the same shape, except the last batch.
        documents, fine = data.layout == "documents", not self.model.recurrent
        options = self._start(device, self.model.embedding, fine=fine, padded=documents)
        ranks = {name: options[name] for name in ("rank", "world")}
        if documents:
            self._train = DocumentBatches(text, longest=data.max_length, **options)
        elif self.settings.carried:
            self._train = StreamBatches(text, data.window, data.streams, **ranks)
        else:
            tokens = training.batch_tokens or training.batch_size * data.window
            self._train = WindowBatches(text, data.window, tokens, seed=self.settings.seed, **ranks)
        longest, name = self.model.longest_target, "max_length" if documents else "window"
        needed = data.max_length + 1 if documents else data.window  # BOS needs a position too
        if longest is not None and needed > longest:
            problem = f"data.{name} is {getattr(data, name)}, but the model has {longest} positions"
            most = longest - (needed - getattr(data, name))
            advice = "use ", Setting("model", "longest", needed), " or ", Setting("data", name, most)
            raise ArgumentError(message("the settings", problem, hint=advice))

    @classmethod
    def read_data(
        cls, settings: LanguageSettings, fingerprints: Mapping[str, str] | None = None
    ) -> TextSplit:
        return read_texts(settings.data)

    @classmethod
    def encode_data(
        cls,
        data: TextSplit,
        settings: LanguageSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> TextCorpus:
        # The vocabulary of "closed-word" contains all words of the text, so it is trained on all lines.
        sample = None if settings.data.tokenizer == "closed-word" else lines
        tokenizer, layout = text_tokenizer(folder, settings.data, data.train, sample), settings.data.layout
        train, valid = (
            EncodedText.from_lines(text, tokenizer, layout=layout, name=text.name)
            for text in (data.train, data.valid)
        )
        return TextCorpus(data, tokenizer, train, valid, settings.data.max_length)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: LanguageSettings) -> tuple[int, ...]:
        return (text_tokenizer(folder, settings.data).size,)

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> LanguageModel:
        return build_language_model(model.name, *sizes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> LanguageRun:
        for name in options:
            problem = f"a language model has no option {name!r}"
            raise ArgumentError(message("load()", problem, expected="checkpoint, device or task"))
        tokenizer = text_tokenizer(run.folder, run.settings.data)
        model = cls.build_model(run.settings.model, (tokenizer.size,))
        return LanguageRun(with_weights(model, run, device), tokenizer).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        model: LanguageRun = run.load(cls)
        if options["test_file"]:
            lines = TextLines(tuple(options["test_file"]), encoding=options.get("encoding"))
            name = lines.name
        else:
            split = read_texts(model.settings.data)
            report_changed_data(run.folder, split.fingerprints)
            lines, name = split.valid, "the validation text of the run"
        layout = model.settings.data.layout
        text = EncodedText.from_lines(lines, model.tokenizer, layout=layout, name=lines.name)
        window, stride = options["window"], options["stride"]
        settings, longest = model.settings, model.model.longest_target
        if stride is not None and settings.carried:
            problem = "this recurrent model carries its state through the text, so windows do not overlap"
            raise ArgumentError(message(f"--stride {stride}", problem, hint="leave --stride out"))
        if window is not None and longest is not None and window > longest:
            problem = f"the model has {longest:,} positions"
            raise ArgumentError(message(f"--window {window}", problem, expected=f"at most {longest:,}"))
        usual = settings.data.window if layout == "continuous" else settings.data.max_length + 1
        read = window or settings.evaluation.window or usual or 1
        if stride is not None and stride > read:
            problem = f"the window has {read:,} tokens"
            raise ArgumentError(message(f"--stride {stride}", problem, expected=f"at most {read:,}"))
        stored = settings.evaluation.stride
        kept = {"window": window, "stride": stride or (None if stored is None else min(stored, read))}
        changed = {"evaluation": {name: value for name, value in kept.items() if value is not None}}
        settings = build(LanguageSettings, merged(settings.model_dump(), changed), "the settings")
        batches, read = evaluation_batches(text, settings), 0
        windows: SlidingWindows | None = None
        if isinstance(batches, SlidingWindows) and not (
            layout == "documents" and batches.longest <= batches.window
        ):
            windows = batches
        elif stride is not None:
            assert isinstance(batches, SlidingWindows)
            length = f"{batches.longest:,}"
            problem = (
                f"the longest line has {length} tokens and fits into one window of {batches.window:,} tokens"
            )
            hint = f"leave --stride out, or use a --window below {length}"
            raise ArgumentError(message(f"--stride {stride}", problem, hint=hint))

        def counted() -> Iterator[TextBatch]:
            nonlocal read
            for batch in batches:
                yield batch
                read += batch.count
                reached(read)

        with advancing("reading the text", text.token_count) as reached:
            loss = text_loss(model.model, counted(), text)
        how = "each line is read at once"
        if windows is not None:
            how = f"windows of {windows.window:,} tokens, stride {windows.stride:,}"
        elif settings.carried:
            how = "the recurrent state is carried through the text"
        values = {
            **loss.scores(),
            "tokens": loss.tokens,
            "unknown_tokens": text.unknown_count,
            **({} if loss.counts is None else loss.counts._asdict()),
            "window": None if windows is None else windows.window,
            "stride": None if windows is None else windows.stride,
        }
        return RunReport.of(model, name, values, score_table(_rows(loss, how, text.unknown_count)))

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        model: LanguageRun = run.load(cls)
        tokens = len(model.tokenizer.encode(options["text"])) + 1
        if tokens > LONGEST:
            problem = f"the text has {tokens:,} tokens"
            raise ArgumentError(message("--text", problem, expected=f"at most {LONGEST:,}"))
        scored = model.score(options["text"], look="*")
        seen = scored.seen()

        def attribution(methods: Sequence[str]) -> Attribution:
            return model.attribute(scored, methods, site=drawing.site, head=drawing.head)

        own = attribution_views(attribution)
        if not seen.sites and not seen.long:
            return RunView(seen, default_view="erasure", own=own, page=page_of(attribution))
        return LongTextView(seen if seen.long or tokens <= MATRIX else with_maps(seen), own=own)

    @classmethod
    def change_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> Changeable:
        model: LanguageRun = run.load(cls)
        text = options["text"]
        scored = model.score(text)
        words = [
            [place for place, each in enumerate(scored.word_numbers) if each == word]
            for word in range(max(scored.word_numbers, default=-1) + 1)
        ]
        # Query t predicts token t; key 0 is the token before the text.
        keys = [[place + 1 for place in word] for word in words[:-1]]
        return Changeable(
            None, scored.pieces, lambda: model.score(text).token_scores, words, keys, ("word", "word"), "self"
        )

    @classmethod
    def check(cls, settings: LanguageSettings, model: Any = None) -> None:
        data, training, evaluation = settings.data, settings.training, settings.evaluation
        place = "the settings"
        if data.streams is not None and not settings.carried:
            problem = f"data.streams is for recurrent models; model.name is {settings.model.name!r}"
            raise ArgumentError(message(place, problem, hint="use --batch-tokens instead"))
        if evaluation.stride is not None and settings.carried:
            problem = "evaluation.stride has no effect: the recurrent state is carried through the text"
            raise ArgumentError(message(place, problem, hint="do not set evaluation.stride"))
        if data.streams is None or data.window is None:
            return
        rows = training.batch_size or (training.batch_tokens or 0) // data.window
        if {"batch_tokens", "batch_size"} & training.model_fields_set and rows != data.streams:
            batch = f"batch_size is {training.batch_size}" if training.batch_size else ""
            batch = batch or f"batch_tokens is {training.batch_tokens} (windows of {data.window} tokens)"
            problem = f"data.streams is {data.streams}, but training.{batch}"
            raise ArgumentError(message(place, problem, hint="set only one of these settings"))

    @classmethod
    def defaults(
        cls, settings: Mapping[str, Any], data: TextSplit | None = None, other: Any = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if data is None or settings["data"].get("tokenizer") is not None:
            return dict(settings), ()
        closed = data.train.scan[2] > 0
        name = "closed-word" if closed else "unigram"
        notes = ("closed-word tokenizer: <unk> is a word of the training text",) if closed else ()
        return {**settings, "data": {**settings["data"], "tokenizer": name}}, notes

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], corpus: Any, device: str, processes: Processes, timed: bool = False
    ) -> Plan:
        def speed(known: Options) -> float:
            known = merged({"training": {"learning_rate": 1e-4}}, known)
            return processes.world * training_speed(cls, known, corpus, device)

        tokens, kind = corpus.train.token_count, torch.device(device).type
        return shared_plan(processes, lambda: choose(settings, tokens, kind, processes.world, speed, timed))

    def count(self, batch: TextBatch) -> int:
        return batch.count

    def prepare(self, batch: TextBatch, device: Any) -> tuple[TextBatch, State | None]:
        if not batch.carried:
            if self._shapes is not None:
                batch = batch.padded_to(*self._shapes.size(len(batch), batch.inputs.shape[1]))
            return batch.to(device), None
        assert isinstance(self.state, RecurrentState)
        before = self.state.of(batch)
        # Recurrent models do not use the position. Set it to 0, because each value would need its own CUDA
        # graph.
        return batch.to(device), replace(before.to(device), position=0)

    def loss(self, batch: tuple[TextBatch, State | None]) -> Loss:
        text, before = batch
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(text, self._estimator)
        state: tuple[Tensor, ...] = ()
        smoothing = self.settings.training.label_smoothing
        if self.settings.carried:
            after, logits_BTV = self.model.read(text, before)
            state = detached(after).hidden
            total, plain = cross_entropy(logits_BTV, text.targets, smoothing)
        else:
            total, plain = model_loss(self.model, text, text.targets, smoothing)
        return Loss(total, {"loss": plain}, state)

    def _sampled_loss(self, text: TextBatch, estimator: Reinforce) -> Loss:
        """Return the loss of a model with hard attention, with a gradient estimated from sampled keys.

        text: a batch of text.
        estimator: the estimator of the gradient; each row of the batch is read estimator.samples times.
        """
        repeated, smoothing = text.repeat(estimator.samples), self.settings.training.label_smoothing

        def row_losses() -> RowLosses:
            total_R, plain_R = sequence_losses(self.model(repeated), repeated.targets, smoothing)
            return RowLosses(total_R, -plain_R)

        features = embedding_features((self.model.embedding, repeated.targets))
        return sampled_loss(estimator, row_losses, len(text), lengths=repeated.lengths, features=features)

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        text = self.corpus.valid
        batches = evaluation_batches(text, self.settings)
        scores = text_loss(self.model, unless_stopped(stopping, batches), text).scores()
        return Evaluation(scores, self._samples())

    def _samples(self) -> list[Text]:
        """Continue the beginnings of some validation lines by sampling; return the texts to print."""
        text, count = self.corpus.valid, self.settings.evaluation.samples
        offsets = text.lines.offsets
        long = [row for row in range(len(text)) if offsets[row + 1] - offsets[row] > 1]
        rules = Rules(minimum=2, maximum=CONTINUATION)  # at least one token before EOS
        how = Sample(top_k=TOP_K, seed=self.settings.seed, rules=rules)
        shown, decode = [], self.corpus.tokenizer.decode
        for number, place in enumerate(evenly(count, len(long))):
            row = long[place]
            tokens = text.lines.tokens[offsets[row] : offsets[row + 1]].tolist()
            room = PROMPT if self.model.longest_target is None else self.model.longest_target - 1
            prompt = tokens[: min(PROMPT, len(tokens) // 2, room)]
            prompts = Prompts.collate([[self.settings.first_token, *prompt]], index=[number])
            ((best, *_),) = search(self.model, prompts, how, look=None)
            sample = f"prompt        {decode(prompt)}\ncontinuation  {decode(best.output_tokens)}"
            shown.append(Text(sample))
        return shown


def _named(state: State) -> dict[str, Tensor]:
    """Convert a recurrent state to a dict of tensors, for a checkpoint or a saved batch."""
    hidden = {f"hidden.{number}": each.contiguous() for number, each in enumerate(state.hidden)}
    return {"position": torch.tensor(state.position), **hidden}


def _state(tensors: Mapping[str, Tensor]) -> State:
    """Convert a dict of tensors from _named() to a recurrent state.

    If the dict has no tensors of a state, the state is empty.

    The tensors are copied. Without a copy, a tensor from a file may have another memory alignment, which can
    change the last bits of a matrix product.
    """
    names = [f"hidden.{number}" for number in range(sum(name.startswith("hidden.") for name in tensors))]
    return State(int(tensors.get("position", 0)), tuple(tensors[name].clone() for name in names))


STREAMS, WINDOW = 20, 35
"""The batches of a recurrent model that reads a continuous text. The text is divided into STREAMS parts
(streams), which are read in parallel. A batch has WINDOW tokens of each stream. The model starts a batch from
its state after the previous batch.

Zaremba et al. (2015) use the same numbers.
"""

TRANSFORMER_WINDOW = 128
"""Number of tokens that a Transformer reads at once (its window)."""

WINDOWS = 4
"""Minimum number of windows in a stream (one of the parallel parts of the text). If a text is too short for
this, it is divided into fewer than STREAMS streams."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
"""Batch size in tokens on each kind of device, for models that start each batch from an empty state."""

STEPS, LEAST_STREAMS, LEAST_TOKENS = 800, 5, 512
"""In a short run, batches are smaller, so that the run has STEPS steps.

The minimum of a batch is LEAST_STREAMS streams (parallel parts of the text). If the text is not read in
streams, the minimum is LEAST_TOKENS tokens.
"""

SIZE_OPTIONS = ("width", "size", "layers", "depth", "embedding", "inner", "heads")
"""Options that determine the size of a model. If the user sets one of them, the plan chooses no size."""

RECURRENT_SIZES = {0: {"width": 128, "depth": 1}, 2_000_000: {"width": 256}, 20_000_000: {"width": 512}}
TRANSFORMER_SIZES = {
    0: {"width": 128, "layers": 2, "heads": 4, "inner": 512},
    2_000_000: {"width": 256, "layers": 4, "heads": 4, "inner": 1024},
    20_000_000: {"width": 512, "layers": 6, "heads": 8, "inner": 2048},
}
"""The default sizes of a recurrent model and of a Transformer. A size is chosen if the run trains on at least
as many tokens as its key says. The last size is only used on CUDA devices."""

TUNING_RATE = 3e-4
"""The learning rate of a run that starts from the weights of another run."""

Options = dict[str, Any]
Speed = Callable[[Options], float]
"""A function speed(settings) that measures the training speed with these settings, in tokens per second."""


def with_batches(settings: Mapping[str, Any], tokens: int, device: str = "cpu") -> Options:
    """Return the settings with window, streams and batch size filled in, if the user has not set them.

    settings: the settings of the user.
    tokens: number of tokens of the training text.
    device: the kind of device: cpu, cuda or mps.

    The examples below are for a recurrent model that reads a continuous text. The text is divided into
    streams, which are read in parallel. In the first example, a batch has 35 tokens of each of the 20
    streams, so batch_tokens is 700:

    >>> with_batches({"data": {}}, tokens=900_000)
    {'data': {'window': 35, 'streams': 20}, 'training': {'batch_tokens': 700}}
    >>> with_batches({"data": {}, "training": {"batch_size": 8}}, tokens=900_000)["data"]
    {'window': 35, 'streams': 8}
    """
    data, training = settings.get("data", {}), settings.get("training", {})
    continuous = data.get("layout", "continuous") == "continuous"
    recurrent = is_recurrent(settings.get("model", {}).get("name", "lstm"))
    rows, budget = training.get("batch_size"), training.get("batch_tokens")
    filled: Options = {}
    if continuous:
        filled["window"] = data.get("window") or min(WINDOW if recurrent else TRANSFORMER_WINDOW, tokens)
    if continuous and recurrent:
        fitting = max(min(STREAMS, tokens // (WINDOWS * filled["window"])), 1)
        filled["streams"] = (
            data.get("streams") or rows or (max(budget // filled["window"], 1) if budget else fitting)
        )
    usual = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    if "streams" in filled:
        usual = filled["window"] * filled["streams"]
    batch = {} if rows is not None or budget is not None else {"batch_tokens": usual}
    return merged({}, {"data": filled, "training": batch}, settings)


def choose(
    settings: Mapping[str, Any], tokens: int, device: str, processes: int, speed: Speed, timed: bool = False
) -> Plan:
    """Choose the batch size, the size of the model, the dropout and the learning rate of a run.

    settings: the settings of the user.
    tokens: number of tokens of an epoch.
    device: the kind of device: cpu, cuda or mps.
    processes: number of processes.
    speed: a function that measures the training speed with given settings, in tokens per second. It is called
        if the length of the run is set in minutes, or if `timed` is True.
    timed: whether to measure the speed if the length of the run is set in steps or epochs.

    >>> plan = choose({"data": {}, "training": {"epochs": 10}}, 900_000, "cpu", 1, lambda settings: 1e4)
    >>> plan.settings["model"]
    {'width': 256, 'dropout': 0.35, 'tie': True}
    """
    settings, user = with_batches(settings, tokens, device), settings
    model, training = settings.get("model", {}), settings["training"]
    recurrent = is_recurrent(model.get("name", "lstm"))
    sizes = RECURRENT_SIZES if recurrent else TRANSFORMER_SIZES
    fixed = any(model.get(name) is not None for name in SIZE_OPTIONS)
    group = processes * training.get("accumulation_steps", 1)
    measured: float | None = None
    if training.get("minutes") is not None:
        seconds = 60 * training["minutes"] * (1 - EVALUATION_PART - RESERVED)
        size: Options = {}
        for least, option in ({0: {}} if fixed else sizes).items():
            if least and (seconds * (measured or 0.0) < least or (least > 2_000_000 and device != "cuda")):
                break
            timing = speed(merged(settings, {"model": option}))
            if least and seconds * timing < least:  # too few tokens for a model of this size
                break
            size, measured = option, timing
        total = seconds * (measured or 0.0)
    else:
        total = planned_tokens(training, tokens, _batch(settings, tokens) * group)
        enough = [each for least, each in sizes.items() if total >= least]
        size = {} if fixed else enough[-1 if device == "cuda" else min(len(enough), 2) - 1]
    given = user.get("training", {})
    batched = given.get("batch_tokens"), given.get("batch_size"), user["data"].get("streams")
    if training.get("steps") is None and all(each is None for each in batched):
        settings = merged(settings, smaller_batches(settings, total / group))
    batch = _batch(settings, tokens) * group
    steps, epochs = total / batch, total / tokens
    # No dropout for at most one epoch; it grows with the number of epochs, more for recurrent models.
    dropout = min(0.1 * math.log2(max(epochs, 1.0)), 0.5) * (1.0 if recurrent else 0.6)
    chosen: Options = {**size, "dropout": round(20 * dropout) / 20}
    if recurrent and model.get("embedding") in (None, model.get("width", size.get("width"))):
        chosen["tie"] = True
    highest, power = (8e-3, 0.5) if recurrent else (3.5e-3, 1.0)
    width = model.get("width") or size.get("width") or 256
    rate = TUNING_RATE if settings.get("init_from") else peak_rate(highest, power, width, batch, steps)
    warmup_steps = int(min(max(steps / 20, 20), 100 if recurrent else 400))
    usual = {"model": chosen, "training": {"learning_rate": rate, "warmup_steps": warmup_steps}}
    # With init_from, the model options come from the other run, so the plan chooses none.
    complete = merged(settings, {**usual, "model": {}} if settings.get("init_from") else usual, settings)
    if timed and measured is None:
        measured = speed(complete)
    duration = None if measured is None else total / measured / (1 - EVALUATION_PART - RESERVED)
    return Plan(complete, _sentence(complete, total, tokens, measured), epochs, duration)


def smaller_batches(settings: Mapping[str, Any], total: float) -> Options:
    """Return the batch settings, with smaller batches for a short run, so that it has about STEPS steps.

    Batches have a minimum size, so a very short run has fewer steps.

    settings: the result of with_batches().
    total: number of tokens to train on, divided by the number of batches per training step. A step has
        several batches with several processes or with gradient accumulation.

    >>> known = with_batches({"data": {}}, tokens=900_000)
    >>> smaller_batches(known, 210_000), smaller_batches(known, 10**7)["data"]
    ({'data': {'streams': 7}, 'training': {'batch_tokens': 245}}, {'streams': 20})
    """
    data, training = settings["data"], settings["training"]
    if data.get("streams"):
        window, streams = data["window"], data["streams"]
        streams = max(min(streams, int(total / STEPS / window)), min(streams, LEAST_STREAMS))
        return {"data": {"streams": streams}, "training": {"batch_tokens": streams * window}}
    budget = training["batch_tokens"]
    return {"training": {"batch_tokens": max(min(budget, int(total / STEPS)), min(budget, LEAST_TOKENS))}}


def _batch(settings: Mapping[str, Any], tokens: int) -> int:
    """Return the number of tokens of one batch in one process, at most `tokens`.

    tokens: number of tokens of the training text.

    >>> _batch({"data": {"window": 128}, "training": {"batch_size": 32}}, tokens=300)
    300
    """
    training, data = settings["training"], settings["data"]
    size = training.get("batch_tokens")
    if training.get("batch_size") is not None:
        size = training["batch_size"] * (data.get("window") or TRANSFORMER_WINDOW)
    return max(min(size, tokens), 1)


def _sentence(settings: Mapping[str, Any], total: float, tokens: int, speed: float | None) -> str:
    """Describe the chosen settings, the amount of training and the speed in one sentence, for the log.

    total: number of tokens to train on, in all epochs together.
    tokens: number of tokens of the training text.
    speed: training speed in tokens per second, or None if it was not measured.
    """
    training, data = settings["training"], settings["data"]
    batch = f"{min(training.get('batch_tokens') or 0, tokens):,} tokens"
    if data.get("streams"):
        batch = f"{data['streams']:,} stream{'s' * (data['streams'] != 1)} of {data['window']:,} tokens"
    elif training.get("batch_size") is not None:
        batch = f"{training['batch_size']:,} row{'s' * (training['batch_size'] != 1)}"
    amount = f"about {total:,.0f} tokens ({epochs_text(total / tokens)})"
    return describe_plan(
        settings, "lstm", batch, amount + ("" if speed is None else f" at {speed:,.0f} tokens/s")
    )


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
