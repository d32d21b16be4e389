"""Sites: record() and scopes that edit calls."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard import sites
from regard.call import Call
from tests.facts import facts, mentions
from tests.making import randn


def two_layers() -> nn.Module:
    model = nn.ModuleDict(
        {"encoder": nn.ModuleDict({"self": regard.MultiHead(8, 2)}), "cross": regard.MultiHead(8, 2)}
    )
    assert regard.name_sites(model) == ["encoder.self", "cross"]
    return model.double()


def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    inner = model["encoder"]["self"](x, mask=regard.causal()).output
    return model["cross"](x, inner).output


@pytest.mark.parametrize(
    ("at", "sites_seen"),
    [
        ("*", ["encoder.self", "cross"]),
        ("encoder.*", ["encoder.self"]),
        ("cros?", ["cross"]),
    ],
)
def test_record_by_wildcard(at: str, sites_seen: list[str]):
    model, x = two_layers(), randn(1, 5, 8)
    plain = run(model, x)
    with regard.record(at=at) as seen:
        assert torch.equal(run(model, x), plain)
    assert list(seen) == sites_seen
    for calls in seen.values():
        assert calls[0].weights.shape == (1, 2, 5, 5) and not calls[0].weights.requires_grad
    run(model, x)
    assert all(len(calls) == 1 for calls in seen.values())


def test_record_that_matches_no_site_warns_and_lists_those_that_were_called():
    model, x = two_layers(), randn(1, 5, 8)
    with pytest.warns(regard.RegardWarning) as caught, regard.record(at="decoder*") as seen:
        run(model, x)
    assert len(caught) == 1 and caught[0].filename == __file__ and not seen
    text = str(caught[0].message)
    assert mentions(text, "'decoder*'", "encoder.self", "cross")
    assert list(seen.called) == ["encoder.self", "cross"]


def test_record_around_a_model_without_sites_warns():
    theirs, x = nn.MultiheadAttention(8, 2), torch.randn(5, 1, 8)
    with pytest.warns(regard.RegardWarning, match="attention()") as caught, regard.record():
        theirs(x, x, x)
    text = str(caught[0].message)
    assert "MultiHead.from_torch" in text and "regard.layers" in text


def test_record_does_not_warn_after_an_exception():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="mine"), regard.record(at="nope"):
            raise KeyError("mine")
        with regard.record(regard.Look()) as seen:
            regard.attention(torch.eye(2), torch.eye(2), site="here")
        assert list(seen) == ["here"]


def test_calls_are_recorded_in_order_and_an_unknown_site_lists_known_names():
    queries = [randn(length, 4) for length in (1, 2, 3)]
    with regard.record(regard.Look(mass=True)) as seen:
        for query in queries:
            regard.attention(query, query, site="decoder.0.cross")
        regard.read(torch.ones(1, 4).double(), randn(4, 4), site="tape")
    assert [each.mass.shape[-1] for each in seen["decoder.0.cross"]] == [1, 2, 3]
    assert torch.equal(seen["tape"][0].mass, torch.ones(4).double())
    with pytest.raises(regard.UnknownName, match=facts("'decoder.0.cross'")) as error:
        seen["decoder.1.cross"]
    assert mentions(error.value, "known", "decoder.0.cross", "tape")


def test_nested_scopes_each_record_what_they_request():
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    with regard.record(regard.Look(top=4, rows=(0, -1))) as outer:
        with regard.record(regard.Look(entropy=True, top=2)) as inner:
            seen = regard.attention(query, key, look=regard.Look(rows=(1, 0)), site="here")
        regard.attention(query, key, site="here")
    plain = regard.attention(query, key, look=regard.Look(weights=True, entropy=True, top=4))
    assert (len(outer["here"]), len(inner["here"])) == (2, 1)
    assert seen.top is None and seen.entropy is None and torch.equal(seen.rows, plain.weights[:, [1, 0]])
    first = outer["here"][0]
    assert torch.equal(first.rows, plain.weights[:, [0, -1]]) and torch.equal(first.top.keys, plain.top.keys)
    assert first.entropy is None and inner["here"][0].rows is None
    assert torch.equal(inner["here"][0].top.keys, plain.top.keys[..., :2])
    assert torch.equal(inner["here"][0].entropy, plain.entropy)


@pytest.mark.parametrize("look", [regard.Look(rows=(-1, 0)), regard.Look(rows=(2,), top=1), None])
def test_record_does_not_change_the_result_of_a_call(look: regard.Look | None):
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    plain = regard.attention(query, key, look=look)
    with regard.record(regard.Look(weights=True, rows=(3,), top=3, gradient=True)):
        watched = regard.attention(query, key, look=look)
    for a, b in zip(plain, watched, strict=True):
        assert (a is None) == (b is None)
    assert torch.equal(plain.output, watched.output) and not watched.lse.requires_grad
    if look is not None:
        assert torch.equal(plain.rows, watched.rows) and not watched.rows.requires_grad


def test_record_keeps_gradients_if_requested():
    query, key = randn(2, 5, 4), randn(2, 6, 4)
    with regard.record(regard.Look(entropy=True, gradient=True)) as seen:
        regard.attention(query, key, site="here")
    seen["here"][0].entropy.sum().backward()
    assert query.grad.abs().sum() > 0


def bytes_held(seen: sites.Record) -> int:
    """Count the memory that the tensors of a Record keep alive: each storage once, in its full size."""
    sizes: dict[int, int] = {}
    for attended in (each for calls in seen.values() for each in calls):
        for tensor in (*attended[:4], *(attended.top or ()), *attended[5:]):
            if tensor is not None:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(sizes.values())


@pytest.mark.parametrize("length", [40, 1100])  # the whole matrix at once, and block by block
@pytest.mark.parametrize("output", [False, True])
def test_a_record_holds_only_the_requested_fields_and_the_lse(length: int, output: bool):
    heads, size, alive = 2, 64, []
    with (
        torch.no_grad(),
        regard.record(regard.Look(entropy=True, alignment=True, mass=True), output=output) as seen,
    ):
        for _ in range(2):
            query, key, value = (torch.randn(1, heads, length, size) for _ in range(3))
            attended = regard.attention(query, key, value, mask=regard.causal(), site="here")
            alive += [weakref.ref(each) for each in (query, key, value, attended.output)]
            del query, key, value, attended
    assert not any(each() is not None for each in alive)
    per_query = 4 + 4 + 8 + 4  # lse, entropy, alignment and mass
    expected = 2 * heads * length * (per_query + (4 * size if output else 0))
    assert bytes_held(seen) == expected
    assert all((each.output is not None) == output for each in seen["here"])


def test_record_skips_looks_that_a_selection_cannot_compute():
    x = randn(2, 5, 4)
    with regard.record(regard.Look(entropy=True, mass=True)) as seen:
        regard.attention(x, x, select=regard.Gate(), site="gate")
    assert seen["gate"][0].entropy is None and seen["gate"][0].mass.shape == (2, 5)


def test_a_scope_closes_after_an_exception():
    with pytest.raises(regard.ArgumentError), regard.record():
        regard.attention(torch.ones(2, 3), torch.ones(2, 4))
    assert not sites.open_scopes()


@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
def test_an_edit_can_hide_a_key(backend: str):
    query, key, value = randn(2, 4, 5), randn(2, 6, 5), randn(2, 6, 3)
    link = regard.where(lambda batch, head, query, key: (query != 1) | (key != 2))

    def cut(call: Call) -> Call:
        return replace(call, mask=call.mask & link)

    options = {"mask": regard.padding(torch.tensor([6, 4])), "backend": backend}
    by_hand = regard.attention(query, key, value, **(options | {"mask": options["mask"] & link})).output
    with sites.scope(look=regard.Look(weights=True), edit=cut, at="decoder.*") as seen:
        edited = regard.attention(query, key, value, site="decoder.1", **options).output
        elsewhere = regard.attention(query, key, value, site="encoder.1", **options).output
    plain = regard.attention(query, key, value, **options).output
    torch.testing.assert_close(edited, by_hand)
    assert torch.equal(elsewhere, plain) and not torch.allclose(edited, plain)
    assert (seen["decoder.1"][0].weights[:, 1, 2] == 0).all() and list(seen) == ["decoder.1"]


def test_edits_apply_from_the_outside_in():
    x, order = randn(3, 4), []
    with (
        sites.scope(edit=lambda call: order.append("outer") or replace(call, scale=0.0)),
        sites.scope(
            edit=lambda call: order.append(call.scale) or call, look=regard.Look(weights=True)
        ) as seen,
    ):
        regard.attention(x, x, site="here")
    assert order == ["outer", 0.0]
    torch.testing.assert_close(seen["here"][0].weights, torch.full((3, 3), 1 / 3).double())


def test_name_sites_uses_module_names():
    layer = regard.MultiHead(8, 2)
    assert layer.site == "multihead" and regard.name_sites(layer) == []
    model = nn.Sequential(layer, nn.Linear(8, 8), regard.AttentionLayer(8, 8))
    assert regard.name_sites(model) == ["0", "2"] and layer.site == "0"


class Block(torch.nn.Module):
    """A layer of a user, which calls attention() without a site."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return regard.attention(x, x).output


