"""The captioning task: batches of images and captions, loss, and evaluation with CIDEr-D and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data.batch import ImageBatch, replace_words
from regard.data.batching import CaptionBatches
from regard.errors import ArgumentError, Setting, message
from regard.fast.captured.graphs import capture_chosen
from regard.models.captioner import NO_ATTENTION, Captioner, doubly_stochastic_penalty
from regard.runs.run_commands import ChosenRun, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, RunTask, StoredRun
from regard.tasks.captioning.captioning_data import (
    TOKENIZER,
    CaptionCorpus,
    CaptionSplit,
    augmentation_of,
    check_paths,
    load_caption_tokenizer,
    read_caption_split,
)
from regard.tasks.captioning.captioning_plan import encoder_defaults, plan_captioning
from regard.tasks.captioning.captioning_run import (
    CaptioningRun,
    build_captioner,
    captioner_of,
    check_captioner_options,
)
from regard.tasks.captioning.captioning_settings import CaptioningSettings, ImageData
from regard.tasks.captioning.evaluate_captioning import (
    EVALUATE_OPTIONS,
    CaptioningReport,
    evaluate_captioning,
)
from regard.tasks.captioning.feature_cache import features_fit
from regard.tasks.captioning.stored_images import stored_images
from regard.tasks.captioning.validation_captions import caption_images, score_captions
from regard.tasks.captioning.view_captioning import (
    OWN_VIEWS,
    VIEW_OPTIONS,
    CaptionView,
    view_captioning,
)
from regard.tasks.file_options import FILE_FORMATS, train_files
from regard.training.distributed import Processes
from regard.training.estimators import Reinforce
from regard.training.length_buckets import Shapes
from regard.training.losses import cross_entropy, sequence_losses
from regard.training.sampled_loss import (
    RowLosses,
    add_estimator,
    embedding_features,
    features_size,
    sampled_loss,
)
from regard.training.settings import build, merged
from regard.training.task import Evaluation, Loss, Stopped, Task

__all__ = ["CaptioningTask"]

TOKENS = ("lowercase", "tokenizer", "vocab_size")
"""The data settings that define the vocabulary. The weights of a model fit only one vocabulary. So these
settings must stay the same when a run is resumed, or when a model starts from the weights of another run."""

TRAIN_OPTIONS = (*FILE_FORMATS, *(f"valid_{each}" for each in FILE_FORMATS))
"""The options of `regard train` that train_files() reads."""


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
    has_perplexity = True
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
    paths = ("train_file", "valid_file", "images", "valid_images")
    fixed = ("task", "model", *(f"data.{name}" for name in TOKENS), "data.image_size")
    for_outputs = ("task", "model", "data.lowercase", "data.image_size", "data.crop_margin")
    next_command = "regard caption {run} image.jpg --draw"
    size_names = ("tokens",)
    smallest_sizes = (8,)
    no_data_hint = "--train-file captions.tsv --images FOLDER, or --built-in shapes"
    evaluate_options = EVALUATE_OPTIONS
    view_options = VIEW_OPTIONS
    own_views = OWN_VIEWS

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
        self.capture = capture_chosen(training, self, device, processes.world)
        few_shapes = training.compile or self.capture.chosen
        rows, longest = training.batch_size, data.max_length + 1
        self._shapes = Shapes(training.batch_tokens, longest, rows or 1) if few_shapes else None
        self.shapes = Task.shapes if self._shapes is None else self._shapes.most
        train, valid = corpus.split.train, corpus.split.valid
        encoder, count = model.image_encoder, len(train) + len(valid)
        self._fits = features_fit(encoder, count, data.size)
        features, augmentation = encoder.frozen and self._fits, augmentation_of(data, settings.seed)
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
    def data_options(cls, options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        return TRAIN_OPTIONS, train_files(options)

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
    def sizes(cls, corpus: CaptionCorpus) -> tuple[int, ...]:
        return (corpus.tokenizer.size,)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: CaptioningSettings) -> tuple[int, ...]:
        return (load_caption_tokenizer(folder, settings.data).size,)

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Captioner:
        return build_captioner(model, *sizes)

    @classmethod
    def check_load_options(cls, options: Mapping[str, Any]) -> None:
        check_captioner_options(options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> CaptioningRun:
        return captioner_of(run, device, **options)

    @classmethod
    def evaluate_run(cls, run: ChosenRun | None, options: Mapping[str, Any]) -> CaptioningReport:
        return evaluate_captioning(cls, run, options)

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> CaptionView:
        return view_captioning(cls, run, options, drawing)

    @classmethod
    def complete_settings(
        cls, settings: Mapping[str, Any], other: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if other is not None:
            return dict(settings)
        data = build(ImageData, settings.get("data", {}), "the settings")
        return merged({"model": encoder_defaults(settings.get("model", {}), data.size)}, settings)

    @classmethod
    def without_folders(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings without paths, and without the file of pretrained weights of the image encoder.

        Checkpoints contain these weights. Without the file, an encoder is frozen only if `frozen` is set.
        """
        whole = super().without_folders(settings)
        model = dict(whole.get("model") or {})
        options = dict(model.get("encoder_options") or {})
        if options.pop("weights", None) is not None:
            if options.get("frozen") is None:
                options["frozen"] = True
            whole["model"] = {**model, "encoder_options": options}
        return whole

    @classmethod
    def check_settings(cls, settings: CaptioningSettings) -> None:
        check_paths(settings.data)
        select = settings.model.options.get("select", "softmax")
        if settings.training.doubly_stochastic and select in ("hard", NO_ATTENTION):
            problem = f"the doubly stochastic penalty has no effect if model.select is {select!r}"
            hint = (
                *("use ", Setting("training", "doubly_stochastic", 0)),
                *(" or ", Setting("model", "select", "softmax")),
            )
            raise ArgumentError(message("training.doubly_stochastic", problem, hint=hint))

    @classmethod
    def check_model(cls, settings: CaptioningSettings) -> None:
        model = cls.outlined(settings)
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

    @classmethod
    def summary(cls, data: CaptionSplit) -> str:
        return f"{len(data.train):,} training images, {len(data.valid):,} validation images"

    @classmethod
    def fixed_data(cls) -> tuple[str, ...]:
        return (*TOKENS, "image_size")

    def described(self) -> str:
        height, width = self._map_size()
        return f"{self.corpus.tokenizer.size:,} tokens, feature map of {height} x {width} cells"

    def corpus_notes(self) -> Sequence[str]:
        notes = list(self.corpus.notes)
        if self.model.image_encoder.frozen and not self._fits:
            notes.append("the feature vectors of all images do not fit in memory: computed in every step")
        return notes

    def _map_size(self) -> tuple[int, int]:
        size = self.settings.data.size
        return self.model.image_encoder.map_size(size, size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        return self._train.epoch(epoch, start)

    def close(self) -> None:
        self._train.close()

    def len_epoch(self, epoch: int) -> int:
        return self._train.len_epoch(epoch)

    def largest_batch(self) -> ImageBatch:
        """Return the batch of the first epoch that has the most tokens, including padding."""
        return next(iter(self.batches(0, self._train.largest(0))))

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

    def restored(self, tensors: dict[str, Tensor]) -> ImageBatch:
        return ImageBatch.from_tensors(tensors)

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
