"""Tests of recurrent cells and losses under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data.batch import EOS, PAD
from regard.decoding.highest_values import sortable
from regard.kernels import launch
from regard.kernels.choice import by_kernel
from regard.kernels.recurrent import attention_gradients
from regard.kernels.recurrent.maxout import PairMaximum
from regard.kernels.search.candidates import find_candidates
from regard.kernels.training import vocabulary_loss
from regard.kernels.training.row_copy import copy_rows
from regard.layers import bidirectional_gru, gated_cell, gru
from regard.layers.attentive_cell import attend_along
from regard.training.losses import cross_entropy, output_loss

ROWS, WIDTH = 6, 300
"""Rows for two GRUs, and more columns than one block."""


def random_tensors(*widths: int) -> list[Tensor]:
    """Random tensors of these widths, each a slice of a wider tensor that is NaN elsewhere."""
    source = torch.Generator().manual_seed(0)
    tensors = []
    for width in widths:
        whole = torch.full((ROWS, width + 7), torch.nan)
        whole[:, :width] = torch.randn(ROWS, width, generator=source)
        tensors.append(whole[:, :width])
    return tensors


def buffers(*widths: int) -> list[Tensor]:
    return [torch.full((ROWS, width), torch.nan) for width in widths]


def assert_agrees(step, arguments: list[Tensor], written: list[int]) -> None:
    """Compare the kernel in float32 with PyTorch in float64: result, and arguments it writes to."""
    exact = [each.double() for each in arguments]
    result, expected = step(*arguments), step(*exact)
    pairs = [(arguments[at], exact[at]) for at in written]
    pairs += [] if result is None else [(result, expected)]
    for mine, oracle in pairs:
        torch.testing.assert_close(mine.double(), oracle, rtol=1e-6, atol=3e-6, equal_nan=True)


def test_float32_uses_kernels():
    assert by_kernel(torch.zeros(1)) and not by_kernel(torch.zeros(1).double())


def test_gated():
    assert_agrees(gated_cell.gated, [*random_tensors(3 * WIDTH, 2 * WIDTH, WIDTH), *buffers(WIDTH)], [0, 3])


@pytest.mark.parametrize("parts", [0, 2])
def test_mixed(parts: int):
    added = [torch.stack(random_tensors(*[WIDTH] * parts))] if parts else []
    assert_agrees(gated_cell.mixed, [*random_tensors(3 * WIDTH, WIDTH), *buffers(WIDTH), *added], [0, 2])


def test_mixed_backward():
    parts = torch.stack(random_tensors(WIDTH, WIDTH, WIDTH))
    arguments = [parts, *random_tensors(WIDTH, WIDTH, 3 * WIDTH, WIDTH), *buffers(3 * WIDTH)]
    assert_agrees(gated_cell.mixed_backward, arguments, [5])


def test_gated_backward():
    parts = torch.stack(random_tensors(WIDTH, WIDTH))
    arguments = [parts, *random_tensors(3 * WIDTH, WIDTH), *buffers(3 * WIDTH), *random_tensors(WIDTH)]
    assert_agrees(gated_cell.gated_backward, arguments, [3, 4])


@pytest.mark.parametrize(
    ("few", "sizes", "lengths"),
    [(few, (4, 6, 5), lengths) for few in (True, False) for lengths in (None, [5, 2, 4], [3])]
    + [(True, (40, 48, 24), [5, 2, 4])],
)
def test_all_steps_with_attention(
    few: bool, sizes: tuple[int, int, int], lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
):
    """The reference calls attention() at each step, in float64.

    few: whether one kernel computes the attention of a step, as for few keys.
    sizes: of the states, the values, and the hidden layer. With multiples of 8, the kernels load 16 bytes at
        once.
    """
    width, depth, hidden = sizes
    monkeypatch.setattr(attention_gradients, "LONGEST", 128 if few else 0)
    monkeypatch.setattr(
        launch, "LAUNCHES", {name: replace(each, width=16) for name, each in launch.LAUNCHES.items()}
    )
    torch.manual_seed(0)
    cell = gated_cell.GatedCell(3, width, context_size=depth)
    score = regard.Additive(width, depth, hidden=hidden)
    mask = None if lengths is None else regard.padding(lengths)
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(2)
        shapes = (3, 7, 3), (3, width), (3, 5, depth)
        inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
        cell.to(dtype), score.to(dtype)
        memory = regard.prepare(inputs[2], score=score, mask=mask)
        states, contexts = attend_along(cell, cell.gates(inputs[0]), inputs[1], memory, "")
        leaves = [*inputs, *cell.parameters(), *score.parameters()]
        # The gradients of sum() are expanded tensors, with strides of 0.
        loss = states.sum() if lengths == [3] else states.square().sum()
        loss = loss + (contexts.sum() if lengths == [3] else contexts.sin().sum())
        results.append([states, contexts, *torch.autograd.grad(loss, leaves)])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("ways", "width"), [(1, 300), (2, 300), (2, 1000)])
def test_gru(ways: int, width: int):
    """Gates and states of all steps are in one tensor, so they have a stride from one GRU to the next."""
    source = torch.Generator().manual_seed(0)
    sizes = (ways, 2, 3, 3 * width), (ways, 3, 3 * width), (ways, 3 * width), (ways, 2, 3, width)
    own = [torch.randn(size, generator=source) for size in sizes]
    exact = [each.double() for each in own]
    for gates, more, bias, states in (own, exact):
        gru.gru(gates[:, 1], more, bias, states[:, 0], states[:, 1])
    own[1], exact[1] = (more[..., 2 * width :] for more in (own[1], exact[1]))
    for mine, oracle in zip(own, exact, strict=True):
        torch.testing.assert_close(mine.double(), oracle, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("into", "masked", "adds"), [(*each, False) for each in product((True, False), repeat=2)] + [(True,) * 3]
)
def test_rows_are_reordered_between_positions_and_steps(into: bool, masked: bool, adds: bool):
    """adds: whether numbers are added to the first position of the backward direction."""
    source, lengths = torch.Generator().manual_seed(0), torch.tensor([4, 0, 3])
    results = []
    for dtype in (torch.float32, torch.float64):
        source.manual_seed(0)
        positions = torch.randint(-99, 99, (3, 4, 2, 24), generator=source).to(dtype)
        states = torch.randn(2, 5, 3, 24, generator=source).to(dtype)
        more = torch.randint(-99, 99, (3, 24), generator=source).to(dtype) if adds else None
        bidirectional_gru.reorder(positions, states[:, 1:].transpose(0, 1), lengths, into, masked, more)
        results.append((positions, states))
    for mine, exact in zip(*results, strict=True):
        assert mine.double().equal(exact)


def test_gru_over_whole_sequences():
    """Both directions, with gradients. The reference is float64."""
    torch.manual_seed(0)
    leaves = [torch.randn(sizes) for sizes in ((2, 5, 4, 120), (2, 120, 40), (2, 120))]
    results = []
    for dtype in (torch.float32, torch.float64):
        own = [(each / 3).to(dtype).requires_grad_() for each in leaves]
        states = gru.gru_ways(*own)
        results.append([states, *torch.autograd.grad(states.sin().sum(), own)])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


def test_bidirectional_gru_with_padding():
    """The reference is float64."""
    torch.manual_seed(0)
    layer, x, lengths = nn.GRU(5, 24, batch_first=True, bidirectional=True), torch.randn(3, 4, 5), [4, 1, 3]
    results = []
    for dtype in (torch.float32, torch.float64):
        own, _ = x.to(dtype).requires_grad_(), layer.to(dtype)
        states, first = bidirectional_gru.bidirectional_gru(own, torch.tensor(lengths), layer.all_weights)
        loss = states.sin().sum() + first.square().sum()
        results.append([states, first, *torch.autograd.grad(loss, [own, *layer.parameters()])])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [12, 7, 600])
@pytest.mark.parametrize("more", [None, 1.0, "rows"])
def test_copy_rows(width: int, more: float | str | None):
    """Rows of a transposed tensor, to the middle of a tensor that is NaN elsewhere."""
    source = torch.randn(3, 5, width).transpose(0, 1)
    added, factor = torch.randn(15) if more == "rows" else more, torch.tensor(0.5) if more else None
    whole = torch.full((15, width + 20), torch.nan)
    copy_rows(source, whole[:, 8 : width + 12], more=added, factor=factor)
    expected = torch.zeros(15, width + 4)
    expected[:, :width] = source.flatten(0, 1)
    if added is not None:
        expected[:, width] = added
    assert whole[:, 8 : width + 12].equal(expected * 0.5 if more else expected)
    assert whole.isnan().sum() == 15 * 16


def test_pair_maximum():
    """The reference is amax(), which divides the gradient between equal elements."""
    x, gradient = torch.randn(3, 5, 14), torch.randn(3, 5, 7)
    x[0, 0, 0] = x[0, 0, 1]
    own, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    mine, expected = PairMaximum.apply(own), plain.unflatten(-1, (-1, 2)).amax(-1)
    assert mine.equal(expected)
    assert torch.autograd.grad(mine, own, gradient)[0].equal(
        torch.autograd.grad(expected, plain, gradient)[0]
    )


@pytest.mark.parametrize("width", [300, 1000])
def test_gru_backward(width: int):
    source = torch.Generator().manual_seed(2)
    sizes = (6, 3, width), *[(2, 3, width)] * 2, *[(2, 3, 3 * width)] * 2, (2, 2, 3, width)
    *arguments, states = (torch.randn(size, generator=source) for size in sizes)
    arguments[3].sigmoid_()
    results = []
    for dtype in (torch.float32, torch.float64):
        dgates = torch.full((2, 3, 3 * width), torch.nan, dtype=dtype)
        dmore = torch.full((3, 2, 3 * width), torch.nan, dtype=dtype)
        inputs = [each.to(dtype) for each in (*arguments, states)]
        before = gru.gru_backward(*inputs[:-1], inputs[-1][:, 1], dgates, dmore)
        results.append((before, dgates, dmore))
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=3e-6, equal_nan=True)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("classes", "smoothing", "chunk"), [(5, 0.0, 1 << 28), (5000, 0.1, 10_000)])
def test_vocabulary_loss(
    classes: int, smoothing: float, chunk: int, bias: bool, monkeypatch: pytest.MonkeyPatch
):
    """Loss and gradients without all logits, in one chunk and in several, against float64."""
    monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)
    torch.manual_seed(0)
    layer, features = nn.Linear(6, classes, bias), 3 * torch.randn(2, 3, 6)
    layer.weight.data *= 3
    labels = torch.tensor([[4, 1, PAD], [classes - 1, PAD, 2]])
    results = []
    for dtype in (torch.float32, torch.float64):
        own = features.to(dtype).requires_grad_()
        total, plain = output_loss(own, layer.to(dtype), labels, smoothing)
        gradients = torch.autograd.grad(total * 0.3, (own, *layer.parameters()))
        results.append([total, plain, *gradients])
        assert (total.grad_fn.name() == "VocabularyLossBackward") == (dtype == torch.float32)
    for mine, oracle in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), oracle.double(), rtol=1e-5, atol=1e-5)


def test_vocabulary_loss_of_infinite_and_of_very_different_logits():
    """Whole groups of classes have probability 0, and e^(x - y) of some logits x and y overflows float32."""
    torch.manual_seed(0)
    layer, labels = nn.Linear(6, 5000), torch.tensor([[4, 4999, 1500]])
    layer.bias.data[8:64] = -torch.inf
    layer.bias.data[1000:2000] += 300
    layer.bias.data[2000:2008] -= 300
    features, results = torch.randn(1, 3, 6), []
    for dtype in (torch.float32, torch.float64):
        own = features.to(dtype).requires_grad_()
        total, _ = output_loss(own, layer.to(dtype), labels)
        results.append([total, *torch.autograd.grad(total, (own, layer.bias))])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 3])
def test_vocabulary_loss_with_aligned_columns(rows: int):
    """Half precision pads 6 columns to 8: the first new column computes the gradient of the bias."""
    torch.manual_seed(0)
    layer, labels = nn.Linear(6, 11), torch.tensor([[4, PAD, 10]])[:, :rows]
    features = torch.randn(1, rows, 6, requires_grad=True)
    inputs = (features, *layer.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = output_loss(features, layer, labels, 0.1)
    exact, _ = cross_entropy(layer(features), labels, 0.1)
    for mine, other in zip(*(torch.autograd.grad(each, inputs) for each in (total, exact)), strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=1e-2)


def test_vocabulary_loss_without_gradients_in_bfloat16():
    """Half precision pads 6 columns to 8; without gradients, the logits are not overwritten."""
    layer, labels = nn.Linear(6, 11).bfloat16(), torch.tensor([[4, PAD, 10]])
    features = torch.randn(1, 3, 6).bfloat16()
    with torch.no_grad():
        total, plain = output_loss(features, layer, labels, 0.1)
        exact = cross_entropy(layer(features).double(), labels, 0.1)
    torch.testing.assert_close(torch.stack((total, plain)), torch.stack(exact).float(), rtol=1e-2, atol=1e-2)
    assert not total.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_candidates_of_a_search(dtype: torch.dtype):
    """The kernel gives the tokens of a stable sort: bfloat16 logits are often equal."""
    source = torch.Generator().manual_seed(2)
    logits = (3 * torch.randn(6, 5000, generator=source)).to(dtype)
    barred, generated = torch.zeros(5000, dtype=torch.uint8), torch.tensor([1, 2])
    barred[:3] = 1
    values, tokens, largest, total = find_candidates(logits, 8, barred, generated, 3, EOS)
    expected = logits.float()
    lse = ((largest - expected.amax(1)[:, None]).exp() * total).sum(1).log() + expected.amax(1)
    torch.testing.assert_close(lse, logits.double().logsumexp(1).float())
    expected[:, :3] = -torch.inf
    expected[:3, EOS] = -torch.inf
    best, order = expected.sort(dim=-1, descending=True, stable=True)
    values, tokens = values.flatten(1), tokens.flatten(1)
    places = sortable(values, tokens).topk(8).indices
    assert torch.equal(tokens.gather(1, places).long(), order[:, :8])
    assert torch.equal(values.gather(1, places), best[:, :8])
