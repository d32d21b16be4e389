"""Precision of the gradients of additive attention in bfloat16; test_interpreted.py runs this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

import regard
from regard.kernels.additive import backward, tile_sizes
from tests.kernels.cases import Unprojected
from tests.kernels.interpreted import long, small_tiles  # noqa: F401  (fixtures)


@pytest.fixture(autouse=True)
def many_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute as for 128 rows or more, with delta summed before its use; fill uninitialised memory with
    NaN."""
    monkeypatch.setattr(tile_sizes, "MANY", 2)
    monkeypatch.setattr(backward, "FEW", 1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Try(NamedTuple):
    """A test call.

    far: whether query or key has a row of large values.
    vectors: number of vectors, 1 or one per head.
    wanted: indices of the gradients to compute, of query, key, value and vector.
    chunks: whether rows are computed in chunks.
    """

    mask: regard.Mask | None = None
    heads: int = 1
    key_heads: int = 1
    far: str | None = None
    vectors: int = 1
    start: int = 0
    temperature: float = 1.0
    wanted: tuple[int, ...] = (0, 1, 2, 3)
    chunks: bool = False

    def tensors(self) -> list[torch.Tensor]:
        """Query, key, value and vector in bfloat16. With chunks, the last chunk has 4 of 20 rows."""
        query, vector = torch.randn(2, self.heads, 20, 6), torch.randn(self.vectors, 6)
        key, value = torch.randn(2, self.key_heads, 35, 6), torch.randn(2, self.key_heads, 35, 5)
        if self.far is not None:
            {"query": query, "key": key}[self.far][0, 0, 10] *= 30
        return [each.bfloat16() for each in (query, key, value, vector)]

    def gradients(
        self, tensors: list[torch.Tensor], doutput: torch.Tensor, backend: str, dtype: torch.dtype
    ) -> tuple[torch.Tensor, ...]:
        """Compute the wanted gradients with this backend in this dtype."""
        arguments = [
            each.to(dtype, copy=True).requires_grad_(at in self.wanted) for at, each in enumerate(tensors)
        ]
        options: dict[str, Any] = {"mask": self.mask, "start": self.start}
        options["select"] = regard.Soft(self.temperature)
        output = regard.attention(
            *arguments[:3], score=Unprojected(arguments[3]), **options, backend=backend
        ).output
        return torch.autograd.grad(output, [arguments[at] for at in self.wanted], doutput.to(dtype))


DOCUMENTS = regard.documents(torch.arange(35).expand(2, -1) // 9)
TRIES = {
    "far query": Try(far="query"),
    "far key": Try(far="key"),
    "causal": Try(regard.causal(), heads=2, chunks=True),
    "window, far key": Try(regard.window(4, 3), far="key", chunks=True),
    "padding, a vector a head": Try(regard.padding(torch.tensor([35, 0])), heads=2, vectors=2),
    "documents from 3": Try(DOCUMENTS, key_heads=1, far="key", start=3, temperature=0.5, chunks=True),
    "the query alone": Try(regard.causal(), heads=4, key_heads=2, wanted=(0,), chunks=True),
}


def doutputs(one: Try) -> torch.Tensor:
    """The gradient of the output for a call."""
    return torch.linspace(-1, 1, 2 * one.heads * 20 * 5).view(2, one.heads, 20, 5).bfloat16()


def assert_as_precise(one: Try, tensors: list[torch.Tensor], doutput: torch.Tensor, batch: slice) -> None:
    """The error against float64 is at most twice that of PyTorch in bfloat16 plus one rounding step, for each
    sequence of `batch`."""
    mine, plain, exact = (
        one.gradients(tensors, doutput, backend, dtype)
        for backend, dtype in (
            ("fused", torch.bfloat16),
            ("reference", torch.bfloat16),
            ("reference", torch.float64),
        )
    )
    for at, *gradients in zip(one.wanted, mine, plain, exact, strict=True):
        parts = gradients if at == 3 else [each[batch] for each in gradients]
        for ours, usual, true in zip(*parts, strict=True):
            error, allowed = ((each.double() - true).abs().max() for each in (ours, usual))
            # The weights in the weighted sum of values are rounded to bfloat16 too.
            steps = 2 if at == 2 else 1
            small = torch.finfo(torch.bfloat16).tiny
            assert error <= 2 * allowed + steps * 2.0**-8 * true.abs().max() + small, f"gradient {at}"


def slow(value: object) -> object:
    """Mark a parameter as slow: the interpreter takes seconds for each."""
    return pytest.param(value, marks=pytest.mark.slow)


QUICK = ("causal", "padding, a vector a head", "far key")


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in TRIES])
def test_as_precise_as_pytorch_in_bfloat16(name: str, request: pytest.FixtureRequest):
    one = TRIES[name]
    if one.chunks:
        request.getfixturevalue("long")
    tensors = one.tensors()
    assert_as_precise(one, tensors, doutputs(one), slice(None))


