"""score, select and position of every model: by name, by table, and in Python; nonsense raises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.data.batch import Batch
from regard.errors import ArgumentError, RegardError
from regard.fast.recurrent.bahdanau import FastBahdanau
from regard.models import (
    Bahdanau,
    Luong,
    Model,
    Recurrence,
    Size,
    Transformer,
    build_classifier,
    build_language_model,
    build_model,
)
from regard.named_models.memory_networks import build_memory_network
from regard.scores import SCORES
from regard.select import SELECTIONS, build_select
from regard.training.estimators import Reinforce, hard_selections
from tests.facts import facts
from tests.making import log_likelihood

SIZE = 11
SMALL: dict[str, dict[str, Any]] = {
    "bahdanau": {"width": 6},
    "luong": {"width": 6, "cell": "gru"},
    "lstmn": {"width": 6, "fusion": "shallow"},
    "transformer": {"width": 8, "heads": 2, "inner": 8, "layers": 1, "dropout": 0.0},
}
BATCH = Batch.collate([[4, 5, 6, 7, 8], [9], [10, 4]], [[5, 6], [7, 8, 9, 10], []])


def build(name: str, **options: Any) -> Model:
    return build_model(name, SIZE, SIZE, **SMALL[name], **options).double()


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("name", SMALL)
def test_every_selection_trains(name: str, select: str):
    torch.manual_seed(1)
    model = build(name, select=select)
    with hard_selections() as drawn:
        logits = model(BATCH)
    likely = log_likelihood(logits, BATCH.labels)
    loss = -likely.sum()
    if select == "hard":
        lengths = {"encoder.*": BATCH.source_lengths, "decoder.*": BATCH.target_lengths}
        loss = loss + Reinforce(entropy=0.1)(drawn, likely, lengths).loss
    loss.backward()
    gradients = {each: weight.grad for each, weight in model.named_parameters() if weight.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    compared = [each for each in dict(model.named_parameters()) if "score." in each or "query.weight" in each]
    # The attention of an LSTMN to its own past is always a softmax.
    compared = [each for each in compared if ".layers.0.score." not in each]
    trained = [each in gradients and bool(gradients[each].any()) for each in compared]
    assert compared and trained == [select != "best"] * len(compared)


@pytest.mark.parametrize(
    ("name", "score"),
    [(name, score) for name in SMALL for score in SCORES if (name, score) != ("transformer", "location")],
)
def test_every_score_trains_and_steps(name: str, score: str):
    model = build(name, score=score)
    log_likelihood(model(BATCH), BATCH.labels).sum().backward()
    for each, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.isfinite().all()
        if "score" in each or "narrow" in each:
            assert weight.grad.any()
    owner = model.cross if name == "lstmn" else next(m for m in model.modules() if hasattr(m, "score"))
    assert type(owner.score) is SCORES[score]
    assert_stepping_equals_forward(model)


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("name", SMALL)
def test_stepping_equals_forward_for_every_selection(name: str, select: str):
    assert_stepping_equals_forward(build(name, select=select))


@torch.no_grad()
def assert_stepping_equals_forward(model: Model) -> None:
    model.eval()
    logits = model(BATCH)
    encoded = model.encode(BATCH.source, BATCH.source_lengths)
    state, steps = model.start(encoded), []
    for tokens in BATCH.inputs.split((1, 2, 1, 1), 1):
        state, step = model.step(state, tokens, encoded)
        steps.append(step)
    torch.testing.assert_close(torch.cat(steps, 1), logits, rtol=0, atol=1e-12)
    alone = model(Batch.collate([[9]], [[7, 8, 9, 10]]))
    torch.testing.assert_close(logits[1:2], alone, rtol=0, atol=1e-12)


def sparse(scores: Tensor, alpha: float) -> Tensor:
    """[(alpha - 1) score - tau]_+ ^ (1 / (alpha - 1)), with tau by bisection so that the sum is 1."""
    scaled = (alpha - 1) * scores
    low, high = scaled.amax(-1, keepdim=True) - 1, scaled.amax(-1, keepdim=True)
    for _ in range(80):
        tau = (low + high) / 2
        above = (scaled - tau).clamp_min(0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, tau, low), torch.where(above, high, tau)
    return (scaled - low).clamp_min(0).pow(1 / (alpha - 1))


def best(scores: Tensor) -> Tensor:
    return functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),
    "sparsemax": lambda scores: sparse(scores, 2.0),
    "entmax": lambda scores: sparse(scores, 1.5),
    "gate": lambda scores: 1 / (1 + (-scores).exp()),
    "linear": lambda scores: scores,
    "hard": best,
    "best": best,
    "straight-through": best,
}


def sharpened(model: Model) -> Model:
    """Make scores larger, so that sparse selections give some keys no weight."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "score." in name or "query.weight" in name:
                weight.mul_(6)
    return model.eval()


