"""What every language model guarantees: forward equals stepping, states carry over, search runs on it."""

from __future__ import annotations

import itertools

import pytest
import torch

import regard
from regard.data.batch import EOS, PAD, Batch, TextBatch
from regard.decoding import GNMT, Beam, Greedy, Rules, Sample, search
from regard.errors import ArgumentError, RegardError, UnknownName
from regard.layers.recurrent import Recurrent
from regard.models import LANGUAGE_MODELS, LanguageModel, build_language_model
from regard.models.language_base import detached
from regard.models.recurrent_language import initialize_uniform
from regard.models.transformer import Size
from regard.positions import POSITIONS
from regard.training.losses import separates_output
from tests.facts import facts

SIZE = 7
"""Vocabulary size."""

SMALL = {"width": 8, "heads": 2, "inner": 16, "layers": 2}
VARIANTS = {
    "lstm": ("lstm", {"width": 6}),
    "lstm tied": ("lstm", {"width": 6, "depth": 1, "tie": True, "uniform": 0.3}),
    "gru": ("gru", {"width": 6, "embedding": 5, "depth": 3}),
    "lstmn": ("lstmn", {"width": 6, "tie": True}),
    "lstmn deep": ("lstmn", {"width": 6, "embedding": 5, "hidden": 3, "depth": 2, "tape": 3}),
    "lstmn gated": ("lstmn", {"width": 6, "depth": 2, "connections": "gated"}),
    **{f"transformer {position}": ("transformer", {**SMALL, "position": position}) for position in POSITIONS},
    "transformer post untied": ("transformer", {**SMALL, "norm": "post", "tie": False}),
    "transformer swiglu": ("transformer", {**SMALL, "activation": "swiglu"}),
}
EACH = pytest.mark.parametrize("name", VARIANTS)
DOCUMENTS = [[4, 5, 6, 4, 5], [6], [], [5, 5, 5, 5, 5]]


@EACH
def test_features_and_the_output_layer_give_the_logits(name: str):
    kind, options = VARIANTS[name]
    model = build_language_model(kind, SIZE, **options).double().eval()
    batch = TextBatch.collate(DOCUMENTS)
    layer = model.output_layer()
    assert separates_output(type(model)) and layer is not None
    torch.testing.assert_close(
        layer(model.features(*model.first_step(batch))[1]), model(batch), rtol=0, atol=1e-12
    )


def make(name: str) -> LanguageModel:
    """Build the variant with this name, in float64 and eval mode."""
    kind, options = VARIANTS[name]
    return build_language_model(kind, SIZE, **options).double().eval()


@EACH
def test_forward_equals_stepping(name: str):
    model, batch = make(name), TextBatch.collate(DOCUMENTS)
    logits = model(batch)
    assert logits.shape == (4, 6, SIZE)
    encoded = model.source_free(4)
    assert encoded.lengths.tolist() == [0, 0, 0, 0] and encoded.memories == ()
    for cuts in ((1, 1, 1, 1, 1, 1), (2, 4), (1, 5)):
        state, steps = model.start(encoded), []
        for tokens in batch.inputs.split(cuts, 1):
            state, step = model.step(state, tokens, encoded)
            steps.append(step)
        assert state.position == 6
        torch.testing.assert_close(torch.cat(steps, 1), logits, rtol=0, atol=1e-12)


@EACH
def test_carried_windows_equal_one_window(name: str):
    model, inputs = make(name), torch.randint(4, SIZE, (3, 9))
    whole = TextBatch(inputs, inputs, torch.full((3,), 9), torch.arange(3))
    expected, state, parts = model(whole), None, []
    for number, part in enumerate(inputs.split(4, 1)):
        window = TextBatch(part, part, torch.full((3,), part.shape[1]), torch.arange(3), carried=number > 0)
        state, logits = model.read(window, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)
    fresh, logits = model.read(TextBatch(inputs, inputs, whole.lengths, whole.index), state)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    assert fresh.position == 9


