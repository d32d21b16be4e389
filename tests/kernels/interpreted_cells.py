"""Cells and losses under Triton's interpreter; test_interpreted.py runs it in its own process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.data.batch import PAD
from regard.kernels.kernel_choice import by_kernel
from regard.layers import gated_cell, gru
from regard.training.losses import cross_entropy

ROWS, WIDTH = 6, 300
"""Rows of two ways, and more columns than one block."""


def numbers(*widths: int) -> list[Tensor]:
    """Tensors of so many columns, each in a wider one, with NaN behind."""
    source = torch.Generator().manual_seed(0)
    found = []
    for width in widths:
        whole = torch.full((ROWS, width + 7), torch.nan)
        whole[:, :width] = torch.randn(ROWS, width, generator=source)
        found.append(whole[:, :width])
    return found


def places(*widths: int) -> list[Tensor]:
    return [torch.full((ROWS, width), torch.nan) for width in widths]


def assert_both(step, given: list[Tensor], written: list[int]) -> None:
    """The same by the kernel in float32 and by torch in float64."""
    exact = [each.double() for each in given]
    found, wanted = step(*given), step(*exact)
    pairs = [(given[at], exact[at]) for at in written]
    pairs += [] if found is None else [(found, wanted)]
    for mine, oracle in pairs:
        torch.testing.assert_close(mine.double(), oracle, rtol=1e-6, atol=3e-6, equal_nan=True)


def test_cells_are_run_by_kernels():
    assert by_kernel(torch.zeros(1)) and not by_kernel(torch.zeros(1).double())


def test_gates():
    assert_both(gated_cell.gated, [*numbers(3 * WIDTH, 2 * WIDTH, WIDTH), *places(WIDTH)], [0, 3])


def test_the_new_state():
    assert_both(gated_cell.mixed, [*numbers(3 * WIDTH, WIDTH), *places(WIDTH)], [0, 2])


def test_the_way_back_through_the_new_state():
    parts = torch.stack(numbers(WIDTH, WIDTH, WIDTH))
    given = [parts, *numbers(WIDTH, WIDTH, 3 * WIDTH, WIDTH), *places(3 * WIDTH)]
    assert_both(gated_cell.mixed_backward, given, [5])


def test_the_way_back_through_the_gates():
    given = [*numbers(WIDTH, 3 * WIDTH, WIDTH), *places(3 * WIDTH), *numbers(WIDTH)]
    assert_both(gated_cell.gated_backward, given, [3, 4])


@pytest.mark.parametrize("ways", [1, 2])
def test_a_gru(ways: int):
    bias = torch.randn(ways, 3 * WIDTH, generator=torch.Generator().manual_seed(1))
    given = [*numbers(3 * WIDTH, 3 * WIDTH, WIDTH), *places(WIDTH)]
    exact = [each.double() for each in given]
    for (gates, more, state, after), own in ((given, bias), (exact, bias.double())):
        gru.gru(gates, more, own, state, after, ROWS // ways)
    for at in (0, 3):
        torch.testing.assert_close(given[at].double(), exact[at], rtol=0, atol=3e-6)
    torch.testing.assert_close(given[1][:, 2 * WIDTH :].double(), exact[1][:, 2 * WIDTH :], rtol=0, atol=3e-6)


def test_the_way_back_through_a_gru():
    parts = torch.randn(6, ROWS // 2, WIDTH, generator=torch.Generator().manual_seed(2))
    given = [parts, *numbers(WIDTH, WIDTH, 3 * WIDTH, 3 * WIDTH, WIDTH), *places(3 * WIDTH)]
    given[3][:] = given[3].sigmoid()
    assert_both(gru.gru_backward, [*given, torch.full_like(parts, torch.nan)], [6, 7])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [5, 4096, 5000])
def test_cross_entropy(classes: int, smoothing: float):
    source = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(2, 3, classes, generator=source)
    labels = torch.tensor([[4, 1, PAD], [classes - 1, PAD, 2]])
    found = []
    for dtype in (torch.float32, torch.float64):
        own = logits.to(dtype).requires_grad_()
        total, plain = cross_entropy(own, labels, smoothing)
        (gradient,) = torch.autograd.grad(total * 0.3, own)
        found.append((total.double(), plain.double(), gradient.double()))
    for mine, oracle in zip(*found, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [-1, 5, 10**9])
def test_a_label_that_is_no_class_is_noticed(label: int):
    total, plain = cross_entropy(torch.zeros(1, 2, 5), torch.tensor([[4, label]]), 0.1)
    assert total.isnan() and plain.isnan()
