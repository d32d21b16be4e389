"""ImageAttention: the soft, hard or missing attention of a captioner to the L feature vectors of an image."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from regard.layers.source_attention import SourceAttention, build_source_score
from regard.look import Look
from regard.memory import Memory
from regard.options.attention_options import ScoreOption, SelectOption
from regard.options.model_checks import known
from regard.roles import Role
from regard.select import Best, Hard, Select, Soft

__all__ = ["IMAGE_ATTENTION", "NO_ATTENTION", "READINGS", "CaptionInputs", "ImageAttention"]

IMAGE_ATTENTION = Role("cross", "target", "image")
"""The role of the attention of a captioner: the words of the caption attend to the image."""

NO_ATTENTION = "none"
"""The value of the option `select` of Captioner() for a model without attention. This model reads the mean of
the feature vectors at every step."""

READINGS: dict[str, Select] = {"argmax": Best(), "sample": Hard(), "expectation": Soft()}
"""How a captioner with hard attention reads the image in eval mode. The keys are the values of
Captioner.read. The values are the selections to use."""


class CaptionInputs(Protocol):
    """Type of the argument of Captioner.forward(). Any batch with these two attributes can be used.

    image: images (B, 3, H, W) or feature vectors (B, L, F).
    inputs: (B, T), the tokens that the decoder reads, beginning with BOS.
    """

    @property
    def image(self) -> Tensor: ...

    @property
    def inputs(self) -> Tensor: ...


class ImageAttention(SourceAttention):
    """Attention to the feature vectors of an image; for `read`, see Captioner."""

    role = IMAGE_ATTENTION
    read: str = "argmax"

    def set_up_image(self, query_size: int, features: int, score: ScoreOption, select: SelectOption) -> None:
        """Create score function and selection; neither with the selection "none"."""
        self.score, self.narrow, self.select = None, None, None
        if select != NO_ATTENTION:
            self.use(*build_source_score(score, query_size, features), select)

    def read_image(
        self, query: Tensor, memory: Memory, position: int, look: Look | None = None
    ) -> tuple[Tensor, Any]:
        """Return the weighted mean of the feature vectors, (R, F), and the weights alpha, (R, L).

        The weights are None if `look` is None.

        query: (R, D), one for each caption. R is a multiple of the number of images in `memory`.
        position: the step of the decoder, from 0.
        """
        rows, locations, selection = len(query), memory.length, dict[str, Select]()
        if self.select is None:
            mean_RF = memory.value.mean(1).repeat_interleave(rows // len(memory.value), 0)
            return mean_RF, None if look is None else mean_RF.new_full((rows, locations), 1 / locations)
        if isinstance(self.select, Hard) and not self.training:
            selection["select"] = READINGS[known("read", self.read, READINGS)]
        attended = self.attend(query[:, None], memory, position, look=look, **selection)
        weights = attended.weights
        return attended.output[:, 0], None if weights is None else weights.reshape(rows, locations)
