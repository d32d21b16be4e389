"""Each mask against a predicate in plain Python, the algebra of masks, and their normal form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.masks.mask import Mask, whole_tile
from tests.facts import facts

Predicate = Callable[[int, int, int, int, int], bool]
"""(batch, head, query position, key, row) -> whether the query may see the key"""


class Drawn(NamedTuple):
    """A mask, its predicate in plain Python, and the sizes of a matching call."""

    mask: Mask
    means: Predicate
    sizes: dict[str, int]

    def expected(self) -> Tensor:
        batch, heads, queries, keys, start = self.sizes.values()
        seen = [
            [
                [[self.means(b, h, t + start, s, t) for s in range(keys)] for t in range(queries)]
                for h in range(heads)
            ]
            for b in range(batch)
        ]
        return torch.tensor(seen, dtype=torch.bool).reshape(batch, heads, queries, keys)

    def dense(self, mask: Mask | None = None) -> Tensor:
        batch, heads, queries, keys, start = self.sizes.values()
        found = (self.mask if mask is None else mask).dense(
            queries, keys, start=start, batch=batch, heads=heads
        )
        return found.expand(batch, heads, queries, keys)

    @property
    def tile(self) -> Any:
        batch, heads, queries, keys, start = self.sizes.values()
        return whole_tile(queries, keys, start, batch, heads)


def numbers(draw: st.DrawFn, count: int, high: int) -> list[int]:
    return draw(st.lists(st.integers(0, high), min_size=count, max_size=count))


def draw_causal(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Mask, Predicate]:
    return regard.causal(), lambda b, h, i, j, t: j <= i


def draw_padding(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Mask, Predicate]:
    lengths = numbers(draw, draw(st.sampled_from([1, sizes["batch"]])), sizes["keys"])
    return regard.padding(torch.tensor(lengths)), lambda b, h, i, j, t: j < lengths[b % len(lengths)]


def draw_window(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Mask, Predicate]:
    left, right = (draw(st.none() | st.integers(0, 4)) for _ in range(2))

    def near(b: int, h: int, i: int, j: int, t: int) -> bool:
        return (left is None or j >= i - left) and (right is None or j <= i + right)

    return regard.window(left, right), near


def draw_documents(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Mask, Predicate]:
    batch, length = sizes["batch"], sizes["start"] + sizes["queries"]
    of_query = [numbers(draw, length, 2) for _ in range(batch)]
    of_key = [numbers(draw, sizes["keys"], 2) for _ in range(batch)]
    ids = [torch.tensor(each, dtype=torch.long).reshape(batch, -1) for each in (of_query, of_key)]
    return regard.documents(*ids), lambda b, h, i, j, t: of_query[b][i] == of_key[b][j]


def draw_table(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Mask, Predicate]:
    shape = [draw(st.sampled_from([1, sizes[name]])) for name in ("batch", "heads", "queries", "keys")]
    count = shape[0] * shape[1] * shape[2] * shape[3]
    flat = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    table = torch.tensor(flat, dtype=torch.bool).reshape(shape)

    def listed(b: int, h: int, i: int, j: int, t: int) -> bool:
        return bool(table[tuple(min(at, size - 1) for at, size in zip((b, h, t, j), shape, strict=True))])

    return regard.dense(table), listed


def draw_where(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Mask, Predicate]:
    modulus, rest = draw(st.integers(2, 3)), draw(st.integers(0, 1))
    mask = regard.where(lambda batch, head, query, key: (batch + head + query + 2 * key) % modulus == rest)
    return mask, lambda b, h, i, j, t: (b + h + i + 2 * j) % modulus == rest


LEAVES = {
    "causal": draw_causal,
    "padding": draw_padding,
    "window": draw_window,
    "documents": draw_documents,
    "table": draw_table,
    "where": draw_where,
}


def combined(draw: st.DrawFn, sizes: dict[str, int], depth: int) -> tuple[Mask, Predicate]:
    kind = draw(st.sampled_from([*LEAVES] if not depth else [*LEAVES, "&", "&", "|", "~"]))
    if kind in LEAVES:
        return LEAVES[kind](draw, sizes)
    first, means = combined(draw, sizes, depth - 1)
    if kind == "~":
        return ~first, lambda *at: not means(*at)
    second, other = combined(draw, sizes, depth - 1)
    if kind == "&":
        return first & second, lambda *at: means(*at) and other(*at)
    return first | second, lambda *at: means(*at) or other(*at)


@st.composite
def drawn(draw: st.DrawFn, leaf: str | None = None, count: int = 1) -> Any:
    bounds = {"batch": (1, 3), "heads": (1, 2), "queries": (0, 5), "keys": (0, 6), "start": (0, 5)}
    sizes = {name: draw(st.integers(*bound)) for name, bound in bounds.items()}
    make = (lambda: LEAVES[leaf](draw, sizes)) if leaf else (lambda: combined(draw, sizes, depth=2))
    found = [Drawn(*make(), sizes) for _ in range(count)]
    return found[0] if count == 1 else found


@pytest.mark.parametrize("leaf", LEAVES)
def test_each_mask_is_its_predicate(leaf: str):
    @given(drawn(leaf))
    def check(one: Drawn) -> None:
        assert torch.equal(one.dense(), one.expected())

    check()


@given(drawn())
def test_combined_masks_are_their_predicates(one: Drawn):
    assert torch.equal(one.dense(), one.expected())


@given(drawn(count=2))
def test_algebra(two: list[Drawn]):
    a, b = two[0].mask, two[1].mask
    dense = two[0].dense
    assert torch.equal(dense(a & b), dense(b & a))
    assert torch.equal(dense(a | b), dense(~(~a & ~b)))
    assert torch.equal(dense(a & b), dense(~(~a | ~b)))
    assert torch.equal(dense(~~a), dense(a))
    assert torch.equal(dense(a & ~a), torch.zeros_like(dense(a)))
    assert torch.equal(dense(Mask() & a), dense(a))


@given(drawn())
def test_simplified_masks_are_equivalent(one: Drawn):
    simple = one.mask.simplified(one.sizes["queries"], one.sizes["keys"], one.sizes["start"])
    assert torch.equal(one.dense(simple), one.expected())
    assert set(simple.parts) <= set(one.mask.parts)


@given(drawn())
def test_span_contains_all_visible_keys(one: Drawn):
    if not one.sizes["queries"]:
        return
    start, keys = one.sizes["start"], one.sizes["keys"]
    low, high = one.mask.span(start, start + one.sizes["queries"] - 1, keys)
    seen = one.expected().flatten(0, 2).any(0).nonzero().flatten().tolist()
    assert 0 <= low <= high
    assert all(low <= key < high for key in seen)


@given(drawn())
def test_seen_keys_are_exact(one: Drawn):
    found, answer = one.mask.seen_keys(one.tile), one.expected().any(-2)
    found = torch.ones((), dtype=torch.bool) if found is None else found
    assert torch.equal(found.expand_as(answer), answer)


def test_seen_keys_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch):
    mask = regard.where(lambda batch, head, query, key: (query * 3 + key) % 7 == 0)
    tile = whole_tile(9, 5, 0, 1, 1)
    whole = mask.seen_keys(tile)
    monkeypatch.setattr("regard.masks.mask.PAIRS_AT_ONCE", 10)
    assert torch.equal(mask.seen_keys(tile), whole)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32])
def test_document_ids_of_any_dtype_in_any_order(dtype: torch.dtype):
    ids = torch.tensor([[0, 1], [0, 0], [1, 0]]).to(dtype).T  # not contiguous
    mask, tile = regard.causal() & regard.documents(ids), whole_tile(2, 3, 1, 2, 1)
    seen = mask.seen_keys(tile)
    assert seen is not None and torch.equal(seen, mask.tile(tile).any(-2))


def test_document_ids_of_integers_and_floats():
    mask, tile = (
        regard.documents(torch.tensor([[1.0, 2.0]]), torch.tensor([[2, 3]])),
        whole_tile(2, 2, 0, 1, 1),
    )
    seen = mask.seen_keys(tile)
    assert seen is not None and seen.flatten().tolist() == [True, False]


def test_documents_with_an_empty_batch():
    mask = regard.documents(torch.zeros(0, 3, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))
    seen = mask.seen_keys(whole_tile(3, 4, 0, 0, 1))
    assert seen is not None and seen.shape == (0, 1, 4)


@given(
    st.integers(1, 3).flatmap(lambda many: st.lists(st.integers(0, many), min_size=1, max_size=12)),
    st.integers(0, 12),
    st.integers(0, 4),
    st.tuples(st.none() | st.integers(-2, 5), st.none() | st.integers(-2, 5)),
    st.booleans(),
)
def test_keys_hidden_from_all_queries_of_their_document(
    ids: list[int], queries: int, start: int, sides: tuple[int | None, int | None], causal: bool
):
    queries = max(0, min(queries, len(ids) - start))
    mask = Mask(documents=(torch.tensor([ids]), torch.tensor([ids])), window=sides, causal=causal)
    tile = whole_tile(queries, len(ids), start, 1, 1)
    seen = mask.seen_keys(tile)
    assert seen is not None and torch.equal(seen[0, 0], mask.tile(tile)[0, 0].any(0))


def test_normal_form():
    lengths, ids = torch.tensor([3, 2]), torch.zeros(2, 4, dtype=torch.long)
    table, asked = torch.ones(4, 4, dtype=torch.bool), regard.where(lambda b, h, i, j: i >= j)
    everything = asked & table & regard.documents(ids) & regard.window(2, 1) & regard.padding(lengths)
    everything = everything & regard.causal()
    assert everything.parts == ("causal", "lengths", "window", "documents", "table", "condition")
    assert everything.only(*everything.parts) and not everything.only("causal")
    assert Mask().parts == () and regard.window().parts == ()
    assert (regard.window(3, 1) & regard.window(2, None)).window == (2, 1)
    assert (regard.padding(lengths) & regard.padding(torch.tensor([1, 9]))).lengths.tolist() == [1, 2]
    assert (regard.documents(ids) & regard.documents(ids)).parts == ("documents", "condition")
    for mask in (regard.causal() | table, ~regard.causal()):
        assert mask.parts == ("condition",)


def test_tensors_combine_from_either_side():
    table = torch.eye(3, dtype=torch.bool)
    for mask in (regard.causal() & table, table & regard.causal()):
        assert torch.equal(mask.dense(3, 3)[0, 0], table)
    for mask in (regard.causal() | table.T, table.T | regard.causal()):
        assert torch.equal(mask.dense(3, 3)[0, 0], torch.ones(3, 3, dtype=torch.bool).tril())


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_documents_of_batch_size_one_broadcast(sizes: tuple[int, int]):
    of_query, of_key = (torch.tensor([[0, 1, 1], [0, 0, 1]])[:size] for size in sizes)
    seen = regard.documents(of_query, of_key).dense(3, 3, batch=2)
    assert torch.equal(seen[:, 0], of_query[:, :, None] == of_key[:, None, :])


@pytest.mark.parametrize("change", [lambda mask: ~mask, lambda mask: mask | regard.causal()], ids=["~", "|"])
def test_dense_infers_the_batch_size_of_a_condition(change: Callable[[Mask], Mask]):
    mask = change(regard.padding(torch.tensor([1, 3])))
    assert torch.equal(mask.dense(2, 4).expand(2, 1, 2, 4), mask.dense(2, 4, batch=2).expand(2, 1, 2, 4))


@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
def test_causal_agrees_with_decoding_steps_and_a_bias_of_minus_infinity(backend: str):
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    masked = regard.attention(query, key, value, mask=regard.causal(), backend=backend).output
    future = torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)
    biased = regard.attention(query, key, value, bias=future, backend=backend).output
    steps = [
        regard.attention(
            query[:, :, t : t + 1], key[:, :, : t + 1], value[:, :, : t + 1], backend=backend
        ).output
        for t in range(5)
    ]
    torch.testing.assert_close(biased, masked)
    torch.testing.assert_close(torch.cat(steps, 2), masked)


def test_minus_a_billion_attends_to_all_keys_if_all_are_hidden():
    query, key, value = torch.randn(2, 4), torch.randn(5, 4), torch.randn(5, 3)
    seen = torch.tensor([[True] * 5, [False] * 5])
    old = torch.softmax((query @ key.T / 2).masked_fill(~seen, -1e9), -1)
    ours = regard.attention(query, key, value, mask=seen, look=regard.Look(weights=True))
    torch.testing.assert_close(ours.weights[0], old[0])
    assert torch.equal(old[1], torch.full((5,), 0.2))
    assert torch.equal(ours.weights[1], torch.zeros(5)) and torch.equal(ours.output[1], torch.zeros(3))


def test_minus_a_billion_overflows_in_half_precision():
    query, key = torch.randn(2, 4).half(), torch.randn(5, 4).half()
    seen = torch.tensor([[True] * 5, [False] * 5])
    scores = query @ key.T / 2
    with pytest.raises(RuntimeError, match="overflow"):
        scores.masked_fill(~seen, -1e9)
    added = scores + (~seen).half() * -1e9
    assert (added[1] == -torch.inf).all() and torch.softmax(added, -1)[1].isnan().all()
    ours = regard.attention(query, key, mask=seen, look=regard.Look(weights=True))
    assert torch.equal(ours.output[1], torch.zeros(4).half()) and (ours.weights[1] == 0).all()


@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
@pytest.mark.parametrize("lengths", [[3, 9], torch.tensor([3, 9]), torch.tensor([3, 9], dtype=torch.int32)])
def test_a_length_above_the_number_of_keys_raises(backend: str, lengths: Any):
    x, mask = torch.randn(2, 7, 4), regard.padding(lengths)
    layer = regard.MultiHead(4, 2)
    calls = (
        lambda: regard.attention(x, x, mask=mask, backend=backend),
        lambda: regard.attention(x, x, mask=mask & regard.causal(), backend=backend),
        lambda: regard.attention(x, x, mask=~mask | regard.causal()),
        lambda: regard.attention(x, regard.prepare(x), mask=mask, backend=backend),
        lambda: regard.prepare(x, mask=mask),
        lambda: layer(x, mask=mask, backend=backend),
        lambda: layer.remember(x, mask=mask),
    )
    for call in calls:
        with pytest.raises(regard.ArgumentError, match=r"lengths\[1\] = 9.* S = 7"):
            call()
    regard.attention(x, x, mask=mask & regard.padding([3, 5]))  # the combined lengths are valid


def test_a_length_above_the_number_of_keys_raises_inside_a_transform():
    """Lengths have no values there, so those at the call of padding() are checked."""
    x = torch.randn(3, 2, 7, 4)

    def attend(mask: regard.Mask) -> torch.Tensor:
        each = torch.func.vmap(lambda x: regard.attention(x, x, mask=mask, backend="reference").output)
        return each(x)

    assert attend(regard.padding([3, 7])).shape == attend(regard.padding([3, 9]) & regard.padding([7])).shape
    with pytest.raises(regard.ArgumentError, match=r"9.* S = 7"):
        attend(regard.padding([3, 9]))


@pytest.mark.parametrize("lengths", [[3, -1], torch.tensor([3, -1])])
def test_a_negative_length_raises(lengths: Any):
    with pytest.raises(regard.ArgumentError, match=r"lengths\[1\] = -1"):
        regard.padding(lengths)


def test_empty_lengths_work_for_an_empty_batch():
    x = torch.randn(0, 7, 4)
    assert (
        regard.attention(x, x, mask=regard.padding(torch.zeros(0, dtype=torch.long))).output.shape == x.shape
    )


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_lengths_on_a_gpu_do_not_synchronise():
    x, lengths = torch.randn(2, 7, 64, device="cuda"), torch.tensor([3, 9], device="cuda")
    expected = regard.attention(x, x, mask=regard.padding(lengths.clamp(max=7))).output
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = regard.padding(lengths)
        found = regard.attention(x, x, mask=mask).output
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)
    with pytest.raises(regard.ArgumentError, match=facts(9)):
        regard.attention(x, x, mask=regard.padding([3, 9]))  # a list is checked before it is moved


def test_the_error_of_a_long_length_gives_the_valid_range():
    x = torch.randn(2, 7, 4)
    for mask in (regard.padding([3, 9]), regard.padding([3, 9]) | regard.causal()):
        with pytest.raises(regard.ArgumentError) as error:
            regard.attention(x, x, mask=mask)
        assert "lengths[1] = 9" in str(error.value) and "<= S = 7" in str(error.value)
        assert "hint" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "fact"),
    [
        (lambda query, key: query >= key, "four index tensors"),
        (lambda batch, head, query, key: (query - key).float(), "float32"),
        (lambda batch, head, query, key: query - key, "int64"),
        (lambda batch, head, query, key: None, "NoneType"),
        (lambda batch, head, query, key: torch.ones(3, 5, dtype=torch.bool), r"\(3, 5\)"),
    ],
)
def test_a_wrong_function_of_where_is_named(function, fact: str):
    x = torch.eye(3)
    with pytest.raises(regard.ArgumentError, match=f"where(.|\n)*{fact}"):
        regard.attention(x, x, mask=regard.where(function))


def test_wrong_document_ids_get_a_hint_about_ids():
    x = torch.zeros(2, 4, 8)
    for ids, fact in ((torch.zeros(2, 3).long(), "document id"), (torch.zeros(3, 4).long(), "document id")):
        with pytest.raises(regard.ArgumentError, match=f"expected: (.|\n)*{fact}") as caught:
            regard.attention(x, x, mask=regard.documents(ids))
        assert "padding(lengths)" not in str(caught.value)
    with pytest.raises(regard.ArgumentError, match=r"ids\[None\]"):
        regard.documents(torch.zeros(4).long())
