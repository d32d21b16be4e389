"""The captioning task: batches of images and captions, loss, and evaluation with CIDEr-D and BLEU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from regard.data.batch import ImageBatch, replace_words
from regard.data.batching import CaptionBatches, encode_captions
from regard.data.images import Augmentation, centre_crop
from regard.data.images.caption_files import SUFFIXES, detected_ending
from regard.data.images.image_file import Pixels
from regard.data.line_io import advancing
from regard.decoding import Beam, Greedy, Search
from regard.decoding.input_checks import check_load_keywords
from regard.decoding.search_options import search_of
from regard.errors import ArgumentError, Setting, UnknownName, message, printable, shown
from regard.evaluation.attribution import METHODS
from regard.evaluation.bleu import Score
from regard.evaluation.caption_scores import Pointing, caption_scores, exact_captions, pointing
from regard.models.captioner import NO_ATTENTION, Captioner, doubly_stochastic_penalty
from regard.options.attention_options import check_flags, model_arguments
from regard.roles import CROSS
from regard.runs.run_commands import (
    ChosenRun,
    RunReport,
    RunView,
    ViewOptions,
    report_changed_data,
    score_table,
)
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import StoredRun, smallest_model
from regard.runs.stored_runs import LoadedRun, with_weights
from regard.tasks.batched_task import BatchedTask, EpochRules, unless_stopped
from regard.tasks.captioning.data import (
    CaptionCorpus,
    CaptionData,
    CaptionSplit,
    DeviceImages,
    FeatureCache,
    features_fit,
    fits_on_device,
    read_caption_split,
    read_images,
    read_shapes,
)
from regard.tasks.captioning.image_captioner import Caption, ImageCaptioner, set_reading
from regard.tasks.captioning.settings import CaptioningSettings, ImageData
from regard.tasks.corpus import TOKENIZER, text_tokenizer
from regard.tasks.file_options import (
    FAITHFULNESS,
    JSONL,
    PAGE,
    SPLIT,
    TEST_FILE,
    TSV,
    evaluated_files,
)
from regard.tasks.picture_outputs import check_page, write_results
from regard.tasks.split import evenly
from regard.training.command_options import CommandOption
from regard.training.estimators import (
    Reinforce,
    RowLosses,
    embedding_features,
    sampled_loss,
)
from regard.training.losses import cross_entropy, sequence_losses
from regard.training.settings import build, merged
from regard.training.task import Evaluation, Loss, Stopped
from regard.viewing import Picture
from regard.viewing.picture import noted
from regard.viewing.pictures.picture_files import stacked

MODELS = {"captioner": Captioner}
"""The classes of the models for captioning, by name (the setting model.name)."""

MOST_CAPTIONS = 200
"""Maximum number of captions for the option --faithfulness, and for the HTML page of --page."""

IMAGE = "image"

BATCH_SIZE, LEAST_BATCH, EPOCH_STEPS = 64, 8, 50
"""The default number of captions per optimizer step is BATCH_SIZE. For a small corpus, it is smaller, so that
an epoch has EPOCH_STEPS steps, but at least LEAST_BATCH."""

RATE, TUNING_RATE = 2e-3, 3e-4
"""Default learning rates. RATE: for a new model. TUNING_RATE: for a model that starts from the weights of
another run."""

CELLS = 8
"""By default, the feature map of the convolutional encoder has at most CELLS x CELLS cells. Each stage halves
the height and width of the feature map. The default is the smallest sufficient number of stages."""

AT_ONCE = 250
"""Number of validation images that are captioned between two checks for Ctrl-C."""


class CaptioningRun(LoadedRun, ImageCaptioner):
    """An ImageCaptioner loaded from a run folder, with the settings and the checkpoint of the run."""

    settings: CaptioningSettings


class _Read(NamedTuple):
    """The input of the model for a batch: the images, and the tokens (B, T) of the captions."""

    image: Tensor
    inputs: Tensor


class CaptioningTask(BatchedTask):
    """Train a captioner on images and captions, and evaluate it on the validation images.

    If an image has several captions, each caption is a separate training example. If the image encoder is
    frozen (not trained) and images are not augmented, the feature vectors of all images are computed once,
    before the first step, if they fit in memory. On a GPU, the images or their feature vectors stay in GPU
    memory, if they fit.
    """

    model: Captioner
    settings_type = CaptioningSettings
    captures_samples = True
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
    evaluate_options = (
        TEST_FILE,
        TSV,
        JSONL,
        CommandOption(
            "--images",
            "Captioning: folder of the images of --test-file, --tsv or --jsonl.",
            "FOLDER",
            shown_default="from the run",
        ),
        SPLIT,
        CommandOption(
            "--pictures",
            "Captioning: number of pictures of the built-in corpus to evaluate on, with --split.",
            "INT",
            int,
            1000,
            least=1,
            most=1_000_000,
        ),
        PAGE,
        FAITHFULNESS,
        CommandOption(
            "--read",
            "Captioning with hard attention: attend to the location with the highest score (argmax), to a "
            "random location (sample), or to all locations, weighted (expectation).",
            "NAME",
            shown_default="argmax",
        ),
        "beam_size",
        "length_penalty",
        "greedy",
        "max_length",
    )
    view_options = (
        CommandOption("--image", "Captioning: the image file to caption.", "FILE"),
        "beam_size",
        "length_penalty",
        "greedy",
        "max_length",
    )

    def _set_up(self, device: str) -> None:
        options, data = self._start(device, self.model.target, fine=False), self.settings.data
        train, valid = self.corpus.split.train, self.corpus.split.valid
        encoder, count = self.model.image_encoder, len(train) + len(valid)
        fits = features_fit(encoder, count, data.size)
        features, augmentation = encoder.frozen and fits, None
        if data.augmented:
            augmentation = Augmentation(size=data.size, flip=data.flip, seed=self.settings.seed)

        def stored(pixels: Pixels, augmentation: Augmentation | None) -> FeatureCache | DeviceImages | None:
            """Return the feature vectors, or the images on a GPU, if batches are selected from them."""
            if features and augmentation is None:
                return FeatureCache(encoder, pixels, data.size)
            if pixels.in_memory and fits_on_device(device, 3 * pixels.size**2 * len(pixels)):
                return DeviceImages(pixels, data.size, device, augmentation)
            return None

        self._train_store, self._valid_store = stored(train.pixels, augmentation), stored(valid.pixels, None)
        self._train = CaptionBatches(
            self.corpus.train,
            train.pixels,
            size=data.size,
            augmentation=augmentation,
            images=self._train_store is None,
            workers=data.workers,
            **options,
        )
        self._valid = CaptionBatches(
            self.corpus.valid,
            valid.pixels,
            size=data.size,
            images=self._valid_store is None,
            tokens=options["tokens"],
            sentences=options["sentences"],
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
        texts = [caption for several in data.train.captions for caption in several]
        tokenizer, longest = text_tokenizer(folder, settings.data, texts, lines), settings.data.max_length
        train, valid = (
            encode_captions(part.captions, tokenizer, longest=longest) for part in (data.train, data.valid)
        )
        return CaptionCorpus(data, tokenizer, train, valid)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: CaptioningSettings) -> tuple[int, ...]:
        return (text_tokenizer(folder, settings.data).size,)

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Captioner:
        if model.name not in MODELS:
            raise UnknownName("model", model.name, MODELS)
        known = model_arguments(MODELS[model.name], 1)
        check_flags(model.name, model.options, known)
        for option in model.options:
            if option not in known:
                raise UnknownName(f"option of {model.name}", option, known)
        return MODELS[model.name](*sizes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> CaptioningRun:
        check_load_keywords(ImageCaptioner, options)
        settings = run.settings
        tokenizer = text_tokenizer(run.folder, settings.data)
        model = with_weights(cls.build_model(settings.model, (tokenizer.size,)), run, device)
        data = settings.data
        defaults = {
            "image_size": data.size,
            "crop_margin": data.crop_margin,
            "max_length": data.max_length + 1,
        }
        return CaptioningRun(model, tokenizer, **{**defaults, **options}).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        page: Path | None = options["page"]
        check_page(page)
        captioner: CaptioningRun = run.load(cls, search=search_of(options))
        set_reading(captioner.model, options["read"], "--read")
        attends = captioner.model.select is not None
        if not attends and (options["faithfulness"] or page is not None):
            option = "--faithfulness" if options["faithfulness"] else "--page"
            problem = 'this captioner has no attention (its setting model.select is "none")'
            raise ArgumentError(message(option, problem))
        data = _data(captioner.settings.data, run, options)
        needs_attention = attends and (data.scenes is not None or options["faithfulness"] or page is not None)
        with advancing("captioning", len(data)) as reached:
            look = CROSS if needs_attention else None
            captions = caption_images(captioner, data, len(data), look, reached)
        with_words = [each for each in captions[:MOST_CAPTIONS] if each.words]
        if page is not None:
            write_results(page, with_words, len(with_words), "images", "Captions", data.name)
        scores, pointed = score_captions(captions, data)
        (height, width), digits = captioner.map_size, {"cider": 3, "exact": 3}
        values: dict[str, Any] = {
            "images": len(captions),
            "map": [height, width],
            **{name: score.value for name, score in scores.items()},
            "signatures": {name: each.signature for name, each in scores.items() if name != "exact"},
        }
        rows = [("images", f"{len(captions):,}", "")]
        for name, score in scores.items():
            rows.append((score.name, f"{score.value:.{digits.get(name, 2)}f}", score.signature))
        if pointed is not None:
            accuracy, chance, words = pointed
            values |= {"pointing": accuracy, "pointing_chance": chance, "pointing_words": words}
            about = f"{words:,} content words; chance {chance:.3f}; map of {height} x {width} cells"
            rows.append(("pointing", f"{accuracy:.3f}", about))
        report = RunReport.of(captioner, data.name, values, score_table(rows))
        return (
            report.with_faithfulness(captioner.erase_regions(with_words))
            if options["faithfulness"]
            else report
        )

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        if not options["image"]:
            raise ArgumentError(message("regard view", "no image is given", hint="--image FILE"))
        captioner: CaptioningRun = run.load(cls, search=search_of(options))
        caption: Caption = captioner.caption(options["image"])
        if not caption.words:
            raise ArgumentError(message(shown(options["image"]), "the model writes a caption without words"))
        attends = captioner.model.select is not None

        def attribution(methods: Sequence[str]) -> Picture:
            """Draw the attention of each word, and below it the maps of other methods."""
            attention = [replace(caption.image_attention(), title="attention")] if attends else []
            drawn = stacked(
                [each.picture() for each in (*attention, *captioner.attribute(caption, methods).values())]
            )
            return noted(
                drawn, *([] if attends else ["the captioner has no attention: model.select is none"])
            )

        own: dict[str, Callable[[], Picture]] = {
            "erasure": lambda: attribution(["erasure"]),
            "gradient": lambda: attribution(list(METHODS)),
        }
        if not attends:
            erased = captioner.attribute(caption, ["erasure"])["erasure"]
            return RunView(caption.seen(), default_view="erasure", own=own, page=erased.save)
        erasure = captioner.erase_regions([caption])
        note = erasure.summary()
        attention = caption.image_attention().noted(note)
        own |= {
            IMAGE: attention.picture,
            "player": attention.animation,
        }  # the player is an animation by words
        return RunView(caption.seen().noted(note), default_view=IMAGE, own=own, page=attention.save)

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
        for name in ("images", "valid_images"):
            for folder in getattr(settings.data, name) or ():
                if not Path(folder).is_dir():
                    problem = f"there is no folder {shown(folder)}"
                    raise ArgumentError(message(f"data.{name}", problem, hint="--images FOLDER"))
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
    def usual(
        cls, settings: Mapping[str, Any], corpus: CaptionCorpus
    ) -> tuple[EpochRules, dict[str, Any], int]:
        rate = RATE if settings.get("init_from") is None else TUNING_RATE
        rules = EpochRules("captions", batch_size(len(corpus.train)))
        tokens = int(corpus.train.captions.offsets[-1]) + len(corpus.train)  # and one EOS per caption
        return rules, {"training": {"learning_rate": rate}}, tokens

    def count(self, batch: ImageBatch) -> int:
        return int(batch.target_lengths.sum())

    def prepare(self, batch: ImageBatch, device: Any) -> ImageBatch:
        if self._train_store is not None:
            batch = replace(batch, source=self._train_store[batch.source])
        if self._shapes is not None:
            rows, length = self._shapes.size(len(batch), batch.target.shape[1] - 1)
            batch = batch.padded_to(rows, 0, length)
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
        for batch in unless_stopped(stopping, self._valid.epoch(0)):
            if self._valid_store is not None:
                batch = replace(batch, source=self._valid_store[batch.source])
            moved = batch.to(device)
            total += float(cross_entropy(self.model(moved), moved.targets)[1])
            tokens += self.count(batch)
        scores = {"loss": total / tokens, "perplexity": float(torch.tensor(total / tokens).exp())}
        captions = self._captions(stopping)
        scored, pointed = score_captions(captions, valid)
        scores |= {name: score.value for name, score in scored.items()}
        shown: list[RenderableType] = []
        if pointed is not None:
            scores["pointing"] = pointed.accuracy
            shown.append(Text(f"pointing accuracy of random cells, for comparison: {pointed.chance:.3f}"))
        for place in evenly(self.settings.evaluation.samples, len(captions)):
            text = f"image      {valid.names[place]}\ncaption    {captions[place].text}"
            shown.append(Text(printable(f"{text}\nreference  {valid.captions[place][0]}", kept="\n")))
        return Evaluation(scores, shown)

    def _captions(self, stopping: Callable[[], bool]) -> list[Caption]:
        """Caption the first validation images; raise Stopped as soon as stopping() returns true.

        Attention is recorded only for the built-in corpus, to measure the pointing accuracy.
        """

        def reached(_: int) -> None:
            if stopping():
                raise Stopped

        data, valid, beam = self.settings.data, self.corpus.split.valid, self.settings.evaluation.beam_size
        search: Search = Greedy() if beam == 1 else Beam(size=beam)
        longest = data.max_length + 1
        captioner = ImageCaptioner(
            self.model,
            self.corpus.tokenizer,
            image_size=data.size,
            max_length=longest,
            search=search,
        )
        look = CROSS if valid.scenes is not None and self.model.select is not None else None
        count = min(self.settings.evaluation.images, len(valid))
        return caption_images(captioner, valid, count, look, reached, self._valid_store)


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


def caption_images(
    captioner: ImageCaptioner,
    data: CaptionData,
    count: int,
    look: str | None,
    reached: Callable[[int], object],
    stored: object = None,
) -> list[Caption]:
    """Caption the first `count` images.

    look: the attention layers (sites) whose weights are recorded. None records nothing.
    reached: a function that is called with the number of captions so far, before each batch.
    stored: a FeatureCache, if the feature vectors of the images have been computed already.
    """
    captions = list[Caption]()
    for start in range(0, count, AT_ONCE):
        reached(len(captions))
        rows = torch.arange(start, min(start + AT_ONCE, count))
        features = stored[rows] if isinstance(stored, FeatureCache) else None
        pixels = centre_crop(data.pixels[rows], captioner.image_size)
        names = data.names[start : start + len(rows)]
        captions += captioner.caption_pixels(names, pixels, captioner.search, look, features)
    return captions


def score_captions(
    captions: Sequence[Caption], data: CaptionData
) -> tuple[dict[str, Score], Pointing | None]:
    """Score the captions of the first images of `data`: CIDEr-D and BLEU.

    For the built-in corpus, there are two more scores: the fraction of captions that describe their picture
    correctly, and, if attention was recorded, how often a word attends most to the object that it names.
    """
    texts, count = [each.text for each in captions], len(captions)
    scores, pointed = caption_scores(texts, data.captions[:count]), None
    if data.scenes is not None:
        scenes = data.scenes[:count]
        exact = exact_captions(texts, scenes)
        scores["exact"] = Score("exact", exact, "captions that are true of the picture")
        if any(each.weights is not None for each in captions):
            pointed = pointing(texts, [each.weights for each in captions], scenes)
    return scores, pointed


def _data(data: ImageData, run: ChosenRun, options: Mapping[str, Any]) -> CaptionData:
    """Read the images to evaluate on, with their captions.

    The images are selected by --test-file, --tsv, --jsonl or --split. Without these options, they are the
    validation images of the run.
    """
    (files, kind), split = evaluated_files(options, data.format), options["split"]
    # The format of --test-file is that of the training files if a name has no known ending, or if all names
    # end like those of the training files. JSON lines in a file named .json, for example, cannot be detected.
    both = files, data.train_file or ()
    endings, trained = ({detected_ending(Path(each)) for each in some} for some in both)
    if options["test_file"] and endings <= {*SUFFIXES, ".json"} and endings != trained:
        kind = None
    folder = [options["images"]] if options["images"] else None
    if folder and not files:
        raise ArgumentError(message("--images", "is used only with --test-file, --tsv or --jsonl"))
    if data.built_in and not files:
        return read_shapes(split or "valid", options["pictures"])
    if not files and split is None:
        read = read_caption_split(data)
        report_changed_data(run.folder, read.fingerprints)
        return replace(read.valid, name=f"{read.valid.name}, validation images")
    chosen = files or data.train_file or ()
    settings = data.model_copy(update={"format": kind})
    named = None if split is None else [split]
    images = read_images(settings, chosen, folder or data.images, named)
    return images if split is None else replace(images, name=f"{images.name}, split {printable(split)}")
