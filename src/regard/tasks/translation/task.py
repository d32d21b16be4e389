"""The translation task: data, batches of pairs, loss, and evaluation with BLEU, chrF and exact match."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text
from torch import Tensor

from regard.data.batch import EOS, UNK, Batch
from regard.data.tokenizers import Tokenizer, load_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased, separate_marks
from regard.decoding import Beam, Greedy, Scored, Translation, Translator
from regard.decoding.forced_decoding import pieces_of
from regard.decoding.input_checks import check_load_keywords
from regard.decoding.search_options import search_of
from regard.errors import ArgumentError, UnknownName, message, naming_place
from regard.fast.search import supports_int8
from regard.lazy_package import FirstUse
from regard.look import Look
from regard.models import Model, build_model
from regard.roles import CROSS, matches
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, StoredRun
from regard.runs.stored_runs import LoadedRun, stored_scores, with_weights
from regard.sites import record
from regard.tasks.batched_task import BatchedTask, shared_plan, training_speed, unless_stopped
from regard.tasks.task_table import load
from regard.tasks.translation.alignment import check_choice, guided_site, read_choice
from regard.tasks.translation.settings import Data, TranslationSettings, describe_quality, note_few_pairs
from regard.training.command_options import CommandOption
from regard.training.task import Evaluation, Loss, Stopped

if TYPE_CHECKING:
    from regard.call import Call
    from regard.runs.run_commands import RunReport
    from regard.runs.seed_runs import Outcome
    from regard.tasks.translation.data import Corpus, Split
    from regard.training.distributed import Processes
    from regard.training.estimators import Reinforce
    from regard.viewing import Picture, Seen, Site

AT_ONCE = {"cpu": 32}
MANY_AT_ONCE = 1024
"""Number of sentences translated between two checks for Ctrl-C (AT_ONCE["cpu"] on a CPU). On a GPU, the
sentences of a batch have more similar lengths if there are many at once."""


TOKENIZERS = ("source.tokenizer", "target.tokenizer")
"""The tokenizer files of a run folder; with a joint vocabulary, both have the same content."""

LEARNED_LINKS = "train.links"
"""The alignments of the training pairs, in a run with guided alignment and without gold alignments."""

AUTO, INT8 = "auto", "int8"

FIRST_HALF = (8, 0)
"""The lowest compute capability of NVIDIA GPUs that decode in half precision by default (Ampere)."""

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The values of load(precision=...): the dtype of the weights and of the computation. There is also "auto",
the default, see chosen_dtype(); and "int8", float32 with int8 weights in the steps of a search on a CPU."""

STEPS = "steps"
"""The view that draws one computation of attention step by step."""

UNKNOWN = "<unk>"
"""The text of the token for words that are not in the vocabulary."""

ENGINES = ("regard", "ctranslate2")
"""The values of load(engine=...) and of --engine; the first is the default."""

SELF_VIEWS = ("self", "rollout")
"""The views that draw self-attention."""


class TranslationRun(LoadedRun, Translator):
    """A Translator that was loaded from a run folder, with the settings and the folder of its run."""

    settings: TranslationSettings

    def prepare(self, line: str) -> str:
        """Return a source sentence in the form in which the model was trained on sentences.

        If the run was trained on the built-in corpus, spaces are inserted around punctuation. Otherwise, the
        line is returned unchanged.
        """
        return line if self.settings.data.built_in is None else separate_marks(line)

    @property
    def quality(self) -> str:
        """A sentence about the model if its validation scores are poor, otherwise ""."""
        return describe_quality(stored_scores(self.checkpoint), self.settings.training.best)

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "search": self.search}

    def validation_texts(self, count: int) -> list[str]:
        from regard.tasks.translation.data import read_split, texts

        split = read_split(self.settings.data)
        return [source for source, _ in texts(split.valid, count)]