@pytest.mark.parametrize("select", SELECTIONS)
def test_bahdanau_agrees_with_its_equations(select: str):
    model = sharpened(build("bahdanau", select=select, score="concat"))
    (states,), _ = model.encoder(model.source(BATCH.source[:1]), BATCH.source_lengths[:1])
    s, logits = torch.tanh(model.first(states[:1, 6:])), []
    for word in BATCH.inputs[0]:
        pairs = torch.cat((s.expand(len(states), -1), states), -1)
        weights = PLAIN[select](torch.tanh(pairs @ model.score.weight) @ model.score.vector)
        context, embedded = (weights @ states)[None], model.target(word)[None]
        s = model.cell(model.cell.gates(embedded), s, context)
        logits.append(model.readout.output(model.readout(torch.cat((s, context, embedded), -1)))[0])
    torch.testing.assert_close(model(BATCH)[0], torch.stack(logits), rtol=0, atol=1e-10)


@pytest.mark.parametrize("select", SELECTIONS)
def test_luong_agrees_with_its_equations(select: str):
    model = sharpened(build("luong", select=select, score="cosine", feeding=False))
    model.score = regard.Cosine(9.0)
    states, last = model.encoder.encode(model.source(BATCH.source[:1]), BATCH.source_lengths[:1])
    tops, _ = model.decoder.run(model.target(BATCH.inputs[:1]), last)
    scores = 9 * functional.normalize(tops[0], dim=-1) @ functional.normalize(states[0], dim=-1).T
    context = PLAIN[select](scores) @ states[0]
    logits = model.readout.output(model.readout(context, tops[0]))
    torch.testing.assert_close(model(BATCH)[0], logits, rtol=0, atol=1e-10)


def plain_heads(layer: nn.Module, x: Tensor, keys: Tensor, select: str, causal: bool) -> Tensor:
    """Additive multi-head attention, one head and one query at a time."""
    q, k, v = (each.unflatten(-1, (2, 4)) for each in (layer.query(x), layer.key(keys), layer.value(keys)))
    rows = []
    for t in range(len(x)):
        seen = t + 1 if causal else len(keys)
        heads = []
        for h in range(2):
            hidden = torch.tanh(
                q[t, h] @ layer.score.query_weight[h] + k[:seen, h] @ layer.score.key_weight[h]
            )
            heads.append(PLAIN[select](hidden @ layer.score.vector[h]) @ v[:seen, h])
        rows.append(torch.cat(heads))
    return layer.output(torch.stack(rows))


