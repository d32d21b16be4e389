"""Tests of the kernels of training under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import Batch
from regard.kernels.seeds import next_seed
from regard.kernels.training import activated_product, embedding_dropout, residual_norm
from regard.kernels.training.activation_dropout import ActivationDropout
from regard.kernels.training.embedding_dropout import EmbeddingDropout
from regard.kernels.training.partial_sums import sum_over_rows
from regard.kernels.training.residual_norm import ResidualNorm
from regard.layers import feedforward, residual_stream
from regard.layers.attention_options import AttentionOptions
from regard.layers.feedforward import FeedForward
from regard.layers.residual_stream import ResidualStream
from regard.layers.token_embedding import embed_tokens
from regard.masks.constructors import causal
from regard.models.transformer import LayerSettings, Size, Transformer, TransformerLayer
from regard.positions import Learned, Sinusoidal
from regard.training.losses import model_loss

WIDE, HALF = (3, 5, 300), torch.bfloat16


def kept_by_dropout(shape: tuple[int, ...], dropout: float) -> Tensor:
    """Draw dropout as the kernels do with the next seed, and restore the random number generator."""
    state = torch.get_rng_state()
    ones = torch.ones(shape)
    total, _ = ResidualNorm.apply(
        0 * ones, ones, None, torch.ones(shape[-1]), torch.zeros(shape[-1]), 1e-5, dropout, torch.float32
    )
    torch.set_rng_state(state)
    return total.detach()


@pytest.mark.parametrize(("dropout", "changes"), [(0.0, True), (0.3, True), (0.0, False)])
def test_residual_norm(dropout: float, changes: bool, monkeypatch: pytest.MonkeyPatch):
    """Both results and all gradients agree with float64; several rows for each program."""
    monkeypatch.setattr(residual_norm, "WARPS", 2)
    torch.manual_seed(0)
    norm = nn.LayerNorm(WIDE[-1])
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x, change, gradient = 3 * torch.randn(WIDE) + 1, torch.randn(WIDE), torch.randn(WIDE)
    bias, factors = torch.randn(WIDE[-1]), kept_by_dropout(WIDE, dropout)
    results = []
    for dtype in (torch.float32, torch.float64):
        norm.to(dtype)
        leaves = [each.to(dtype).requires_grad_() for each in (x, change, bias)]
        if dtype == torch.float32:
            stream = ResidualStream(leaves[0], *(leaves[1:] if changes else (None, None)), dropout)
            after, normed = stream.normalized(norm)
            assert normed.grad_fn.name() == "ResidualNormBackward"
            total = after.total()
        else:
            total = leaves[0] + (leaves[1] + leaves[2]) * factors if changes else leaves[0]
            normed = norm(total)
        loss = (normed * gradient).sum() + total.sin().sum()
        wanted = [*leaves[: 3 if changes else 1], *norm.parameters()]
        results.append([total, normed, *torch.autograd.grad(loss, wanted)])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-5, atol=2e-5)


def test_residual_norm_in_half_precision_rounds_only_its_results():
    """Under autocast x stays float32; normed and the gradient of change are bfloat16."""
    torch.manual_seed(0)
    x, change = torch.randn(4, 9).requires_grad_(), torch.randn(4, 9).to(HALF).requires_grad_()
    norm = nn.LayerNorm(9)
    with torch.autocast("cpu", HALF):
        after, normed = ResidualStream(x, change).normalized(norm)
        _, wide = ResidualStream(x, change).normalized(norm, wide=True)
    assert (after.x.dtype, normed.dtype, wide.dtype) == (torch.float32, HALF, torch.float32)
    assert torch.equal(normed, wide.to(HALF))
    torch.testing.assert_close(wide, norm(x + change))
    ours = torch.autograd.grad(normed.float().sin().sum(), (x, change))
    plain = torch.autograd.grad(norm(x + change).to(HALF).float().sin().sum(), (x, change))
    assert ours[1].dtype == HALF
    torch.testing.assert_close(ours, plain, rtol=1e-2, atol=1e-2)


def test_dropout_keeps_the_right_share_and_is_new_at_each_call():
    torch.manual_seed(0)
    shape = (400, 300)
    draws = []
    for _ in range(2):
        draws.append(kept_by_dropout(shape, 0.3) > 0)
        torch.randint(9, (1,))  # the next draw has another seed
    deviation = math.sqrt(0.3 * 0.7 / draws[0].numel())
    for drawn in (*draws, draws[0] == draws[1]):
        share = 0.58 if drawn is not draws[0] and drawn is not draws[1] else 0.7
        assert abs(drawn.float().mean() - share) < 5 * deviation
    for other in (draws[0].roll(1, 0), draws[0].roll(1, 1), draws[0].roll(7, 1)):
        assert abs((draws[0] == other).float().mean() - 0.58) < 5 * deviation
    rows = draws[0].float().mean(1)
    assert rows.std() < 1.3 * math.sqrt(0.3 * 0.7 / shape[1])


@pytest.mark.parametrize("kind", ["relu", "gelu"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("biased", [True, False])
def test_activation_and_dropout(kind: str, dropout: float, biased: bool):
    torch.manual_seed(0)
    x, gradient = torch.randn(3, 5, 700).requires_grad_(), torch.randn(3, 5, 700)
    bias = torch.randn(700).requires_grad_()
    result = ActivationDropout.apply(x, bias if biased else None, kind, dropout)
    exact = [each.detach().double().requires_grad_() for each in (x, bias)]
    plain = getattr(functional, kind)(exact[0] + exact[1] if biased else exact[0])
    kept = (result != 0) | (plain == 0)
    expected = torch.where(kept, plain / (1 - dropout), 0.0)
    assert abs(kept[plain.detach() != 0].float().mean() - (1 - dropout)) < 0.03
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad(result, (x, bias)[: 1 + biased], gradient)
    theirs = torch.autograd.grad(expected, exact[: 1 + biased], gradient.double())
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("rows", "width", "columns"), [(40, 24, 48), (5, 40, 16), (64, 16, 96)])
def test_activated_product(
    rows: int, width: int, columns: int, dropout: float, monkeypatch: pytest.MonkeyPatch
):
    """With tiles that exceed the matrices, and with the same dropout as other kernels."""
    for name, size in {"ROWS": 32, "COLUMNS": 32, "DEPTH": 16, "GROUP": 2}.items():
        monkeypatch.setattr(activated_product, name, size)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, width), torch.randn(columns, width), torch.randn(columns)
    outer, gradient = torch.randn(12, columns), torch.randn(rows, 12)
    factors = kept_by_dropout((rows, columns), dropout) if dropout else torch.ones(rows, columns)
    seed = next_seed(x.device) if dropout else None
    hidden = activated_product.activated_product(x, weight, bias, seed, dropout)
    before = (x.double() @ weight.T.double() + bias).requires_grad_()
    expected = before.relu() * factors
    torch.testing.assert_close(hidden.double(), expected, rtol=1e-5, atol=1e-5)
    mine = activated_product.activated_product_gradient(gradient, outer, hidden, dropout)
    (right,) = torch.autograd.grad(expected @ outer.T.double(), before, gradient.double())
    torch.testing.assert_close(mine[0].double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine[1].double(), right.sum(0), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(1, 3), (300, 40), (2, 700, 17), (3, 0, 5), (2, 4, 0)])
def test_sum_over_rows(shape: tuple[int, ...]):
    parts = torch.randn(shape)
    torch.testing.assert_close(sum_over_rows(parts), parts.sum(-2), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_transformer_layer_by_kernels_equals_plain_pytorch(norm: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    settings = LayerSettings(Size(8, 2, 16, 1), None, norm == "pre", "relu", 0.0, 0.0, AttentionOptions())
    layer, x = TransformerLayer(settings, "decoder.0", causal=True), torch.randn(2, 5, 8, requires_grad=True)
    results = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            for module in (residual_stream, feedforward):
                patch.setattr(module, "by_kernel", lambda _, kernels=kernels: kernels)
            output, _ = layer(x, causal())
        results.append([output, *torch.autograd.grad(output.square().sum(), (x, *layer.parameters()))])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_kernels_run_only_in_training():
    layer, x = FeedForward(4, 8, dropout=0.5).eval(), torch.randn(2, 4)
    norm = nn.LayerNorm(4).eval()
    with mock.patch.object(ActivationDropout, "apply", side_effect=AssertionError):
        assert torch.equal(layer(x), layer(x))
    with mock.patch.object(ResidualNorm, "apply", side_effect=AssertionError):
        assert torch.equal(ResidualStream(x, x).normalized(norm)[1], norm(2 * x))


def test_the_loss_of_a_transformer_by_kernels_agrees_with_float64():
    torch.manual_seed(0)
    model = Transformer(12, 12, Size(8, 2, 16, 1), tie="all", dropout=0.0).train()
    batch = Batch.collate([[4, 5, 6], [7]], [[8, 9], [10, 4, 11]])
    results = []
    for dtype in (torch.float32, torch.float64):
        total, plain = model_loss(model.to(dtype), batch, batch.labels, 0.1)
        assert (total.grad_fn.name() == "VocabularyLossBackward") == (dtype == torch.float32)
        results.append([total, plain, *torch.autograd.grad(total, list(model.parameters()))])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-4, atol=1e-5)


def test_dropout_of_a_model_depends_on_the_seed_alone():
    torch.manual_seed(0)
    model = Transformer(12, 12, Size(8, 2, 16, 1), tie="all", dropout=0.3).train()
    batch = Batch.collate([[4, 5, 6], [7]], [[8, 9], [10, 4, 11]])
    totals = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        totals.append(model_loss(model, batch, batch.labels)[0].item())
    assert totals[0] == totals[2] != totals[1]


@pytest.mark.parametrize("position", [None, Sinusoidal(600)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("few", [True, False])
def test_embeddings_and_dropout(
    position: Sinusoidal | None, dropout: float, few: bool, monkeypatch: pytest.MonkeyPatch
):
    """few: whether a kernel sorts the tokens. One token fills more than one tile of rows."""
    monkeypatch.setattr(embedding_dropout, "FEW", 200 if few else 0)
    torch.manual_seed(0)
    table = nn.Embedding(9, 600, padding_idx=0)
    rows = [[3, 4, 3, 5, 5, 1, 3, 7, 6, 4] + 40 * [7], [8, 0, 0, 2, 3, 3, 8, 5, 1, 0] + 40 * [7]]
    tokens, gradient = torch.tensor(rows), torch.randn(2, 50, 600)
    x = embed_tokens(table, tokens, 2.0, position, 5, nn.Dropout(dropout))
    assert x.grad_fn.name() == "EmbeddingDropoutBackward"
    plain = table(tokens) * 2.0
    plain = plain if position is None else position(plain, 5)
    kept = (x != 0) | (plain == 0)
    expected = torch.where(kept, plain / (1 - dropout), 0.0)
    assert abs(kept[tokens > 0].float().mean() - (1 - dropout)) < 0.04
    torch.testing.assert_close(x, expected)
    (theirs,) = torch.autograd.grad(expected, table.weight, gradient)
    gradient[tokens == 0] = torch.nan  # padding
    (ours,) = torch.autograd.grad(x, table.weight, gradient)
    torch.testing.assert_close(ours, theirs)
    assert ours[3].any() and not ours[0].any()
    tokens[0, 0] = 9
    invalid = embed_tokens(table, tokens, 2.0, position, 5, nn.Dropout(0.0))
    assert invalid[0, 0].isnan().all() and not invalid[1].isnan().any()


def test_learned_positions_and_hooked_tables_run_in_plain_pytorch():
    table, tokens, dropout = nn.Embedding(9, 4), torch.tensor([[1, 2]]), nn.Dropout(0.0)
    with mock.patch.object(EmbeddingDropout, "apply") as kernel:
        embed_tokens(table, tokens, 1.0, Learned(4, 8), 0, dropout)
        table.register_forward_hook(lambda *_: None)
        embed_tokens(table, tokens, 1.0, None, 0, dropout)
    assert not kernel.called
