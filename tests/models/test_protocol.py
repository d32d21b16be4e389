"""What every model promises: forward is stepping, beams share memories, company does not matter."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data.batch import PAD, Batch
from regard.errors import ArgumentError, RegardError, UnknownName
from regard.models import MODELS, Recurrence, build_model
from regard.models.luong import Monotonic, Predicted
from tests.models.variants import SIZE, VARIANTS, make

SOURCES = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5]]
TARGETS = [[5, 6], [7, 8, 9, 10], [], [4]]
EACH = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture
def batch() -> Batch:
    return Batch.collate(SOURCES, TARGETS)


@EACH
def test_forward_is_stepping(name: str, batch: Batch):
    model = make(name)
    logits = model(batch)
    assert logits.shape == (4, 5, SIZE)
    encoded = model.encode(batch.source, batch.source_lengths)
    for cuts in ((1, 1, 1, 1, 1), (2, 3), (1, 4)):
        state, found = model.start(encoded), []
        for tokens in batch.inputs.split(cuts, 1):
            state, step = model.step(state, tokens, encoded)
            found.append(step)
        assert state.position == 5
        torch.testing.assert_close(torch.cat(found, 1), logits, rtol=0, atol=1e-12)


@EACH
def test_beams_share_what_was_encoded(name: str, batch: Batch):
    """Row r reads source r // K, also with rows in another order and sources dropped."""
    model = make(name)
    encoded = model.encode(batch.source, batch.source_lengths)
    beams = torch.tensor([[2, 4, 5], [2, 6, 7], [2, 8, 9]])  # three beams, the same for each source
    rows = torch.arange(4).repeat_interleave(3)
    state = model.start(encoded).reorder(rows)
    state, _ = model.step(state, beams[:, :2].repeat(4, 1), encoded)
    turned = torch.tensor([[2, 2, 0], [0, 1, 2], [1, 0, 0], [2, 1, 0]])[[2, 0, 3]]
    kept = torch.tensor([2, 0, 3])
    state = state.reorder((turned + 3 * kept[:, None]).flatten())
    _, logits = model.step(state, torch.tensor([[5], [6], [7]]).repeat(3, 1), encoded.reorder(kept))
    for k, source in enumerate(kept.tolist()):
        alone = model.encode(batch.source[[source]], batch.source_lengths[[source]])
        for beam in range(3):
            prefix = [*beams[turned[k, beam], :2].tolist(), 5 + beam]
            _, expected = model.step(model.start(alone), torch.tensor([prefix]), alone)
            torch.testing.assert_close(logits[3 * k + beam, 0], expected[0, -1], rtol=0, atol=1e-12)


@EACH
def test_company_does_not_matter(name: str, batch: Batch):
    model = make(name).float()
    together = model(batch).log_softmax(-1)
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = model(Batch.collate([source], [target])).log_softmax(-1)
        torch.testing.assert_close(together[i, : alone.shape[1]], alone[0], rtol=0, atol=1e-5)


@EACH
def test_every_parameter_learns(name: str, batch: Batch):
    model = make(name).train()
    spread = torch.randn(4, 5, SIZE, dtype=torch.float64)
    (model(batch) * spread).sum().backward()
    idle = {each for each, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    # A softmax does not feel what is the same for all keys: the bias of a key, and Location's unused places.
    assert {each for each in idle if not each.endswith("key.bias")} == set()
    for table in (model.source, model.target):
        if table.weight is not getattr(getattr(model, "output", None), "weight", None):
            assert not table.weight.grad[PAD].any()


@EACH
def test_what_it_looked_at_is_there(name: str, batch: Batch):
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
        assert not weights[1, ..., 2:].any(), f"{site} saw padding"
        if "local" not in name:
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    layers = VARIANTS[name][1].get("decoder_layers", 2)
    transformer = name.startswith("transformer")
    assert list(seen) == ([f"decoder.{i}.cross" for i in range(layers)] if transformer else ["decoder.cross"])


def test_local_views_look_near():
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
    assert (sums > 0).tolist() == [True, True, True, False], "past its reach it sees nothing"


def test_a_view_is_made_from_plain_data():
    for name, expected in (("local-m", Monotonic(reach=4)), ("local-p", Predicted(reach=4))):
        assert build_model("luong", SIZE, SIZE, width=4, view={"name": name, "reach": 4}).view == expected


def test_a_batch_without_targets_is_told_of_where_a_step_must_be_taken():
    for name in ("seq2seq", "bahdanau", "luong"):
        with pytest.raises(ArgumentError, match="targets"):
            build_model(name, SIZE, SIZE, width=4)(Batch.collate(SOURCES))
    model = build_model("transformer", SIZE, SIZE, width=4, heads=2, layers=1)
    assert model(Batch.collate(SOURCES)).shape == (4, 0, SIZE)


def test_a_row_count_that_does_not_fit_is_refused(batch: Batch):
    model = make("bahdanau")
    encoded = model.encode(batch.source, batch.source_lengths)
    state = model.start(encoded).reorder(torch.tensor([0, 1, 2]))
    with pytest.raises(ArgumentError, match=r"3 rows.* 4 sources"):
        model.step(state, torch.tensor([[4], [5], [6]]), encoded)


@pytest.mark.parametrize(
    "name, options, said",
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
        ("luong", {"view": "local-m", "reach": 4}, r'view=\{"name": "local-m", "reach": 4\}'),
        ("luong", {"readout": "linear"}, "unknown readout"),
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
def test_what_cannot_be_built_says_why(name: str, options: dict[str, object], said: str):
    with pytest.raises(RegardError, match=said):
        build_model(name, SIZE, SIZE + 1, **options)


def test_plain_options_reach_where_they_belong():
    model = build_model("transformer", 9, 9, size="tiny", layers=1, tie="all")
    assert (len(model.encoder), model.width) == (1, 128)
    assert model.source is model.target and model.output.weight is model.target.weight
    made = build_model("luong", 9, 9, recurrence=Recurrence(width=4, cell="rnn"), width=6, depth=2)
    assert repr(made.decoder.layers) == "RNN(12, 6, num_layers=2, batch_first=True)"
    assert set(MODELS) == {"seq2seq", "bahdanau", "luong", "transformer"}
    with pytest.raises(UnknownName, match=r"known: .*bahdanau"):
        build_model("gpt", 9, 9)


def test_how_long_a_source_may_be_is_said():
    assert build_model("luong", 9, 9, width=4, score="location").longest_source == 1024
    assert build_model("transformer", 9, 9, size="tiny", position="learned", longest=20).longest_target == 20
    assert build_model("transformer", 9, 9, size="tiny").longest_source is None