@pytest.mark.parametrize("select", SELECTIONS)
def test_transformer_agrees_with_its_equations(select: str):
    model = sharpened(build("transformer", select=select, score="additive", position="none"))
    (encoder,), (decoder,) = model.encoder, model.decoder
    x, y = (math.sqrt(8) * each for each in (model.source(BATCH.source[0]), model.target(BATCH.inputs[0])))
    normed = encoder.norms[0](x)
    x = x + plain_heads(encoder.itself, normed, normed, select, causal=False)
    x = model.encoded(x + encoder.feedforward(encoder.norms[1](x)))
    normed = decoder.norms[0](y)
    y = y + plain_heads(decoder.itself, normed, normed, select, causal=True)
    y = y + plain_heads(decoder.cross, decoder.norms[1](y), x, select, causal=False)
    y = y + decoder.feedforward(decoder.norms[2](y))
    torch.testing.assert_close(model(BATCH)[0], model.output(model.decoded(y)), rtol=0, atol=1e-10)


def test_hard_samples_in_training_and_reads_the_best_key_in_eval_mode():
    for name in SMALL:
        model = build(name, select="hard")
        with torch.no_grad():
            assert not torch.equal(model(BATCH), model(BATCH))
            assert torch.equal(model.eval()(BATCH), model(BATCH))
        with hard_selections() as drawn:
            model(BATCH)
        assert len(drawn) == 0


def test_the_twin_of_bahdanau_is_for_the_additive_softmax_only():
    for options, fuses in (
        ({}, True),
        ({"hidden": 4}, True),
        ({"select": "entmax"}, False),
        ({"select": {"name": "softmax", "temperature": 0.5}}, False),
        ({"score": "concat"}, False),
        ({"score": regard.Additive(6, 12, heads=1)}, False),
    ):
        model = build("bahdanau", **options)
        assert (FastBahdanau.reasons(model) == []) is fuses


def test_options_are_names_tables_or_objects():
    sparsemax, soft = regard.Sparse(2.0), {"name": "softmax", "temperature": 0.5}
    assert build("bahdanau", select="sparsemax").select == sparsemax
    assert build("luong", select=sparsemax).select is sparsemax
    assert build("transformer", select=soft).decoder[0].select == regard.Soft(0.5)
    assert build_select({"name": "entmax", "alpha": 2.0}) == sparsemax and soft["name"] == "softmax"
    assert build("bahdanau", score={"name": "additive", "hidden": 3}).score.vector.shape == (3,)
    assert build("bahdanau", score="concat", hidden=4).score.vector.shape == (4,)
    assert build("luong", score={"name": "location", "max_length": 9}).longest_source == 9
    model = build(
        "transformer", score={"name": "additive", "hidden": 3}, position={"name": "t5", "buckets": 8}
    )
    assert model.decoder[0].cross.score.vector.shape == (2, 3)
    tables = [layer.itself.position for layer in (*model.encoder, *model.decoder)]
    assert [(each.buckets, each.bidirectional) for each in tables] == [(8, True), (8, False)]
    own = Transformer(9, 9, Size(8, 2, 8, 2), score=regard.General(4, 4, 2), position=regard.ALiBi(2))
    weights = [layer.itself.score.weight for layer in own.encoder]
    assert torch.equal(*weights) and weights[0] is not weights[1]
    assert build("transformer", position="learned", longest=7).longest_target == 7
    assert Bahdanau(9, 9, 4, score=regard.Dot(), select=regard.Gate()).select == regard.Gate()
    assert Bahdanau(9, 9, 4, score=regard.Dot()).narrow is not None
    assert Luong(9, 9, Recurrence(width=4), select="gate").select == regard.Gate()


@pytest.mark.parametrize("name", SMALL)
def test_learned_sharpness_of_cosine_is_a_parameter(name: str):
    model = build(name, score=regard.Cosine(nn.Parameter(torch.tensor(3.0))))
    log_likelihood(model(BATCH), BATCH.labels).sum().backward()
    found = [weight for each, weight in model.named_parameters() if each.endswith("sharpness")]
    assert found and all(weight.grad is not None and weight.grad.any() for weight in found)


