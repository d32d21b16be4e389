"""The translation task: data, batches of pairs, loss, and evaluation with BLEU, chrF and exact match."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text
from torch import Tensor

from regard.data.batch import EOS, UNK, Batch
from regard.decoding import Beam, Greedy, Translation, Translator
from regard.decoding.forced_decoding import pieces_of
from regard.errors import UnknownName
from regard.lazy_package import FirstUse
from regard.look import Look
from regard.models import Model, build_model
from regard.roles import CROSS
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, RunTask, StoredRun
from regard.sites import record
from regard.tasks.task_table import task_of
from regard.tasks.translation.expected_quality import note_few_pairs
from regard.tasks.translation.run import (
    TOKENIZERS,
    VIEW_OPTIONS,
    TranslationRun,
    TranslationView,
    check_options,
    load_tokenizers,
    translator_of,
    view_translation,
)
from regard.tasks.translation.settings import Evaluating, TranslationSettings
from regard.training.task import Evaluation, Loss, Stopped

if TYPE_CHECKING:
    from regard.data import Batches
    from regard.runs.run_commands import ChosenRun, ViewOptions
    from regard.runs.train_run import Outcome
    from regard.tasks.translation.data import Corpus, SampledBatches, Split
    from regard.tasks.translation.evaluate import TranslationEvaluation
    from regard.training.distributed import Processes
    from regard.training.estimators import Reinforce

__all__ = ["Sample", "TranslationTask", "check_evaluation", "load_translator", "train_translation"]

AT_ONCE = {"cpu": 32}
MANY_AT_ONCE = 1024
"""Number of sentences translated between two checks for Ctrl-C (AT_ONCE["cpu"] on a CPU). On a GPU, the
sentences of a batch have more similar lengths if there are many at once."""


class TranslationTask(RunTask):
    """Trains a translation model on the training pairs of a corpus, and evaluates it on the validation pairs.

    device: the kind of device to train on (cpu, cuda or mps). On cuda, batches are padded to a small number
        of shapes if CUDA graphs are used.
    """

    model: Model
    settings_type = TranslationSettings
    counted = "target tokens"
    metrics = MappingProxyType(
        {"loss": "lower", "perplexity": "lower", "bleu": "higher", "chrf": "higher", "exact": "higher"}
    )
    best = "bleu"
    files = TOKENIZERS
    smallest_sizes = MappingProxyType({"source tokens": 8, "target tokens": 8})
    evaluate_options = FirstUse("regard.tasks.translation.evaluate.EVALUATE_OPTIONS")
    view_options = VIEW_OPTIONS

    def __init__(
        self,
        model: Model,
        corpus: Corpus,
        settings: TranslationSettings,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        from regard.data import Batches
        from regard.tasks.sample_texts import spread_by_length
        from regard.tasks.translation.alignment import build_guide, guided_site
        from regard.tasks.translation.data import build_sampler, sampled_epochs, texts
        from regard.training.distributed import Processes
        from regard.training.length_buckets import few_shapes
        from regard.training.r_drop import check_dropout
        from regard.training.sampled_loss import SAMPLED, add_estimator, features_size

        super().__init__(model, corpus, settings)
        processes = processes or Processes()
        training = settings.training
        features = 0 if training.estimator is None else features_size(model.source, model.target)
        self._estimator = add_estimator(model, training, features=features, processes=processes)
        if training.r_drop:
            check_dropout(model)
        reason = "the guided-alignment loss records attention" if training.guided_alignment else ""
        reason = reason if self._estimator is None else SAMPLED
        longest = settings.data.max_length + 1
        self.speed, self._shapes = few_shapes(model, training, device, processes.world, longest, reason)
        self._sampler = build_sampler(corpus, settings)
        alone = processes.world == 1 and (device.startswith("cuda") or self.speed.captures)
        self._epochs = sampled_epochs(corpus, self._sampler) if self._sampler and alone else None
        sampled_here = self._sampler is not None and self._epochs is None
        self._lines = [(pair.source, pair.target) for pair in corpus.split.train] if sampled_here else []
        self._train = self._training_batches(processes)
        self._valid = Batches(
            corpus.valid, training.batch_tokens, sentences=training.batch_size, shuffle=False
        )
        self._texts = list(texts(corpus.split.valid, settings.evaluation.sentences))
        self._sample_places = spread_by_length(
            [source for source, _ in self._texts], settings.evaluation.samples
        )
        self._guide = build_guide(corpus, settings, sampled=self._estimator is not None)
        self._site = CROSS if self._guide is None else guided_site(model)

    def _training_batches(self, processes: Processes) -> Batches | SampledBatches:
        """Return the batches. For CUDA graphs, they are formed from the lengths of the sampled subwords."""
        from regard.data import Batches
        from regard.tasks.translation.data import SampledBatches

        training = self.settings.training
        options: dict[str, Any] = {
            "tokens": training.batch_tokens,
            "sentences": training.batch_size,
            "rounded": () if self._shapes is None else self._shapes.lengths,
            "seed": self.settings.seed,
            "rank": processes.rank,
            "world": processes.world,
        }
        if self._epochs is not None and self._shapes is not None:
            return SampledBatches(self._epochs, **options)
        return Batches(self.corpus.train, **options)

    @classmethod
    def read_data(cls, settings: TranslationSettings, fingerprints: Mapping[str, str] | None = None) -> Split:
        from regard.tasks.translation.data import check_header_lines, read_split

        if fingerprints is None:  # only for a new run: a resumed run keeps its pairs
            check_header_lines(settings.data)
        return read_split(settings.data)

    @classmethod
    def start(cls, settings: TranslationSettings, device: str, corpus: Corpus | None = None) -> None:
        from regard.tasks.translation.data import build_sampler, sampled_epochs

        if corpus is None or not device.startswith("cuda"):
            return
        if sampler := build_sampler(corpus, settings):
            sampled_epochs(corpus, sampler)

    @classmethod
    def encode_data(
        cls,
        data: Split,
        settings: TranslationSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> Corpus:
        from regard.tasks.translation.data import Corpus

        return Corpus.made(data, settings.data, folder, cache, lines)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: TranslationSettings) -> tuple[int, ...]:
        source, target = load_tokenizers(folder, settings.data)
        return source.size, target.size

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Model:
        source, target = sizes
        return build_model(model.name, source, target, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> TranslationRun:
        return translator_of(run, device, **options)

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> TranslationEvaluation:
        from regard.tasks.translation.evaluate import evaluate_translation

        return evaluate_translation(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> TranslationView:
        return view_translation(cls, run, options, drawing)

    @classmethod
    def defaults(
        cls, settings: Mapping[str, Any], data: Split | None = None, other: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        from regard.tasks.translation.plan import fill_data, fit_to_text

        if data is None:
            return fill_data(settings), ()
        chosen, why = fit_to_text(settings, data.train)
        few = note_few_pairs(data, chosen)
        return chosen, tuple(filter(None, (why, few)))

    @classmethod
    def check(cls, settings: TranslationSettings, model: Any = None) -> None:
        check_evaluation(settings.evaluation)

    @classmethod
    def plan(
        cls,
        settings: Mapping[str, Any],
        corpus: Corpus,
        device: str,
        processes: Processes,
        timed: bool = False,
    ) -> Plan:
        from regard.tasks.translation.plan import epoch_tokens, plan_run

        plan = plan_run(cls, settings, corpus, device, processes, timed=timed)
        return Plan(plan.settings, plan.text, plan.tokens / epoch_tokens(corpus), plan.seconds)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        from regard.tasks.translation.data import SampledBatches

        if self._epochs is None or isinstance(self._train, SampledBatches):
            batches = self._train.epoch(epoch, start)
        else:  # the same tokens as below, sampled by other processes
            batches = self._train.epoch(epoch, start, self._epochs.encoded(epoch))
        for batch in batches:
            if self._lines and self._sampler is not None:
                numbers = batch.index.tolist()
                pairs = [self._sampler.pair(epoch, number, self._lines[number]) for number in numbers]
                sources, targets = zip(*pairs, strict=True)
                batch = Batch.collate(sources, targets, numbers)
            yield batch if self._shapes is None else self._shapes.filled(batch)

    def close(self) -> None:
        if self._epochs is not None:
            self._epochs.close()

    def largest_batch(self) -> Batch:
        return next(self.batches(0, self._train.largest(0)))

    def len_epoch(self, epoch: int) -> int:
        return self._train.len_epoch(epoch)

    def count(self, batch: Batch) -> int:
        return int(batch.target_lengths.sum())

    def prepare(self, batch: Batch, device: Any) -> tuple[Batch, Tensor | None]:
        wanted = None if self._guide is None else self._guide.wanted(batch).to(device)
        return batch.to(device), wanted

    def loss(self, batch: tuple[Batch, Tensor | None]) -> Loss:
        from regard.tasks.translation.alignment import joined_weights
        from regard.training.losses import cross_entropy, guided_alignment, model_loss

        pairs, wanted = batch
        training = self.settings.training
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(pairs, self._estimator)
        if training.r_drop and self.model.training:
            return self._r_drop_loss(pairs)
        read = self._dropped(pairs) if self.model.training and training.word_dropout else pairs
        if wanted is None:
            total, plain = model_loss(self.model, read, pairs.labels, training.label_smoothing)
            return Loss(total, {"loss": plain})
        with record(Look(weights=True, gradient=True), at=self._site) as seen:
            logits = self.model(read)
        guided = guided_alignment(joined_weights(seen[self._site]), wanted)
        total, plain = cross_entropy(logits, pairs.labels, training.label_smoothing)
        return Loss(total + training.guided_alignment * guided, {"loss": plain, "guided": guided.detach()})

    def _r_drop_loss(self, pairs: Batch) -> Loss:
        """Return the loss of two passes of a batch, which differ in dropout and word dropout."""
        from regard.training.r_drop import r_drop_loss

        twice, training = pairs.repeat(2), self.settings.training
        read = self._dropped(twice) if training.word_dropout else twice
        losses = r_drop_loss(self.model, read, twice.labels, training.label_smoothing, training.r_drop)
        return Loss(losses.total, {"loss": losses.plain, "r_drop": losses.divergence})

    def _sampled_loss(self, pairs: Batch, estimator: Reinforce) -> Loss:
        """Return the loss of hard attention for a batch, with a gradient estimated from sampled keys."""
        from regard.training.losses import sequence_losses
        from regard.training.sampled_loss import RowLosses, embedding_features, sampled_loss

        repeated, training = pairs.repeat(estimator.samples), self.settings.training

        def row_losses() -> RowLosses:
            read = self._dropped(repeated) if training.word_dropout else repeated
            total_R, plain_R = sequence_losses(self.model(read), repeated.labels, training.label_smoothing)
            return RowLosses(total_R, -plain_R)

        return sampled_loss(
            estimator,
            row_losses,
            len(pairs),
            lengths={"source": repeated.source_lengths, "target": repeated.target_lengths},
            features=embedding_features(
                (self.model.source, repeated.source), (self.model.target, repeated.labels)
            ),
            counted=repeated.target_lengths > 0,
        )

    def _dropped(self, batch: Batch) -> Batch:
        """Apply word dropout: replace random source and target input tokens by UNK."""

        def dropped(tokens: Tensor) -> Tensor:
            kept = torch.rand(tokens.shape, device=tokens.device) >= self.settings.training.word_dropout
            return torch.where(kept | (tokens <= EOS), tokens, UNK)

        # The labels are not changed: loss() takes them from the original batch.
        return replace(batch, source=dropped(batch.source), target=dropped(batch.target))

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        from regard.evaluation import bleu, chrf, exact_match
        from regard.fast.twins import Twins
        from regard.training.losses import cross_entropy

        losses, count = list[Tensor](), 0
        device = next(self.model.parameters()).device
        for batch in self._valid.epoch(0):
            if stopping():
                raise Stopped
            for piece in pieces_of(batch, self.corpus.target.size):
                ready = piece.to(device)
                with Twins(self.model):  # a plain recurrent encoder waits for the lengths
                    losses.append(cross_entropy(self.model(ready), ready.labels)[1])
                count += self.count(piece)
        mean = sum(torch.stack(losses).tolist() if losses else ()) / max(count, 1)
        translations = self._translations(stopping)
        references = [target for _, target in self._texts]
        how = self.settings.evaluation
        texts = [each.text for each in translations]
        scores = {
            "loss": mean,
            "perplexity": math.exp(min(mean, 700.0)),
            "bleu": bleu(texts, references, tokenize=how.tokenize, lowercase=how.lowercase).value,
            "chrf": chrf(texts, references, lowercase=how.lowercase).value,
            "exact": exact_match(texts, references, lowercase=how.lowercase).value,
        }
        return Evaluation(scores, self._shown(translations))

    def translator(self, **options: Any) -> Translator:
        """Return a Translator with the current weights. options: arguments of Translator()."""
        beam = self.settings.evaluation.beam_size
        options = {"search": Beam(size=beam) if beam > 1 else Greedy(), "alignment": self._site, **options}
        return Translator(self.model, self.corpus.source, self.corpus.target, **options)

    def _translations(self, stopping: Callable[[], bool]) -> list[Translation]:
        """Translate the validation sentences; record attention only for the sentences that are printed."""
        translator, samples = self.translator(), self._sample_places
        others = sorted(set(range(len(self._texts))) - set(samples))
        parts: list[tuple[str | None, list[int]]] = [(translator.look, samples)] if samples else []
        at_once = AT_ONCE.get(next(self.model.parameters()).device.type, MANY_AT_ONCE)
        for begin in range(0, len(others), at_once):
            parts.append((None, others[begin : begin + at_once]))
        by_place: dict[int, Translation] = {}
        for look, places in parts:
            if stopping():
                raise Stopped
            translations = translator.translate([self._texts[place][0] for place in places], look=look)
            by_place.update(zip(places, translations, strict=True))
        return [by_place[place] for place in range(len(self._texts))]

    def _shown(self, translations: list[Translation]) -> list[RenderableType]:
        """Return some translations to print, with their references. The first one also has its attention."""
        return [
            Sample(translations[place], *self._texts[place], drawn=number == 0)
            for number, place in enumerate(self._sample_places)
        ]


def check_evaluation(how: Evaluating) -> None:
    """Raise an error if an evaluation setting is invalid.

    Without this check, the error would occur only at the first evaluation during training.

    how: the settings [evaluation].
    """
    from regard.evaluation import bleu
    from regard.evaluation.bleu import TOKENIZERS as BLEU_TOKENIZERS

    if how.tokenize not in BLEU_TOKENIZERS:
        raise UnknownName("value of evaluation.tokenize:", how.tokenize, BLEU_TOKENIZERS)
    bleu(["a"], ["a"], tokenize=how.tokenize, lowercase=how.lowercase)
    Beam(size=how.beam_size)


@dataclass(frozen=True)
class Sample:
    """A translation of a validation sentence, to print with the reference translation `wanted`.

    drawn: whether to draw the attention of the translation, if the output is a terminal.
    """

    translation: Translation
    source: str
    wanted: str
    drawn: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        screen = console.is_terminal or console.is_jupyter
        if self.drawn and screen:
            yield self.translation.entry(self.wanted)
            return
        text = f"source     {self.source}\ntarget     {self.translation.text}\nreference  {self.wanted}"
        yield Text(text) if screen else Text(text, no_wrap=True, overflow="ignore")


def train_translation(settings: Mapping[str, Any], folder: str | Path, **options: Any) -> Outcome:
    """Train a translator in a run folder.

    settings: the settings, by section: {"data": {"source": ["a.ko"], "target": ["a.en"]}}.
    folder: the run folder.
    options: further arguments of train_run(), such as resume=True.
    """
    from regard.runs.train_run import train_run

    return train_run(TranslationTask, settings, folder, **options)


def load_translator(
    folder: str | Path, *, checkpoint: str | int = "best", device: str = "auto", **options: Any
) -> TranslationRun:
    """Load the translator of a run. For the arguments, see regard.load()."""
    from regard.runs.stored_runs import open_stored

    check_options(options)
    task_of(folder, "translation")  # raises an error if the run has another task
    return translator_of(open_stored(TranslationTask, Path(folder), checkpoint), device, **options)
