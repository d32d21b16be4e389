"""ImageCaptioner: write captions for image files and arrays. Caption: the words, their scores and attention.

print(caption) prints the text; rich.print(caption) and notebooks also draw the attention;
caption.save("x.png") writes a picture.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy
import torch
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text
from torch import Tensor

from regard.data.batch import EOS, ImageBatch
from regard.data.images import centre_crop, decode_image, read_image
from regard.data.tokenizers import Tokenizer
from regard.decoding import Beam, Greedy, LengthLimit, Search, observe, search
from regard.decoding.active_rows import device_of
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.input_checks import DEFAULT, Default
from regard.decoding.rules import check_integers
from regard.errors import ArgumentError, UnknownName, message, printable, shown
from regard.evaluation.attribution import METHODS, InputVectors, attribute
from regard.evaluation.region_erasure import RegionErasure, erase_regions, hide_cells
from regard.models.captioner import READINGS, Captioner
from regard.roles import CROSS, Role
from regard.select import Hard
from regard.torch_modules.eval_mode import in_eval_mode
from regard.viewing import Seen, Site
from regard.viewing.html_document import safe
from regard.viewing.image_attention import WORDS, ImageAttention
from regard.viewing.result import Result

MOST_ROWS = 512
"""Maximum number of hypotheses in one batch of the search: number of images times beam size."""

TO_IMAGE = Role("cross", "target", "image")

CELLS_AT_ONCE = 64
"""Number of images, each with one hidden cell, in a forward pass."""

Image = str | os.PathLike[str] | Tensor | numpy.ndarray[Any, Any]
"""An image: a path, an array (H, W, 3) or (H, W), or a tensor (3, H, W); uint8."""


@dataclass(frozen=True, eq=False, repr=False)
class Caption(Result):
    """The caption of one image, as an ImageCaptioner returns it.

    image: the name of the image file, or "" for an array.
    text: the caption.
    token_ids: the ids of its tokens; the last is EOS, unless the maximum length was reached.
    token_scores: the log-probability of each token.
    words: the T words of the caption.
    word_scores: the log-probability of each word, the sum over its tokens.
    weights: (T, h, w), the attention of each word over the h x w cells of the feature map. None if it was not
        recorded. Cell (i, j) covers the rows of pixels from i H/h to (i + 1) H/h, and the columns from j W/w
        to (j + 1) W/w.
    pixels: (H, W, 3), uint8, the image as the model reads it: cropped and resized.
    ranking: the log-probability with length penalty. The captions of an image are sorted by this score.
    notes: remarks, for example that the maximum length was reached.
    others: with n-best search, the captions after the best one, best first.

    >>> caption = Caption("a.jpg", "a dog", (4, 5, 3), (-0.5, -1.0, -0.25), ("a", "dog"), (-0.5, -1.0))
    >>> str(caption), caption.log_probability, caption.to_dict()["words"]
    ('a dog', -1.75, ['a', 'dog'])
    """

    image: str
    text: str
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    words: tuple[str, ...]
    word_scores: tuple[float, ...]
    weights: NDArray[numpy.float32] | None = None
    pixels: NDArray[numpy.uint8] | None = None
    ranking: float = 0.0
    notes: tuple[str, ...] = ()
    others: tuple[Caption, ...] = field(default=())
    page_title = "Captions"
    most = 200

    @property
    def output_tokens(self) -> tuple[int, ...]:
        """The ids of the tokens without EOS."""
        return self.token_ids[:-1] if self.token_ids[-1:] == (EOS,) else self.token_ids

    @property
    def log_probability(self) -> float:
        """The log-probability of the caption: the sum of the token scores."""
        return sum(self.token_scores)

    def image_attention(self, title: str = "") -> ImageAttention:
        """Return the attention of every word over the image, to draw it or save it as a picture.

        title: text above the picture. "" is the caption.

        Raise ArgumentError if no attention was recorded (for example, because the model has no attention), or
        if the caption has no words.
        """
        if self.weights is None or self.pixels is None or not self.words:
            problem = "this caption has no words, or no attention was recorded for it"
            hint = "use a captioner with attention, and do not set look=None"
            raise ArgumentError(message("Caption.image_attention()", problem, hint=hint))
        weights = self.weights.astype(numpy.float64)
        return ImageAttention(self.pixels, self.words, weights, self.word_scores, title, self.notes)

    def seen(self, title: str = "") -> Seen:
        """Return the attention as a matrix: one row per word, one column per cell of the feature map.

        The columns have labels such as "2,5": the cell in row 2 and column 5 of the feature map, counted from
        1.

        title: heading of the result. "" is the caption.
        """
        sites: tuple[Site, ...] = ()
        cells: tuple[str, ...] = ()
        if self.weights is not None and len(self.words):
            height, width = self.weights.shape[1:]
            cells = tuple(f"{row},{column}" for row in range(1, height + 1) for column in range(1, width + 1))
            weights_TL = self.weights.reshape(len(self.words), -1)
            sites = (Site("decoder.cross", weights_TL, self.words, cells, role=TO_IMAGE),)
        numbers = tuple(range(len(cells))), tuple(range(len(self.words)))
        heading = title or self.text
        return Seen(sites, cells, self.words, *numbers, heading, self.notes, self.log_probability)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except `weights` and `pixels` as a dict for JSON.

        Two entries describe the attention. "map" is the height and width of the feature map.
        "strongest_cells" has, for each word, the row and column of the cell with the largest weight, counted
        from 0. Both are None if no attention was recorded.
        """
        shape = None if self.weights is None else list(self.weights.shape[1:])
        strongest = None
        if self.weights is not None and shape is not None:
            places = [divmod(int(each.argmax()), shape[1]) for each in self.weights]
            strongest = [[row, column] for row, column in places]
        return {
            "image": self.image,
            "caption": self.text,
            "log_probability": self.log_probability,
            "ranking": self.ranking,
            "words": list(self.words),
            "word_scores": list(self.word_scores),
            "token_ids": list(self.token_ids),
            "token_scores": list(self.token_scores),
            "map": shape,
            "strongest_cells": strongest,
            "notes": list(self.notes),
            "others": [each.to_dict() for each in self.others],
        }

    def drawing(self) -> ImageAttention:
        return self.image_attention()

    def page_entry(self) -> ImageAttention | None:
        drawable = self.weights is not None and 1 <= len(self.words) <= WORDS
        return self.image_attention(self.image) if drawable else None

    @staticmethod
    def write_page(path: str | Path, entries: Sequence[ImageAttention], title: str, about: str = "") -> None:
        from regard.viewing.image_attention import save_caption_page

        save_caption_page(path, entries, title, about)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Caption({self.text[:80]!r}, log_probability={self.log_probability:.4g})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        heading = printable(f"{self.image}  {self.text}" if self.image else self.text)
        if self.weights is not None and self.words and self.pixels is not None:
            yield self.image_attention(heading)
        else:
            yield Text(heading)

    def _repr_html_(self) -> str:
        if self.weights is None or self.pixels is None or not self.words:
            return f"<p>{safe(self.text)}</p>"
        return self.image_attention()._repr_html_()