@EACH
def test_logits_depend_on_earlier_tokens_only(name: str):
    model, inputs = make(name), torch.randint(4, SIZE, (2, 7))
    encoded = model.source_free(2)
    logits = model.step(model.start(encoded), inputs, encoded)[1]
    changed = inputs.clone()
    changed[:, 4] = torch.where(inputs[:, 4] == 4, 5, 4)
    other = model.step(model.start(encoded), changed, encoded)[1]
    torch.testing.assert_close(other[:, :4], logits[:, :4], rtol=0, atol=0)
    assert (other[:, 4:] - logits[:, 4:]).abs().amax(-1).min() > 1e-6


@EACH
def test_padding_and_other_rows_change_nothing(name: str):
    model = make(name)
    together = model(TextBatch.collate(DOCUMENTS))
    for row, document in enumerate(DOCUMENTS):
        alone = model(TextBatch.collate([document]))
        torch.testing.assert_close(together[row, : len(document) + 1], alone[0], rtol=0, atol=1e-12)


@EACH
def test_every_parameter_has_a_gradient(name: str):
    model = make(name).train()
    logits = model(TextBatch.collate([[4, 5, 6, 4, 5], [6, 5, 4]]))
    (logits * torch.randn_like(logits)).sum().backward()
    without = {
        each for each, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()
    }
    # A key bias adds the same to all scores, so its gradient is 0.
    assert {each for each in without if not each.endswith("key.bias")} == set()


@EACH
def test_beam_search_finds_the_most_probable_texts(name: str):
    """A beam as wide as the number of texts is an exhaustive search."""
    model = make(name)
    rules = Rules(maximum=3, forbidden=())
    words = [1, EOS, 4, 5, 6]
    texts = [
        text
        for length in (1, 2, 3)
        for text in itertools.product(words, repeat=length)
        if EOS not in text[:-1] and text[-1] == EOS
    ]
    with torch.no_grad():
        batch = TextBatch.collate([text[:-1] for text in texts])
        scores = model(batch).log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
        totals = torch.where(batch.targets == PAD, 0.0, scores).sum(-1)
    how = Beam(size=30, best=4, length=GNMT(alpha=0), rules=rules)
    found = search(model, Batch.collate([[], []]), how, look=None)
    best = totals.topk(4)
    for hypotheses in found:
        assert [each.tokens for each in hypotheses] == [texts[index] for index in best.indices.tolist()]
        assert [each.score for each in hypotheses] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("how", [Greedy(rules=Rules(maximum=6)), Sample(rules=Rules(maximum=6))])
@pytest.mark.parametrize("name", ["lstm", "transformer rotary"])
def test_generation_continues_a_prefix(name: str, how: Greedy | Sample):
    (first,), (second,) = search(
        make(name), Batch.collate([[], []]), how, prefixes=[[4, 5], []], look="*self"
    )
    assert first.tokens[:2] == (4, 5) and 2 < len(first.tokens) <= 6
    sites = ["decoder.0.self", "decoder.1.self"] if name.startswith("transformer") else []
    assert list(first.attention) == list(second.attention) == sites
    for weights in first.attention.values():
        assert weights.shape == (2, len(first.tokens), len(first.tokens))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("transformer")])
def test_record_sees_causal_self_attention(name: str):
    model = make(name)
    with regard.record() as seen:
        model(TextBatch.collate([[4, 5, 6, 4], [6]]))
    assert list(seen) == ["decoder.0.self", "decoder.1.self"]
    for (call,) in seen.values():
        assert call.weights.shape == (2, 2, 5, 5)
        assert not call.weights.triu(1).any()
        torch.testing.assert_close(call.weights.sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))


def test_dropout_acts_on_non_recurrent_connections_only(monkeypatch: pytest.MonkeyPatch):
    """With dropout p, the embeddings, the states between layers and the outputs are 0 or divided by 1 - p."""
    model = build_language_model("lstm", SIZE, width=50, depth=1, dropout=0.5).train()
    seen = {}
    original = Recurrent.run

    def run(self, x, hidden, *position):
        seen["inputs"], seen["outputs"] = x, original(self, x, hidden, *position)[0]
        return original(self, x, hidden, *position)

    monkeypatch.setattr(Recurrent, "run", run)
    model.output.register_forward_hook(lambda module, inputs, output: seen.update(last=inputs[0]))
    batch = TextBatch.collate([[4, 5, 6] * 5])
    model(batch)
    assert model.layers.layers.dropout == 0.0, "torch drops between layers only"
    for dropped, whole in ((seen["inputs"], model.embedding(batch.inputs)), (seen["last"], seen["outputs"])):
        kept = dropped != 0
        assert 0.4 < kept.float().mean() < 0.6
        torch.testing.assert_close(dropped, torch.where(kept, 2 * whole, 0.0))
    assert build_language_model("lstm", SIZE, width=4, depth=3, dropout=0.5).layers.layers.dropout == 0.5


