"""The captioning task: batches of images and captions, loss, and evaluation with CIDEr-D and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from regard.data.batch import ImageBatch, replace_words
from regard.data.batching import CaptionBatches
from regard.data.images import centre_crop
from regard.decoding import Beam, Greedy, Search
from regard.errors import ArgumentError, Setting, message, printable
from regard.evaluation.caption_scores import caption_scores, exact_captions, pointing
from regard.models.captioner import NO_ATTENTION, Captioner, doubly_stochastic_penalty
from regard.roles import CROSS
from regard.runs.run_commands import ChosenRun, RunReport, RunView, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, RunTask, StoredRun, smallest_model
from regard.tasks.captioning.caption_result import Caption
from regard.tasks.captioning.data import (
    TOKENIZER,
    CaptionCorpus,
    CaptionData,
    CaptionSplit,
    FeatureCache,
    augmentation_of,
    check_paths,
    features_fit,
    load_caption_tokenizer,
    read_caption_split,
    stored_images,
)
from regard.tasks.captioning.evaluate import (
    EVALUATE_OPTIONS,
    evaluate_captioning,
)
from regard.tasks.captioning.image_captioner import ImageCaptioner
from regard.tasks.captioning.run import (
    VIEW_OPTIONS,
    CaptioningRun,
    build_captioner,
    captioner_of,
    view_captioning,
)
from regard.tasks.captioning.settings import CaptioningSettings, ImageData
from regard.tasks.epoch_plan import EpochRules, plan_epochs
from regard.training.distributed import Processes
from regard.training.estimators import Reinforce
from regard.training.length_buckets import few_shapes
from regard.training.losses import cross_entropy, sequence_losses
from regard.training.sampled_loss import (
    RowLosses,
    add_estimator,
    embedding_features,
    features_size,
    sampled_loss,
)
from regard.training.settings import build, merged
from regard.training.task import Evaluation, Loss, Stopped

__all__ = [
    "CaptioningTask",
    "batch_size",
    "caption_images",
    "encoder_defaults",
    "plan_captioning",
    "score_captions",
]


class _Read(NamedTuple):
    """The input of the model for a batch: the images, and the tokens (B, T) of the captions."""

    image: Tensor
    inputs: Tensor


class CaptioningTask(RunTask):
    """Train a captioner on images and captions, and evaluate it on the validation images.

    If an image has several captions, each caption is a separate training example. If the image encoder is
    frozen (not trained) and images are not augmented, the feature vectors of all images are computed once,
    before the first step, if they fit in memory. On a GPU, the images or their feature vectors stay in GPU
    memory, if they fit.
    """

    model: Captioner
    settings_type = CaptioningSettings
    counted = "target tokens"
    metrics = MappingProxyType(
        {
            "loss": "lower",
            "perplexity": "lower",
            "cider": "higher",
            "bleu1": "higher",
            "bleu2": "higher",
            "bleu3": "higher",
            "bleu4": "higher",
            "bleu": "higher",
            "exact": "higher",
            "pointing": "higher",
        }
    )
    best = "cider"
    files = (TOKENIZER,)
    smallest_sizes = MappingProxyType({"tokens": 8})
    evaluate_options = EVALUATE_OPTIONS
    view_options = VIEW_OPTIONS

    def __init__(
        self,
        model: Captioner,
        corpus: CaptionCorpus,
        settings: CaptioningSettings,
        processes: Processes | None = None,
        device: str = "cpu",
    ):
        super().__init__(model, corpus, settings)
        processes, training, data = processes or Processes(), settings.training, settings.data
        features = 0 if training.estimator is None else features_size(model.target)
        self._estimator = add_estimator(model, training, features=features, processes=processes)
        rows, longest = training.batch_size, data.max_length + 1
        self.speed, self._shapes = few_shapes(model, training, device, processes.world, longest, fine=False)
        train, valid = corpus.split.train, corpus.split.valid
        encoder, count = model.image_encoder, len(train) + len(valid)
        fits = features_fit(encoder, count, data.size)
        features, augmentation = encoder.frozen and fits, augmentation_of(data, settings.seed)
        store = partial(stored_images, encoder, size=data.size, device=device, features=features)
        self._train_store = store(train.pixels, augmentation=augmentation)
        self._valid_store = store(valid.pixels)
        self._train = CaptionBatches(
            corpus.train,
            train.pixels,
            size=data.size,
            augmentation=augmentation,
            images=self._train_store is None,
            workers=data.workers,
            tokens=training.batch_tokens,
            sentences=rows,
            rounded=() if self._shapes is None else self._shapes.lengths,
            seed=settings.seed,
            rank=processes.rank,
            world=processes.world,
        )
        self._valid = CaptionBatches(
            corpus.valid,
            valid.pixels,
            size=data.size,
            images=self._valid_store is None,
            tokens=training.batch_tokens,
            sentences=rows,
            shuffle=False,
        )

    @classmethod
    def read_data(
        cls, settings: CaptioningSettings, fingerprints: Mapping[str, str] | None = None
    ) -> CaptionSplit:
        return read_caption_split(settings.data)

    @classmethod
    def encode_data(
        cls,
        data: CaptionSplit,
        settings: CaptioningSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> CaptionCorpus:
        return CaptionCorpus.encoded(data, settings.data, folder, lines)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: CaptioningSettings) -> tuple[int, ...]:
        return (load_caption_tokenizer(folder, settings.data).size,)

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Captioner:
        return build_captioner(model, *sizes)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> CaptioningRun:
        return captioner_of(run, device, **options)

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
        return evaluate_captioning(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        return view_captioning(cls, run, options, drawing)

    @classmethod
    def defaults(
        cls,
        settings: Mapping[str, Any],
        data: CaptionSplit | None = None,
        other: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if other is None:
            size = build(ImageData, settings.get("data", {}), "the settings").size
            settings = merged({"model": encoder_defaults(settings.get("model", {}), size)}, settings)
        if data is None:
            return dict(settings), ()
        checked = build(CaptioningSettings, settings, "the settings")
        size, encoder = checked.data.size, smallest_model(cls, checked).image_encoder
        height, width = encoder.map_size(size, size)
        notes = [f"feature map of {height} x {width} cells"]
        if encoder.frozen and not features_fit(encoder, len(data.train) + len(data.valid), size):
            notes.append("the feature vectors of all images do not fit in memory: computed in every step")
        return dict(settings), tuple(notes)

    @classmethod
    def check(cls, settings: CaptioningSettings, model: Captioner | None = None) -> None:
        check_paths(settings.data)
        select = settings.model.options.get("select", "softmax")
        if settings.training.doubly_stochastic and select in ("hard", NO_ATTENTION):
            problem = f"the doubly stochastic penalty has no effect if model.select is {select!r}"
            hint = (
                *("use ", Setting("training", "doubly_stochastic", 0)),
                *(" or ", Setting("model", "select", "softmax")),
            )
            raise ArgumentError(message("training.doubly_stochastic", problem, hint=hint))
        if model is None:
            return
        size = settings.data.size
        height, width = model.image_encoder.map_size(size, size)
        if height * width < (1 if model.select is None else 2):
            problem = f"the feature map of an image of {size} x {size} pixels has {height} x {width} cells"
            hint = (
                *("use larger images, ", Setting("data", "image_size"), ", or fewer stages, "),
                Setting("model", "encoder_options.stages"),
            )
            raise ArgumentError(
                message("the settings", problem, expected="at least 2 cells to attend to", hint=hint)
            )

    @classmethod
    def plan(
        cls,
        settings: Mapping[str, Any],
        corpus: CaptionCorpus,
        device: str,
        processes: Processes,
        timed: bool = False,
    ) -> Plan:
        return plan_captioning(cls, settings, corpus, device, processes, timed=timed)

    def batches(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        return self._train.epoch(epoch, start)

    def largest_batch(self) -> ImageBatch:
        return next(iter(self.batches(0, self._train.largest(0))))

    def len_epoch(self, epoch: int) -> int:
        return self._train.len_epoch(epoch)

    def count(self, batch: ImageBatch) -> int:
        return int(batch.target_lengths.sum())

    def prepare(self, batch: ImageBatch, device: Any) -> ImageBatch:
        if self._train_store is not None:
            batch = replace(batch, source=self._train_store[batch.source])
        if self._shapes is not None:
            need = batch.target.shape[1] - 1
            length = next((each for each in self._shapes.lengths if each >= need), need)
            tokens = self._shapes.tokens
            rows = self._shapes.sentences if tokens is None else -(-tokens // length)
            batch = batch.padded_to(max(rows, len(batch)), 0, length)
        return batch.to(device)

    def loss(self, batch: ImageBatch) -> Loss:
        training = self.settings.training
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(batch, self._estimator)
        read = _Read(batch.image, self._inputs(batch))
        if not training.doubly_stochastic:
            total, plain = cross_entropy(self.model(read), batch.targets, training.label_smoothing)
            return Loss(total, {"loss": plain})
        logits_BTV, weights_BTL = self.model.logits_and_weights(read)
        total, plain = cross_entropy(logits_BTV, batch.targets, training.label_smoothing)
        penalty_B = doubly_stochastic_penalty(weights_BTL.float(), batch.target_lengths)
        # Rows without target tokens are padding, so their penalty is set to 0.
        penalty = torch.where(batch.target_lengths > 0, penalty_B, 0.0).sum()
        return Loss(
            total + training.doubly_stochastic * penalty, {"loss": plain, "penalty": penalty.detach()}
        )

    def _inputs(self, batch: ImageBatch) -> Tensor:
        """Return the tokens that the decoder reads, (B, T). In training, word_noise replaces some of them."""
        noise = self.settings.training.word_noise
        if not noise or not self.model.training:
            return batch.inputs
        return replace_words(batch.inputs, self.corpus.tokenizer.size, noise)

    def _sampled_loss(self, batch: ImageBatch, estimator: Reinforce) -> Loss:
        """Return the loss of hard attention, with a gradient estimated from K samples of the locations.

        batch: images with their captions.
        estimator: the estimator of the gradient, with K = estimator.samples.

        Each image is encoded once. The decoder reads each caption K times, each time with new random
        locations.
        """
        samples, smoothing = estimator.samples, self.settings.training.label_smoothing
        inputs_RT, targets_RT, lengths_R = (
            each.repeat_interleave(samples, 0)
            for each in (self._inputs(batch), batch.targets, batch.target_lengths)
        )

        def row_losses() -> RowLosses:
            encoded = self.model.encode(batch.image)
            state = self.model.start(encoded).repeat(samples)
            logits_RTV = self.model.step(state, inputs_RT, encoded)[1]
            total_R, plain_R = sequence_losses(logits_RTV, targets_RT, smoothing)
            return RowLosses(total_R, -plain_R)

        return sampled_loss(
            estimator,
            row_losses,
            len(batch),
            lengths={"target": lengths_R},
            features=embedding_features((self.model.target, targets_RT)),
            counted=lengths_R > 0,
        )

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        valid, device = self.corpus.split.valid, next(self.model.parameters()).device
        total, tokens = 0.0, 0
        for batch in self._valid.epoch(0):
            if stopping():
                raise Stopped
            if self._valid_store is not None:
                batch = replace(batch, source=self._valid_store[batch.source])
            moved = batch.to(device)
            total += float(cross_entropy(self.model(moved), moved.targets)[1])
            tokens += self.count(batch)
        scores = {"loss": total / tokens, "perplexity": float(torch.tensor(total / tokens).exp())}
        count = min(self.settings.evaluation.images, len(valid))
        captions = caption_images(self.model, self.corpus, self.settings, count, self._valid_store, stopping)
        return score_captions(captions, valid, scores, self.settings.evaluation.samples)


BATCH_SIZE, LEAST_BATCH, EPOCH_STEPS = 64, 8, 50
"""The default number of captions per optimizer step is BATCH_SIZE. For a small corpus, it is smaller, so that
an epoch has EPOCH_STEPS steps, but at least LEAST_BATCH."""

RATE, TUNING_RATE = 2e-3, 3e-4
"""Default learning rates. RATE: for a new model. TUNING_RATE: for a model that starts from the weights of
another run."""

CELLS = 8
"""By default, the feature map of the convolutional encoder has at most CELLS x CELLS cells. Each stage halves
the height and width of the feature map. The default is the smallest sufficient number of stages."""


def encoder_defaults(model: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return default model settings for an image size: the number of stages of the convolutional encoder.

    model: the model settings of the user. If the user has chosen another image encoder, the result is empty.
    size: width and height of the images in pixels.

    >>> encoder_defaults({}, 64), encoder_defaults({"image_encoder": "other"}, 64)
    ({'encoder_options': {'stages': 3}}, {})
    """
    if model.get("image_encoder", "convolutional") != "convolutional":
        return {}
    stages = 1
    while size > CELLS * 2**stages:
        stages += 1
    return {"encoder_options": {"stages": stages}}