class Options(TypedDict, total=False):
    """The keyword arguments of ImageCaptioner.caption()."""

    beam_size: int | None
    n_best: int
    search: Search | None
    look: str | Default | None


def set_reading(model: Captioner, read: str | None, call: str = "ImageCaptioner()") -> None:
    """Set how a model with hard attention reads the image. Raise an error if this is not possible.

    model: the captioning model.
    read: a name in READINGS, or None to keep the current value.
    call: the call or the command-line option that chooses `read`, for error messages.
    """
    if read is None:
        return
    if read not in READINGS:
        raise UnknownName("read", read, READINGS)
    if not isinstance(model.select, Hard):
        problem = f"{read!r} is possible only for hard attention, and this model has soft attention"
        problem = problem if model.select is not None else f"{read!r}: this model has no attention"
        hint = "train a model with hard attention: --select hard --estimator reinforce"
        raise ArgumentError(message(call, problem, hint=hint))
    model.read = read


class ImageCaptioner:
    """Write captions for image files and arrays with a trained model.

    model: a Captioner, in eval mode.
    tokenizer: the tokenizer of its captions.
    image_size: width and height in pixels of the images that the model reads.
    crop_margin: an image is cropped to a square at its centre, and the square is resized to image_size +
        crop_margin pixels. The model reads only the central image_size x image_size pixels of the result. Use
        the value of the training run.
    search: Greedy(...), Beam(...) or Sample(...). Default: Beam().
    max_length: maximum number of tokens of a caption, EOS included.
    batch_size: maximum number of images in one batch.
    look: the attention layers (sites) whose weights are recorded. The default is "cross", the attention over
        the image. None records nothing.
    read: what a captioner with hard attention reads: "argmax" (the best location), "sample" (a random
        location) or "expectation" (the weighted mean). None: the attribute `read` of the model decides.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("word", ["a red circle"])
    >>> model = Captioner(tokenizer.size, width=8, encoder_options={"features": 8, "channels": 4}).eval()
    >>> captioner = ImageCaptioner(model, tokenizer, image_size=16, max_length=5)
    >>> caption = captioner.caption(numpy.zeros((20, 30, 3), numpy.uint8), beam_size=2)
    >>> caption.pixels.shape, len(caption.words) <= 5
    ((16, 16, 3), True)
    """

    def __init__(
        self,
        model: Captioner,
        tokenizer: Tokenizer,
        *,
        image_size: int = 64,
        crop_margin: int = 0,
        search: Search | None = None,
        max_length: int = 61,
        batch_size: int = 32,
        look: str | None = CROSS,
        read: str | None = None,
    ):
        check_integers(
            "ImageCaptioner()",
            image_size=(image_size, 1),
            crop_margin=(crop_margin, 0),
            max_length=(max_length, 1, 100_000),
            batch_size=(batch_size, 1, 100_000),
        )
        set_reading(model, read)
        self.model, self.tokenizer, self.image_size, self.crop_margin = (
            model,
            tokenizer,
            image_size,
            crop_margin,
        )
        self.search: Search = Beam() if search is None else search
        self.limit, self.batch_size, self.look = LengthLimit(constant=max_length), batch_size, look

    @property
    def map_size(self) -> tuple[int, int]:
        """The height and width of the feature map of an image, in cells."""
        return self.model.image_encoder.map_size(self.image_size, self.image_size)

    @overload
    def caption(self, images: Image, **options: Unpack[Options]) -> Caption: ...  # type: ignore[overload-overlap]

    @overload
    def caption(self, images: Sequence[Image], **options: Unpack[Options]) -> list[Caption]: ...

    def caption(
        self,
        images: Image | Sequence[Image],
        *,
        beam_size: int | None = None,
        n_best: int = 1,
        search: Search | None = None,
        look: str | Default | None = DEFAULT,
    ) -> Caption | list[Caption]:
        """Caption one image, or each of several images.

        images: a path, an array (H, W, 3) or (H, W), a tensor (3, H, W), or a list of these; uint8.
        beam_size: the beam size; 1 is greedy search. Default: the search of this ImageCaptioner.
        n_best: number of captions for each image. The best caption is returned. Its field `others` has the
            rest.
        search: Greedy(...), Beam(...) or Sample(...), instead of beam_size and n_best.
        look: the attention layers (sites) whose weights are recorded, or None to record nothing. Default:
            `look` of this ImageCaptioner.
        """
        if search is not None and (beam_size is not None or n_best != 1):
            problem = "search is set together with beam_size or n_best"
            expected = "either search, or beam_size and n_best"
            raise ArgumentError(message("caption()", problem, expected=expected))
        how = search or self.search
        if beam_size is not None or n_best != 1:
            size = max(5, n_best) if beam_size is None else beam_size
            how = Greedy() if size == 1 and n_best == 1 else Beam(size=size, best=n_best)
        sites = self.look if look is DEFAULT else look
        single = not isinstance(images, list | tuple)
        given: Sequence[Any] = [images] if single else images  # type: ignore[assignment]
        names = (shown(Path(each)) if isinstance(each, str | os.PathLike) else "" for each in given)
        prepared = ((name, self.prepare(each)) for name, each in zip(names, given, strict=True))
        results = list(self.stream(prepared, how, sites))
        return results[0] if single else results

    def stream(
        self, images: Iterable[tuple[str, Tensor]], search: Search | None = None, look: str | None = None
    ) -> Iterator[Caption]:
        """Yield the caption of each image; images are read from the iterable in batches.

        images: pairs of a name and an image returned by prepare().
        search: Greedy(...), Beam(...) or Sample(...). Default: the search of this ImageCaptioner.
        look: the attention layers (sites) whose weights are recorded. None records nothing.
        """
        how = search or self.search
        rows = getattr(how, "size", getattr(how, "count", 1))
        at_once, remaining = max(min(self.batch_size, MOST_ROWS // rows), 1), iter(images)
        while chunk := list(itertools.islice(remaining, at_once)):
            names, pixels = zip(*chunk, strict=True)
            yield from self.caption_pixels(names, torch.stack(pixels), how, look)

    def prepare(self, image: Image) -> Tensor:
        """Decode, crop and resize an image as the model needs it; return uint8, (3, image_size, image_size).

        image: a path, an array (H, W, 3) or (H, W), or a tensor (3, H, W); uint8.

        Raise DataError, with the name of the file, if the file is not an image or is damaged.
        """
        size = self.image_size + self.crop_margin
        if isinstance(image, str | os.PathLike):
            return centre_crop(read_image(image, size), self.image_size)
        return centre_crop(decode_image(_portable(image), "the image", size), self.image_size)

    def caption_pixels(
        self,
        names: Sequence[str],
        pixels: Tensor,
        how: Search,
        look: str | None,
        features: Tensor | None = None,
    ) -> list[Caption]:
        """Caption images that prepare() returned, in one batch.

        names: the name of each image.
        pixels: (B, 3, image_size, image_size), uint8, the images.
        how: Greedy(...), Beam(...) or Sample(...).
        look: the attention layers (sites) whose weights are recorded. None records nothing.
        features: (B, L, F), the feature vectors of the images, if they were computed before.
        """
        batch = ImageBatch.of(pixels if features is None else features)
        hypotheses = search(self.model, batch, how, look=look, limit=self.limit)
        results = []
        for name, image, several in zip(names, pixels, hypotheses, strict=True):
            array = image.permute(1, 2, 0).cpu().numpy()
            first, *others = (self._result(name, array, each) for each in several)
            results.append(replace(first, others=tuple(others)))
        return results

    def word_scores(self, pixels: Tensor, caption: Caption) -> Tensor:
        """Return the log-probability of each word of a caption if the model sees other images, (B, T).

        pixels: (B, 3, image_size, image_size), uint8, for example changed copies of the captioned image.
        caption: the caption, with T words.
        """
        return self._by_word(observe(self.model, self._batch(pixels, caption), None).token_scores, caption)

    def _batch(self, source: Tensor, caption: Caption) -> ImageBatch:
        """Return a batch of images or feature vectors, each with the same caption."""
        return ImageBatch.of(source, [caption.output_tokens] * len(source))

    def _by_word(self, token_scores_BT: Tensor, caption: Caption) -> Tensor:
        """Return the log-probability of each word, (B, words), from that of each token."""
        numbers = torch.tensor(self.tokenizer.words(caption.output_tokens))
        own_TW = (numbers[:, None] == torch.arange(len(caption.words))).to(token_scores_BT)
        return token_scores_BT[:, : len(numbers)] @ own_TW

    def erase_regions(self, captions: Sequence[Caption], k: int = 1, samples: int = 3) -> RegionErasure:
        """Measure how much each word depends on the part of the image that it attends to.

        The k cells of the feature map with the largest weights are hidden. For comparison, k other random
        cells are hidden. See regard.evaluation.region_erasure.erase_regions().

        captions: captions with recorded attention.
        k: number of cells to hide.
        samples: number of random choices of k other cells.
        """

        def log_probabilities(images: Any, index: int) -> Tensor:
            pixels = torch.from_numpy(numpy.ascontiguousarray(images)).permute(0, 3, 1, 2)
            return self.word_scores(pixels, captions[index])

        seen = [each.image_attention() for each in captions]
        return erase_regions(log_probabilities, seen, k=k, samples=samples)

    def attribute(self, caption: Caption, methods: Iterable[str] = METHODS) -> dict[str, ImageAttention]:
        """Compute how much each word depends on each cell of the image, by erasure and gradients.

        It also works without attention. For erasure, the pixels of a cell get the mean colour of the image.
        Gradients are those with respect to the feature vectors; integrated gradients start from their mean.
        Negative values, of cells that make the word less likely, are drawn as 0.

        caption: a caption by this captioner.
        methods: names of attribution.METHODS.
        """
        methods, words = list(methods), range(len(caption.words))
        if caption.pixels is None or not words:
            problem = "the caption has no words, or its image was not kept"
            raise ArgumentError(message("attribute()", problem, expected="a result of caption()"))
        blank = numpy.zeros((len(caption.words), *self.map_size))
        plain = ImageAttention(caption.pixels, caption.words, blank)
        cells = range(blank[0].size)
        values = dict[str, numpy.ndarray[Any, Any]]()
        if "erasure" in methods:
            images = numpy.stack([caption.pixels, *(hide_cells(plain, [cell]) for cell in cells)])
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
            parts = [self.word_scores(each, caption) for each in pixels.split(CELLS_AT_ONCE)]
            scores_BT = torch.cat(parts).double().numpy()
            values["erasure"] = (scores_BT[:1] - scores_BT[1:]).T
        with in_eval_mode(self.model), torch.no_grad():
            image_1 = torch.from_numpy(caption.pixels).permute(2, 0, 1)[None].to(device_of(self.model))
            features_LF = self.model.image_encoder.vectors(image_1)[0]

        def scores(features_BLF: Tensor) -> Tensor:
            batch = self._batch(features_BLF, caption).to(features_BLF.device)
            logits_BTV = self.model(batch).float()
            scores_BT = logits_BTV.gather(-1, batch.labels[..., None])[..., 0] - logits_BTV.logsumexp(-1)
            return self._by_word(scores_BT, caption)

        read = InputVectors(
            self.model, features_LF, features_LF.mean(0), scores, logits=self.model.target_size
        )
        others = [name for name in methods if name != "erasure"]
        values |= attribute(read, [[word] for word in words], [[cell] for cell in cells], others)
        return {
            name: replace(
                plain, weights=values[name].reshape(blank.shape).clip(min=0), title=METHODS[name], notes=()
            )
            for name in methods
        }

    def _result(self, name: str, pixels: Any, hypothesis: Hypothesis) -> Caption:
        """Return a hypothesis of the search as a Caption.

        The attention of a word is the mean of the attention of its tokens.
        """
        tokens, numbers = hypothesis.output_tokens, self.tokenizer.words(hypothesis.output_tokens)
        text = self.tokenizer.decode(tokens)
        words = tuple(text.split())
        members = [[at for at, number in enumerate(numbers) if number == word] for word in range(len(words))]
        scores = tuple(sum(hypothesis.token_scores[at] for at in own) for own in members)
        weights = None
        if hypothesis.attention and words:
            weights_TL = next(iter(hypothesis.attention.values())).float().numpy()
            weights_TL = weights_TL.reshape(-1, weights_TL.shape[-1])
            maps = numpy.stack([weights_TL[own].mean(0) for own in members])
            weights = maps.reshape(len(words), *self.map_size).astype(numpy.float32)
        notes = () if hypothesis.tokens[-1:] == (EOS,) else ("the caption reached the maximum length",)
        return Caption(
            name,
            text,
            hypothesis.tokens,
            hypothesis.token_scores,
            words,
            scores,
            weights,
            pixels,
            hypothesis.ranking,
            notes,
        )


def _portable(image: Any) -> bytes:
    """Return an array or tensor as the content of a PPM file, so that it is resized like an image file."""
    channels_first = isinstance(image, Tensor) and image.dim() == 3
    array = numpy.asarray(image.permute(1, 2, 0).cpu() if channels_first else image)
    array = numpy.repeat(array[..., None], 3, 2) if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] != 3 or not array.size or array.dtype != numpy.uint8:
        problem = f"the image has shape {array.shape} and dtype {array.dtype}"
        expected = "an array (H, W, 3) or (H, W), or a tensor (3, H, W), uint8"
        raise ArgumentError(message("caption()", problem, expected=expected))
    height, width = array.shape[:2]
    return b"P6 %d %d 255\n" % (width, height) + numpy.ascontiguousarray(array).tobytes()
