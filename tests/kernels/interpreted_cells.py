"""Tests of recurrent cells and losses under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data.batch import EOS, PAD
from regard.decoding.beam import sortable
from regard.fast.recurrent import attentive_steps_cpu
from regard.fast.recurrent.bahdanau import attend_along
from regard.fast.twins import Twins
from regard.kernels import by_kernel
from regard.kernels.additive import tile_sizes
from regard.kernels.recurrent import attended_gates, cells
from regard.kernels.search.beam import find_candidates
from regard.kernels.training import vocabulary_loss
from regard.layers.gated_cell import GatedCell
from regard.layers.recurrent import Recurrence, Recurrent
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


def assert_agrees(kernel, plain, arguments: list[Tensor], written: list[int]) -> None:
    """Compare a kernel in float32 with PyTorch in float64: result, and arguments that they write to."""
    exact = [each.double() for each in arguments]
    result, expected = kernel(*arguments), plain(*exact)
    pairs = [(arguments[at], exact[at]) for at in written]
    pairs += [] if result is None else [(result, expected)]
    for mine, oracle in pairs:
        torch.testing.assert_close(mine.double(), oracle, rtol=1e-6, atol=3e-6, equal_nan=True)


def test_float32_uses_kernels():
    assert by_kernel(torch.zeros(1)) and not by_kernel(torch.zeros(1).double())


def test_gated():
    arguments = [*random_tensors(3 * WIDTH, 2 * WIDTH, WIDTH), *buffers(WIDTH)]
    assert_agrees(cells.gated, attentive_steps_cpu.gated, arguments, [0, 3])


@pytest.mark.parametrize("parts", [0, 2])
def test_mixed(parts: int):
    def plain(gates: Tensor, state: Tensor, after: Tensor, *more: Tensor) -> None:
        for each in more:
            gates[:, 2 * WIDTH :] += each.sum(0)
        attentive_steps_cpu.mixed(gates, state, after)

    added = [torch.stack(random_tensors(*[WIDTH] * parts))] if parts else []
    assert_agrees(cells.mixed, plain, [*random_tensors(3 * WIDTH, WIDTH), *buffers(WIDTH), *added], [0, 2])


def test_mixed_backward():
    def plain(parts: Tensor, dstate: Tensor, more: Tensor, *others: Tensor) -> Tensor:
        return attentive_steps_cpu.mixed_backward(parts.sum(0) + dstate + more, *others)

    parts = torch.stack(random_tensors(WIDTH, WIDTH, WIDTH))
    arguments = [parts, *random_tensors(WIDTH, WIDTH, 3 * WIDTH, WIDTH), *buffers(3 * WIDTH)]
    assert_agrees(cells.mixed_backward, plain, arguments, [5])


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [((4, 6, 5), None), ((4, 6, 5), [5, 2, 4]), ((4, 6, 5), [3]), ((40, 48, 24), [18, 2, 4])],
)
def test_all_steps_with_attention(
    sizes: tuple[int, int, int], lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
):
    """The reference runs on a CPU, in float64.

    sizes: of the states, the values, and the hidden layer. With multiples of 8, the kernels load 16 bytes at
        once.
    """
    width, depth, hidden = sizes
    monkeypatch.setattr(attended_gates, "KEYS", 16)
    keys = 18 if width == 40 else 5  # in two parts, or in one
    monkeypatch.setattr(
        tile_sizes, "LAUNCHES", {name: replace(each, width=16) for name, each in tile_sizes.LAUNCHES.items()}
    )
    torch.manual_seed(0)
    cell = GatedCell(3, width, context_size=depth)
    score = regard.Additive(width, depth, hidden=hidden)
    results = []
    for dtype in (torch.float32, torch.float64):
        if lengths == [3] and dtype == torch.float64:
            lengths = [3, 3, 3]  # one length for all sequences
        mask = None if lengths is None else regard.padding(lengths)
        torch.manual_seed(2)
        shapes = (3, 7, 3), (3, width), (3, keys, depth)
        inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
        cell.to(dtype), score.to(dtype)
        memory = regard.prepare(inputs[2], score=score, mask=mask)
        states, contexts = attend_along(cell, cell.gates(inputs[0]), inputs[1], memory)
        leaves = [*inputs, *cell.parameters(), *score.parameters()]
        # The gradients of sum() are expanded tensors, with strides of 0.
        plain = len(set(lengths or [1, 2])) == 1
        loss = states.sum() if plain else states.square().sum()
        loss = loss + (contexts.sum() if plain else contexts.sin().sum())
        results.append([states, contexts, *torch.autograd.grad(loss, leaves)])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("both_ways", "width"), [(False, 300), (True, 40), (True, 300), (True, 1000)])
def test_gru_with_padding(both_ways: bool, width: int):
    """The twin of a GRU, in training. The reference is float64."""
    torch.manual_seed(0)
    layers, x = Recurrent(Recurrence(width), 5, both_ways=both_ways), torch.randn(3, 4, 5)
    results = []
    for dtype in (torch.float32, torch.float64):
        own, _ = x.to(dtype).requires_grad_(), layers.to(dtype)
        with Twins(layers):
            states, (last,) = layers.encode(own, torch.tensor([4, 1, 3]))
        assert (states.grad_fn.name() == "_DirectionsBackward") == (dtype == torch.float32)
        loss = states.sin().sum() + last.square().sum()
        results.append([states, last, *torch.autograd.grad(loss, [own, *layers.parameters()])])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize(("dtype", "columns"), [(torch.float32, 6), (torch.bfloat16, 8)])
def test_columns_are_aligned_in_half_precision_only(dtype: torch.dtype, columns: int):
    """A matrix product in half precision is slow without it; in float32, a copy would be a waste."""
    inputs = torch.randn(3, 6), torch.randn(11, 6), torch.randn(11)
    x, w, b = vocabulary_loss._in_dtype(*inputs, dtype)
    assert x.shape == (3, columns) and w.shape == (11, columns) and x.dtype == w.dtype == dtype
    assert (b is None) == (dtype == torch.bfloat16)
    assert torch.equal(x[:, :6], inputs[0].to(dtype)) and torch.equal(w[:, :6], inputs[1].to(dtype))
    assert (
        x.data_ptr() == inputs[0].data_ptr() if dtype == torch.float32 else w[:, 6].equal(inputs[2].to(dtype))
    )


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