def test_gradients_stop_at_a_detached_state():
    for name in ("lstm", "transformer alibi"):
        model = make(name)
        batch = TextBatch.collate([[4, 5, 6]])
        state = detached(model.read(batch)[0])
        tensors = [
            *state.hidden,
            *(memory.key for memory in state.past),
            *(memory.value for memory in state.past),
        ]
        assert state.position == 4 and tensors and not any(tensor.requires_grad for tensor in tensors)


def test_reading_without_the_state_of_the_same_rows_raises():
    window = TextBatch.collate([[4], [5]])
    carried = TextBatch(window.inputs, window.targets, window.lengths, window.index, carried=True)
    for name in ("gru", "transformer rotary"):
        model = make(name)
        with pytest.raises(ArgumentError, match=facts("read()", "batch.carried")):
            model.read(carried)
        state = model.read(window)[0]
        with pytest.raises(ArgumentError, match=facts("2 rows", 4)):
            model.read(carried.repeat(2), state)
        assert model.read(carried.repeat(2), state.reorder(torch.tensor([0, 0, 1, 1])))[0].position == 4


def test_uniform_initialization():
    model = build_language_model("lstm", 200, width=30, tie=False, uniform=0.05)
    for weight in model.parameters():
        assert 0.03 < weight.abs().max() <= 0.05
    together = torch.cat([weight.flatten() for weight in model.parameters()])
    assert abs(together.std().item() - 0.05 / 3**0.5) < 1e-3 and abs(together.mean().item()) < 1e-3
    assert not model.embedding.weight[PAD].any() and model.output.weight[PAD].any()
    torch.manual_seed(3)
    initialize_uniform(model, 0.1)
    again = [weight.clone() for weight in model.parameters()]
    torch.manual_seed(3)
    initialize_uniform(model, 0.1)
    assert all(map(torch.equal, again, model.parameters()))
    for bound in (0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="bound"):
            initialize_uniform(model, bound)


def test_number_of_parameters():
    def count(vocabulary: int, width: int) -> int:
        layer = 4 * (2 * width * width + 2 * width)
        return vocabulary * width + 2 * layer + (width + 1) * vocabulary

    model = build_language_model("lstm", 30, width=7, depth=2)
    assert sum(weight.numel() for weight in model.parameters()) == count(30, 7)
    assert count(10_000, 650) == 19_780_400, "the medium model of Zaremba et al. 2015"


def test_build_passes_options_on():
    model = build_language_model(
        "transformer", 9, size="tiny", layers=1, width=64, longest=20, position="learned"
    )
    assert len(model.decoder) == 1 and model.width == 64 and model.longest_target == 20
    assert model.output.weight is model.embedding.weight
    sized = build_language_model("transformer", 9, size=Size(8, 2, 16, 1), inner=12, tie=False)
    assert sized.decoder[0].feedforward is not None and sized.output.weight is not sized.embedding.weight
    assert build_language_model("gru", 9, width=4, tie=True).output.weight.shape == (9, 4)
    assert set(LANGUAGE_MODELS) == {"lstm", "gru", "lstmn", "transformer"}