def batch_size(captions: int) -> int:
    """Return the default number of captions of one optimizer step.

    captions: number of training captions.

    >>> [batch_size(captions) for captions in (20, 1000, 30_000)]
    [8, 20, 64]
    """
    return min(max(captions // EPOCH_STEPS, LEAST_BATCH), BATCH_SIZE)


def plan_captioning(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: CaptionCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. For the arguments, see plan_epochs()."""
    rate = RATE if given.get("init_from") is None else TUNING_RATE
    chosen = {"training": {"learning_rate": rate}}
    rules = EpochRules("captions", batch_size(len(corpus.train)))
    counted = _epoch_tokens(corpus)
    return plan_epochs(task, given, chosen, rules, corpus, device, processes, counted=counted, timed=timed)


def _epoch_tokens(corpus: CaptionCorpus) -> int:
    """Return the number of tokens that the model predicts in one epoch, including one EOS per caption."""
    return int(corpus.train.captions.offsets[-1]) + len(corpus.train)


AT_ONCE = 250
"""Number of validation images that are captioned between two checks for Ctrl-C."""


def caption_images(
    model: Captioner,
    corpus: CaptionCorpus,
    settings: CaptioningSettings,
    count: int,
    stored: object,
    stopping: Callable[[], bool],
) -> list[Caption]:
    """Caption the first `count` validation images; raise Stopped as soon as stopping() returns true.

    Attention is recorded only for the built-in corpus, to measure the pointing accuracy.

    stored: a FeatureCache, if the feature vectors of the images have been computed already.
    """
    data, valid, size = settings.data, corpus.split.valid, settings.evaluation.beam_size
    how: Search = Greedy() if size == 1 else Beam(size=size)
    captioner = ImageCaptioner(model, corpus.tokenizer, image_size=data.size, max_length=data.max_length + 1)
    look = CROSS if valid.scenes is not None and model.select is not None else None
    captions = list[Caption]()
    for start in range(0, count, AT_ONCE):
        if stopping():
            raise Stopped
        rows = torch.arange(start, min(start + AT_ONCE, count))
        features = stored[rows] if isinstance(stored, FeatureCache) else None
        pixels = centre_crop(valid.pixels[rows], data.size)
        names = valid.names[start : start + len(rows)]
        captions += captioner.caption_pixels(names, pixels, how, look, features)
    return captions


def score_captions(
    captions: Sequence[Caption], valid: CaptionData, losses: Mapping[str, float], samples: int
) -> Evaluation:
    """Score generated captions, and return the scores with some captions to print.

    captions: the captions of the first images of `valid`, in order.
    losses: scores that are already known, such as the loss. The result contains them too.
    samples: number of captions to print.
    """
    texts, count = [each.text for each in captions], len(captions)
    found = caption_scores(texts, valid.captions[:count])
    scores = {**losses, **{name: score.value for name, score in found.items()}}
    shown: list[RenderableType] = []
    if valid.scenes is not None:
        scenes = valid.scenes[:count]
        scores["exact"] = exact_captions(texts, scenes)
        if captions and captions[0].weights is not None:
            pointed = pointing(texts, [each.weights for each in captions], scenes)
            scores["pointing"] = pointed.accuracy
            shown.append(Text(f"pointing accuracy of random cells, for comparison: {pointed.chance:.3f}"))
    samples = min(samples, count)
    for place in ((2 * part + 1) * count // (2 * samples) for part in range(samples)):
        text = f"image      {valid.names[place]}\ncaption    {texts[place]}"
        shown.append(Text(printable(f"{text}\nreference  {valid.captions[place][0]}", kept="\n")))
    return Evaluation(scores, shown)
