"""Shared by all search methods: Prompts, ActiveRows (the sentences that are still being decoded) and
start_decoding().
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.data.batch import BOS, Batch, BatchRows
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit, Rules, pad_prefixes
from regard.errors import ArgumentError, RegardWarning, message
from regard.models.base import Encoded, Model, State
from regard.torch_modules.eval_mode import in_eval_mode

Ends = Callable[[Tensor, Tensor], Tensor]
"""A function that is called after each step and can end hypotheses before they generate EOS.

There are b sentences with K hypotheses each. Arguments of the function: the t tokens that each hypothesis has
so far, (b, K, t), and the index of each sentence in the batch, (b,). It returns a boolean tensor (b, K), True
for hypotheses that end here.
"""


@dataclass(frozen=True, eq=False)
class Prompts(BatchRows):
    """The prompts of a batch, which a language model continues. All have the same number of tokens.

    The same number is needed because all rows of the decoder state are at the same position.

    tokens: (B, P), P at least 1. The first token of each row is BOS, or EOS for a model that was trained on
        continuous text.
    index: (B,), the index of each prompt in the data. Sampling seeds its random numbers with it.

    >>> from regard.data.batch import BOS
    >>> from regard.decoding import Greedy, Prompts, Rules, search
    >>> from regard.models import build_language_model
    >>> model = build_language_model("lstm", 9, width=4)
    >>> prompts = Prompts.collate([[BOS, 7, 8], [BOS, 4, 5]])
    >>> hypotheses = search(model, prompts, Greedy(Rules(minimum=2, maximum=2)), look=None)
    >>> [len(best.tokens) for best, *_ in hypotheses]
    [2, 2]
    """

    tokens: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def collate(cls, rows: Sequence[Sequence[int]], index: Sequence[int] | None = None) -> Prompts:
        """Return Prompts with the given token ids. All rows must have the same length.

        rows: the token ids of each prompt.
        index: the index of each prompt in the data. Default: 0, 1, ...
        """
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1 or lengths == [0]:
            problem = f"the prompts have {lengths[0]} to {lengths[-1]} tokens" if lengths[-1] else "no token"
            expected = "prompts of the same length, each with BOS or EOS as its first token"
            hint = "use one batch for each length"
            raise ArgumentError(message("Prompts.collate()", problem, expected=expected, hint=hint))
        width = lengths[0] if lengths else 1
        tokens = torch.tensor([list(row) for row in rows], dtype=torch.long).reshape(len(rows), width)
        return cls(tokens, torch.as_tensor(range(len(rows)) if index is None else index))


@dataclass(frozen=True, eq=False)
class ActiveRows(BatchRows):
    """The b sentences that are still being decoded, with K hypotheses (rows) each.

    index: (b,), the index of each sentence in the batch.
    limits: (b,), the maximum number of tokens of each output.
    prefix: (b, P), the tokens that each output must begin with, padded with PAD.
    encoded: the encoder output of these sentences.
    """

    index: Tensor
    limits: Tensor
    prefix: Tensor
    encoded: Encoded

    def __len__(self) -> int:
        return len(self.index)

    def forced_tokens(self, step: int, per_sentence: int) -> Tensor | None:
        """Return the token that each row must take at a decoding step because of its prefix, (b K,).

        For a row whose prefix has ended, it is PAD. If all prefixes have ended, return None.

        step: the index of the decoding step, from 0.
        per_sentence: the number of rows for each sentence, K.
        """
        return self.prefix[:, step].repeat_interleave(per_sentence) if step < self.prefix.shape[1] else None


def start_decoding(
    model: Model,
    batch: Batch | Prompts,
    rules: Rules,
    prefixes: Sequence[Sequence[int]] | None,
    per_sentence: int,
    limit: LengthLimit = TRANSLATION_LIMIT,
) -> tuple[ActiveRows, State, Tensor]:
    """Encode the B sources, or read the B prompts of a language model, and prepare the first decoding step.

    per_sentence: the number of hypotheses (rows) for each sentence, K.
    limit: the maximum number of output tokens, used if rules.maximum is None.

    All tokens of a prompt except its last one are read here, in one call, once for all K rows. The last token
    is the first input of the search.

    Return the active sentences, the decoder state with B K rows, and the first input, (B K, 1): BOS, or the
    last token of each prompt.
    """
    active, before_BP, last_B1 = without_encoding(model, batch, rules, prefixes, limit)
    if isinstance(batch, Prompts):
        encoded = model.encode(batch.tokens[:, :0], active.encoded.lengths)
    else:
        encoded = model.encode(batch.source, batch.source_lengths)
    state = model.start(encoded)
    if before_BP.shape[1]:
        state, _ = model.step(state, before_BP, encoded)
    state = state.repeat(per_sentence)
    last_R1 = last_B1.repeat_interleave(per_sentence, 0)
    return replace(active, encoded=encoded), state, last_R1


def without_encoding(
    model: Model,
    batch: Batch | Prompts,
    rules: Rules,
    prefixes: Sequence[Sequence[int]] | None,
    limit: LengthLimit,
) -> tuple[ActiveRows, Tensor, Tensor]:
    """Return the sentences of a search before they are encoded. The arguments are those of start_decoding().

    The second result is the tokens of the prompts without the last one, (B, P); the third is the first input
    of the search, (B, 1).
    """
    device = batch.index.device
    prefix_BP, prefix_lengths_B = torch.empty(len(batch), 0, dtype=torch.long, device=device), None
    if prefixes is not None:
        padded_BP, lengths_B = pad_prefixes(prefixes, len(batch), model.target_size)
        if padded_BP.shape[1]:  # copies to a GPU wait for it
            prefix_BP, prefix_lengths_B = padded_BP.to(device), lengths_B.to(device)
    if isinstance(batch, Prompts):
        source_lengths_B = torch.zeros_like(batch.index)
        before_BP, last_B1 = batch.tokens[:, :-1], batch.tokens[:, -1:]
    else:
        source_lengths_B = batch.source_lengths
        last_B1 = torch.full((len(batch), 1), BOS, device=device)
        before_BP = last_B1[:, :0]
    limits_B = rules.limits(model, source_lengths_B, prefix_lengths_B, limit, before_BP.shape[1])
    index_B = torch.arange(len(batch), device=device)
    return ActiveRows(index_B, limits_B, prefix_BP, Encoded(source_lengths_B)), before_BP, last_B1


def state_rows(index: Tensor, per_sentence: int) -> Tensor:
    """Return the row indices of some sentences in the decoder state, which has K rows for each sentence.

    index: the indices of the sentences. The rows of sentence i are i K to i K + K - 1.
    per_sentence: K.
    """
    return (index[:, None] * per_sentence + torch.arange(per_sentence, device=index.device)).flatten()


@contextmanager
def eval_without_grad(model: Model) -> Iterator[None]:
    """In the `with` block, the model is in eval mode and gradients are disabled."""
    with in_eval_mode(model), torch.no_grad():
        yield


def device_of(model: Model) -> torch.device:
    """Return the device of the first parameter or buffer of a model, or the CPU if it has none."""
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def float32_copy(model: Model) -> Model | None:
    """Return a copy of a float16 model in float32, and warn about the overflow; None for another dtype.

    The largest float16 number is 65504. A larger activation becomes inf, and the scores become NaN. Whether
    this has happened is only checked in the result of a search, so that no step waits for the device.

    Each call makes a new copy, so that it has the current weights.
    """
    if next(model.parameters(), torch.empty(0)).dtype != torch.float16:
        return None
    problem = "activations of the model are too large for float16, so the search is repeated in float32"
    hint = 'load the model with precision="bfloat16" or "float32" (--precision) to avoid this'
    warnings.warn(f"{problem}\nhint: {hint}", RegardWarning, stacklevel=2)
    return copy.deepcopy(model).float()
