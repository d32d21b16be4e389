"""Tests of the kernels of training on a CUDA device, at full size."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from regard import kernels
from regard.data.batch import PAD, Batch
from regard.fast import transformer as fused
from regard.fast.captured.graphs import new_pool, recorded
from regard.fast.joint_linear import half_copies
from regard.fast.transformer import ResidualStream
from regard.fast.twins import Twins
from regard.layers.feedforward import FeedForward
from regard.models.transformer import Size, Transformer
from regard.training import losses

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def relative(mine: Tensor, exact: Tensor) -> float:
    mine, exact = mine.detach().double(), exact.detach().double()
    return float((mine - exact).norm() / exact.norm())


def assert_as_precise(
    results: Callable[[bool], list[Tensor]], layer: nn.Module, module: ModuleType, patch: pytest.MonkeyPatch
) -> None:
    """Compare results(True), under autocast, with float64: at most twice the error of plain PyTorch, plus one
    rounding step. Plain PyTorch computes them without the kernel that `module` chooses by by_kernel()."""
    mine = results(True)
    with patch.context() as without_kernel:
        without_kernel.setattr(module, "by_kernel", lambda _: False)
        theirs = results(True)
        layer.double()
        exact = results(False)
    for one, two, right in zip(mine, theirs, exact, strict=True):
        assert relative(one, right) <= 2 * relative(two, right) + 2**-8


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "width", "classes"), [(9000, 512, 32000), (2400, 500, 30001), (7, 64, 11)])
def test_vocabulary_loss_is_as_precise_as_logits_in_bfloat16(
    rows: int, width: int, classes: int, bias: bool, monkeypatch: pytest.MonkeyPatch
):
    """Against float64: at most twice the error of plain PyTorch under autocast, plus one rounding step."""
    torch.manual_seed(0)
    layer = nn.Linear(width, classes, bias, device=CUDA)
    features = torch.randn(1, rows, width, device=CUDA)
    labels = torch.randint(0, classes, (1, rows), device=CUDA)
    labels[:, ::5] = PAD

    def results(half: bool) -> list[Tensor]:
        own = features.to(layer.weight.dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            total, plain = losses.output_loss(own, layer, labels, 0.1)
        return [total, plain, *torch.autograd.grad(total / rows, (own, *layer.parameters()))]

    assert_as_precise(results, layer, losses, monkeypatch)


def test_vocabulary_loss_needs_less_memory_than_the_logits_and_can_be_captured():
    layer = nn.Linear(64, 32000, device=CUDA)
    features = torch.randn(1, 32768, 64, device=CUDA, requires_grad=True)
    labels = torch.randint(1, 32000, (1, 32768), device=CUDA)
    assert kernels.by_kernel(features)

    def step() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            total, _ = losses.output_loss(features, layer, labels, 0.1)
        return [total.detach(), *torch.autograd.grad(total, (features, *layer.parameters()))]

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    eager = step()
    assert torch.cuda.max_memory_allocated() - before < 32768 * 32000  # half of the logits in bfloat16
    replay, captured = recorded(step, CUDA, new_pool())
    for each in captured:
        each.zero_()
    replay()
    for one, two in zip(eager, captured, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("rows", "width"), [(5000, 512), (777, 600), (3, 1024), (40, 4096)])
def test_residual_norm_is_as_precise_as_plain_pytorch(rows: int, width: int, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    norm = nn.LayerNorm(width, device=CUDA)
    x, change, gradient = (torch.randn(rows, width, device=CUDA) for _ in range(3))

    def results(dtype: torch.dtype, half: bool) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_(), change.to(torch.bfloat16 if half else dtype).requires_grad_()]
        norm.to(dtype)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            after, normed = ResidualStream(*leaves).normalized(norm)
        loss = (normed * gradient.to(normed.dtype)).sum() + after.x.sin().sum()
        return [after.x, normed, *torch.autograd.grad(loss, (*leaves, *norm.parameters()))]

    for half in (False, True):
        mine = results(torch.float32, half)
        with monkeypatch.context() as patch:
            patch.setattr(fused, "by_kernel", lambda _: False)
            theirs, exact = results(torch.float32, half), results(torch.float64, False)
        for one, two, right in zip(mine, theirs, exact, strict=True):
            assert relative(one, right) <= 2 * relative(two, right) + (2**-8 if half else 1e-6)


@pytest.mark.parametrize(("count", "width"), [(4096, 512), (2400, 620), (9000, 64), (20000, 512)])
def test_embedding_gradient_equals_plain_pytorch(count: int, width: int):
    """Some tokens occur often, as in text, and the padding token gets no gradient."""
    torch.manual_seed(0)
    table = nn.Embedding(300, width, padding_idx=PAD, device=CUDA)
    tokens = (300 * torch.rand(4, count // 4, device=CUDA) ** 3).long()
    gradient = torch.randn(4, count // 4, width, device=CUDA)
    with Twins(table):
        x = table(tokens)
    assert x.grad_fn.name() == "EmbeddingDropoutBackward"
    first, second = (torch.autograd.grad(x, table.weight, gradient, retain_graph=True)[0] for _ in range(2))
    table.double()
    (exact,) = torch.autograd.grad(table(tokens), table.weight, gradient.double())
    assert relative(first, exact) < 1e-6 and torch.equal(first, second)


@pytest.mark.parametrize(("rows", "width", "inner"), [(4096, 512, 2048), (777, 64, 200), (600, 1024, 136)])
def test_products_of_a_feed_forward_layer_are_as_precise_as_plain_pytorch(
    rows: int, width: int, inner: int, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)
    layer = FeedForward(width, inner).to(CUDA)
    x, gradient = (torch.randn(rows, width, device=CUDA) for _ in range(2))

    def results(half: bool) -> list[Tensor]:
        own = x.to(layer.inner.weight.dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            products = (layer.inner,), (layer.outer,)
            result, bias = fused.feed_forward(layer, own, half_copies(own, products))
        result = result if bias is None else result + bias
        inputs = (own, *layer.parameters())
        return [result, *torch.autograd.grad(result, inputs, gradient.to(result.dtype))]

    assert_as_precise(results, layer, fused, monkeypatch)


def training_step(model: Transformer) -> Callable[[], list[Tensor]]:
    """Return a function that computes the loss and the gradients of a batch of different lengths."""
    torch.manual_seed(0)
    lines = [[list(range(5, 5 + size)) for size in sizes] for sizes in ((3, 30, 17, 1), (40, 2, 21, 9))]
    batch = Batch.collate(*lines).to(CUDA)

    def step() -> list[Tensor]:
        half = model.output.weight.dtype == torch.float32
        with Twins(model), torch.autocast("cuda", torch.bfloat16, enabled=half):
            total, _ = losses.model_loss(model, batch, batch.labels, 0.1)
        return [total.detach(), *torch.autograd.grad(total, list(model.parameters()))]

    return step


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_transformer_trains_as_precisely_as_in_plain_pytorch(norm: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    size = Size(width=64, heads=4, inner=200, layers=2)
    model = Transformer(300, 300, size, norm=norm, dropout=0.0, tie="all").to(CUDA).train()
    step = training_step(model)
    mine = step()
    with monkeypatch.context() as patch:
        for module in (losses, fused):
            patch.setattr(module, "by_kernel", lambda _: False)
        theirs = step()
        model.double()
        exact = step()
    whole = [torch.cat([each.double().flatten() for each in part[1:]]) for part in (mine, theirs, exact)]
    assert relative(mine[0], exact[0]) <= 2 * relative(theirs[0], exact[0]) + 2**-8
    assert relative(whole[0], whole[2]) <= 2 * relative(whole[1], whole[2]) + 2**-8


def test_dropout_of_a_captured_step_depends_on_the_seed_alone():
    size = Size(width=64, heads=4, inner=200, layers=2)
    model = Transformer(300, 300, size, dropout=0.3, tie="all").to(CUDA).train()
    step = training_step(model)  # the graph reads the batch of this function
    replay, results = recorded(step, CUDA, new_pool())
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        replay()
        found.append([each.clone() for each in results])
    replay()
    assert all(torch.equal(one, two) for one, two in zip(found[0], found[2], strict=True))
    assert found[0][0] != found[1][0] and results[0] != found[2][0]
