"""ImageBatch: images and their captions as padded token ids, the input of captioners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import BOS, PAD, Batch
from regard.errors import ArgumentError, message

__all__ = ["ImageBatch"]


@dataclass(frozen=True, eq=False)
class ImageBatch(Batch):
    """A batch of images with captions: a Batch whose source is images.

    source: images (B, 3, H, W), uint8, or feature vectors (B, L, F) that were computed before.
    source_lengths: (B,), zeros, because images have no length.
    target: (B, T + 1), the token ids of the captions with BOS and EOS, padded with PAD.
    target_lengths: (B,), number of tokens to predict of each caption, with EOS.
    index: (B,), index of each example in its dataset.

    >>> batch = ImageBatch.of(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), [[5], [6, 4]])
    >>> batch.image.shape, batch.inputs, batch.targets
    (torch.Size([2, 3, 8, 8]), tensor([[2, 5, 3],
            [2, 6, 4]]), tensor([[5, 3, 0],
            [6, 4, 3]]))
    """

    @classmethod
    def of(
        cls,
        image: Tensor,
        captions: Sequence[Sequence[int]] | None = None,
        index: Sequence[int] | None = None,
    ) -> ImageBatch:
        """Create a batch from images and the token ids of one caption for each image.

        image: images (B, 3, H, W), or feature vectors (B, L, F) that were computed before.
        captions: the token ids of each caption, without BOS and EOS; None for inference.
        index: index of each example in its dataset. Default: 0, 1, 2, ...
        """
        if captions is not None and len(captions) != len(image):
            problem = f"there are {len(image)} images and {len(captions)} captions"
            raise ArgumentError(message("ImageBatch.of()", problem, expected="one caption for each image"))
        text = Batch.collate([()] * len(image), captions, index)
        return cls.of_text(image, text)

    @classmethod
    def of_text(cls, image: Tensor, text: Batch) -> ImageBatch:
        """Create a batch from B images and their captions.

        image: images (B, 3, H, W), or feature vectors (B, L, F).
        text: a Batch whose target has the token ids of the captions; its source is ignored.
        """
        return cls(image, torch.zeros_like(text.index), text.target, text.target_lengths, text.index)

    @property
    def image(self) -> Tensor:
        """The images (B, 3, H, W), or their feature vectors (B, L, F)."""
        return self.source

    @property
    def targets(self) -> Tensor:
        """Token ids to predict, (B, T): the captions with EOS, without BOS, padded with PAD."""
        return self.labels

    def padded_to(self, rows: int, source_length: int, target_length: int) -> ImageBatch:
        """Return a batch padded to `rows` rows, with target_length tokens to predict in each row.

        The image of an added row is black, and its targets are PAD, so that it does not count in the loss.

        rows: number of rows; at least the number of rows of this batch.
        source_length: ignored, because images have no length.
        target_length: T, number of tokens to predict with EOS and padding.

        >>> ImageBatch.of(torch.zeros(1, 3, 2, 2), [[5]]).padded_to(2, 0, 3).target
        tensor([[2, 5, 3, 0],
                [2, 0, 0, 0]])
        """
        more, longer = rows - len(self), target_length + 1 - self.target.shape[1]
        if min(more, longer) < 0:
            problem = f"rows={rows} and target_length={target_length}"
            expected = f"rows >= {len(self)} and target_length >= {self.target.shape[1] - 1}"
            raise ArgumentError(message("ImageBatch.padded_to()", problem, expected=expected))
        grown = self.add_rows(more)
        target = pad(grown.target, (0, longer), value=PAD)
        target[len(self) :, 0] = BOS
        return replace(grown, target=target)
