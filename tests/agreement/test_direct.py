"""attend_directly(): a frequent call gives the results, gradients and errors of a call that is checked."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch.nn.utils import prune

import regard
from regard.backends import BACKENDS
from regard.call import Call, Forward

MASKS: dict[str, Callable[[int, int], Any]] = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: regard.causal(),
    "padding": lambda queries, keys: regard.padding([keys - 2, 1]),
    "padding, a length of 0": lambda queries, keys: regard.padding([0, keys - 1]),
    "padding of one length": lambda queries, keys: regard.padding([keys - 1]),
    "padding that hides nothing": lambda queries, keys: regard.padding([keys, keys]),
    "causal and padding": lambda queries, keys: regard.causal() & regard.padding([keys, 2]),
    "table": lambda queries, keys: _table(queries, keys),
    "table for all": lambda queries, keys: _table(queries, keys)[1, 0],
    "table as a Mask": lambda queries, keys: regard.dense(_table(queries, keys)),
    "table of keys": lambda queries, keys: _table(queries, keys)[:, :1, :1],
}
SIZES = {"few keys": (5, 7), "square": (5, 5), "a vector of keys": (3, 20), "one query": (1, 17)}


def _table(queries: int, keys: int) -> Tensor:
    """A mask with a row that sees nothing, and a key that nobody sees in some heads only."""
    table = torch.rand(2, 4, queries, keys, generator=torch.Generator().manual_seed(1)) < 0.7
    table[0, :, 0], table[1, :2, :, 1], table[..., 2] = False, False, False
    return table


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of attend_directly(): whether it has computed the result."""
    taken: list[bool] = []
    module: Any = importlib.import_module("regard.attention")
    attend = module.attend_directly

    def counted(*arguments: Any) -> Any:
        attended = attend(*arguments)
        taken.append(attended is not None)
        return attended

    monkeypatch.setattr(module, "attend_directly", counted)
    return taken