@pytest.mark.parametrize(
    "name, options, expected",
    [
        ("lsmt", {}, "unknown language model 'lsmt'; did you mean 'lstm'"),
        ("bahdanau", {}, "known: gru, lstm, lstmn, transformer"),
        ("lstm", {"widht": 8}, "unknown option of lstm 'widht'; did you mean 'width'"),
        ("lstm", {"heads": 8}, "unknown option of lstm 'heads'"),
        ("lstm", {"cell": "gru"}, "unknown option of lstm 'cell'"),
        ("lstm", {"width": 0}, "width is 0"),
        ("gru", {"depth": 1.5}, "depth is 1.5"),
        ("gru", {"dropout": 1.0}, "0 <= dropout < 1"),
        ("gru", {"embedding": -1}, "embedding is -1"),
        ("lstm", {"width": 8, "embedding": 4, "tie": True}, "embedding is 4 and width is 8"),
        ("lstm", {"uniform": 0}, "bound is 0"),
        ("lstmn", {"connections": "skipped"}, "unknown connections 'skipped'; did you mean 'skip'"),
        ("lstmn", {"tape": 0}, "tape is 0"),
        ("lstmn", {"tape": "all"}, "tape is 'all'"),
        ("lstmn", {"hidden": True}, "hidden is True"),
        ("lstmn", {"width": 8, "embedding": 4, "tie": True}, "embedding is 4 and width is 8"),
        ("lstmn", {"score": "dot"}, "score is not an option of lstmn"),
        ("transformer", {"size": "huge"}, "unknown size"),
        ("transformer", {"size": 5}, "size is 5"),
        ("transformer", {"size": 5, "width": 8}, "size is 5"),
        ("transformer", {"layers": 0}, "layers is 0"),
        ("transformer", {"decoder_layers": 2}, "unknown option of transformer 'decoder_layers'"),
        ("transformer", {"size": Size(8, 2, 16, 1, 2)}, "decoder_layers is 2"),
        ("transformer", {"position": "rotray"}, "did you mean 'rotary'"),
        ("transformer", {"norm": "rms"}, "unknown norm 'rms'"),
        ("transformer", {"activation": "tanh"}, "unknown activation"),
        ("transformer", {"longest": 0}, "longest is 0"),
        ("transformer", {"inner_dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_invalid_options_raise(name: str, options: dict[str, object], expected: str):
    with pytest.raises(RegardError, match=expected):
        build_language_model(name, SIZE, **options)


def test_vocabulary_size_must_be_positive():
    for name in LANGUAGE_MODELS:
        with pytest.raises(ArgumentError, match=facts("vocabulary_size", 0)):
            build_language_model(name, 0)
    with pytest.raises(UnknownName):
        build_language_model("", SIZE)


def test_empty_windows_raise_for_recurrent_models():
    model, none = make("lstm"), torch.zeros(2, 0, dtype=torch.long)
    encoded = model.source_free(2)
    with pytest.raises(ArgumentError, match=facts("tokens", "empty")):
        model.step(model.start(encoded), none, encoded)


def test_positions_beyond_the_table_raise():
    model = build_language_model("transformer", SIZE, **SMALL, position="learned", longest=4)
    assert model(TextBatch.collate([[4, 5, 6]])).shape == (1, 4, SIZE)
    with pytest.raises(ArgumentError, match="length 4"):
        model(TextBatch.collate([[4, 5, 6, 4]]))
    assert build_language_model("transformer", SIZE, **SMALL).longest_target is None


def test_t5_buckets_are_for_earlier_positions_only():
    model = make("transformer t5")
    assert [layer.itself.position.bidirectional for layer in model.decoder] == [False, False]
    assert model.decoder[0].itself.position is not model.decoder[1].itself.position


def test_names_of_weights_stay_the_same():
    """Checkpoints are loaded by these names."""
    cells = {f"layers.layers.{kind}_{part}_l0" for kind in ("weight", "bias") for part in ("ih", "hh")}
    tied = {"embedding.weight", "output.weight", "output.bias"}
    assert set(make("lstm tied").state_dict()) == cells | tied
    layer = {
        f"itself.{each}.{kind}" for each in ("query", "key", "value", "output") for kind in ("weight", "bias")
    }
    transformer = make("transformer rotary")
    assert {name for name, _ in transformer.decoder[0].itself.named_parameters(prefix="itself")} == layer
    first = {name.split(".")[0] for name in transformer.state_dict()}
    assert first == {"embedding", "decoder", "decoded", "output"}
    assert not any("cross" in name for name in transformer.state_dict())
