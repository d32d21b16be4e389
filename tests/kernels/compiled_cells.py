"""Compile the kernels of recurrent cells and losses for Hopper, without a GPU; test_compiling.py runs this
file in a subprocess."""

from __future__ import annotations

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from regard.kernels.inner.short import ShortAttention
from regard.kernels.recurrent import attended_gates, cells, lstmn
from regard.kernels.training import embedding
from regard.kernels.training.dropout import KINDS, ActivationDropout
from regard.kernels.training.embedding import EmbeddingDropout
from regard.kernels.training.residual_norm import ResidualNorm
from regard.kernels.training.row_copy import copy_rows
from regard.kernels.training.vocabulary_loss import VocabularyLoss
from tests.kernels.compiled import Hopper, compiling

ROWS, WIDTH = 4, 40


def main() -> None:
    """Compile each kernel in each dtype used in training."""
    driver.set_active(Hopper())
    JITFunction.__getitem__ = compiling
    for dtype in (torch.float32, torch.bfloat16):

        def zeros(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(*sizes, dtype=dtype)

        one, two, three = (zeros(ROWS, many * WIDTH) for many in (1, 2, 3))
        cells.gated(three, two, one, one)
        cells.mixed(three, one, one)
        for parts in (1, 3):
            cells.mixed(three, one, one, zeros(parts, ROWS, WIDTH))
            cells.mixed_backward(zeros(parts, ROWS, WIDTH), one, one, three, one, three)
            compile_attention(dtype, parts)
        six, states, gates = (zeros(ways, ROWS // 2, many * WIDTH) for ways, many in ((6, 1), (2, 1), (2, 3)))
        cells.gru(gates, gates, zeros(2, 3 * WIDTH), states, states)
        cells.gru_backward(six, states, states, gates, gates, states, gates, six)
        tapes = zeros(ROWS, 9, 30), zeros(ROWS, 9, 2 * WIDTH)
        query, scores, totals = zeros(ROWS, 30), zeros(ROWS, 9).float(), zeros(ROWS).float()
        read = query, *tapes, zeros(30), 0, 7, scores, totals, two
        lstmn.read(*read)
        lstmn.read_backward(*read, two, *tapes, query, query)
        for gates, added in ((4, None), (4, one), (5, one)):
            whole = zeros(ROWS, gates * WIDTH)
            lstmn.cell(whole, two, added, two)
            lstmn.cell_backward(whole, two, two, two, whole, two, added, added)
        weight = zeros(5000, 16).requires_grad_()
        VocabularyLoss.apply(
            zeros(ROWS, 16), weight, None, torch.ones(ROWS, dtype=torch.long), 0.1, 0, dtype == torch.float32
        )
        for factor in (None, torch.ones(())):
            copy_rows(zeros(ROWS, 20), torch.zeros(ROWS, 24, dtype=torch.bfloat16), factor)
        compile_training(dtype)


def compile_attention(dtype: torch.dtype, parts: int) -> None:
    """Compile the kernels of the decoder steps of Bahdanau's model, with and without lengths."""

    def zeros(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(*sizes, dtype=dtype)

    one, two, three, key = (
        zeros(ROWS, WIDTH),
        zeros(ROWS, 2 * WIDTH),
        zeros(ROWS, 3 * WIDTH),
        zeros(ROWS, 9, 30),
    )
    projected, scores, norm = zeros(ROWS, 9, 3 * WIDTH), zeros(ROWS, 9).float(), zeros(2, ROWS).float()
    for lengths in (None, torch.full((ROWS,), 7)):
        attended_gates.attended_gates(
            scores, projected, lengths, three, two, one, three, one, zeros(ROWS, 9), norm
        )
        dweights = attended_gates.gates_backward(
            zeros(parts, ROWS, WIDTH), three, one, three, one, projected, lengths
        )
        query, vector = zeros(ROWS, 30), zeros(30)
        of_scores = dweights, scores, scores, norm
        attended_gates.query_backward(*of_scores, query, key, vector, lengths, query, scores)
    attended_gates.memory_backward(zeros(5, ROWS, 30), key, zeros(30), zeros(5, ROWS, 9).float())


def compile_training(dtype: torch.dtype) -> None:
    """Compile the kernels between the matrix products of a Transformer."""
    for width, dropout, change in ((512, 0.1, True), (600, 0.0, True), (4096, 0.0, False)):
        x = torch.zeros(ROWS, width, requires_grad=True)
        more = torch.zeros(ROWS, width, dtype=dtype) if change else None
        options = torch.ones(width), torch.zeros(width), 1e-5, dropout, dtype
        total, normed = ResidualNorm.apply(x, more, torch.zeros(width) if dropout else None, *options)
        (normed.float().sum() + total.sum()).backward()
        for sizes in ((64, 64, 64), (30, 128, 40)) if dropout else ():
            heads = [torch.zeros(2, 4, size, sizes[2], dtype=dtype) for size in (sizes[0], *sizes[1:2] * 2)]
            heads = [each.requires_grad_() for each in heads]
            for lengths in (None, torch.tensor([5, 30])):
                output, _ = ShortAttention.apply(*heads, lengths, 0, lengths is None, 0.1, dropout)
                output.sum().backward()
        table, tokens = torch.zeros(9, width, requires_grad=True), torch.ones(ROWS, 5, dtype=torch.long)
        places = torch.zeros(5, width) if change else None
        for few in (0, 100):
            embedding.FEW = few
            EmbeddingDropout.apply(table, tokens, places, 2.0, dropout, 0).sum().backward()
        for kind in KINDS:
            hidden = torch.zeros(ROWS, width, dtype=dtype, requires_grad=True)
            bias = torch.zeros(width) if change else None
            ActivationDropout.apply(hidden, bias, kind, dropout).sum().backward()


if __name__ == "__main__":
    main()