@dataclass(frozen=True, eq=False)
class TranslationView(RunView):
    """The attention of a model for one translation, to be drawn by `regard view`.

    translator: the model with its tokenizers.
    translation: the translation with its attention.
    sentence: the source text that the model has read.
    """

    translator: Any
    translation: Scored
    sentence: str

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. Unknown words are shown as in the text, not as <unk>."""
        from regard.viewing import picture

        view = options.view or self.default_view
        if view == STEPS:
            return self._steps(options)
        if view in self.own:
            return self.own[view]()
        prepared = options.prepared(self.seen)
        if not options.subwords:
            prepared = _with_unknown_words(prepared, self.translation)
        return picture(prepared, view, site=options.site, head=options.head, word=options.word)

    def _steps(self, options: ViewOptions) -> Picture:
        """Draw one attention computation step by step, from scores to output: the last site that matches."""
        from regard.sites import scope
        from regard.viewing import steps
        from regard.viewing.picture import noted
        from regard.viewing.pictures.view_selection import matching, rows_of

        place, head = matching(self.seen, options.site)[-1], options.head or 0
        if not 0 <= head < place.heads:
            problem = f"{place.name} has no head {head}"
            raise ArgumentError(message("--head", problem, expected=f"0 to {place.heads - 1}"))
        rows = list(range(len(place.rows)))
        if options.word is not None:
            words = _with_unknown_words(self.seen.words(), self.translation)
            rows = rows_of(options.word, place, words.site(place.name).rows, "--word")
        calls: list[Call] = []  # one for all target tokens or, in a recurrent decoder, one per token
        with scope(at=place.name, watch=lambda _, call: calls.append(call)):
            self.translator.score([self.sentence], [self.translation.text])
        query, key, value, scores, formula = _inputs(calls, place)
        label = f"{place.name}, head {head}" if place.heads > 1 else place.name
        drawn = steps(
            query[head, rows],
            key[head],
            value[head],
            formula,
            scores=scores[head, rows],
            rows=[place.rows[row] for row in rows],
            columns=place.columns,
            title=self.seen.title,
            about=f"{label}; query and keys after the projections of the score function",
        )
        return noted(drawn, *self.seen.notes)


class TranslationTask(BatchedTask):
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
    intervene_options = ("text", "beam_size", "length_penalty", "greedy", "max_length")
    view_options = (
        "text",
        CommandOption(
            "--target",
            "Show the attention for this translation. By default, the model generates the translation.",
            "TEXT",
        ),
        "beam_size",
        "length_penalty",
        "greedy",
        "max_length",
    )

    def _set_up(self, device: str) -> None:
        from regard.data import Batches
        from regard.tasks.corpus import spread_by_length
        from regard.tasks.translation.alignment import build_guide, guided_site
        from regard.tasks.translation.data import SampledBatches, build_sampler, sampled_epochs, texts
        from regard.training.losses import check_dropout

        processes, training = self._processes, self.settings.training
        if training.r_drop:
            check_dropout(self.model)
        reason = "the guided-alignment loss records attention" if training.guided_alignment else ""
        options = self._start(device, self.model.source, self.model.target, reason=reason)
        self._sampler = build_sampler(self.corpus, self.settings)
        alone = processes.world == 1 and (device.startswith("cuda") or self.speed.captures)
        self._epochs = sampled_epochs(self.corpus, self._sampler) if self._sampler and alone else None
        sampled_here = self._sampler is not None and self._epochs is None
        self._lines = [(pair.source, pair.target) for pair in self.corpus.split.train] if sampled_here else []
        # For CUDA graphs, the batches are formed from the lengths of the sampled subwords.
        if self._epochs is not None and self._shapes is not None:
            self._train = SampledBatches(self._epochs, **options)
        else:
            self._train = Batches(self.corpus.train, **options)
        self._valid = Batches(
            self.corpus.valid, training.batch_tokens, sentences=training.batch_size, shuffle=False
        )
        self._texts = list(texts(self.corpus.split.valid, self.settings.evaluation.sentences))
        self._sample_places = spread_by_length(
            [source for source, _ in self._texts], self.settings.evaluation.samples
        )
        self._guide = build_guide(self.corpus, self.settings, sampled=self._estimator is not None)
        self._site = CROSS if self._guide is None else guided_site(self.model)

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
        from regard.data import encode_pairs, train_tokenizers
        from regard.files.user_cache import cache_folder
        from regard.tasks.translation.alignment import learned_links
        from regard.tasks.translation.data import VOCABULARY, Corpus, Lowered, status

        options = settings.data
        if not (folder / TOKENIZERS[0]).exists():
            with status("training tokenizers"), naming_place(VOCABULARY):
                tokenizers = train_tokenizers(
                    Lowered(data.train) if options.lowercase else data.train,
                    options.tokenizer or "unigram",
                    joint=options.joint,
                    sizes=(options.source_vocab_size, options.target_vocab_size),
                    lines=lines,
                )
            for tokenizer, name in zip(tokenizers, TOKENIZERS, strict=True):
                tokenizer.save(folder / name)
        source, target = load_tokenizers(folder, options)
        place = cache or cache_folder()
        train = encode_pairs(data.train, source, target, place, longest=options.max_length)
        valid = encode_pairs(data.valid, source, target, place, longest=options.max_length, over="truncate")
        links = None
        if settings.training.guided_alignment and data.links is None and options.alignment_unit == "word":
            with status("aligning the words of the training pairs"):
                links = learned_links(data.train, folder / LEARNED_LINKS)
        return Corpus(data, source, target, train, valid, links)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: TranslationSettings) -> tuple[int, ...]:
        source, target = load_tokenizers(folder, settings.data)
        return source.size, target.size

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Model:
        source, target = sizes
        return build_model(model.name, source, target, **model.options)

    @classmethod
    def load(
        cls,
        run: StoredRun,
        device: str,
        *,
        precision: str = AUTO,
        engine: str = ENGINES[0],
        **options: Any,
    ) -> TranslationRun:
        """Load the translator of a run.

        The file alignment.json in the run folder says from which attention weights word alignments are
        computed. Without this file, the attention layer (site) that was trained with guided alignment is
        used. If there is no such site, all cross-attention layers are used.

        precision: the dtype of the weights and of the computation: a name in PRECISIONS, "auto" or "int8".
        engine: a name in ENGINES: what searches. With "ctranslate2", it runs on the CPU.
        options: further arguments of Translator(), such as search.
        """
        check_options({"precision": precision, "engine": engine, **options})
        own = engine == ENGINES[0]
        device, compute, precision = (device, "", precision) if own else ("cpu", precision, "float32")
        folder, settings = run.folder, run.settings
        source, target = load_tokenizers(folder, settings.data)
        model = cls.build_model(settings.model, (source.size, target.size))
        model = with_weights(model, run, device)
        dtype = chosen_dtype(precision, next(model.parameters()).device)
        if precision == AUTO and dtype == torch.float16 and not fits_float16(model):
            dtype = torch.bfloat16
        model = model.to(dtype)
        if precision == INT8:
            kind = next(model.parameters()).device.type
            if kind != "cpu" or not supports_int8(model):
                problem = f"a {type(model).__name__} on {kind} cannot decode with int8 weights"
                expected = "a Transformer or a bahdanau model on a CPU"
                hint = 'set device="cpu", or use another precision'
                raise ArgumentError(message("precision", problem, expected=expected, hint=hint))
            model.int8_steps = True
        choice = read_choice(folder)
        if choice is not None:
            check_choice(model, choice, folder)
        guided = guided_site(model) if settings.training.guided_alignment else ""
        options = {"alignment": choice or guided, **options} if choice or guided else options
        translator = TranslationRun(model, source, target, **{"search": Beam(), **options}).from_run(run)
        translator.guided = guided
        if not own:
            from regard.export.ctranslate2 import use_ctranslate2

            use_ctranslate2(translator, compute)
        return translator

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
        from regard.tasks.translation.evaluate import evaluate_translation

        return evaluate_translation(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> TranslationView:
        from regard.evaluation import faithfulness
        from regard.evaluation.attribution import Attribution, attribution_views, page_of
        from regard.evaluation.faithfulness import attribute_words

        unit = "word" if drawing.subwords is False else "auto"
        translator = run.load(cls, search=search_of(options), look="*", unit=unit, precision="float32")
        sentence, target = translator.prepare(options["text"]), options["target"]
        translation = translator.translate(sentence) if target is None else translator.score(sentence, target)
        seen, site, head = translation.seen(), drawing.site, drawing.head

        def attribution(methods: Sequence[str]) -> Attribution:
            return attribute_words(translator, translation, at=at, head=head, methods=methods)

        at = CROSS
        own = attribution_views(attribution)
        if not seen.sites and not seen.long:
            page = page_of(attribution)
            return TranslationView(
                seen, translator, translation, sentence, default_view="erasure", own=own, page=page
            )
        if (
            translation.alignment is not None
            and translation.text.strip()
            and len(translation.source_units) > 1
        ):
            # Measure the cross-attention in the picture. If the picture shows none, measure all of it.
            cross = [each for each in seen.sites if each.kind == "cross"]
            drawn = [each for each in cross if site is None or matches(site, each.name, each.role)]
            at = site if site is not None and drawn else CROSS
            if drawing.view in SELF_VIEWS or not drawn:
                seen = seen.noted(f"cross-attention: {faithfulness(translator, translation)}")
            else:
                head = head if head is None or head < min(each.heads for each in drawn) else None
                seen = seen.noted(faithfulness(translator, translation, at=at, head=head))
        return TranslationView(seen, translator, translation, sentence, own=own)

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
        from regard.evaluation import bleu
        from regard.evaluation.bleu import TOKENIZERS as BLEU_TOKENIZERS

        # Without these checks, the errors would occur only at the first evaluation during training.
        how = settings.evaluation
        if how.tokenize not in BLEU_TOKENIZERS:
            raise UnknownName("value of evaluation.tokenize:", how.tokenize, BLEU_TOKENIZERS)
        bleu(["a"], ["a"], tokenize=how.tokenize, lowercase=how.lowercase)
        Beam(size=how.beam_size)

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], corpus: Any, device: str, processes: Processes, timed: bool = False
    ) -> Plan:
        from regard.tasks.translation.data import status
        from regard.tasks.translation.plan import Workload, epoch_tokens, make_plan, target_tokens
        from regard.training.settings import merged

        tokens, targets = epoch_tokens(corpus), target_tokens(corpus)

        def speed(options: dict[str, Any], batch: int | None) -> float:
            """Return the speed in tokens of the side with more tokens. batch: its tokens, or None."""
            training = {"batch_tokens": batch, "guided_alignment": 0.0, "learning_rate": 1e-4}
            changed = merged(settings, {"model": options, "training": training})
            return training_speed(cls, changed, corpus, device) * tokens / targets

        kind = torch.device(device).type
        work = Workload(len(corpus.train), tokens, kind, processes.world, targets)
        with status("measuring the speed of this machine"):
            return shared_plan(processes, lambda: make_plan(settings, work, speed, timed))

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

    def count(self, batch: Batch) -> int:
        return int(batch.target_lengths.sum())

    def prepare(self, batch: Batch, device: Any) -> tuple[Batch, Tensor | None]:
        wanted = None if self._guide is None else self._guide.wanted(batch).to(device)
        return batch.to(device), wanted

    def loss(self, batch: tuple[Batch, Tensor | None]) -> Loss:
        from regard.tasks.translation.alignment import joined_weights
        from regard.training.losses import cross_entropy, guided_alignment, model_loss, r_drop

        pairs, wanted = batch
        training = self.settings.training
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(pairs, self._estimator)
        twice = bool(training.r_drop and self.model.training)
        pairs = pairs.repeat(2) if twice else pairs
        read = self._dropped(pairs) if self.model.training and training.word_dropout else pairs
        if twice:  # the two passes differ in dropout and word dropout
            losses = r_drop(self.model(read), pairs.labels, training.label_smoothing, training.r_drop)
            return Loss(losses.total, {"loss": losses.plain, "r_drop": losses.divergence})
        if wanted is None:
            total, plain = model_loss(self.model, read, pairs.labels, training.label_smoothing)
            return Loss(total, {"loss": plain})
        with record(Look(weights=True, gradient=True), at=self._site) as seen:
            logits = self.model(read)
        guided = guided_alignment(joined_weights(seen[self._site]), wanted)
        total, plain = cross_entropy(logits, pairs.labels, training.label_smoothing)
        return Loss(total + training.guided_alignment * guided, {"loss": plain, "guided": guided.detach()})

    def _sampled_loss(self, pairs: Batch, estimator: Reinforce) -> Loss:
        """Return the loss of hard attention for a batch, with a gradient estimated from sampled keys."""
        from regard.training.estimators import RowLosses, embedding_features, sampled_loss
        from regard.training.losses import sequence_losses

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
        for batch in unless_stopped(stopping, self._valid.epoch(0)):
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
    check_options(options)
    return load(folder, checkpoint=checkpoint, device=device, task="translation", **options)


def _with_unknown_words(seen: Seen, pair: Scored) -> Seen:
    """Return a copy of `seen` in which each label <unk> is replaced by the unknown word itself."""
    spelled = {}
    sides = (
        ("source", pair.source_units, seen.source_words),
        ("target", pair.target_units, seen.target_words),
    )
    for side, words, numbers in sides:
        spelled[side] = words if len(words) == max(numbers, default=-1) + 1 else []

    def spell(pieces: tuple[str, ...], numbers: tuple[int, ...] | None, side: str) -> tuple[str, ...]:
        numbered = zip(pieces, numbers or (), strict=True)
        words = spelled[side]
        return tuple(words[n] if words and n >= 0 and UNKNOWN in piece else piece for piece, n in numbered)

    sites = tuple(
        replace(
            site,
            rows=spell(
                site.rows, site.row_words, "source" if site.kind in ("encoder", "reversed") else "target"
            ),
            columns=spell(site.columns, site.column_words, "target" if site.kind == "decoder" else "source"),
        )
        for site in seen.sites
    )
    return replace(seen, sites=sites)


def _inputs(calls: list[Call], site: Site) -> tuple[Any, Any, Any, Any, str]:
    """Return query, key, value and scores of an attention layer, and the formula of its scores as text.

    The shapes are query (H, T, D), key (H, S, D), value (H, S, E) and scores (H, T, S). A formula is, for
    example, "query · key × 0.125".

    calls: all calls of the layer for one sentence pair.
    site: the recorded attention of the layer, with the labels of its rows and columns.
    """
    from regard.backends.reference import compare
    from regard.select import Soft

    rows, shown = sum(call.sizes[2] for call in calls), len(site.rows)
    # The row of EOS is left out if the translation reached the maximum length.
    if not calls or rows not in (shown, shown + 1) or calls[0].sizes[3] != len(site.columns):
        problem = "the sentence is too long: it was translated in several parts"
        raise ArgumentError(message("--view steps", problem, hint="use a shorter sentence"))
    if not all(isinstance(call.select, Soft) for call in calls):
        problem = f"{site.name} does not use softmax, but this view can only draw softmax attention"
        raise ArgumentError(message("--view steps", problem))
    parts = []
    for call in calls:
        compared, visible = compare(call)
        parts.append((compared / call.temperature).masked_fill(~visible, -torch.inf)[0])
    first = calls[0]
    query = torch.cat([call.query[0] for call in calls], dim=1)
    key, value = (first.spread(tensor)[0] for tensor in (first.key, first.value))
    if first.combine == "inner":
        scale = first.scale / first.temperature
        formula = "query · key" if scale == 1 else f"query · key × {scale:.3g}"
    else:
        formula = "v · tanh(query + key)"
    formula = formula if first.bias is None else f"{formula} + bias"
    scores = torch.cat(parts, dim=1)[:, :shown]
    return query[:, :shown].detach(), key.detach(), value.detach(), scores.detach(), formula


def check_options(options: Mapping[str, Any]) -> None:
    """Raise an error if an option is not `precision`, `engine` or an argument of Translator().

    The error suggests the most similar name.
    """
    own = ("precision", "engine")
    check_load_keywords(Translator, {name: each for name, each in options.items() if name not in own})
    if (engine := options.get("engine", ENGINES[0])) not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    precision = options.get("precision", AUTO)
    if precision not in (AUTO, INT8, *PRECISIONS):
        raise UnknownName("precision", precision, (AUTO, INT8, *PRECISIONS))


def chosen_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype for a value of load(precision=...).

    "auto" is float16 on a GPU from NVIDIA Ampere on, and float32 on other devices. float16 is as fast as
    bfloat16, and three more bits of each number are kept. The result of a search is checked for overflow, see
    decoding.active_rows.

    >>> chosen_dtype("auto", torch.device("cpu"))
    torch.float32
    """
    if precision != AUTO:
        return PRECISIONS.get(precision, torch.float32)
    half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_HALF
    return torch.float16 if half else torch.float32


def fits_float16(model: Model) -> bool:
    """Return whether no weight of a model is too large for float16."""
    largest = [each.detach().abs().max().float() for each in model.parameters() if each.numel()]
    return not largest or bool(torch.stack(largest).max() <= torch.finfo(torch.float16).max)


def load_tokenizers(folder: Path, data: Data) -> tuple[Tokenizer, Tokenizer]:
    """Load the source and target tokenizers of a run folder."""
    source, target = (load_tokenizer(folder / name, links=False) for name in TOKENIZERS)
    return (Lowercased(source), Lowercased(target)) if data.lowercase else (source, target)
