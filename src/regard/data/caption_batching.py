"""CaptionBatches: batches of images and captions, prepared ahead by worker threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from regard.data.batch import Batch
from regard.data.batching import Batches
from regard.data.encoded_pairs import EncodedPairs, Side
from regard.data.image_batch import ImageBatch
from regard.data.images.augmentation import Augmentation, centre_crop
from regard.data.images.pixels import Pixels
from regard.data.tokenizers import Tokenizer

__all__ = ["CaptionBatches", "EncodedCaptions", "encode_captions"]

AHEAD = 4
"""Number of batches that worker threads prepare before they are needed."""


class EncodedCaptions:
    """The captions of all images as token ids. Each caption is one training example.

    captions: the token ids of all N captions.
    image_rows: (N,), the index of the image of each caption.
    truncated: number of captions that were truncated because they had too many tokens.

    >>> captions = EncodedCaptions(Side.of([[7, 8], [9], [5]]), numpy.array([0, 0, 1]))
    >>> len(captions)
    3
    """

    def __init__(self, captions: Side, image_rows: NDArray[numpy.int64], truncated: int = 0):
        self.captions, self.image_rows, self.truncated = captions, image_rows, truncated

    def __len__(self) -> int:
        return len(self.image_rows)


def encode_captions(
    captions: Sequence[Sequence[str]], tokenizer: Tokenizer, *, longest: int
) -> EncodedCaptions:
    """Encode the captions of images as token ids.

    captions: the captions of each image.
    tokenizer: the tokenizer.
    longest: maximum number of tokens of a caption; longer captions are truncated.
    """
    texts = [caption for several in captions for caption in several]
    rows = [row for row, several in enumerate(captions) for _ in several]
    encoded = tokenizer.encode_lines(texts)
    truncated = sum(len(tokens) > longest for tokens in encoded)
    side = Side.of([tokens[:longest] for tokens in encoded])
    return EncodedCaptions(side, numpy.array(rows, numpy.int64), truncated)


class CaptionBatches:
    """Batches of images with captions; the captions of a batch have similar lengths.

    data: the captions.
    pixels: the images.
    size: width and height in pixels of the images of a batch. Larger images are cropped: by `augmentation`,
        or at the centre if `augmentation` is None.
    augmentation: random crops and flips, for training; different for each caption of an image.
    images: whether batches contain images. If False, ImageBatch.source has the index of each image, (B,), and
        the caller replaces the indices by stored images or feature vectors. If `augmentation` is also set,
        ImageBatch.source is (B, 4): the index of each image, then the result of augmentation.draw().
    workers: number of threads that prepare the next batches; 0 prepares each batch when it is needed. The
        threads are started by epoch() and ended by close(), or when this object is deleted.
    tokens: maximum number of tokens of a batch, see Batches.
    options: other keyword arguments of Batches: sentences, rounded, shuffle, seed, rank, world and so on.

    The order of the captions and the augmentation depend only on the data, these arguments, and the epoch.

    >>> captions = EncodedCaptions(Side.of([[7, 8], [9], [5]]), numpy.array([0, 0, 1]))
    >>> pixels = Pixels(4, torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    >>> batches = CaptionBatches(captions, pixels, size=4, tokens=None, sentences=2)
    >>> [batch.image.shape[0] for batch in batches.epoch(0)]
    [2, 1]
    """

    def __init__(
        self,
        data: EncodedCaptions,
        pixels: Pixels,
        *,
        size: int,
        augmentation: Augmentation | None = None,
        images: bool = True,
        workers: int = 0,
        tokens: int | None = None,
        **options: Any,
    ):
        self.data, self.pixels, self.size = data, pixels, size
        self.augmentation, self.images, self.workers = augmentation, images, workers
        count = len(data)
        nothing = Side(numpy.zeros(0, numpy.uint32), numpy.zeros(count + 1, numpy.int64))
        pairs = EncodedPairs(nothing, data.captions, numpy.arange(count))
        self._batches = Batches(pairs, tokens, **options)
        self._pool: ThreadPoolExecutor | None = None

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches of an epoch.

        epoch: index of the epoch, from 0.
        """
        return self._batches.len_epoch(epoch)

    def largest(self, epoch: int) -> int:
        """Return the index of the batch of an epoch that has the most tokens, including padding."""
        return self._batches.largest(epoch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        """Iterate over the batches of an epoch from batch `start` on; earlier batches are not computed."""
        texts = self._batches.epoch(epoch, start)
        if not self.workers:
            return (self._with_images(text, epoch) for text in texts)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="captions")
        return self._ahead(texts, epoch, self._pool)

    def close(self) -> None:
        """End the worker threads. The next call of epoch() starts them again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _ahead(self, texts: Iterator[Batch], epoch: int, pool: ThreadPoolExecutor) -> Iterator[ImageBatch]:
        """Yield the batches of an epoch in order, while worker threads load the images of the next batches.

        texts: the captions of each batch, without images.
        pool: the worker threads. They are not ended here: the garbage collector may close an abandoned
            generator while a lock is held that an ending thread needs.
        """
        waiting: deque[Future[ImageBatch]] = deque()
        for text in texts:
            waiting.append(pool.submit(self._with_images, text, epoch))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _with_images(self, text: Batch, epoch: int) -> ImageBatch:
        rows = torch.from_numpy(self.data.image_rows[text.index.numpy()])
        if not self.images:
            if self.augmentation is not None:
                choices = self.augmentation.draw(text.index, epoch, self.pixels.size, self.pixels.size)
                rows = torch.cat((rows[:, None], choices), 1)
            return ImageBatch.of_text(rows, text)
        images = self.pixels[rows]
        if self.augmentation is not None:
            return ImageBatch.of_text(self.augmentation(images, text.index, epoch), text)
        return ImageBatch.of_text(centre_crop(images, self.size), text)
