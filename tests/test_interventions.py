"""Interventions: cut, force, uniform and scale, with teacher forcing and step by step."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
import torch

import regard
from regard import sites
from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules, Sample, search
from regard.decoding.forced_decoding import observe
from regard.interventions import Cut, Force, Intervention, Scale, Uniform, read_interventions
from tests.facts import facts
from tests.making import ON_CPU, randn
from tests.models.variants import VARIANTS, make

LOOK = regard.Look(weights=True)
READERS = [name for name in VARIANTS if not name.startswith("seq2seq")]
EVERY: tuple[Intervention, ...] = (
    Cut(1, 2, at="*cross"),
    Cut(None, 0, at="*cross"),
    Force(3, 1, at="*cross", head=0),
    Force(2, 1, 0.25, at="*cross"),
    Uniform(0, at="*cross"),
    Scale(0.5, 2, at="*cross", head=0),
)


def attend(query: torch.Tensor, key: torch.Tensor, **options: Any) -> regard.Attended:
    return regard.attention(query, key, look=LOOK, site="here", **options)


@pytest.mark.parametrize("change", [{"force": (1, 6)}, {"cut": (1, 6)}, {"cut": (None, 99)}])
def test_a_call_without_the_key_is_not_changed(change: dict[str, Any]):
    query, key = randn(4, 8, dtype=torch.float32), randn(6, 8, dtype=torch.float32)
    plain = attend(query, key).weights
    with (
        pytest.warns(regard.RegardWarning, match=r"changed nothing(.|\n)*row < 4, key < 6"),
        regard.intervene(**change) as changed,
    ):
        assert torch.equal(attend(query, key).weights, plain)
    assert changed == {"*": 0}


def test_a_key_that_only_one_of_the_calls_has_is_no_warning():
    query, key = randn(4, 8, dtype=torch.float32), randn(6, 8, dtype=torch.float32)
    with regard.intervene(cut=(1, 5)) as changed:
        attend(query, key[..., :3, :])
        attend(query, key)
    assert changed == {"*": 1}


@pytest.mark.parametrize("backend", ["auto", *ON_CPU])
def test_a_cut_key_is_masked_and_the_other_weights_renormalised(backend: str):
    query, key = randn(2, 3, 4, 8, dtype=torch.float32), randn(2, 3, 6, 8, dtype=torch.float32)
    mask = regard.padding(torch.tensor([6, 4]))
    plain = attend(query, key, mask=mask, backend=backend)
    with regard.intervene(cut=[(1, 2), (3, 0)], head=1, at="her?") as changed:
        cut = attend(query, key, mask=mask, backend=backend)
    expected = plain.weights.clone()
    for row, column in ((1, 2), (3, 0)):
        expected[:, 1, row, column] = 0
        expected[:, 1, row] /= expected[:, 1, row].sum(-1, keepdim=True)
    torch.testing.assert_close(cut.weights, expected)
    torch.testing.assert_close(cut.output, expected @ key, rtol=1e-4, atol=1e-5)
    assert torch.equal(cut.weights[:, [0, 2]], plain.weights[:, [0, 2]]) and changed == {"her?": 1}
    assert not sites.open_scopes()


@pytest.mark.parametrize("backend", ["auto", *ON_CPU])
def test_a_forced_key_gets_all_the_weight(backend: str):
    query, key = randn(2, 4, 8, dtype=torch.float32), randn(2, 6, 8, dtype=torch.float32)
    with regard.intervene(force=(2, 5)):
        found = attend(query, key, backend=backend)
    torch.testing.assert_close(found.output[:, 2], key[:, 5])
    assert (found.weights[:, 2, 5] == 1).all() and (found.weights[:, 1, 5] < 1).all()


@pytest.mark.parametrize(
    "select",
    [
        regard.Soft(0.5),
        regard.Sparse(),
        regard.Gate(),
        regard.Hard(),
        regard.Best(),
        regard.StraightThrough(),
        regard.LocalP(torch.tensor(0.0), 2),
    ],
    ids=lambda select: type(select).__name__,
)
def test_every_selection_can_be_intervened_on(select: regard.Select):
    query, key = randn(2, 4, 8), randn(2, 6, 8)
    with regard.intervene(Force(0, 5), Force(1, 3, 0.5), Uniform(2), Cut(3, 0)):
        found = attend(query, key, select=select)
    assert found.weights[:, 0].tolist() == [[0, 0, 0, 0, 0, 1]] * 2
    assert (found.weights[:, 1, 3] == 0.5).all() and (found.weights[:, 3, 0] == 0).all()
    torch.testing.assert_close(found.weights[:, 2], torch.full((2, 6), 1 / 6).double())
    torch.testing.assert_close(found.output, found.weights @ key)


def test_other_keys_share_the_remaining_weight():
    query, key = randn(1, 2, 8), randn(1, 5, 8)
    plain = attend(query, key).weights[0, 1]
    with regard.intervene(force=[(1, 0, 0.5), (1, 3, 0.2)]):
        found = attend(query, key).weights[0, 1]
    others = plain[[1, 2, 4]]
    assert found[0] == 0.5 and found[3].item() == pytest.approx(0.2)
    torch.testing.assert_close(found[[1, 2, 4]], 0.3 * others / others.sum())
    with (
        regard.intervene(force=[(1, 0, 0.7), (1, 3, 0.4)]),
        pytest.raises(regard.ArgumentError, match="more"),
    ):
        attend(query, key)


def test_uniform_weights_respect_the_mask():
    x = randn(1, 2, 4, 8)
    with regard.intervene(uniform=True, head=0):
        found = attend(x, x, mask=regard.causal()).weights
    even = torch.tril(torch.ones(4, 4).double())
    torch.testing.assert_close(found[0, 0], even / even.sum(-1, keepdim=True))
    assert torch.equal(found[0, 1], attend(x, x, mask=regard.causal()).weights[0, 1])
    with regard.intervene(uniform=[0, 2]):
        rows = attend(x, x).weights
    torch.testing.assert_close(rows[:, :, [0, 2]], torch.full((1, 2, 2, 4), 0.25).double())
    assert torch.equal(rows[:, :, [1, 3]], attend(x, x).weights[:, :, [1, 3]])


def test_scale_removes_a_head_and_reduces_a_weight():
    x = randn(1, 2, 4, 8)
    plain = attend(x, x)
    with regard.intervene(Scale(0.5, 1, 2, head=1), scale=0, head=0):
        found = attend(x, x)
    assert (found.output[:, 0] == 0).all()
    torch.testing.assert_close(found.output[:, 1, 0], plain.output[:, 1, 0])
    torch.testing.assert_close(found.weights[0, 1, 1, 2], plain.weights[0, 1, 1, 2] / 2)
    torch.testing.assert_close(found.weights[0, 1, 1, 1], plain.weights[0, 1, 1, 1])  # not normalised again


def test_a_masked_key_cannot_be_forced():
    x = randn(1, 4, 8)
    for weight, left in ((1.0, 0.0), (0.25, 0.75)):
        with regard.intervene(force=(1, 3, weight)):
            found = attend(x, x, mask=regard.causal())
        assert found.weights[0, 1, 3] == 0 and found.weights[0, 1].sum().item() == pytest.approx(left)


def test_a_named_backend_that_cannot_intervene_raises():
    x = randn(1, 4, 8, dtype=torch.float32)
    with regard.intervene(uniform=True), pytest.raises(regard.BackendError, match="Intervened") as error:
        attend(x, x, backend="sdpa-cpu")
    assert "'reference'" in str(error.value)


def test_scopes_nest_with_each_other_and_with_record():
    x = randn(1, 4, 8)
    with (
        pytest.warns(regard.RegardWarning, match="changed nothing"),
        regard.record() as outer,
        regard.intervene(force=(1, 2)),
        regard.record(regard.Look(entropy=True)) as inner,
        regard.intervene(cut=(9, 0), at="he*") as unchanged,
        regard.intervene(uniform=1) as changed,
    ):
        attend(x, x)
    assert unchanged == {"he*": 0} and changed == {"*": 1}
    # Force hides all other keys by a mask, so the uniform row sees only one key.
    assert outer["here"][0].weights[0, 1].tolist() == [0, 0, 1, 0]
    assert inner["here"][0].entropy[0, 1] == 0 and inner["here"][0].entropy[0, 0] > 0


def test_gradients_flow_through_changed_weights():
    query, key = randn(1, 3, 4), randn(1, 5, 4)
    with regard.intervene(Force(0, 1, 0.5), Cut(1, 0), Scale(2.0, 2)):
        attend(query, key).output.sum().backward()
    assert query.grad.isfinite().all() and (query.grad.abs().sum(-1) > 0).all()
    assert key.grad.isfinite().all()


@pytest.mark.parametrize("name", READERS)
def test_decoding_step_by_step_is_changed_like_teacher_forcing(name: str):
    """Rows are positions: a recurrent decoder calls attention per token, a Transformer once."""
    model, batch = make(name), Batch.collate([[4, 5, 6], [7, 8, 9]], [[5, 6, 7, 4], [9, 8]])
    plain = model(batch)
    with regard.intervene(*EVERY):
        whole = model(batch)
        encoded = model.encode(batch.source, batch.source_lengths)
        for cuts in ((1, 1, 1, 1, 1), (2, 3)):
            state, found = model.start(encoded), []
            for tokens in batch.inputs.split(cuts, 1):
                state, logits = model.step(state, tokens, encoded)
                found.append(logits)
            torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-12)
    assert not torch.allclose(whole, plain)
    with regard.intervene(cut=(3, 1), at="*cross"):
        late = model(batch)
    torch.testing.assert_close(late[:, :3], plain[:, :3], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["bahdanau", "luong general", "luong local-m unfed", "transformer rotary"])
def test_beams_are_changed_like_a_single_sequence(name: str):
    model, batch = make(name), Batch.collate([[4, 5, 6], [7, 8, 9]])
    with regard.intervene(*EVERY):
        encoded = model.encode(batch.source, batch.source_lengths)
        tokens = torch.tensor([[2, 4, 5], [2, 6, 7], [2, 8, 9]])
        state = model.start(encoded).reorder(torch.arange(2).repeat_interleave(3))
        state, first = model.step(state, tokens[:, :2].repeat(2, 1), encoded)
        _, last = model.step(state, tokens[:, 2:].repeat(2, 1), encoded)
        for row, beam in enumerate(tokens.repeat(2, 1)):
            alone = encoded.reorder(torch.tensor([row // 3]))
            _, expected = model.step(model.start(alone), beam[None], alone)
            torch.testing.assert_close(torch.cat((first, last), 1)[row], expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "how", [Greedy(Rules(maximum=6)), Beam(size=3, best=2, coverage=0.1), Sample(seed=1)]
)
@pytest.mark.parametrize("name", ["bahdanau", "luong general", "transformer sinusoidal"])
def test_every_search_decodes_again(name: str, how: Any):
    """A translation found under an intervention has the scores and weights of teacher forcing."""
    model, batch = make(name), Batch.collate([[4, 5, 6, 7]])
    with regard.intervene(cut=[(1, 0), (2, 3)], force=(0, 2), at="*cross") as changed:
        (found,) = search(model, batch, how)
        for each in found:
            read = observe(model, Batch.collate([[4, 5, 6, 7]], [each.output_tokens]))
            scores = read.token_scores[0][: len(each.tokens)].tolist()
            assert scores == pytest.approx(each.token_scores, abs=1e-5)
    assert changed["*cross"] > 2
    for each in found:
        for weights in each.attention.values():
            assert (weights[..., 0, 2] == 1).all() and (weights[..., 1:2, 0] == 0).all()
            assert (weights[..., 2:3, 3] == 0).all()


def test_interventions_are_written_and_read():
    given = [*EVERY, Uniform(head=3), Scale(0.0)]
    assert read_interventions(json.loads(json.dumps([each.written() for each in given]))) == given
    with pytest.raises(regard.UnknownName, match="'cut'"):
        read_interventions([{"kind": "cuts"}])
    with pytest.raises(regard.UnknownName, match="'keys'"):
        read_interventions([{"kind": "cut", "row": 1, "keys": 2}])
    with pytest.raises(regard.ArgumentError, match=facts("cut ", "key")):
        read_interventions([{"kind": "cut", "row": 1}])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cut": (1, -1)}, "key is -1"),
        ({"cut": (1, 2, 3)}, r"cut .*\(1, 2, 3\)"),
        ({"cut": [(True, 2)]}, "row is True"),
        ({"cut": (1, None)}, "key is None"),
        ({"force": (1, 2, 1.5)}, "weight is 1.5"),
        ({"scale": float("nan")}, "factor is nan"),
        ({"head": 2, "uniform": True}, "head 2"),
        ({"at": 3, "uniform": True}, "at is 3"),
        ({"cut": 1}, "cut .* 1"),
        ({"force": "1-2"}, "force .*'1-2'"),
        ({"uniform": 1.5}, "row is 1.5"),
        ({}, "no intervention"),
        ({"cut": (1, 1), "at": "nope"}, "'nope'"),
    ],
)
def test_invalid_interventions_raise(options: dict[str, Any], said: str):
    x = randn(1, 2, 4, 8)
    with pytest.raises(regard.ArgumentError, match=said), regard.intervene(**options):
        attend(x, x)
    with pytest.raises(regard.ArgumentError, match="Intervention"), regard.intervene("cut"):  # type: ignore[arg-type]
        attend(x, x)
    assert not sites.open_scopes()


def test_a_scope_in_which_nothing_is_called_warns_and_an_exception_is_passed_on():
    with pytest.warns(regard.RegardWarning) as caught, regard.intervene(cut=(1, 1), at="nope") as changed:
        pass
    assert changed == {"nope": 0} and caught[0].filename == __file__
    with pytest.raises(KeyError, match="mine"), regard.intervene(cut=(1, 1), at="nope"):
        attend(randn(1, 4, 8), randn(1, 4, 8))
        raise KeyError("mine")


@pytest.mark.parametrize(("name", "fact"), [("cuts", "'cut'"), ("drop", "scale")])
def test_an_unknown_keyword_raises_and_lists_the_known_ones(name: str, fact: str):
    with pytest.raises(regard.UnknownName, match=name) as error:
        regard.intervene(**{name: (1, 1)})
    assert fact in str(error.value)


def test_an_unknown_site_raises_and_lists_the_called_sites():
    x = randn(1, 4, 8)
    with pytest.raises(regard.ArgumentError, match=r"there\.3"), regard.intervene(cut=(1, 1), at="nope"):
        regard.attention(x, x, site="there.3")


def test_beams_divide_the_queries():
    x = randn(1, 6, 8)
    assert torch.equal(attend(x, x, beams=3).output, attend(x, x).output)
    with regard.intervene(force=(5, 1)):
        found = attend(x, x, start=4, beams=3).weights
    assert [row[1] == 1 for row in found[0].tolist()] == [False, True] * 3
    for beams in (4, 0):
        with pytest.raises(regard.ArgumentError, match=f"T = 6 .*beams = {beams}"):
            attend(x, x, beams=beams)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"force": (1, 4, "x")}, "weight is 'x'"),
        ({"force": (1, 4, float("nan"))}, "weight is nan"),
        ({"cut": torch.tensor([1, 4])}, "tolist"),
        ({"force": torch.tensor([[1, 4]])}, "tolist"),
        ({"cut": numpy.array([1, 4])}, "tolist"),
        ({"cut": (1, 2), "force": (1, 2)}, "Cut(.|\n)*Force"),
        ({"cut": (None, 2), "force": [(0, 1), (1, 2, 0.5)]}, "Cut(.|\n)*Force"),
        ({"force": [(1, 1), (1, 2)]}, "sum to more than 1"),
    ],
)
def test_impossible_links_raise_an_argument_error(options: dict[str, object], fact: str):
    x = torch.eye(5)
    with pytest.raises(regard.ArgumentError, match=fact), regard.intervene(**options):
        regard.attention(x, x)


def test_a_key_may_be_cut_in_one_row_and_forced_in_another():
    x = torch.eye(3)
    with regard.intervene(cut=(0, 2), force=(1, 2)):
        weights = regard.attention(x, x, look=regard.Look(weights=True)).weights
    assert weights[0, 2] == 0 and weights[1, 2] == 1