def tensors(queries: int, keys: int, dtype: torch.dtype = torch.float64, key_heads: int = 4) -> list[Tensor]:
    shapes = [(2, 4, queries, 8), (2, key_heads, keys, 8), (2, key_heads, keys, 8)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def results(*inputs: Any, leaves: list[Tensor], **options: Any) -> list[Tensor]:
    seen = regard.attention(*inputs, **options)
    weight = torch.linspace(-1, 1, seen.output.numel(), dtype=seen.output.dtype).view_as(seen.output)
    loss = (seen.output * weight).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [seen.output, seen.lse, *(torch.zeros(()) if each is None else each for each in gradients)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MASKS)
def test_a_direct_call_is_the_checked_call(name: str, size: str, direct: list[bool]):
    queries, keys = SIZES[size]
    mask = MASKS[name](queries, keys)
    hides = name not in ("none", "causal", "padding that hides nothing")
    for key_heads, prepared, poisoned in ((4, False, False), (2, False, True), (4, True, True)):
        if prepared and isinstance(mask, Tensor) and mask.dim() == 2:
            continue
        query, key, value = leaves = tensors(queries, keys, key_heads=key_heads)
        if hides and poisoned:  # NaN behind the mask
            dense = mask if isinstance(mask, Tensor) else mask.dense(queries, keys, batch=2, heads=4)
            seen = dense.expand(2, 4, queries, keys).any(-2).view(2, key_heads, -1, keys).any(2)
            key.data[~seen], value.data[~seen] = torch.nan, torch.inf
        inputs: tuple[Any, ...] = (query, key, value)
        options = {"mask": mask}
        if prepared:
            inputs, options = (query, regard.prepare(key, value, mask=mask)), {}
        direct.clear()
        ours = results(*inputs, leaves=leaves, **options)
        possible = "table" not in name and ("causal" not in name or queries >= keys)
        assert direct == [possible and (prepared or not (hides and poisoned))]
        checked = results(*inputs, leaves=leaves, **options, backend="sdpa-cpu")
        exact = results(*inputs, leaves=leaves, **options, backend="reference")
        looked = regard.attention(*inputs, **options, look=regard.Look(entropy=True))
        for a, b, c in zip(ours, checked, exact, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c)
        assert torch.equal(looked.output, ours[0]) and torch.equal(looked.lse, ours[1])
        with torch.no_grad():
            blind = regard.attention(*inputs, **options)
        assert torch.equal(blind.output, ours[0]) and torch.equal(blind.lse, ours[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "layout", ["contiguous", "heads last", "every other", "without heads", "without batch"]
)
def test_layouts_and_dtypes(dtype: torch.dtype, layout: str, direct: list[bool]):
    change: Callable[[Tensor], Tensor] = {
        "contiguous": lambda x: x,
        "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "every other": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        "without heads": lambda x: x[:, 0],
        "without batch": lambda x: x[0, 0],
    }[layout]
    for mask in (None, regard.padding([3] if layout == "without batch" else [6, 3])):
        inputs = [change(each.detach()) for each in tensors(4, 6, dtype)]
        first, second = (regard.attention(*inputs, mask=mask, backend=each) for each in ("sdpa-cpu", "auto"))
        exact = regard.attention(*inputs, mask=mask, backend="reference")
        assert torch.equal(first.output, second.output) and torch.equal(first.lse, second.lse)
        assert second.output.shape == exact.output.shape and second.lse.shape == exact.lse.shape
        torch.testing.assert_close(second.output, exact.output, atol=0.02, rtol=0.02)
    assert direct == [layout != "every other"] * 2


def test_masks_are_read_anew_in_each_call():
    query, key, value = (each.detach() for each in tensors(4, 6))
    lengths, table = torch.tensor([6, 3]), torch.ones(4, 6, dtype=torch.bool)
    padding = regard.padding(lengths)
    for mask in (padding, table):
        for change in range(3):
            lengths[0], table[:, change] = change + 1, False
            found = regard.attention(query, key, value, mask=mask).output
            exact = regard.attention(query, key, value, mask=mask, backend="reference").output
            torch.testing.assert_close(found, exact)
    lengths[1] = 7
    with pytest.raises(regard.ArgumentError, match="S = 6"):
        regard.attention(query, key, value, mask=regard.padding(lengths))


def test_the_position_of_the_query_counts_with_a_causal_mask_only(direct: list[bool]):
    query, key, value = (each.detach() for each in tensors(6, 6))
    for mask in (None, regard.padding([6, 3]), regard.causal()):
        direct.clear()
        for start in (0, 1, 2, 5):
            found = regard.attention(query, key, value, mask=mask, start=start).output
            exact = regard.attention(query, key, value, mask=mask, start=start, backend="reference").output
            torch.testing.assert_close(found, exact)
        causal = isinstance(mask, regard.Mask) and mask.causal
        assert direct == [True, not causal, not causal, True]
        with pytest.raises(regard.ArgumentError, match="-1"):
            regard.attention(query, key, value, mask=mask, start=-1)


def test_errors_are_those_of_a_checked_call():
    query, key, value = (each.detach() for each in tensors(4, 6))
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((query, key, value), {"mask": regard.padding([7, 1])}),
        ((query, key, value), {"mask": regard.padding([1, 1, 1])}),
        ((query, key, value), {"mask": torch.ones(4, 6)}),
        ((query, key, value), {"mask": torch.ones(4, 5, dtype=torch.bool)}),
        ((query, key, value), {"mask": torch.ones(2, 4, 6, dtype=torch.bool)}),
        ((query, key, value), {"start": -1}),
        ((query, key, value), {"dropout": 2.0}),
        ((query, key, value), {"backend": "spda"}),
        ((query, key, value.float()), {}),
        ((query[..., :3], key, value), {}),
        ((query, key, value[:, :, :5]), {}),
        ((query, regard.prepare(key), value), {}),
    ]
    for inputs, options in wrong:
        messages = []
        for _ in range(2):
            with pytest.raises(regard.RegardError) as caught:
                regard.attention(*inputs, **options)
            messages.append(str(caught.value))
            regard.attention(query, key, value, mask=regard.padding([6, 3]))
            regard.attention(query, key, value)
        assert messages[0] == messages[1]


@pytest.mark.parametrize("start", ["checked", "repeated", "memory", "additive step"])
@pytest.mark.parametrize("length", [-1, 8])
def test_lengths_changed_in_place_are_checked_in_each_call(start: str, length: int):
    query, key, value = (each.detach().float() for each in tensors(5, 7))
    lengths = torch.tensor([3, 7])
    mask = regard.padding(lengths)
    score = regard.build_score("additive" if start == "additive step" else "scaled_dot", 8, 8)

    def call() -> Tensor:
        if start in ("checked", "repeated"):
            return regard.attention(query, key, value, mask=mask).output
        return regard.attention(query, memory).output

    with torch.no_grad():
        memory = regard.prepare(key, value, score=score, mask=mask)
        for _ in range(0 if start == "checked" else 3):
            call()
        lengths[1] = length
        with pytest.raises(regard.ArgumentError, match=rf"lengths\[1\] = {length}"):
            call()
        lengths[1] = 7
        call()


def test_a_patched_score_is_called_in_each_step(monkeypatch: pytest.MonkeyPatch):
    score = regard.build_score("additive", 8, 8)
    query, key = torch.randn(2, 1, 8), torch.randn(2, 5, 8)
    with torch.no_grad():
        memory, project = regard.prepare(key, score=score), score.project_query
        for _ in range(3):
            before = regard.attention(query, memory).output
        monkeypatch.setattr(score, "project_query", lambda query: 3 * project(query))
        for _ in range(3):
            expected = regard.attention(query, key, score=score, backend="reference").output
            torch.testing.assert_close(regard.attention(query, memory).output, expected)
            assert not torch.allclose(before, expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_scopes_transforms_and_double_backward():
    query, key, value = tensors(4, 6)
    plain = [regard.attention(query, key, value).output for _ in range(2)][1]
    with regard.record() as seen:
        assert torch.equal(regard.attention(query, key, value, site="here").output, plain)
    assert seen["here"][0].weights.shape == (2, 4, 4, 6)
    mapped = func.vmap(lambda q: regard.attention(q, key[0], value[0]).output)(query.detach())
    torch.testing.assert_close(mapped[0], plain[0].detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert regard.attention(query.float(), key.float(), value.float()).output.dtype == torch.bfloat16
    for _ in range(2):
        output = regard.attention(query, key, value).output
        (slope,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
        with pytest.raises(regard.BackendError, match="reference"):
            slope.square().sum().backward()
    mask = regard.padding([6, 3])
    with torch.inference_mode():  # no tensor of these calls may reach the graph of the next one
        inside = [regard.attention(query, key, value, mask=mask).output for _ in range(2)][1]
    assert torch.equal(results(query, key, value, leaves=[query], mask=mask)[0], inside)


def test_the_default_dtype_does_not_matter():
    query, key = (torch.randn(2, each, 8) for each in (4, 6))
    score, mask = regard.Additive(8, 8), regard.padding([6, 0])
    try:
        torch.set_default_dtype(torch.float64)
        for inputs in ((query, key), (query, regard.prepare(key, score=score))):
            for backend in ("auto", "reference", regard.explain(*inputs, mask=mask).backend):
                found = regard.attention(*inputs, mask=mask, backend=backend)
                assert found.output.dtype == found.lse.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_does_not_matter():
    query, key, value = tensors(4, 6)
    mask = regard.padding([6, 3])
    plain = regard.attention(query, key, value, mask=mask, backend="reference").output
    with torch.device("meta"):
        found = [regard.attention(query, key, value, mask=mask).output for _ in range(2)]
    for each in found:
        torch.testing.assert_close(each, plain)


def test_a_replaced_backend_is_run(monkeypatch: pytest.MonkeyPatch):
    query, key, value = tensors(4, 6)
    plain = [regard.attention(query, key, value).output for _ in range(2)][1]
    right = BACKENDS["sdpa-cpu"]

    def double(call: Call) -> Forward:
        forward = right.run(call)
        return forward._replace(output=2 * forward.output)

    monkeypatch.setitem(BACKENDS, "sdpa-cpu", replace(right, run=double))
    assert torch.equal(regard.attention(query, key, value).output, 2 * plain)
    assert torch.equal(regard.attention(query, key, value).output, 2 * plain)


def test_calls_of_changing_sizes_in_several_threads(direct: list[bool]):
    def attend(keys: int) -> None:
        query, key, value = (each.detach() for each in tensors(2, 1 + keys % 20))
        mask = regard.padding([1 + keys % 3 if keys % 20 > 2 else 1, 1])
        found = regard.attention(query, key, value, mask=mask).output
        exact = regard.attention(query, key, value, mask=mask, backend="reference").output
        torch.testing.assert_close(found, exact)

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(attend, range(100)))
    assert direct == [True] * 100


@pytest.mark.parametrize("name", ["none", "padding", "padding, a length of 0", "padding that hides nothing"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=["without batch", "without heads", "heads"])
def test_a_direct_additive_step_is_the_checked_step(name: str, shape: tuple[int, ...], direct: list[bool]):
    if not shape and name != "none":
        return
    score = regard.Additive(4, 5, 6, heads=3 if len(shape) == 2 else None).double()
    query = torch.randn(*shape, 2, 4, dtype=torch.float64, requires_grad=True)
    key = torch.randn(*shape, 7, 5, dtype=torch.float64, requires_grad=True)
    memory = regard.prepare(key, score=score, mask=MASKS[name](2, 7))
    leaves = [query, key, *score.parameters()]
    ours = results(query, memory, leaves=leaves)
    assert direct == [True]
    checked = results(query, memory, leaves=leaves, backend="blocked")
    exact = results(query, memory, leaves=leaves, backend="reference")
    looked = regard.attention(query, memory, look=regard.Look(weights=True))
    for a, b, c in zip(ours, checked, exact, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)
    assert torch.equal(looked.output, ours[0]) and torch.equal(looked.lse, ours[1])

    def slope(backend: str) -> Tensor:
        output = regard.attention(query, memory, backend=backend).output
        (first,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
        return torch.autograd.grad(first.square().sum(), query, retain_graph=True)[0]

    torch.testing.assert_close(slope("auto"), slope("reference"))
    score.float()
    with pytest.raises(regard.ArgumentError, match="float32"):
        regard.attention(query, memory)


@pytest.mark.parametrize("hidden", [torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 5.0])
@pytest.mark.parametrize("lengths", [[6, 3], [7, 0]])
@pytest.mark.parametrize("gradients", [False, True])
def test_hidden_keys_and_values_have_no_effect(hidden: float, lengths: list[int], gradients: bool):
    query, key, value = tensors(5, 7, torch.float32)
    mask = regard.padding(lengths)
    with torch.no_grad():
        for row, length in enumerate(lengths):
            key[row, :, length:], value[row, :, length:] = 1.0, 1.0
    leaves = [query, key, value]

    def run() -> list[Tensor]:
        if gradients:
            return results(*leaves, leaves=leaves, mask=mask)
        with torch.no_grad():
            return list(regard.attention(*leaves, mask=mask)[:2])

    expected = run()
    with torch.no_grad():
        for row, length in enumerate(lengths):
            key[row, :, length:], value[row, :, length:] = hidden, hidden
    for _ in range(2):
        for ours, exact in zip(run(), expected, strict=True):
            assert torch.equal(ours, exact)


def test_lengths_of_other_dtypes_and_many_keys_are_read():
    for keys in (7, 200):
        query, key, value = tensors(2, keys)
        for dtype in (torch.int64, torch.int32, torch.int16):
            for lengths in ([1, keys - 1], [keys - 3, 2], [0, 3], [keys, 1]):
                mask = regard.padding(torch.tensor(lengths, dtype=dtype))
                ours, exact = (
                    regard.attention(query, key, value, mask=mask, backend=backend)
                    for backend in ("auto", "reference")
                )
                torch.testing.assert_close(ours.output, exact.output)
                torch.testing.assert_close(ours.lse, exact.lse)


@pytest.mark.parametrize("padded", [False, True])
def test_a_memory_can_be_used_in_every_way_between_steps(padded: bool, direct: list[bool]):
    score, mask = regard.Additive(4, 5, 6).double(), regard.padding([7, 3]) if padded else None
    query, key = torch.randn(2, 1, 4, dtype=torch.float64), torch.randn(2, 7, 5, dtype=torch.float64)
    with torch.no_grad():
        memory = regard.prepare(key, score=score, mask=mask)

    def same(*inputs: Any, **options: Any) -> None:
        exact = regard.attention(*inputs, **{**options, "backend": "reference"})
        ours = regard.attention(*inputs, **options)
        torch.testing.assert_close(ours.output, exact.output)
        torch.testing.assert_close(ours.lse, exact.lse)

    for _ in range(2):
        same(query, memory)
    assert direct == [True, True]
    looked = regard.attention(query, memory, look=regard.Look(weights=True))
    ours = regard.attention(query, memory)
    assert torch.equal(ours.output, looked.output) and torch.equal(ours.lse, looked.lse)
    with torch.no_grad():
        same(query, memory)
    same(query, pickle.loads(pickle.dumps(memory)))
    if padded:
        memory.mask.lengths.fill_(2)
        same(query, memory)
    same(torch.randn(2, 3, 4, dtype=torch.float64), memory)
    same(query, memory, select=regard.Soft(2.0))
    same(query, memory, mask=torch.ones(1, 7, dtype=torch.bool))
    with regard.record() as records:
        same(query, memory)
    assert len(records["attention"]) == 2
    with pytest.raises(regard.ArgumentError):
        regard.attention(query.float(), memory)
    with pytest.raises(regard.ArgumentError, match="tensor"):
        regard.attention(query.tolist(), memory)
    with pytest.raises(regard.ArgumentError):
        regard.attention(query, memory, start=-1)
    prune.l1_unstructured(score, "query_weight", 0.5)  # then it is no longer a parameter
    same(query, memory)


Change = Callable[[list[Tensor], dict[str, Any], pytest.MonkeyPatch], Any]


def _in_place(inputs: list[Tensor], options: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    options["mask"].lengths.copy_(torch.tensor([1, 0]))


def _score_state(inputs: list[Tensor], options: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        options["score"].weight.mul_(-3)


def _with_gradients(inputs: list[Tensor], options: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    for each in inputs:
        each.requires_grad_()


def _tensors_to(change: Callable[[Tensor], Tensor]) -> Change:
    def changed(inputs: list[Tensor], options: dict[str, Any], _: pytest.MonkeyPatch) -> None:
        inputs[:] = [change(each) for each in inputs]
        options["score"] = regard.ScaledDot()

    return changed


def _options_to(**others: Any) -> Change:
    return lambda inputs, options, _: options.update(others)


CHANGES: dict[str, Change] = {
    "dtype": _tensors_to(torch.Tensor.double),
    "half precision": _tensors_to(torch.Tensor.bfloat16),
    "rank": lambda inputs, options, _: inputs.__setitem__(slice(None), [each[:, 0] for each in inputs]),
    "batch": lambda inputs, options, _: (
        inputs.__setitem__(slice(None), [each[:1] for each in inputs]),
        options.update(mask=None),
    ),
    "keys": lambda inputs, options, _: inputs.__setitem__(
        slice(1, 3), [torch.cat((each, each), 2) for each in inputs[1:]]
    ),
    "key heads": lambda inputs, options, _: inputs.__setitem__(
        slice(1, 3), [each[:, :2] for each in inputs[1:]]
    ),
    "strides": _tensors_to(lambda each: each.transpose(1, 2).contiguous().transpose(1, 2)),
    "last stride": _tensors_to(lambda each: each.repeat_interleave(2, -1)[..., ::2]),
    "requires_grad": _with_gradients,
    "deterministic algorithms": lambda *_: torch.use_deterministic_algorithms(True),
    "kernels of PyTorch": lambda *_: torch.backends.cuda.enable_flash_sdp(False),
    "REGARD_FAST": lambda inputs, options, patch: patch.setenv("REGARD_FAST", "0"),
    "score": _options_to(score=regard.Dot()),
    "state of the score": _score_state,
    "another score": _options_to(score=regard.Additive(8, 8)),
    "lengths in place": _in_place,
    "mask": _options_to(mask=regard.causal() & regard.window(1)),
    "bool tensor": _options_to(mask=torch.eye(5, dtype=torch.bool)),
    "start": _options_to(mask=regard.causal(), start=2),
    "beams": _options_to(beams=5),
    "temperature": _options_to(select=regard.Soft(3.0)),
    "selection": _options_to(select=regard.Sparse()),
    "bias": _options_to(bias=torch.linspace(-1, 1, 5)[None].repeat(5, 1)),
    "softcap": _options_to(softcap=0.5),
    "look": _options_to(look=regard.Look(entropy=True)),
    "NaN behind the padding": lambda inputs, options, _: inputs[1][1, :, 3:].fill_(torch.nan),
    "NaN in a visible key": lambda inputs, options, _: inputs[1][0, 0, 0].fill_(torch.nan),
    "length": _options_to(mask=regard.padding([2, 4])),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("gradients", [True, False])
def test_whatever_changes_between_two_calls_counts(
    name: str, gradients: bool, monkeypatch: pytest.MonkeyPatch, direct: list[bool]
):
    inputs = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    options: dict[str, Any] = {"mask": regard.padding(torch.tensor([5, 3])), "score": regard.General(8, 8)}
    deterministic, flash = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
    )
    with torch.set_grad_enabled(gradients):
        regard.attention(*inputs, **options)
        assert direct == [True]
        try:
            CHANGES[name](inputs, options, monkeypatch)
            for _ in range(2):
                ours = regard.attention(*inputs, **options)
                exact = regard.attention(*inputs, **options, backend="reference")
                tolerance = 0.02 if inputs[0].dtype == torch.bfloat16 else 1e-5
                assert ours.output.dtype == inputs[0].dtype
                for a, b in zip(ours, exact, strict=True):
                    assert (a is None) == (b is None)
                    if a is not None:
                        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, equal_nan=True)
        finally:
            torch.use_deterministic_algorithms(deterministic)
            torch.backends.cuda.enable_flash_sdp(flash)


def test_modes_that_change_between_two_calls_count():
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    plain = regard.attention(query, key, value)
    with regard.intervene(at="here", uniform=[0]):
        assert not torch.allclose(regard.attention(query, key, value, site="here").output, plain.output)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert regard.attention(query, key, value).output.dtype == torch.bfloat16
    with torch.inference_mode():
        assert regard.attention(query, key, value).output.is_inference()
    assert not regard.attention(query, key, value).output.requires_grad
    with torch.no_grad():
        assert not regard.attention(query.requires_grad_(), key, value).output.requires_grad
    assert regard.attention(query, key, value).output.requires_grad
    meta = regard.attention(query.to("meta"), key.to("meta"), value.to("meta"))
    assert meta.output.device.type == "meta" and meta.output.shape == plain.output.shape
    dropped = regard.attention(query, key, torch.ones_like(value), dropout=0.5).output
    assert not torch.allclose(dropped, torch.ones_like(value))
    with pytest.raises(regard.UnknownName):
        regard.attention(query, key, value, backend="spda")
    assert torch.equal(regard.attention(query, key, value).output, plain.output)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["none", "causal", "padding", "causal and padding", "table"])
@pytest.mark.parametrize("length", [1, 37, 64])
def test_repeated_calls_on_a_gpu_agree(dtype: torch.dtype, name: str, length: int):
    lengths = torch.tensor([length, length // 2], device="cuda")
    mask = {
        "none": lambda: None,
        "causal": regard.causal,
        "padding": lambda: regard.padding(lengths),
        "causal and padding": lambda: regard.causal() & regard.padding(lengths),
        "table": lambda: torch.rand(2, 1, length, length, device="cuda") < 0.5,
    }[name]()
    for width in (64, 20):
        leaves = [
            torch.randn(2, 3, length, width, device="cuda", dtype=dtype).requires_grad_() for _ in range(3)
        ]
        first, second = (regard.attention(*leaves, mask=mask) for _ in range(2))
        assert torch.equal(first.output, second.output) and torch.equal(first.lse, second.lse)
        exact = regard.attention(*leaves, mask=mask, backend="reference")
        tolerance = {"atol": 0.03, "rtol": 0.03} if dtype == torch.bfloat16 else {"atol": 1e-3, "rtol": 1e-3}
        torch.testing.assert_close(second.output, exact.output, **tolerance)
        torch.testing.assert_close(second.lse, exact.lse, **tolerance)
        found, wanted = (torch.autograd.grad(each.output.sum(), leaves) for each in (second, exact))
        torch.testing.assert_close(found, wanted, **tolerance)


def test_a_bias_tensor_takes_the_direct_call_unless_it_hides_a_key_or_has_a_gradient(direct: list[bool]):
    leaves = tensors(5, 20)
    hidden = torch.randn(5, 20, dtype=torch.float64)
    hidden[0], hidden[1, 3] = -torch.inf, -torch.inf
    learned = torch.randn(1, 4, 1, 20, dtype=torch.float64).requires_grad_()
    for bias, quick in (
        (torch.randn(5, 20, dtype=torch.float64), True),
        (torch.randn(2, 1, 5, 20, dtype=torch.float64), True),
        (torch.randn(1, 4, 1, 1, dtype=torch.float64), True),
        (hidden, False),
        (learned, False),
    ):
        for select in (regard.Soft(), regard.Soft(0.5)):
            direct.clear()
            ours = results(*leaves, leaves=leaves, bias=bias, select=select)
            assert direct == [quick]
            exact = results(*leaves, leaves=leaves, bias=bias, select=select, backend="reference")
            for a, b in zip(ours, exact, strict=True):
                torch.testing.assert_close(a, b)
    query, key, value = (each[0, 0] for each in leaves)
    assert regard.attention(query, key, value, bias=hidden[2:3] + 0).output.shape == (5, 8)
    with pytest.raises(regard.ArgumentError, match=r"5, 20\)"):
        regard.attention(query, key, value, bias=torch.zeros(4, 20, dtype=torch.float64))
