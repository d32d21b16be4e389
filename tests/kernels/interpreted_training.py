"""Tests of the kernels of training under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from regard import record
from regard.data.batch import Batch, LabelledBatch, TextBatch
from regard.fast.embedding import embed_tokens
from regard.fast.transformer import ResidualStream
from regard.fast.twins import Twins
from regard.kernels.training import embedding, residual_norm
from regard.kernels.training.dropout import ActivationDropout
from regard.kernels.training.embedding import EmbeddingDropout
from regard.kernels.training.partial_sums import sum_over_rows
from regard.kernels.training.residual_norm import ResidualNorm
from regard.kernels.training.row_copy import copy_rows
from regard.layers.feedforward import FeedForward
from regard.models.transformer import Size, Transformer
from regard.models.transformer_classifier import TransformerClassifier
from regard.models.transformer_language import TransformerLanguageModel
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


@pytest.mark.parametrize("shape", [(2, 513, 17), (3, 1, 8), (1, 1100, 3), (2, 0, 5), (0, 4, 4)])
def test_sum_over_rows(shape: tuple[int, ...]):
    parts = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sum_over_rows(parts), parts.sum(1), rtol=1e-5, atol=1e-4)


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


SMALL = Size(8, 2, 16, 2)
PAIRS = Batch.collate([[4, 5, 6], [7]], [[8, 9], [10, 4, 11]])
TEXTS = TextBatch.collate([[4, 5, 6, 8], [7]])
LABELLED = LabelledBatch.collate([[4, 5, 6], [7]])
MODELS: dict[str, tuple[Callable[..., nn.Module], Any]] = {
    "transformer": (partial(Transformer, 12, 12, SMALL, tie="all"), PAIRS),
    "post": (partial(Transformer, 12, 12, SMALL, norm="post", position="rotary"), PAIRS),
    "no feed-forward": (partial(Transformer, 12, 12, SMALL, without="feed-forward"), PAIRS),
    "additive": (partial(Transformer, 12, 12, SMALL, score="additive", position="learned"), PAIRS),
    "language": (partial(TransformerLanguageModel, 12, SMALL, position="alibi"), TEXTS),
    "swiglu": (partial(TransformerLanguageModel, 12, SMALL, activation="swiglu"), TEXTS),
    "classifier": (partial(TransformerClassifier, 12, 3, SMALL), LABELLED),
    "first": (partial(TransformerClassifier, 12, 3, SMALL, pooling="first", norm="post"), LABELLED),
}


def gradients_of(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return the output of a model, and the gradients of a loss of it."""
    output = model(batch)
    wanted = [each for each in model.parameters() if each.requires_grad]
    found = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
    return [output, *(torch.zeros(()) if each is None else each for each in found)]


@pytest.mark.parametrize("name", MODELS)
def test_twins_of_transformers_have_the_results_and_gradients_of_plain_models(name: str):
    torch.manual_seed(0)
    build, batch = MODELS[name]
    model = build(dropout=0.0).train()
    plain = gradients_of(model, batch)
    kernels = mock.patch.object(ResidualNorm, "apply", wraps=ResidualNorm.apply)
    with Twins(model) as twins, kernels as called, record() as seen:
        fused = gradients_of(model, batch)
    assert called.call_count >= 4 and not {"encoder", "decoder"} & set(twins.reasons)
    assert type(model) is build.func and next(iter(seen.values()))[0].weights is not None
    for mine, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["hooked", "float64", "eval", "no_grad", "torch.func", "subclass", "other"])
def test_twins_of_transformers_fall_back(where: str):
    """The results are those of the plain model, and hooks are called."""
    torch.manual_seed(0)
    model, calls = TransformerLanguageModel(12, SMALL, dropout=0.0).train(), []

    def run() -> Tensor:
        if where != "torch.func":
            with torch.set_grad_enabled(where != "no_grad"):
                return model(TEXTS)
        weights = dict(model.named_parameters())
        loss = torch.func.grad(lambda named: functional_call(model, named, (TEXTS,)).square().sum())
        return loss(weights)["decoded.weight"]

    if where == "subclass":
        model.decoder[0].feedforward.__class__ = type("Own", (FeedForward,), {})
    expected = run()
    with Twins(model), mock.patch.object(ResidualNorm, "apply", side_effect=AssertionError):
        if where == "hooked":
            model.decoder[1].register_forward_hook(lambda *_: calls.append(1))
        elif where == "float64":
            model.double()
            expected = expected.double()
        elif where == "eval":
            model.eval()
        elif where == "other":
            model.decoder[0].dropout = nn.Identity()
        torch.testing.assert_close(run(), expected, rtol=1e-5, atol=1e-5)
    assert calls == ([1] if where == "hooked" else [])


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
        with Twins(model.to(dtype)):
            total, plain = model_loss(model, batch, batch.labels, 0.1)
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
        with Twins(model):
            totals.append(model_loss(model, batch, batch.labels)[0].item())
    assert totals[0] == totals[2] != totals[1]


@pytest.mark.parametrize("position", [None, Sinusoidal(600)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("few", [True, False])
def test_embeddings_and_dropout(
    position: Sinusoidal | None, dropout: float, few: bool, monkeypatch: pytest.MonkeyPatch
):
    """few: whether a kernel sorts the tokens. One token fills more than one tile of rows."""
    monkeypatch.setattr(embedding, "FEW", 200 if few else 0)
    torch.manual_seed(0)
    table = nn.Embedding(9, 600, padding_idx=0)
    rows = [[3, 4, 3, 5, 5, 1, 3, 7, 6, 4] + 40 * [7], [8, 0, 0, 2, 3, 3, 8, 5, 1, 0] + 40 * [7]]
    tokens, gradient = torch.tensor(rows), torch.randn(2, 50, 600)
    x = embed_tokens(table, tokens, 2.0, position, 5, nn.Dropout(dropout))
    assert x is not None and x.grad_fn.name() == "EmbeddingDropoutBackward"
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
    assert invalid is not None and invalid[0, 0].isnan().all() and not invalid[1].isnan().any()


def test_learned_positions_and_hooked_tables_run_in_plain_pytorch():
    table, tokens, dropout = nn.Embedding(9, 4), torch.tensor([[1, 2]]), nn.Dropout(0.0)
    with mock.patch.object(EmbeddingDropout, "apply") as kernel:
        assert embed_tokens(table, tokens, 1.0, Learned(4, 8), 0, dropout) is None
        table.register_forward_hook(lambda *_: None)
        assert embed_tokens(table, tokens, 1.0, None, 0, dropout) is None
    assert not kernel.called


def test_the_twin_of_an_embedding_table():
    table, tokens = nn.Embedding(9, 4), torch.tensor([[1, 2], [2, 8]])
    plain = table(tokens)
    with Twins(table):
        x = table(tokens)
        assert x.grad_fn.name() == "EmbeddingDropoutBackward" and torch.equal(x, plain)
        assert table.eval()(tokens).grad_fn.name() == "EmbeddingBackward0"


@pytest.mark.parametrize("factor", [None, torch.tensor(3.0)])
def test_copy_rows(factor: Tensor | None):
    """A transposed source, and a target with other columns."""
    source, whole = torch.randn(3, 5, 620).transpose(0, 1), torch.full((15, 700), 7.0).to(HALF)
    copy_rows(source, whole[:, 8:640], factor)
    expected = (source.reshape(15, 620) * (1 if factor is None else factor)).to(HALF)
    assert torch.equal(whole[:, 8:628], expected)
    assert not whole[:, 628:640].any() and (whole[:, 640:] == 7).all() and (whole[:, :8] == 7).all()