class TwoLayers(torch.nn.Module):
    def __init__(self, first: torch.nn.Module, second: torch.nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            result = layer(x, x) if isinstance(layer, regard.AttentionLayer) else layer(x)
            x = result if isinstance(result, torch.Tensor) else result.output
        return x


@pytest.mark.parametrize(
    ("make", "site"),
    [
        (lambda: regard.MultiHead(8, 2), "multihead"),
        (lambda: regard.AttentionLayer(8, 8), "attention_layer"),
        (Block, "attention"),
    ],
    ids=["MultiHead", "AttentionLayer", "attention()"],
)
def test_layers_that_share_a_site_without_a_name_warn(make: Callable[[], torch.nn.Module], site: str):
    x, layer = torch.randn(1, 3, 8), make()
    with (
        pytest.warns(regard.RegardWarning, match=facts("2 layers", f"'{site}'")),
        regard.record() as seen,
    ):
        TwoLayers(make(), make())(x)
    assert len(seen[site]) == 2
    with regard.record() as seen:  # one layer that is called twice is one site with two calls
        TwoLayers(layer, layer)(x)
    assert list(seen) == [site] and len(seen[site]) == 2
    model = TwoLayers(make(), make())
    if regard.name_sites(model):
        with regard.record() as seen:
            model(x)
        assert list(seen) == ["first", "second"]
    with regard.record() as seen:  # calls outside of modules
        for _ in range(2):
            regard.attention(x, x)
    assert len(seen["attention"]) == 2


def test_record_raises_inside_a_compiled_region():
    x = torch.randn(3, 4)
    compiled = torch.compile(
        lambda x: regard.attention(x, x, site="deep").output, backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(x), regard.attention(x, x).output)
    with pytest.raises(Exception, match="'deep'") as error, regard.record():
        compiled(x)
    assert "force_eager" in str(error.value)
    with regard.record() as seen, torch.compiler.set_stance("force_eager"):
        compiled(x)
    assert seen["deep"][0].weights.shape == (3, 3)
    torch.testing.assert_close(compiled(x), regard.attention(x, x).output)


def test_record_with_a_model_as_argument_hints_at_the_with_statement():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(30)))
    with pytest.raises(regard.ArgumentError) as error:
        regard.record(model)  # type: ignore[arg-type]
    told = str(error.value)
    assert "Sequential" in told and "Linear" not in told and "seen: model(" in told
    with pytest.raises(regard.ArgumentError, match=facts("record(at='decoder*')")):
        regard.record("decoder*")  # type: ignore[arg-type]


