"""attention(): shapes, grouped heads, hidden keys, NaN, autocast, and agreement with PyTorch."""

from __future__ import annotations

import operator as operators
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import regard
from regard.backends import BACKENDS
from regard.checking import check
from tests.facts import facts, mentions
from tests.making import MASKS, make_score, parameters, randn, takers

EVERYTHING = regard.Look(weights=True, rows=(0,), top=2, alignment=True, entropy=True, mass=True)
BFLOAT = {"atol": 0.02, "rtol": 0.02}


def gradients(output: Tensor, *tensors: Tensor) -> list[Tensor | None]:
    """Return gradients of a weighted sum of the output, with a different weight for each element."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    wanted = (output * weight).sum()
    return list(torch.autograd.grad(wanted, tensors, allow_unused=True)) if wanted.requires_grad else []


def same(first: list[Tensor | None], second: list[Tensor | None]) -> bool:
    """Whether both are bitwise identical."""
    return all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_single_query(score: str, prepared: bool):
    query, key, value, scorer = randn(3), randn(5, 3), randn(5, 6), make_score(score, 3, 3)
    mask, bias = torch.tensor([True, True, False, True, True]), randn(5)
    inputs = (regard.prepare(key, value, score=scorer),) if prepared else (key, value)
    options = {} if prepared else {"score": scorer}
    look = regard.Look(weights=True, top=2, alignment=True, entropy=True, mass=True, pooled=2)
    one = regard.attention(query, *inputs, mask=mask, bias=bias, look=look, **options)
    row = regard.attention(query[None], *inputs, mask=mask[None], bias=bias[None], look=look, **options)
    for name in ("output", "weights", "lse", "alignment", "entropy", "pooled"):
        assert torch.equal(getattr(one, name), getattr(row, name)[0]), name
    assert one.output.shape == (6,) and one.weights.shape == (5,) and one.lse.shape == ()
    assert torch.equal(one.top.keys, row.top.keys[0]) and torch.equal(one.mass, row.mass)
    assert regard.explain(query, key, value, mask=mask).backend
    drawn = regard.attention(query, key, value, select=regard.Hard(torch.Generator().manual_seed(0)))
    assert drawn.chosen.shape == drawn.log_probability.shape == ()
    with pytest.raises(regard.ArgumentError):
        regard.attention(query, key[None], value[None])


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_results_have_the_dimensions_of_the_query(shape: tuple[int, ...], score: str):
    query, key, value = (randn(*shape, *size) for size in ((4, 3), (5, 3), (5, 6)))
    seen = regard.attention(query, key, value, score=make_score(score, 3, 3), look=EVERYTHING)
    shapes = {
        "output": (4, 6),
        "lse": (4,),
        "weights": (4, 5),
        "rows": (1, 5),
        "alignment": (4,),
        "entropy": (4,),
        "mass": (5,),
    }
    assert {name: getattr(seen, name).shape for name in shapes} == {
        name: (*shape, *size) for name, size in shapes.items()
    }
    assert seen.top.weights.shape == seen.top.keys.shape == (*shape, 4, 2)
    for backend in takers(query, key, value, score=make_score(score, 3, 3)):
        lifted = (
            regard.attention(query, key, value, backend=backend).output if score == "scaled_dot" else None
        )
        whole = (None,) * (2 - len(shape))
        full = regard.attention(query[whole], key[whole], value[whole], backend=backend).output
        assert lifted is None or torch.equal(lifted, full[(0,) * (2 - len(shape))])


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocked", "reference"])
@pytest.mark.parametrize("mask", [None, "table", "causal"])
def test_grouped_heads_are_repeated_heads(backend: str, mask: str | None):
    query, key, value = randn(2, 4, 3, 4), randn(2, 2, 7, 4), randn(2, 2, 7, 5)
    seen = None if mask is None else regard.causal() if mask == "causal" else torch.rand(2, 4, 3, 7) < 0.6
    grouped = regard.attention(query, key, value, mask=seen, backend=backend).output
    repeated = [each.repeat_interleave(2, dim=1) for each in (key, value)]
    plain = regard.attention(query, *repeated, mask=seen, backend=backend).output
    torch.testing.assert_close(grouped, plain)
    torch.testing.assert_close(gradients(grouped, query, key, value), gradients(plain, query, key, value))


def test_the_default_value_is_the_key():
    query, key = randn(2, 4, 3), randn(2, 5, 3)
    assert torch.equal(regard.attention(query, key).output, regard.attention(query, key, key).output)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize(("queries", "keys"), [(3, 4), (0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("bias", [None, "-inf", "t5", "relative"])
def test_queries_without_visible_keys_get_zeros(score: str, queries: int, keys: int, bias: str | None):
    query, key, value = randn(1, 2, queries, 3), randn(1, 2, keys, 3), randn(1, 2, keys, 2)
    options: dict[str, Any] = {"score": make_score(score, 3, 3)}
    mask = torch.ones(1, 2, queries, keys, dtype=torch.bool)
    mask[:, :, 1:2] = False
    if bias == "-inf":
        options["bias"] = torch.where(mask, 0.0, -torch.inf).double().requires_grad_()
    else:
        options["mask"] = mask
        schemes = {"t5": regard.T5Bias(2), "relative": regard.Relative(3, values=2), None: None}
        options["bias"] = schemes[bias] if bias is None else schemes[bias].double()
    learned = parameters(options["score"], options["bias"])
    for backend in takers(query, key, value, **options):
        seen = regard.attention(
            query, key, value, look=EVERYTHING if queries else None, backend=backend, **options
        )
        empty = ~mask.any(-1)
        assert (seen.output[empty] == 0).all() and (seen.lse[empty] == -torch.inf).all()
        assert seen.output.isfinite().all() and seen.lse[~empty].isfinite().all()
        if queries:
            assert (seen.weights[empty] == 0).all() and (seen.entropy[empty] == 0).all()
            assert (seen.alignment[empty] == -1).all() and (seen.top.keys[empty] == -1).all()
        found = gradients(seen.output, query, key, value, *learned)
        assert all(each is None or each.isfinite().all() for each in found)
        if found and found[0] is not None:
            assert (found[0][empty] == 0).all()


@pytest.mark.parametrize("score", ["scaled_dot", "general", "additive", "cosine"])
@pytest.mark.parametrize("name", MASKS)
def test_hidden_keys_have_no_effect(score: str, name: str):
    compare, mask = make_score(score, 4, 4), MASKS[name]()
    query, key, value = randn(2, 2, 3, 4), randn(2, 2, 7, 4), randn(2, 2, 7, 5)
    hidden = ~mask.dense(3, 7, batch=2, heads=2).expand(2, 2, 3, 7).any(-2)
    assert hidden.flatten(1).any(-1).all()
    for backend in takers(query, key, value, score=compare, mask=mask):
        found = []
        for content in (0.0, 3.0, torch.nan, torch.inf):
            key.data[hidden], value.data[hidden] = content, -content
            seen = regard.attention(
                query, key, value, score=compare, mask=mask, look=EVERYTHING, backend=backend
            )
            looks = [seen.output, seen.lse, seen.weights, seen.entropy, seen.mass, seen.top.keys]
            found.append(looks + gradients(seen.output, query, key, value, *parameters(compare)))
        assert all(same(found[0], other) for other in found[1:]), backend
        assert all(each is None or not each.isnan().any() for each in found[0]), backend


@pytest.mark.parametrize("select", [regard.Soft(0.5), regard.Sparse(), regard.Gate(), regard.Best()], ids=str)
def test_hidden_keys_have_no_effect_for_other_selections(select: regard.Select):
    query, key, found = randn(2, 2, 3, 4), randn(2, 2, 7, 4), []
    for content in (0.0, torch.nan):
        key.data[:, :, 5:] = content
        output = regard.attention(query, key, select=select, mask=regard.padding(torch.tensor([5, 2]))).output
        found.append([output, *gradients(output, query, key)])
    assert same(*found) and not found[0][0].isnan().any()


BIASES = {"a key": (2, 1, 1, 7), "a row": (1, 1, 3, 7), "a head": (2, 4, 3, 7), "one": (1, 4, 1, 7)}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("score", ["scaled_dot", "general", "additive"])
@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
def test_minus_inf_in_a_bias_hides_a_key_as_a_mask_does(shape: tuple[int, ...], score: str, prepared: bool):
    compare = make_score(score, 4, 4)
    query, key, value = randn(2, 4, 3, 4), randn(2, 2, 7, 4), randn(2, 2, 7, 5)
    bias, mask = torch.randn(shape, dtype=torch.float64), regard.padding(torch.tensor([6, 7]))
    bias[..., 2] = -torch.inf
    for backend in takers(query, key, value, score=compare, mask=mask, bias=bias):
        found = []
        for content in (0.0, 3.0, torch.nan, torch.inf):
            key.data[:, :, 2], value.data[:, :, 2] = content, -content
            given = (regard.prepare(key, value, score=compare),) if prepared else (key, value)
            options: dict[str, Any] = {} if prepared else {"score": compare}
            seen = regard.attention(
                query, *given, **options, mask=mask, bias=bias, look=EVERYTHING, backend=backend
            )
            looks = [seen.output, seen.lse, seen.weights, seen.entropy, seen.mass, seen.top.keys]
            found.append(looks + gradients(seen.output, query, key, value, *parameters(compare)))
        assert all(same(found[0], other) for other in found[1:]), backend
        assert all(each is None or not each.isnan().any() for each in found[0]), backend


def test_minus_inf_in_a_bias_hides_a_key_from_one_group_of_heads():
    query, key = randn(1, 4, 3, 4), randn(1, 2, 7, 4)
    bias = torch.zeros(1, 4, 1, 7, dtype=torch.float64)
    bias[:, :2, :, 5] = -torch.inf  # heads 0 and 1 read key head 0
    bias[:, 2, :, 5] = -torch.inf  # head 3 still sees the key that head 2 does not
    key.data[:, :, 5] = torch.nan
    for backend in ("sdpa", "blocked", "reference"):
        output = regard.attention(query, key, bias=bias, backend=backend).output
        assert output[:, :2].isfinite().all() and output[:, 3].isnan().all(), backend


@pytest.mark.parametrize("score", ["scaled_dot", "general", "additive", "cosine"])
@pytest.mark.parametrize("poisoned", ["key", "value"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_reference_limits_nan_to_the_rows_that_see_it(score: str, poisoned: str, poison: float):
    """Rows 2 and 4 see the poisoned key 3; only rows 0, 1 and 3 see keys 0 to 2."""
    compare = make_score(score, 4, 4)
    query, key, value = randn(2, 1, 5, 4), randn(2, 1, 5, 4), randn(2, 1, 5, 3)
    guilty = torch.tensor([False, False, True, False, True])
    mask = guilty[:, None] == torch.tensor([False, False, False, True, True])
    found = []
    for content in (0.5, poison):
        (key if poisoned == "key" else value).data[0, 0, 3] = content
        output = regard.attention(query, key, value, score=compare, mask=mask, backend="reference").output
        dquery, dkey, dvalue = gradients(output, query, key, value)
        innocent = [output[0, 0, ~guilty], dquery[0, 0, ~guilty], dkey[0, 0, :3], dvalue[0, 0, :3]]
        found.append([*innocent, output[1], dquery[1], dkey[1], dvalue[1]])
    assert same(*found)
    assert all(each.isfinite().all() for each in found[1])
    assert output[0, 0, guilty].isnan().all()


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocked", "reference"])
def test_a_visible_nan_makes_the_output_nan(backend: str):
    query, key, value = randn(2, 5, 4), randn(2, 6, 4), randn(2, 6, 3)
    for tensor in (query, key, value):
        before, tensor.data[1, 2, 1] = tensor.data[1, 2, 1].item(), torch.nan
        output = regard.attention(query, key, value, backend=backend).output
        assert output[1, 2].isnan().any() and output[0].isfinite().all()
        tensor.data[1, 2, 1] = before


@pytest.mark.parametrize("name", regard.SCORES)
@pytest.mark.parametrize("prepared", [False, True])
def test_autocast(name: str, prepared: bool):
    score = make_score(name, 4, 4, dtype=torch.float32)
    query, key = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 6, 4)
    mask = regard.padding(torch.tensor([6, 3]))
    plain = regard.attention(query, key, score=score, mask=mask).output
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = regard.prepare(key, score=score, mask=mask)
        for backend in takers(query, key, score=score, mask=mask):
            if prepared:
                seen = regard.attention(query, memory, look=EVERYTHING, backend=backend)
            else:
                seen = regard.attention(query, key, score=score, mask=mask, look=EVERYTHING, backend=backend)
            assert seen.output.dtype == torch.bfloat16
            torch.testing.assert_close(seen.output.float(), plain, atol=0.05, rtol=0.05)
    assert regard.attention(query, key).output.dtype == torch.float32


def test_a_projection_in_another_dtype_is_cast_back():
    """Under autocast some operations return float32, as norms do on CUDA."""

    class Wide(regard.Score):
        def project_query(self, query: torch.Tensor) -> torch.Tensor:
            return query.float()

        def project_key(self, key: torch.Tensor, start: int = 0) -> torch.Tensor:
            return key.float()

    query, key = (torch.randn(2, 5, 4).to(torch.bfloat16) for _ in range(2))
    plain = regard.attention(query, key, score=regard.Dot()).output
    for backend in takers(query, key, score=Wide()):
        found = regard.attention(query, key, score=Wide(), backend=backend).output
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, plain, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias"])
def test_agrees_with_scaled_dot_product_attention(dtype: torch.dtype, kind: str):
    query, key, value = (torch.randn(2, 3, 6, 8).to(dtype) for _ in range(3))
    mask, bias = torch.rand(2, 1, 6, 6) < 0.8, torch.randn(1, 3, 6, 6).to(dtype)
    mask[..., 0] = True
    ours, theirs = {
        "plain": ({}, {}),
        "causal": ({"mask": regard.causal()}, {"is_causal": True}),
        "mask": ({"mask": mask}, {"attn_mask": mask}),
        "bias": ({"bias": bias}, {"attn_mask": bias}),
    }[kind]
    expected = functional.scaled_dot_product_attention(query, key, value, **theirs)
    for backend in takers(query, key, value, **ours):
        found = regard.attention(query, key, value, backend=backend, **ours).output
        torch.testing.assert_close(found, expected, **(BFLOAT if dtype == torch.bfloat16 else {}))


@pytest.mark.parametrize("backend", ["auto", "sdpa", "blocked", "reference"])
@pytest.mark.parametrize("layout", ["turned", "every other", "expanded", "heads last"])
def test_inputs_need_not_be_contiguous(backend: str, layout: str):
    change = {
        "turned": lambda tensor: tensor.mT.contiguous().mT,
        "every other": lambda tensor: tensor.repeat_interleave(2, dim=-1)[..., ::2],
        "expanded": lambda tensor: tensor[:, :, :1].expand_as(tensor),
        "heads last": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    }[layout]
    tensors = [change(randn(2, 3, length, 4)) for length in (5, 6, 6)]
    assert not any(tensor.is_contiguous() for tensor in tensors)
    copies = [tensor.contiguous() for tensor in tensors]
    found, plain = (regard.attention(*each, backend=backend).output for each in (tensors, copies))
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(gradients(found, *tensors), gradients(plain, *copies))


@pytest.mark.parametrize("backend", ["blocked", "reference"])
def test_dropout_drops_weights_and_keeps_their_mean(backend: str):
    query, value = torch.zeros(1, 2000, 2), torch.eye(4)[None]
    key = torch.zeros(1, 4, 2)
    output = regard.attention(query, key, value, dropout=0.25, backend=backend).output
    assert output.unique().tolist() == [0.0, pytest.approx(1 / 3)]
    torch.testing.assert_close(output.mean((0, 1)), torch.full((4,), 0.25), atol=0.02, rtol=0)


def test_read_computes_the_weighted_sum():
    for shape in ((), (2,), (2, 3)):
        weights, value = torch.rand(*shape, 4, 5).double().requires_grad_(), randn(*shape, 5, 6)
        seen = regard.read(weights, value, look=regard.Look(weights=True, mass=True, alignment=True))
        torch.testing.assert_close(seen.output, weights @ value)
        assert seen.lse is None and torch.equal(seen.weights, weights.detach())
        assert torch.equal(seen.alignment, weights.argmax(-1))
        torch.testing.assert_close(
            gradients(seen.output, weights, value), gradients(weights @ value, weights, value)
        )


def test_explain_names_the_backend_that_runs():
    x = torch.randn(2, 5, 4)
    found = regard.explain(x, x, mask=regard.causal(), look=regard.Look(entropy=True))
    assert (found.backend, found.looking) == ("sdpa-cpu", "blocked")
    assert regard.explain(x, x).looking is None
    assert set(found.refused) <= set(BACKENDS) and "sdpa-cpu" not in found.refused
    text = str(found)
    assert mentions(text.split("\n")[0], "sdpa-cpu") and mentions(text.split("\n")[-1], "blocked")
    for name in BACKENDS:
        assert sum(line[3:].startswith(f"{name} ") for line in text.split("\n")) == 1
    assert regard.explain(x, x, score=regard.Additive(4, 4)).backend == "blocked"
    assert regard.explain(x, x, select=regard.Best()).backend == "reference"
    assert regard.explain(x, regard.prepare(x), backend="reference", site="here").backend == "reference"
    with pytest.raises(regard.BackendError):
        regard.explain(x, x, select=regard.Best(), backend="blocked")
    long = torch.zeros(1, 1100, 4)
    assert regard.explain(long, long, look=regard.Look(entropy=True)).looking == "blocked"


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("value", [numpy.ones((3, 3), dtype=bool), [[True] * 3] * 3])
def test_an_array_as_mask_or_bias_is_not_printed(name: str, value: Any):
    x = torch.ones(2, 3, 4)
    with pytest.raises(regard.ArgumentError, match="as_tensor") as error:
        regard.attention(x, x, **{name: value})
    assert type(value).__name__ in str(error.value) and "rue" not in str(error.value)


def test_torch_functions_refuse_an_attended():
    with pytest.raises(TypeError, match="output"):
        torch.sum(regard.attention(torch.eye(2), torch.eye(2)))


def test_a_bias_with_three_dimensions_is_ambiguous():
    x = torch.zeros(2, 4, 6, 8)
    with pytest.raises(regard.ArgumentError, match=facts("ambiguous", "bias[None]")):
        regard.attention(x, x, bias=torch.zeros(4, 6, 6))


def test_the_tensors_of_a_detached_call_have_no_gradient():
    tensors = [torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3)]
    bias = torch.randn(3, 3, requires_grad=True)
    call = check(*tensors, score=regard.Dot(), select=regard.Soft(), bias=bias)
    own = call.detached()
    assert call.trains and not own.trains
    assert not any(each.requires_grad for each in (own.query, own.key, own.value, own.bias))


@pytest.mark.parametrize("operator", ["add", "sub", "mul", "truediv", "matmul"])
def test_arithmetic_with_the_result_names_its_field(operator: str):
    x = torch.randn(3, 3)
    attended = regard.attention(x, x)
    for one, other in ((attended, x), (x, attended)):
        with pytest.raises(TypeError, match="output"):
            getattr(operators, operator)(one, other)
    pair = (1, 2)
    assert operators.add(attended, pair)[-2:] == operators.add(pair, attended)[:2] == pair