@pytest.mark.parametrize("sizes", [(1.0, 1e-10), slow((0.0, 1e-36))])
def test_tiny_gradients_are_as_precise(sizes: tuple[float, float]):
    one = Try()
    doutput = doutputs(one) * torch.tensor(sizes)[:, None, None, None]
    assert_as_precise(one, one.tensors(), doutput.bfloat16(), slice(None))


def relative(ours: torch.Tensor, exact: torch.Tensor, *kept: int) -> torch.Tensor:
    """Relative Frobenius error over all dimensions except `kept`."""
    others = [at for at in range(exact.ndim) if at not in kept]
    error, size = (each.pow(2).sum(others).sqrt() for each in (ours.double() - exact, exact))
    return error / size


def saturated(one: Try) -> list[torch.Tensor]:
    """Tensors in which q + k is about 6 in channel 0 and about -5 in channel 3, for every row and key."""
    query, key, value, vector = one.tensors()
    for channel, middle in ((0, 6.0), (3, -5.0)):
        query[..., channel] = query[..., channel] / 8 + middle - 1
        key[..., channel] = key[..., channel] / 8 + 1
    return [query, key, value, vector]


SATURATED_TRIES = {
    "causal, groups": Try(regard.causal(), heads=2, start=15),
    "padding, far key": Try(regard.padding(torch.tensor([35, 20])), far="key"),
    "window, far query": Try(regard.window(9, 7), far="query", chunks=True),
}


@pytest.mark.parametrize("name", SATURATED_TRIES)
def test_saturated_channels_are_exact_within_rounding(name: str, request: pytest.FixtureRequest):
    one = SATURATED_TRIES[name]
    if one.chunks:
        request.getfixturevalue("long")
    tensors, doutput = saturated(one), doutputs(one)
    ours = one.gradients(tensors, doutput, "fused", torch.bfloat16)
    exact = one.gradients(tensors, doutput, "reference", torch.float64)
    for at in (0, 1, 3):
        # dvector is a sum of g (1 - 2 r). There r is about 6e-6, and the sum of g is 0 up to rounding.
        bound = 2.0**-3 if at == 3 else 2.0**-6
        assert (relative(ours[at], exact[at], exact[at].ndim - 1)[[0, 3]] < bound).all(), at


def with_outlier(one: Try) -> list[torch.Tensor]:
    """Return tensors with |elements| up to about 300 in channel 1 of the keys and of query head 0.

    There, q + k is sometimes 0.
    """
    query, key, value, vector = one.tensors()
    query[:, 0, :, 1] *= 100
    key[..., 1] *= 100
    key[:, 0, :20, 1] = -query[:, 0, :, 1]
    return [query, key, value, vector]


OUTLIER_TRIES = {
    "groups": Try(regard.causal(), heads=4, key_heads=2, start=15, chunks=True),
    "padding, far key": Try(regard.padding(torch.tensor([35, 20])), far="key"),
    "window, far query": Try(regard.window(9, 7), far="query", chunks=True),
}


