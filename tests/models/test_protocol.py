"""What every model guarantees: forward equals stepping, beams share memories, batching changes nothing."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data.batch import PAD, Batch
from regard.errors import ArgumentError, RegardError, UnknownName
from regard.models import MODELS, Recurrence, build_model
from regard.models.luong import Monotonic, Predicted
from regard.models.transformer import Transformer
from regard.training.losses import separates_output
from tests.facts import facts
from tests.models.variants import SIZE, VARIANTS, make

SOURCES = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5]]
TARGETS = [[5, 6], [7, 8, 9, 10], [], [4]]
EACH = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture
def batch() -> Batch:
    return Batch.collate(SOURCES, TARGETS)


@EACH
def test_forward_equals_stepping(name: str, batch: Batch):
    model = make(name)
    logits = model(batch)
    assert logits.shape == (4, 5, SIZE)
    encoded = model.encode(batch.source, batch.source_lengths)
    for cuts in ((1, 1, 1, 1, 1), (2, 3), (1, 4)):
        state, steps = model.start(encoded), []
        for tokens in batch.inputs.split(cuts, 1):
            state, step = model.step(state, tokens, encoded)
            steps.append(step)
        assert state.position == 5
        torch.testing.assert_close(torch.cat(steps, 1), logits, rtol=0, atol=1e-12)


@EACH
def test_features_and_the_output_layer_give_the_logits(name: str, batch: Batch):
    model = make(name)
    layer = model.output_layer()
    assert separates_output(type(model)) and (layer is None) == (name == "luong mixture")
    if layer is not None:
        torch.testing.assert_close(
            layer(model.features(*model.first_step(batch))[1]), model(batch), rtol=0, atol=1e-12
        )


def test_a_class_with_a_step_of_its_own_does_not_separate_its_output():
    class Doubled(Transformer):
        def step(self, state, tokens, encoded):
            after, logits = super().step(state, tokens, encoded)
            return after, 2 * logits

    assert separates_output(Transformer) and not separates_output(Doubled)


@EACH
def test_beams_share_memories(name: str, batch: Batch):
    """Row r attends to source r // K, also after reordering rows and dropping sources."""
    model = make(name)
    encoded = model.encode(batch.source, batch.source_lengths)
    beams = torch.tensor([[2, 4, 5], [2, 6, 7], [2, 8, 9]])  # three beams, the same for each source
    rows = torch.arange(4).repeat_interleave(3)
    state = model.start(encoded).reorder(rows)
    state, _ = model.step(state, beams[:, :2].repeat(4, 1), encoded)
    beam_order = torch.tensor([[2, 2, 0], [0, 1, 2], [1, 0, 0], [2, 1, 0]])[[2, 0, 3]]
    sources = torch.tensor([2, 0, 3])
    state = state.reorder((beam_order + 3 * sources[:, None]).flatten())
    _, logits = model.step(state, torch.tensor([[5], [6], [7]]).repeat(3, 1), encoded.reorder(sources))
    for k, source in enumerate(sources.tolist()):
        alone = model.encode(batch.source[[source]], batch.source_lengths[[source]])
        for beam in range(3):
            prefix = [*beams[beam_order[k, beam], :2].tolist(), 5 + beam]
            _, expected = model.step(model.start(alone), torch.tensor([prefix]), alone)
            torch.testing.assert_close(logits[3 * k + beam, 0], expected[0, -1], rtol=0, atol=1e-12)


@EACH
def test_results_do_not_depend_on_the_batch(name: str, batch: Batch):
    model = make(name).float()
    together = model(batch).log_softmax(-1)
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = model(Batch.collate([source], [target])).log_softmax(-1)
        torch.testing.assert_close(together[i, : alone.shape[1]], alone[0], rtol=0, atol=1e-5)


@EACH
def test_every_parameter_has_a_gradient(name: str, batch: Batch):
    model = make(name).train()
    factors = torch.randn(4, 5, SIZE, dtype=torch.float64)
    (model(batch) * factors).sum().backward()
    without_gradient = {
        each for each, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()
    }
    # A key bias adds the same to all scores, so its gradient is 0.
    assert {each for each in without_gradient if not each.endswith("key.bias")} == set()
    for table in (model.source, model.target):
        if table.weight is not getattr(getattr(model, "output", None), "weight", None):
            assert not table.weight.grad[PAD].any()


@EACH
def test_record_sees_cross_attention(name: str, batch: Batch):
    model = make(name)
    if name.startswith("seq2seq"):
        with pytest.warns(regard.RegardWarning), regard.record() as seen:
            model(batch)
        assert seen == {} and not seen.called
        return
    with regard.record(at="*cross") as seen:
        model(batch)
    for site, records in seen.items():
        weights = torch.cat([each.weights for each in records], -2)
        assert weights.shape[-2:] == (5, 6) and weights.shape[0] == 4
        assert not weights[1, ..., 2:].any(), f"{site} attends to padding"
        if "local" not in name:
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    layers = VARIANTS[name][1].get("decoder_layers", 2)
    transformer = name.startswith("transformer")
    assert list(seen) == ([f"decoder.{i}.cross" for i in range(layers)] if transformer else ["decoder.cross"])


