"""torch.func, double backward, other kinds of tensors and NumPy numbers work, or raise our own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, func

import regard

# torch imports its forward-mode derivatives through torch.jit.script, which it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script")
BACKENDS = ["auto", "sdpa", "blocked", "reference"]
SCORES = {"scaled_dot": regard.ScaledDot(), "additive": regard.Additive(4, 4).double()}
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "vmap": lambda f, q, k: func.vmap(f)(q[:, None], k[:, None]),
    "grad": lambda f, q, k: func.grad(lambda q: f(q, k).square().sum())(q),
    "vmap of grad": lambda f, q, k: func.vmap(func.grad(lambda q, k: f(q, k).square().sum()))(
        q[:, None], k[:, None]
    ),
    "jvp": lambda f, q, k: func.jvp(lambda q: f(q, k), (q,), (q + 1,))[1],
    "hessian-vector product": lambda f, q, k: func.grad(
        lambda q: (func.grad(lambda q: f(q, k).square().sum())(q) * k[:, :3]).sum()
    )(q),
}
WORKS = {
    "auto": set(TRANSFORMS),
    "sdpa": {"vmap", "grad", "vmap of grad"},
    "blocked": set(),
    "reference": set(TRANSFORMS),
}


def tensors() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(
    ("backend", "score"), [(b, s) for b in BACKENDS for s in SCORES if (b, s) != ("sdpa", "additive")]
)
def test_transforms_work_or_raise_with_a_hint(backend: str, score: str, name: str):
    query, key = tensors()

    def attend(query: Tensor, key: Tensor, backend: str = backend) -> Tensor:
        return regard.attention(
            query, key, score=SCORES[score], mask=regard.causal(), start=1, backend=backend
        ).output

    if name not in WORKS[backend]:
        with pytest.raises(regard.BackendError, match="auto"):
            TRANSFORMS[name](attend, query, key)
        return
    ours = TRANSFORMS[name](attend, query, key)
    exact = TRANSFORMS[name](lambda q, k: attend(q, k, "reference"), query, key)
    torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_double_backward_works_or_raises_with_a_hint(backend: str):
    query, key = tensors()
    query.requires_grad_()
    output = regard.attention(query, key, backend=backend).output
    (slope,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    if backend in ("auto", "sdpa"):
        with pytest.raises(regard.BackendError, match="reference"):
            slope.square().sum().backward()
    else:
        slope.square().sum().backward()
        assert query.grad is not None and query.grad.any()
    assert not query._backward_hooks


def test_forward_mode_ad_selects_reference():
    query, key = tensors()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, query + 1)
        output = regard.attention(dual, key).output
        tangent = torch.autograd.forward_ad.unpack_dual(output).tangent
    exact = func.jvp(lambda q: regard.attention(q, key, backend="reference").output, (query,), (query + 1,))
    torch.testing.assert_close(tangent, exact[1])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nested_tensors_raise(place: int, layout: torch.layout):
    given = [torch.randn(2, 3, 4) for _ in range(3)]
    given[place] = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=layout)
    with pytest.raises(regard.ArgumentError, match="to_padded_tensor"):
        regard.attention(*given)


def test_sparse_tensors_raise():
    with pytest.raises(regard.ArgumentError, match="to_dense"):
        regard.attention(torch.eye(3).to_sparse(), torch.eye(3))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_raises(dtype: torch.dtype):
    x = torch.randn(2, 3, 4)
    with pytest.raises(regard.ArgumentError, match=r"\.to\(torch\.bfloat16\)"):
        regard.attention(x.to(dtype), x.to(dtype))
    with pytest.raises(regard.ArgumentError, match="bias"):
        regard.attention(x, x, bias=torch.zeros(3, 3).to(dtype))


@pytest.mark.parametrize("integer", [numpy.int64, numpy.int32, numpy.uint8])
def test_numpy_integers_are_integers(integer: Callable[[int], Any]):
    query, key = tensors()
    found = []
    for kind in (int, integer):
        mask = regard.causal() & regard.window(kind(2), kind(1)) & regard.padding([kind(4), kind(5)])
        look = regard.Look(rows=(kind(0), kind(2)), top=kind(2))
        seen = regard.attention(query, key, mask=mask, start=kind(2), beams=kind(1), look=look)
        assert isinstance(look.top, int) and all(isinstance(row, int) for row in look.rows or ())
        found.append([seen.output, seen.rows, seen.top.keys])
    assert all(map(torch.equal, *found))
    assert regard.Look(rows=numpy.array([0, 2])).rows == (0, 2)
    layer = regard.MultiHead(integer(8), integer(2))
    assert layer(torch.randn(2, 3, 8)).output.shape == (2, 3, 8)


def test_numpy_floats_are_floats():
    query, key = tensors()
    output = regard.attention(query, key, dropout=numpy.float32(0.0), select=regard.Soft(numpy.float64(0.5)))
    assert torch.equal(output.output, regard.attention(query, key, select=regard.Soft(0.5)).output)


def test_hooks_of_an_output_are_not_shared_with_other_calls():
    """The hook of a planned call that refuses a double backward is shared; the user's hooks must not be."""
    query = torch.randn(1, 2, 4, 16, requires_grad=True)
    regard.attention(query, query, query)  # keeps a plan
    first, second = (regard.attention(query, query, query).output for _ in range(2))
    calls: list[str] = []
    first.register_hook(lambda _: calls.append("first"))
    second.sum().backward()
    assert calls == []
    first.sum().backward()
    assert calls == ["first"]