def test_without_positions_the_encoder_is_a_set_and_causal_decoding_steps():
    model = build("transformer", position="none").eval()
    assert model.position is None and model.longest_source is None
    shuffled = BATCH.source.clone()
    shuffled[0, :5] = BATCH.source[0, [3, 0, 4, 2, 1]]
    other = Batch(shuffled, BATCH.source_lengths, BATCH.target, BATCH.target_lengths, BATCH.index)
    torch.testing.assert_close(model(other), model(BATCH), rtol=0, atol=1e-12)
    assert_stepping_equals_forward(model)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("bahdanau", {"select": "sparsmax"}, "did you mean 'sparsemax'"),
        ("bahdanau", {"select": {"name": "entmax", "alfa": 1.5}}, "did you mean 'alpha'"),
        ("bahdanau", {"select": {"name": "entmax", "alpha": 1.7}}, "alpha is 1.7"),
        ("bahdanau", {"select": {"name": "softmax", "temperature": "low"}}, "temperature is 'low'"),
        ("bahdanau", {"select": {"name": "sparsemax", "alpha": 1.5}}, "unknown option"),
        ("bahdanau", {"select": {"alpha": 1.5}}, "unknown selection None"),
        ("bahdanau", {"select": 1.5}, "select is 1.5"),
        ("luong", {"select": "local-p"}, "view="),
        ("luong", {"select": "entmax", "view": "local-p"}, "local-p has its own selection"),
        ("bahdanau", {"score": "scaled-dot"}, "did you mean 'scaled_dot'"),
        ("bahdanau", {"score": 3}, "score: got 3"),
        ("bahdanau", {"score": "dot", "hidden": 4}, "hidden is 4"),
        ("bahdanau", {"score": {"name": "additive", "hidden": 4}, "hidden": 4}, "hidden is set twice"),
        ("bahdanau", {"score": {"name": "cosine", "sharpness": -1}}, "sharpness is -1"),
        ("luong", {"score": {"name": "concat", "hidden": 2.5}}, "hidden is 2.5"),
        ("luong", {"score": {"name": "dot", "hidden": 2}}, "unknown option of the score dot"),
        ("transformer", {"score": "additive", "position": "rotary"}, "Rotary .* Additive"),
        ("transformer", {"score": "general", "position": "rotary"}, "Rotary .* General"),
        ("transformer", {"score": "concat", "position": "relative"}, "Relative .* Concat"),
        ("transformer", {"score": "location"}, "ignores the keys"),
        ("transformer", {"position": "nothing"}, "none"),
        ("transformer", {"position": {"name": "rotary", "pairs": 2}}, "pairs is 2"),
        ("transformer", {"position": {"name": "t5", "bidirectional": 2}}, "unknown option"),
        ("bahdanau", {"position": "rotary"}, "in order"),
        ("luong", {"position": "none"}, "in order"),
        ("lstmn", {"position": "none"}, "in order"),
        ("luong", {"feeding": "False"}, "feeding is 'False'"),
        ("luong", {"both_ways": 1}, "both_ways is 1"),
    ],
)
def test_nonsense_raises(name: str, options: dict[str, Any], match: str):
    with pytest.raises(RegardError, match=match):
        build(name, **options)


def test_flags_of_every_kind_of_model_are_true_or_false():
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: build_model("seq2seq", 9, 9, reverse="no"), "reverse"),
        (lambda: build_language_model("lstm", 9, tie="false"), "tie"),
        (lambda: build_classifier("gru", 9, 2, bidirectional="False"), "bidirectional"),
        (lambda: build_memory_network("end-to-end", 9, 2, 5, time=0), "time"),
    ]
    for call, option in wrong:
        with pytest.raises(ArgumentError, match=facts(option, "expected", "true", "false")):
            call()


def test_seq2seq_has_no_attention_to_choose():
    for option in ("score", "select", "position"):
        with pytest.raises(RegardError, match="attention" if option != "position" else "order"):
            build_model("seq2seq", 9, 9, **{option: "none"})


def test_unknown_argument_of_the_transformer_raises():
    with pytest.raises(RegardError, match="'dropout'"):
        Transformer(9, 9, "tiny", dropuot=0.1)