@pytest.mark.parametrize("name", [name if name == "groups" else slow(name) for name in OUTLIER_TRIES])
def test_outlier_channels_are_exact_within_rounding(name: str, request: pytest.FixtureRequest):
    one = OUTLIER_TRIES[name]
    if one.chunks:
        request.getfixturevalue("long")
    tensors, doutput = with_outlier(one), doutputs(one)
    ours = one.gradients(tensors, doutput, "fused", torch.bfloat16)
    exact = one.gradients(tensors, doutput, "reference", torch.float64)
    for at in (0, 1, 3):
        assert (relative(ours[at], exact[at], exact[at].ndim - 1) < 2.0**-6).all(), at


def eager(tensors: list[torch.Tensor], doutput: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients of eager PyTorch, with every operation in bfloat16."""
    query, key, value, vector = inputs = [each.clone().requires_grad_() for each in tensors]
    scores = (query[..., :, None, :] + key[..., None, :, :]).tanh() @ vector[0]
    return torch.autograd.grad(scores.softmax(-1) @ value, inputs, doutput)


def test_every_channel_is_exact_within_rounding():
    """Where q + k is near 0 in all pairs, g cancels in dq: there the error of eager PyTorch is 10 %."""
    one = Try()
    query, key, value, vector = one.tensors()
    scale = torch.tensor([0.1, 0.3, 1.0, 1.0, 1.5, 2.0]).bfloat16()
    tensors, doutput = [query * scale, key * scale, value, vector], doutputs(one)
    ours = one.gradients(tensors, doutput, "fused", torch.bfloat16)
    exact = one.gradients(tensors, doutput, "reference", torch.float64)
    plain = eager(tensors, doutput)
    for at in (0, 1, 3):
        error, usual = (relative(each[at], exact[at], exact[at].ndim - 1) for each in (ours, plain))
        assert (error < 2.0**-7 + usual / 5).all(), at
        assert (error[2:] < 2.0**-7).all(), at


@pytest.mark.parametrize(
    ("small", "chunks"), [(1e-12, False), pytest.param(1e-20, True, marks=pytest.mark.slow)]
)
def test_rows_with_small_gradients_keep_their_precision(
    small: float, chunks: bool, request: pytest.FixtureRequest
):
    if chunks:
        request.getfixturevalue("long")
    ids = torch.arange(35).expand(2, -1) // 4
    one = Try(regard.documents(ids), chunks=chunks)
    sizes = torch.where(ids[0, :20] % 2 == 0, 1.0, small)
    tensors, doutput = one.tensors(), (doutputs(one) * sizes[:, None]).bfloat16()
    ours = one.gradients(tensors, doutput, "fused", torch.bfloat16)
    exact = one.gradients(tensors, doutput, "reference", torch.float64)
    assert (relative(ours[0], exact[0], 0, 2) < 2.0**-6).all()
    assert (relative(ours[1], exact[1], 0, 2)[:, :20] < 2.0**-6).all()
    mixed = Try(chunks=chunks)
    ours = mixed.gradients(tensors, doutput, "fused", torch.bfloat16)
    exact = mixed.gradients(tensors, doutput, "reference", torch.float64)
    assert (relative(ours[0], exact[0], 0, 2) < 2.0**-6).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [slow(torch.inf), torch.nan])
def test_inf_and_nan_stay_in_their_sequence(number: float):
    one, doutput = Try(), doutputs(Try())
    doutput[0, 0, 3] = number
    mine = one.gradients(one.tensors(), doutput, "fused", torch.bfloat16)
    assert not mine[0][0, 0, 3].isfinite().any() and mine[0][0, 0, :3].isfinite().all()
    alone = Try(wanted=(0, 1, 2))
    assert_as_precise(alone, one.tensors(), doutput, slice(1, None))


@pytest.mark.parametrize("number", [torch.nan, slow(-9.0)])
def test_masked_keys_do_not_change_gradients(number: float):
    one = Try(regard.padding(torch.tensor([30, 35])))
    tensors, doutput = saturated(one), doutputs(one)
    clean = one.gradients(tensors, doutput, "fused", torch.bfloat16)
    for each in tensors[1:3]:
        each[0, :, 30:] = number
    for mine, expected in zip(one.gradients(tensors, doutput, "fused", torch.bfloat16), clean, strict=True):
        assert torch.equal(mine, expected)
