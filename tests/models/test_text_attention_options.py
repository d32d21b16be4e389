"""score, select and position of language models and classifiers; options that make no sense raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data.batch import Batch, LabelledBatch, TextBatch
from regard.errors import RegardError
from regard.layers.pooling import AttentionPooling
from regard.models import build_classifier, build_language_model, build_model
from regard.positions import POSITIONS
from regard.scores import SCORES
from regard.select import SELECTIONS
from regard.training.estimators import Reinforce, hard_selections
from tests.facts import facts

TINY: dict[str, Any] = {"width": 8, "heads": 2, "inner": 8, "layers": 1, "dropout": 0.0}
TEXT = TextBatch.collate([[4, 5, 6, 7], [8]])
LABELLED = LabelledBatch.collate([[4, 5, 6, 7], [8]], labels=[1, 0])
KINDS = ("language", "transformer", "pooling", "transformer pooling")


def build(kind: str, **options: Any) -> nn.Module:
    if kind == "language":
        return build_language_model("transformer", 9, **TINY, **options).double()
    if kind == "transformer":
        return build_classifier("transformer", 9, 2, **TINY, **options).double()
    if kind == "pooling":
        return build_classifier("lstm", 9, 2, width=4, dropout=0.0, **options).double()
    return build_classifier("transformer", 9, 2, **TINY, pooling={"name": "attention", **options}).double()


def log_likelihoods(kind: str, model: nn.Module) -> Tensor:
    """The log-likelihood of each text, or of its label."""
    if kind == "language":
        scores = model(TEXT).log_softmax(-1).gather(-1, TEXT.targets[..., None])[..., 0]
        return torch.where(TEXT.targets != 0, scores, 0.0).sum(1)
    return model(LABELLED).log_softmax(-1).gather(1, LABELLED.labels[:, None])[:, 0]


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_selection_trains(kind: str, select: str):
    torch.manual_seed(1)
    model = build(kind, select=select)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(0.3 if "score." in name else 1)  # so that sparse selections have several keys
    with hard_selections() as drawn:
        likely = log_likelihoods(kind, model)
    loss = -likely.sum()
    if select == "hard":
        loss = loss + Reinforce(entropy=0.1)(drawn, likely).loss
    loss.backward()
    layer = "pooling." if "pooling" in kind else "itself."
    scores = {
        name: weight.grad
        for name, weight in model.named_parameters()
        if layer in name and ("score." in name or "query.weight" in name)
    }
    trained = [grad is not None and bool(grad.any()) for grad in scores.values()]
    assert scores and trained == [select != "best"] * len(scores)
    assert all(grad.isfinite().all() for grad in scores.values() if grad is not None)
    with torch.no_grad():  # eval mode does not sample
        assert torch.equal(log_likelihoods(kind, model.eval()), log_likelihoods(kind, model))


@pytest.mark.parametrize("score", [score for score in SCORES if score != "location"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_score_trains(kind: str, score: str):
    model = build(kind, score=score)
    log_likelihoods(kind, model).sum().backward()
    layer = (
        model.pooling
        if "pooling" in kind
        else next(m for m in model.modules() if hasattr(m, "itself")).itself
    )
    assert type(layer.score) is SCORES[score]
    assert all(
        weight.grad is not None and weight.grad.any() for weight in layer.parameters() if weight.dim() > 1
    )


@pytest.mark.parametrize("position", [*POSITIONS, "none"])
def test_every_transformer_has_every_position_scheme(position: str):
    torch.manual_seed(2)
    text, classifier = (
        build("language", position=position).eval(),
        build("transformer", position=position).eval(),
    )
    pairs = build_model("transformer", 9, 9, **TINY, position=position).double().eval()
    with torch.no_grad():
        whole, encoded = text(TEXT), text.source_free(2)
        state, first = text.step(text.start(encoded), TEXT.inputs[:, :2], encoded)
        rest = text.step(state, TEXT.inputs[:, 2:], encoded)[1]
        torch.testing.assert_close(torch.cat((first, rest), 1), whole)
        shuffled = LabelledBatch.collate([[7, 5, 4, 6], [8]])
        same = torch.allclose(classifier(shuffled), classifier(LABELLED))
        sources = [Batch.collate([words], [[4]]) for words in ([4, 5, 6], [6, 4, 5])]
        alike = torch.allclose(*(pairs(each) for each in sources))
    assert (same, alike) == (position == "none", position == "none")


def test_pooling_of_an_lstm_is_set_by_arguments_or_by_a_table():
    one = build("pooling", select="sparsemax", score={"name": "additive", "hidden": 3}).pooling
    other = build(
        "pooling", pooling={"name": "attention", "select": "sparsemax", "score": "additive"}
    ).pooling
    assert one.select == other.select == regard.Sparse(2.0)
    assert one.score.vector.shape == (3,) and other.score.vector.shape == (8,)
    assert AttentionPooling(6, 4).score.vector.shape == (4,)
    torch.manual_seed(3)
    default = AttentionPooling(6)
    torch.manual_seed(3)
    query, score = torch.empty(6).normal_(std=6**-0.5), regard.Additive(6, 6, 6)
    assert torch.equal(default.query, query) and torch.equal(default.score.key_weight, score.key_weight)
    assert set(default.state_dict()) == {"query", "score.query_weight", "score.key_weight", "score.vector"}


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        ("language", {"score": "additive", "position": "rotary"}, "position="),
        ("language", {"score": "location"}, "ignores the keys"),
        ("language", {"attention": "hard"}, "unknown option"),
        ("language", {"selct": "hard"}, "did you mean 'select'"),
        ("transformer", {"score": "concat", "position": "relative"}, "Relative .* Concat"),
        ("transformer", {"pooling": "mean", "select": "hardd"}, "did you mean 'hard'"),
        ("transformer", {"pooling": {"name": "mean", "select": "hard"}}, "no attention"),
        ("transformer", {"pooling": {"name": "attention", "selct": "hard"}}, "did you mean 'select'"),
        ("transformer", {"pooling": 3}, "pooling is 3"),
        ("pooling", {"pooling": "last", "score": "dot"}, "no attention"),
        ("pooling", {"position": "none"}, "in order"),
        ("pooling", {"score": "location"}, "ignores the states"),
        ("pooling", {"attention": "hard"}, "unknown option"),
    ],
)
def test_options_that_make_no_sense_raise(kind: str, options: dict[str, Any], match: str):
    with pytest.raises(RegardError, match=match):
        build(kind, **options)


@pytest.mark.parametrize("option", ["position", "score", "select"])
def test_recurrent_language_models_have_no_attention(option: str):
    with pytest.raises(RegardError, match=facts(option, "transformer")):
        build_language_model("lstm", 9, width=4, **{option: "none"})


@pytest.mark.parametrize("name", ["bahdanau", "transformer"])
def test_local_attention_is_an_option_of_luong(name: str):
    with pytest.raises(RegardError, match="luong"):
        build_model(name, 9, 9, view="local-m")
