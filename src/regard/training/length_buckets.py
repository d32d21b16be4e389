"""Length buckets: pad all batches to a few shapes.

A model is compiled, or captured in a CUDA graph, once for each shape. So there must be only a few shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from regard.data.batch import Batch
from regard.fast.captured.graphs import capture_chosen
from regard.models.bahdanau import Bahdanau
from regard.models.captioner import Captioner
from regard.models.lstmn_classifier import LSTMNClassifier
from regard.models.lstmn_language import LSTMNLanguageModel
from regard.models.lstmn_translation import LSTMNTranslationModel
from regard.models.luong import Luong
from regard.models.recurrent_classifier import GRUClassifier
from regard.models.seq2seq import Seq2Seq
from regard.training.settings import Training
from regard.training.task import Speed

SMALL_STEPS = (
    *(Bahdanau, Captioner, GRUClassifier, LSTMNClassifier, LSTMNLanguageModel, LSTMNTranslationModel, Luong),
    Seq2Seq,
)
"""The models that launch small kernels for each token, as recurrent models do."""


def small_steps(model: nn.Module) -> bool:
    """Whether a model launches small kernels for each token: it is in SMALL_STEPS, or has this attribute.

    Batches are then padded to fewer lengths, because a CUDA graph is captured for each.
    """
    return bool(getattr(model, "small_steps", isinstance(model, SMALL_STEPS)))


def few_shapes(
    model: nn.Module,
    training: Training,
    device: str,
    world: int,
    longest: int,
    uncapturable: str = "",
    *,
    fine: bool | None = None,
    padded: bool = True,
) -> tuple[Speed, Shapes | None]:
    """Decide whether steps are captured in CUDA graphs, and choose the shapes that batches are padded to.

    The shapes are None if batches are not padded: without CUDA graphs and torch.compile.

    device: the device type, such as "cuda".
    world: number of processes.
    longest: maximum length of a sequence in tokens, including EOS.
    uncapturable: why the loss cannot be captured in a CUDA graph, otherwise "".
    fine: see Shapes. Default: whether steps are captured, and the model launches no small kernels.
    padded: whether batches are padded if steps are captured. If not, the trainer decides about CUDA graphs.
    """
    speed = Speed(uncapturable=uncapturable, ahead=True)
    if not padded:
        return speed, None
    capture = capture_chosen(training, uncapturable, device, world)
    speed = replace(speed, capture=capture)
    if not (training.compile or capture.chosen):
        return speed, None
    fine = capture.chosen and not small_steps(model) if fine is None else fine
    shapes = Shapes(training.batch_tokens, longest, training.batch_size or 1, fine=fine)
    return replace(speed, shapes=shapes.most), shapes


@dataclass(frozen=True)
class Shapes:
    """The shapes (number of rows, length) that batches are padded to. A row is a sentence pair.

    tokens: batch size in tokens, including padding. None if the batch size is set in sentences.
    longest: maximum length of a sentence in tokens, including EOS.
    sentences: number of sentence pairs (rows) of each batch, if tokens is None.
    fine: whether to use more lengths, so that batches have less padding. There is one CUDA graph for each
        length. A graph of a Transformer is captured quickly. A graph of a recurrent model contains thousands
        of kernels and is captured slowly.

    Batches(..., rounded=shapes.lengths) yields batches with these shapes, one shape for each length.

    >>> Shapes(tokens=1024, longest=100).lengths
    (8, 16, 24, 32, 48, 64, 96, 128)
    >>> Shapes(tokens=1024, longest=50, fine=True).lengths
    (8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 44, 48, 50)
    """

    tokens: int | None
    longest: int
    sentences: int = 1
    fine: bool = False

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that batches are padded to: 8, 16, 24, 32, 48, 64, 96, ... up to `longest` or more.

        With `fine`, each length is at most a quarter larger than the one before, and the last is `longest`,
        because a Transformer may have no more positions.
        """
        lengths = [min(8, self.longest) if self.fine else 8]
        if self.fine:
            while lengths[-1] < self.longest:
                lengths.append(min(lengths[-1] + max(2, 2 ** (lengths[-1] // 12).bit_length()), self.longest))
            return tuple(lengths)
        while lengths[-1] < self.longest:
            last = lengths[-1]
            step = last * 3 // 2 if last.bit_count() == 1 else last * 4 // 3
            lengths.append(last + 8 if last < 32 else step)
        return tuple(lengths)

    @property
    def most(self) -> int:
        """Upper limit for the number of different batch shapes: 4 for each of the `lengths`.

        One shape for each length is not enough, because subword sampling splits words at random. So a batch
        can become longer than planned, with the same number of rows. Then a length occurs with several
        numbers of rows.
        """
        return 4 * len(self.lengths)

    def _counts(self, length: int) -> Iterator[int]:
        """Yield the possible numbers of rows of a batch that is padded to this length, in ascending order."""
        if self.tokens is None:
            yield self.sentences
            return
        # Subword sampling can make a batch longer than planned, but does not change its number of rows. So
        # the numbers of rows for all shorter lengths are possible too.
        yield from (-(-self.tokens // each) for each in reversed(self.lengths) if each <= length)

    def size(self, rows: int, length: int) -> tuple[int, int]:
        """Return the rows and the length to pad a batch to, if each length has one number of rows."""
        padded = next((each for each in self.lengths if each >= length), length)
        return max(rows, self.sentences if self.tokens is None else -(-self.tokens // padded)), padded

    def filled(self, batch: Batch) -> Batch:
        """Pad a batch to the next larger length in `lengths`, and to an allowed number of rows.

        For each length, only a few numbers of rows are allowed. Empty rows are added up to the next of these
        numbers. The source of an empty row is EOS, and its target has no tokens.
        """
        need = max(batch.source.shape[1], batch.target.shape[1] - 1)
        length = next((each for each in self.lengths if each >= need), need)
        rows = next((each for each in self._counts(length) if each >= len(batch)), len(batch))
        return batch.padded_to(rows, length, length)