def test_local_view_attends_within_reach():
    batch = Batch.collate([[4, 5, 6, 7, 8, 9]] * 2, [[4, 5, 6, 7, 8, 9]] * 2)
    model = build_model("luong", SIZE, SIZE, width=6, view=Monotonic(reach=1))
    with regard.record() as seen:
        model(batch)
    weights = torch.cat([each.weights for each in seen["decoder.cross"]], 1)
    steps, words = torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")
    assert torch.equal(weights > 0, ((steps - words).abs() <= 1).expand(2, 7, 7))
    with regard.record() as seen:
        model(Batch.collate([[4]], [[4, 5, 6]]))
    sums = torch.cat([each.weights.sum(-1)[0] for each in seen["decoder.cross"]])
    assert (sums > 0).tolist() == [True, True, True, False], "a step beyond the reach attends to nothing"


def test_view_is_built_from_a_mapping():
    for name, expected in (("local-m", Monotonic(reach=4)), ("local-p", Predicted(reach=4))):
        assert build_model("luong", SIZE, SIZE, width=4, view={"name": name, "reach": 4}).view == expected


def test_batch_without_targets_raises_for_recurrent_models():
    for name in ("seq2seq", "bahdanau", "luong", "lstmn"):
        with pytest.raises(ArgumentError, match="targets"):
            build_model(name, SIZE, SIZE, width=4)(Batch.collate(SOURCES))
    model = build_model("transformer", SIZE, SIZE, width=4, heads=2, layers=1)
    assert model(Batch.collate(SOURCES)).shape == (4, 0, SIZE)


def test_row_count_not_a_multiple_of_sources_raises(batch: Batch):
    model = make("bahdanau")
    encoded = model.encode(batch.source, batch.source_lengths)
    state = model.start(encoded).reorder(torch.tensor([0, 1, 2]))
    with pytest.raises(ArgumentError, match=facts("3 rows", "4 sources")):
        model.step(state, torch.tensor([[4], [5], [6]]), encoded)


@pytest.mark.parametrize(
    "name, options, expected",
    [
        ("bahdanua", {}, "did you mean 'bahdanau'"),
        ("bahdanau", {"widht": 8}, "unknown option of bahdanau 'widht'; did you mean 'width'"),
        ("bahdanau", {"encoder": "lstm"}, "unknown encoder 'lstm'"),
        ("luong", {"cell": "gur"}, "unknown cell 'gur'; did you mean 'gru'"),
        ("luong", {"view": "local"}, "unknown view 'local'"),
        ("luong", {"view": Monotonic(reach=0)}, "reach .* is 0"),
        ("luong", {"view": {"name": "local-p", "reach": "4"}}, "reach .* is '4'"),
        ("luong", {"view": {"name": "local-p", "rech": 4}}, "did you mean 'reach'"),
        ("luong", {"view": {"name": "global", "reach": 4}}, "unknown option of the view global 'reach'"),
        ("luong", {"view": {"reach": 4}}, "unknown view None"),
        ("luong", {"view": 4}, "view is 4"),
        ("luong", {"view": "local-m", "reach": 4}, r"view=\{'name': 'local-m', 'reach': 4\}"),
        ("luong", {"readout": "linear"}, "unknown readout"),
        ("lstmn", {"fusion": "depe"}, "unknown fusion 'depe'; did you mean 'deep'"),
        ("lstmn", {"connections": "skipp"}, "did you mean 'skip'"),
        ("lstmn", {"depth": 0}, "depth is 0"),
        ("lstmn", {"view": "local-m"}, "luong"),
        ("luong", {"dropout": 1.0}, "0 <= dropout < 1"),
        ("luong", {"width": 8.5}, "width is 8.5"),
        ("bahdanau", {"width": -4}, "width is -4"),
        ("bahdanau", {"embedding": 0}, "embedding is 0"),
        ("bahdanau", {"hidden": 0}, "hidden is 0"),
        ("bahdanau", {"dropout": 2}, "dropout is 2"),
        ("transformer", {"layers": 0}, "layers is 0"),
        ("transformer", {"size": 5}, "size is 5"),
        ("transformer", {"size": "tiny", "inner_dropout": 1.0}, "dropout is 1.0"),
        ("transformer", {"size": "tiny", "longest": 1}, "longest is 1"),
        ("seq2seq", {"context": "last"}, "unknown context 'last'"),
        ("transformer", {"size": "huge"}, "unknown size of Transformer 'huge'"),
        ("transformer", {"norm": "rms"}, "unknown norm 'rms'"),
        ("transformer", {"tie": "all", "size": "tiny"}, 'tie="all"'),
        ("transformer", {"activation": "tanh", "size": "tiny"}, "unknown activation"),
    ],
)
def test_invalid_options_raise(name: str, options: dict[str, object], expected: str):
    with pytest.raises(RegardError, match=expected):
        build_model(name, SIZE, SIZE + 1, **options)


def test_build_model_passes_options_on():
    model = build_model("transformer", 9, 9, size="tiny", layers=1, tie="all")
    assert (len(model.encoder), model.width) == (1, 128)
    assert model.source is model.target and model.output.weight is model.target.weight
    model = build_model("luong", 9, 9, recurrence=Recurrence(width=4, cell="rnn"), width=6, depth=2)
    assert repr(model.decoder.layers) == "RNN(12, 6, num_layers=2, batch_first=True)"
    assert set(MODELS) == {"seq2seq", "bahdanau", "luong", "lstmn", "transformer"}
    with pytest.raises(UnknownName, match=facts("known", "bahdanau")):
        build_model("gpt", 9, 9)


def test_longest_source_and_target():
    assert build_model("luong", 9, 9, width=4, score="location").longest_source == 1024
    assert build_model("transformer", 9, 9, size="tiny", position="learned", longest=20).longest_target == 20
    assert build_model("transformer", 9, 9, size="tiny").longest_source is None