def test_a_role_that_no_layer_declares_is_explained():
    x = torch.eye(3)
    with pytest.warns(regard.RegardWarning, match="role=Role"), regard.record(at="self") as seen:
        regard.attention(x, x)
    assert not list(seen)


class Direct(torch.nn.Module):
    def forward(self, x):
        return regard.attention(x, x).output


def test_name_sites_is_not_recommended_for_direct_calls():
    x = torch.eye(3)
    layers = Direct(), Direct()
    with pytest.warns(regard.RegardWarning, match="site=") as caught, regard.record():
        for layer in layers:
            x = layer(x)
    assert "name_sites" not in str(caught[0].message)
    multihead = regard.MultiHead(4, 2), regard.MultiHead(4, 2)
    with pytest.warns(regard.RegardWarning, match="name_sites"), regard.record():
        for other in multihead:
            other(torch.randn(1, 3, 4))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"at": 5}, ("at is 5", "*cross")),
        ({"weights": True}, ("weights", "Look(weights=True")),
        ({"locations": "*"}, ("locations", "at")),
    ],
)
def test_invalid_arguments_of_record_raise(options: dict[str, Any], facts: tuple[str, ...]):
    with pytest.raises(regard.RegardError) as error:
        regard.record(**options)
    assert all(fact in str(error.value) for fact in facts)


def test_a_role_that_the_model_does_not_have_is_named():
    layer, x = regard.MultiHead(8, 2), torch.randn(1, 3, 8)
    layer.role = regard.Role("self", "input", "input")
    no_cross = "role self: the model has no 'cross'"
    with pytest.warns(regard.RegardWarning, match=no_cross) as caught, regard.record(at="cross") as seen:
        layer(x)
    assert "declare" not in str(caught[0].message) and not seen
    with (
        pytest.raises(regard.ArgumentError, match="'cross'"),
        regard.intervene(scale=0.0, at="cross"),
    ):
        layer(x)
