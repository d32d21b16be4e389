"""The language task: batches of running text, the loss, and evaluation with perplexity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from rich.text import Text
from torch import Tensor

from regard.data.text_batch import TextBatch
from regard.data.text_batching import DocumentBatches, StreamBatches, WindowBatches
from regard.decoding import Prompts, Rules, Sample, search
from regard.errors import ArgumentError, DataError, message
from regard.evaluation.perplexity import text_loss
from regard.models.base import State
from regard.models.language_base import LanguageModel, detached
from regard.models.language_models import build_language_model
from regard.runs.run_commands import ChosenRun, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, RunTask, StoredRun
from regard.tasks.language.evaluate_language import EVALUATE_OPTIONS, LanguageReport, evaluate_language
from regard.tasks.language.language_data import (
    TOKENIZER,
    TextCorpus,
    TextSplit,
    load_text_tokenizer,
    read_texts,
)
from regard.tasks.language.language_plan import plan_language
from regard.tasks.language.language_run import LanguageRun, evaluation_batches, load_language_run
from regard.tasks.language.language_settings import FIXED, TOKENS, LanguageSettings
from regard.tasks.language.view_language import VIEW_OPTIONS, LanguageView, view_language
from regard.training.distributed import Processes
from regard.training.estimators import Reinforce
from regard.training.losses import cross_entropy, sequence_losses
from regard.training.sampled_loss import (
    RowLosses,
    add_estimator,
    embedding_features,
    features_size,
    sampled_loss,
)
from regard.training.setting_names import misplaced
from regard.training.task import Evaluation, Loss, Stopped

__all__ = ["LanguageTask"]

PROMPT, CONTINUATION, TOP_K = 8, 30, 20
"""An evaluation shows some continuations of prompts. A prompt has at most PROMPT tokens, its continuation
at most CONTINUATION tokens, drawn by top-k sampling with k = TOP_K."""


class LanguageTask(RunTask):
    """Train a language model on text files, and evaluate it on the validation text.

    A recurrent model of continuous text reads parallel streams, and its state is carried from batch to batch:
    keep_state() keeps the state after a batch, loss() continues from it, and checkpoints save it. On a GPU
    such steps are captured in CUDA graphs.
    """

    model: LanguageModel
    settings_type = LanguageSettings
    counted = "target tokens"
    has_perplexity = True
    metrics = MappingProxyType(
        {"loss": "lower", "perplexity": "lower", "word_perplexity": "lower", "bits_per_character": "lower"}
    )
    best = "perplexity"
    always_shown = ("layout",)
    files = (TOKENIZER,)
    paths = ("train_file", "valid_file")
    fixed = FIXED
    for_outputs = ("task", "model", "data.lowercase", "data.layout")
    size_names = ("tokens",)
    smallest_sizes = (8,)
    no_data_hint = "--train-file a.txt"
    evaluate_options = EVALUATE_OPTIONS
    view_options = VIEW_OPTIONS
    next_command = 'regard generate {run} --prompt "..."'

    def __init__(
        self,
        model: LanguageModel,
        corpus: TextCorpus,
        settings: LanguageSettings,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        super().__init__(model, corpus, settings)
        processes = processes or Processes()
        features = 0 if settings.training.estimator is None else features_size(model.embedding)
        self._estimator = add_estimator(model, settings.training, features=features, processes=processes)
        self._state: State | None = None
        self._states_before: WeakKeyDictionary[TextBatch, State] = WeakKeyDictionary()
        if settings.carried:
            self.small_steps = True  # use CUDA graphs: only the last batch has another shape
            self._check_carried(processes)
        self.check_settings(settings)  # check again: the plan has chosen the window and the streams
        self._train = self._training_batches(processes)
        self._check_window()

    def _check_carried(self, processes: Processes) -> None:
        hint = 'set data.layout = "documents", or model.name = "transformer"'
        if processes.world > 1:
            problem = "a recurrent state that is carried from batch to batch needs one process"
            raise ArgumentError(message(f"{processes.world} processes", problem, hint=hint))
        if self.settings.training.compile:
            problem = "a recurrent state that is carried from batch to batch cannot be compiled"
            raise ArgumentError(message("training.compile", problem, hint=hint))

    def _training_batches(self, processes: Processes) -> DocumentBatches | StreamBatches | WindowBatches:
        data, training, text = self.settings.data, self.settings.training, self.corpus.train
        ranks: dict[str, Any] = {"rank": processes.rank, "world": processes.world}
        if data.layout == "documents":
            return DocumentBatches(
                text,
                training.batch_tokens,
                sentences=training.batch_size,
                longest=data.max_length,
                seed=self.settings.seed,
                **ranks,
            )
        if self.settings.carried:
            return StreamBatches(text, data.window, data.streams, **ranks)
        tokens = training.batch_tokens or training.batch_size * data.window
        return WindowBatches(text, data.window, tokens, seed=self.settings.seed, **ranks)

    def _check_window(self) -> None:
        """Raise ArgumentError if a window or a document may have more tokens than the model has positions."""
        data, longest = self.settings.data, self.model.longest_target
        name = "window" if data.layout == "continuous" else "max_length"
        # BOS, the first token of a document, needs a position too.
        needed = data.window if data.layout == "continuous" else data.max_length + 1
        if longest is not None and needed > longest:
            problem = f"data.{name} is {getattr(data, name)}, but the model has {longest} positions"
            hint = f"set model.longest={needed}, or a smaller data.{name}"
            raise ArgumentError(message("the settings", problem, hint=hint))

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
        return TextCorpus.encoded(data, settings.data, folder, lines)

    @classmethod
    def sizes(cls, corpus: TextCorpus) -> tuple[int, ...]:
        return (corpus.tokenizer.size,)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: LanguageSettings) -> tuple[int, ...]:
        return (load_text_tokenizer(folder, settings.data).size,)

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> LanguageModel:
        return build_language_model(model.name, *sizes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> LanguageRun:
        return load_language_run(run, device)

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> LanguageReport:
        return evaluate_language(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> LanguageView:
        return view_language(cls, run, options, drawing)

    @classmethod
    def check_load_options(cls, options: Mapping[str, Any]) -> None:
        for name in options:
            problem = f"a language model has no option {name!r}"
            raise ArgumentError(message("load()", problem, expected="checkpoint, device or task"))

    @classmethod
    def check_settings(cls, settings: LanguageSettings) -> None:
        data, training, evaluation = settings.data, settings.training, settings.evaluation
        place = "the settings"
        if data.streams is not None and not settings.carried:
            problem = f"data.streams is for recurrent models; model.name is {settings.model.name!r}"
            raise ArgumentError(message(place, problem, hint="set training.batch_tokens instead"))
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
            raise ArgumentError(message(place, problem, hint="set only one of them"))

    @classmethod
    def check_model(cls, settings: LanguageSettings) -> None:
        if error := misplaced(LanguageSettings, "model", settings.model.options):
            raise error
        super().check_model(settings)

    @classmethod
    def fit_settings(cls, settings: Mapping[str, Any], data: TextSplit) -> tuple[dict[str, Any], str]:
        if settings["data"].get("tokenizer") is not None:
            return dict(settings), ""
        closed = data.scans["train"].unknown
        name = "closed-word" if closed else "unigram"
        note = "closed-word tokenizer: <unk> is a word of the training text" if closed else ""
        return {**settings, "data": {**settings["data"], "tokenizer": name}}, note

    @classmethod
    def plan(
        cls,
        settings: Mapping[str, Any],
        corpus: TextCorpus,
        device: str,
        processes: Processes,
        timed: bool = False,
    ) -> Plan:
        return plan_language(cls, settings, corpus, device, processes, timed)

    @classmethod
    def fixed_data(cls) -> tuple[str, ...]:
        return tuple(name.removeprefix("data.") for name in TOKENS)

    def described(self) -> str:
        return f"{self.corpus.tokenizer.size:,} tokens"

    def corpus_notes(self) -> Sequence[str]:
        return self.corpus.notes

    def batches(self, epoch: int, start: int = 0) -> Iterator[TextBatch]:
        return self._train.epoch(epoch, start)

    def largest_batch(self) -> TextBatch:
        """Return the largest batch of the first epoch: the one with the most tokens, including padding."""
        return next(self.batches(0, self._train.largest(0)))

    def len_epoch(self, epoch: int) -> int:
        return self._train.len_epoch(epoch)

    def count(self, batch: TextBatch) -> int:
        return batch.count

    def prepare(self, batch: TextBatch, device: Any) -> tuple[TextBatch, State | None]:
        if not batch.carried:
            return batch.to(device), None
        if batch not in self._states_before:
            if self._state is None:
                problem = "a batch continues the batch before it, but that batch was not read"
                raise ArgumentError(message("LanguageTask.prepare()", problem))
            self._states_before[batch] = self._state
        before = self._states_before[batch]
        # The position is set to 0: recurrent models do not use it, and each value would need a CUDA graph.
        return batch.to(device), replace(before.to(device), position=0)

    def padded_sizes(self, ready: tuple[TextBatch, State | None]) -> tuple[int, ...]:
        # An estimator averages over all rows of a batch, so padding would change its loss.
        fixed = self.settings.carried or self._estimator is not None
        return () if fixed else tuple(ready[0].inputs.shape)

    def padded(
        self, ready: tuple[TextBatch, State | None], sizes: tuple[int, ...]
    ) -> tuple[TextBatch, State | None]:
        rows, length = sizes
        longest = self.model.longest_target  # the number of positions of a transformer
        return ready[0].padded_to(rows, length if longest is None else min(length, longest)), ready[1]

    def loss(self, batch: tuple[TextBatch, State | None]) -> Loss:
        text, before = batch
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(text, self._estimator)
        state: tuple[Tensor, ...] = ()
        if self.settings.carried:
            after, logits_BTV = self.model.read(text, before)
            state = detached(after).hidden
        else:
            logits_BTV = self.model(text)
        total, plain = cross_entropy(logits_BTV, text.targets, self.settings.training.label_smoothing)
        return Loss(total, {"loss": plain}, state)

    def keep_state(self, batch: TextBatch, state: tuple[Tensor, ...]) -> None:
        if self.settings.carried:
            before = self._states_before[batch].position if batch.carried else 0
            self._state = State(before + batch.inputs.shape[1], state)

    def _sampled_loss(self, text: TextBatch, estimator: Reinforce) -> Loss:
        """Return the loss of a model with hard attention, whose gradient is estimated by sampling keys."""
        repeated, smoothing = text.repeat(estimator.samples), self.settings.training.label_smoothing

        def row_losses() -> RowLosses:
            total_R, plain_R = sequence_losses(self.model(repeated), repeated.targets, smoothing)
            return RowLosses(total_R, -plain_R)

        features = embedding_features((self.model.embedding, repeated.targets))
        return sampled_loss(estimator, row_losses, len(text), lengths=repeated.lengths, features=features)

    def tensors(self, batch: TextBatch) -> dict[str, Tensor]:
        """Return a batch as named tensors, with the recurrent state that it starts from, if it has one."""
        named = batch.named_tensors()
        before = self._states_before.get(batch)
        return named if before is None else {**named, **_named(before)}

    def restored(self, tensors: dict[str, Tensor]) -> TextBatch:
        batch = TextBatch.from_tensors(tensors)
        if batch.carried:
            self._states_before[batch] = _state(tensors)
        return batch

    def state_tensors(self) -> dict[str, Tensor]:
        return {} if self._state is None else _named(self._state)

    def load_state_tensors(self, tensors: dict[str, Tensor], place: str) -> None:
        if not self.settings.carried:
            return
        state = _state(tensors)
        rows = {len(each) for each in state.hidden}
        if rows != {self.settings.data.streams}:
            problem = f"the recurrent state has {rows.pop() if rows else 'no'} rows"
            expected = f"{self.settings.data.streams} rows, the number of streams"
            raise DataError(message(place, problem, expected=expected, hint="use an older checkpoint"))
        self._state = state

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        text = self.corpus.valid
        batches = evaluation_batches(text, self.settings)
        scores = text_loss(self.model, _unless(stopping, batches), text).scores()
        return Evaluation(scores, self._samples())

    def _samples(self) -> list[Text]:
        """Continue the beginnings of some validation lines by sampling. Return texts to be printed."""
        text, count = self.corpus.valid, self.settings.evaluation.samples
        offsets = text.lines.offsets
        long = [row for row in range(len(text)) if offsets[row + 1] - offsets[row] > 1]
        rules = Rules(minimum=2, maximum=CONTINUATION)  # at least one token before EOS
        how = Sample(top_k=TOP_K, seed=self.settings.seed, rules=rules)
        shown, decode = [], self.corpus.tokenizer.decode
        for place in range(min(count, len(long))):
            row = long[(2 * place + 1) * len(long) // (2 * count)]
            tokens = text.lines.tokens[offsets[row] : offsets[row + 1]].tolist()
            room = PROMPT if self.model.longest_target is None else self.model.longest_target - 1
            prompt = tokens[: min(PROMPT, len(tokens) // 2, room)]
            prompts = Prompts.collate([[self.settings.first_token, *prompt]], index=[place])
            ((best, *_),) = search(self.model, prompts, how, look=None)
            sample = f"prompt        {decode(prompt)}\ncontinuation  {decode(best.output_tokens)}"
            shown.append(Text(sample))
        return shown


def _unless(stopping: Callable[[], bool], batches: Iterable[TextBatch]) -> Iterator[TextBatch]:
    """Yield the batches; raise Stopped as soon as stopping() returns True."""
    for batch in batches:
        if stopping():
            raise Stopped
        yield batch


def _named(state: State) -> dict[str, Tensor]:
    """Return a recurrent state as named tensors, for a checkpoint or a saved batch."""
    hidden = {f"hidden.{number}": each.contiguous() for number, each in enumerate(state.hidden)}
    return {"position": torch.tensor(state.position), **hidden}


def _state(tensors: Mapping[str, Tensor]) -> State:
    """Return the recurrent state from named tensors, the inverse of _named(); an empty state if none.

    The tensors are copied: those of a file may have any memory alignment, which can change the last bits of a
    matrix product.
    """
    names = [f"hidden.{number}" for number in range(sum(name.startswith("hidden.") for name in tensors))]
    return State(int(tensors.get("position", 0)), tuple(tensors[name].clone() for name in names))
