"""Every classifier: padding and order do not matter, pairs follow their formula, wrong options are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import regard
from regard.data import LabelledBatch
from regard.data.batch import BOS, EOS, UNK
from regard.errors import ArgumentError, UnknownName
from regard.fast.recurrent.recurrent import encode_padded
from regard.models import Classifier, build_classifier
from regard.models.transformer import Size

SMALL = {"width": 8, "heads": 2, "inner": 16, "layers": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{cell} {pooling} {'both ways' if both else 'one way'}": (
            cell,
            {"width": 6, "pooling": pooling, "bidirectional": both, "embedding": 5},
        )
        for cell in ("lstm", "gru")
        for pooling in ("mean", "last", "attention")
        for both in (True, False)
    },
    "lstm deep": ("lstm", {"width": 6, "layers": 2}),
    "lstmn last": ("lstmn", {"width": 6, "embedding": 5, "pooling": "last"}),
    "lstmn deep": ("lstmn", {"width": 6, "layers": 2, "connections": "gated"}),
    **{
        f"transformer {pooling} {position}": (
            "transformer",
            {**SMALL, "pooling": pooling, "position": position},
        )
        for pooling, position in (("mean", "rotary"), ("first", "sinusoidal"), ("attention", "learned"))
    },
    "transformer post": ("transformer", {**SMALL, "norm": "post", "position": "t5"}),
}
FIRSTS, SECONDS = [[4, 5, 6, 7, 4], [8], [9, 10], []], [[5], [6, 6, 6], [], [10, 4]]


def make(name: str, pairs: bool = False, classes: int = 3) -> Classifier:
    kind, options = VARIANTS[name]
    options = {"dropout": 0.0, **options, "pairs": pairs}
    return build_classifier(kind, 11, classes, **options).double().eval()


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_do_not_depend_on_the_rest_of_the_batch(name: str, pairs: bool):
    model = make(name, pairs)
    batch = LabelledBatch.collate(FIRSTS, SECONDS if pairs else None)
    logits = model(batch)
    assert logits.shape == (4, 3) and logits.isfinite().all()
    alone = [
        model(LabelledBatch.collate([first], [second] if pairs else None))
        for first, second in zip(FIRSTS, SECONDS, strict=True)
    ]
    torch.testing.assert_close(torch.cat(alone), logits)
    torch.testing.assert_close(model(batch.padded_to(6, 9))[:4], logits)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(batch.select(order)), logits[order])
    assert len(model.encode(batch.first, batch.first_lengths).unique(dim=0)) == 4


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_gets_a_gradient(name: str):
    model = make(name, pairs=True).train()
    torch.nn.init.ones_(model.combine.bias)  # so that no unit of the hidden layer is dead
    model(LabelledBatch.collate(FIRSTS, SECONDS)).square().sum().backward()
    without = {
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    }
    # A key bias adds the same number to all scores of a query, which softmax ignores.
    assert {name for name in without if not name.endswith("itself.key.bias")} == set()


@pytest.mark.parametrize("name", ["lstm attention both ways", "gru last both ways", "lstm deep"])
def test_packed_and_padded_recurrence_agree(name: str):
    model = make(name)
    batch = LabelledBatch.collate(FIRSTS)
    logits = model(batch)
    model.encoder.encode = partial(encode_padded, model.encoder)
    torch.testing.assert_close(model(batch), logits)


def test_pair_formula():
    model = make("gru mean both ways", pairs=True)
    batch = LabelledBatch.collate(FIRSTS, SECONDS)
    u = model.encode(batch.first, batch.first_lengths)
    v = model.encode(batch.second, batch.second_lengths)
    hidden = torch.relu(model.combine(torch.cat((u, v, (u - v).abs(), u * v), -1)))
    torch.testing.assert_close(model(batch), model.output(hidden))


def test_pooling_of_a_pair_is_recorded_first_then_second():
    model = make("lstm attention both ways", pairs=True)
    batch = LabelledBatch.collate(FIRSTS, SECONDS)
    with regard.record(at=model.pool_site) as seen:
        model(batch)
    first, second = (call.weights for call in seen["pool"])
    assert first.shape == (4, 1, 6) and second.shape == (4, 1, 4)
    # EOS has weight only where it is the whole text.
    assert first[0, 0, 5] == 0 and first[3, 0].tolist() == [1, 0, 0, 0, 0, 0]
    torch.testing.assert_close(second.sum(-1), torch.ones(4, 1).double())


def test_sites_and_limits():
    sites = {"attention": {"encoder.0.self", "encoder.1.self", "pool"}}
    for name, pooling in (
        ("transformer first sinusoidal", "first"),
        ("transformer attention learned", "attention"),
    ):
        model = make(name)
        with regard.record() as seen:
            model(LabelledBatch.collate([[4, 5]]))
        assert set(seen) == sites.get(pooling, {"encoder.0.self", "encoder.1.self"})
        assert seen["encoder.0.self"][0].weights.shape[-1] == 3 + model.begins
        assert model.pool_site == ("pool" if pooling == "attention" else None)
    assert make("transformer first sinusoidal").begins and not make("transformer mean rotary").begins
    assert make("transformer attention learned").longest == 1024 and make("lstm deep").longest is None
    assert build_classifier("transformer", 9, 2, pooling="first", position="learned").longest == 1023
    first = build_classifier("transformer", 9, 2, **SMALL, pooling="first", longest=5, position="learned")
    assert first(LabelledBatch.collate([[4, 5, 6]])).shape == (1, 2)


def test_first_pooling_reads_bos():
    model = make("transformer first sinusoidal")
    batch = LabelledBatch.collate(FIRSTS)
    before = model(batch)
    with torch.no_grad():
        model.embedding.weight[BOS] += 1
    assert (model(batch) != before).any(-1).all()


def test_word_dropout_replaces_words_in_training_only():
    model = build_classifier("lstm", 40, 2, width=4, dropout=0.0, word_dropout=0.5)
    tokens = torch.arange(40).repeat(50, 1)
    dropped = model._dropped(tokens)
    changed = dropped != tokens
    assert (dropped[changed] == UNK).all() and not changed[:, : EOS + 1].any()
    assert 0.45 < changed[:, EOS + 1 :].float().mean() < 0.55
    assert model.eval()._dropped(tokens) is tokens


@pytest.mark.parametrize("pairs", [False, True])
def test_batch_of_the_other_kind_is_an_error(pairs: bool):
    model = make("lstm mean one way", pairs)
    with pytest.raises(ArgumentError, match=f"pairs={pairs}"):
        model(LabelledBatch.collate([[4]], None if pairs else [[5]]))


@pytest.mark.parametrize(
    ("error", "arguments", "parts"),
    [
        (UnknownName, ("ltsm", 9, 2), ["lstm", "gru", "transformer"]),
        (UnknownName, ("lstm", 9, 2, {"heads": 2}), ["option of lstm", "heads", "word_dropout"]),
        (UnknownName, ("transformer", 9, 2, {"bidirectional": True}), ["option of transformer", "layers"]),
        (UnknownName, ("transformer", 9, 2, {"decoder_layers": 2}), ["decoder_layers", "inner"]),
        (UnknownName, ("lstm", 9, 2, {"pooling": "first"}), ["first", "attention, last, mean"]),
        (UnknownName, ("transformer", 9, 2, {"pooling": "last"}), ["last", "attention, first, mean"]),
        (UnknownName, ("transformer", 9, 2, {"norm": "both"}), ["norm", "post, pre"]),
        (UnknownName, ("transformer", 9, 2, {"size": "huge", "width": 8}), ["huge", "tiny"]),
        (ArgumentError, ("transformer", 9, 2, {"size": 8}), ["size is 8"]),
        (ArgumentError, ("transformer", 9, 2, {"size": 8, "width": 8}), ["size is 8"]),
        (ArgumentError, ("transformer", 9, 2, {"longest": 2}), ["longest is 2"]),
        (ArgumentError, ("gru", 9, 1), ["classes is 1"]),
        (ArgumentError, ("gru", 9, 2, {"width": 0}), ["width is 0"]),
        (ArgumentError, ("gru", 9, 2, {"dropout": 1.0}), ["dropout is 1.0"]),
        (ArgumentError, ("gru", 9, 2, {"word_dropout": 1.0}), ["word_dropout is 1.0"]),
    ],
)
def test_wrong_options(error: type[Exception], arguments: tuple[Any, ...], parts: list[str]):
    name, vocabulary, classes, *options = arguments
    with pytest.raises(error) as caught:
        build_classifier(name, vocabulary, classes, **(options[0] if options else {}))
    assert not [part for part in parts if part not in str(caught.value)], str(caught.value)


def test_size_by_name_or_value_with_overrides():
    model = build_classifier("transformer", 9, 2, size="small", layers=1, heads=2)
    assert len(model.encoder) == 1 and model.width == 256 and model.encoder[0].itself.heads == 2
    same = build_classifier("transformer", 9, 2, size=Size(width=8, heads=2, inner=16, layers=3))
    assert len(same.encoder) == 3 and not any("cross" in name for name, _ in same.named_parameters())


def test_weights_keep_their_names():
    """Checkpoints store weights by name."""
    recurrent = build_classifier("gru", 9, 2, width=4, bidirectional=False, pairs=True)
    layers = {f"encoder.layers.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    pool = {"pooling.query", "pooling.score.query_weight", "pooling.score.key_weight", "pooling.score.vector"}
    head = {"combine.weight", "combine.bias", "output.weight", "output.bias"}
    assert set(recurrent.state_dict()) == {"embedding.weight"} | layers | pool | head
    transformer = build_classifier("transformer", 9, 2, **SMALL, pooling="mean")
    outside = {name for name in transformer.state_dict() if not name.startswith("encoder.")}
    assert outside == {"embedding.weight", "encoded.weight", "encoded.bias", "output.weight", "output.bias"}
