"""Captioner: steps and beams, hard attention, the baseline without attention, and clear errors."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.data.batch import BatchRows
from regard.decoding import Beam, Greedy, search
from regard.errors import ArgumentError, UnknownName
from regard.models.captioner import IMAGE_ATTENTION, Captioner, doubly_stochastic_penalty
from regard.sites import declared_sites
from regard.training.estimators import RowLosses, add_estimator, sampled_loss
from regard.training.settings import Training
from tests.making import log_likelihood

WORDS, FEATURES = 9, 6
INPUTS = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 0]])
TARGETS = torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0]])


@dataclass(frozen=True, eq=False)
class Images(BatchRows):
    """A batch of images for search()."""

    source: Tensor
    source_lengths: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)


def make(**options: Any) -> Captioner:
    torch.manual_seed(1)
    size = {"features": FEATURES, "channels": 4, "blocks": 1}
    return Captioner(WORDS, width=5, embedding=4, encoder_options=size, **options)


def pictures(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (count, 3, 16, 24), dtype=torch.uint8, generator=generator)


def batch(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"image": pictures(), "inputs": INPUTS, "targets": TARGETS, **fields})


OPTIONS: dict[str, dict[str, Any]] = {
    "soft": {},
    "dot": {"score": "dot"},
    "straight-through": {"select": "straight-through"},
    "hard": {"select": "hard"},
    "none": {"select": "none"},
    "no gate": {"gate": False},
    "state": {"query": "state"},
}


def test_learned_sharpness_of_cosine_is_trained_and_saved():
    model = make(score=regard.Cosine(torch.nn.Parameter(torch.tensor(3.0))))
    assert model.state_dict()["sharpness"] == 3.0
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    log_likelihood(model(batch()), TARGETS).sum().neg().backward()
    optimizer.step()
    assert model.sharpness.grad.abs() > 0 and model.score.sharpness.item() != 3.0
    other = make(score=regard.Cosine(torch.nn.Parameter(torch.tensor(1.0))))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(batch()), model(batch()))


@pytest.mark.parametrize("name", OPTIONS)
def test_single_steps_equal_one_forward_pass(name: str):
    model = make(**OPTIONS[name]).eval()
    encoded = model.encode(pictures())
    state, logits = model.start(encoded), []
    for at in range(INPUTS.shape[1]):
        state, one = model.step(state, INPUTS[:, at : at + 1], encoded)
        logits.append(one)
    whole, weights = model.logits_and_weights(batch())
    assert torch.allclose(torch.cat(logits, 1), whole, atol=1e-6)
    assert whole.shape == (2, 4, WORDS) and weights.shape == (2, 4, 6) and state.position == 4
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4))


@pytest.mark.parametrize("name", OPTIONS)
def test_beams_read_the_memory_of_their_image(name: str):
    model = make(**OPTIONS[name]).eval()
    encoded = model.encode(pictures())
    state = model.start(encoded).repeat(3)
    tokens = torch.tensor([[4, 5, 6, 4, 5, 6]]).T
    after, logits = model.step(state, tokens, encoded)
    repeated = model.encode(pictures().repeat_interleave(3, 0))
    _, expected = model.step(model.start(repeated), tokens, repeated)
    assert len(encoded.memories[0].key) == 2 and len(after.hidden[0]) == 6
    assert torch.allclose(logits, expected, atol=1e-6)


def test_several_captions_of_an_image():
    model = make().eval()
    several = batch(image=pictures(1))
    assert torch.allclose(model(several), model(batch(image=pictures(1).expand(2, -1, -1, -1))), atol=1e-6)


def test_precomputed_features_give_the_same_logits():
    model = make().eval()
    assert torch.equal(model(batch(image=model.image_encoder(pictures()))), model(batch()))


@pytest.mark.parametrize("how", [Greedy(), Beam(3)])
def test_search_and_recorded_attention(how: Any):
    model = make()
    images = Images(pictures(), torch.tensor([6, 6]), torch.arange(2))
    for (best, *_), image in zip(search(model, images, how, look=None), pictures(), strict=True):
        inputs = torch.tensor([[2, *best.tokens[:-1]]])
        model.eval()
        with regard.record() as seen:
            logits, weights = model.logits_and_weights(batch(image=image[None], inputs=inputs))
        scores = logits[0].log_softmax(-1).gather(-1, torch.tensor(best.tokens)[:, None])
        assert best.token_scores == pytest.approx(scores.flatten().tolist(), abs=1e-4)
        recorded = torch.cat([each.weights for each in seen["decoder.cross"]], 1)
        assert torch.allclose(recorded, weights.detach(), atol=1e-6)


def test_role_is_declared():
    assert declared_sites(make())["decoder.cross"] == IMAGE_ATTENTION
    assert IMAGE_ATTENTION.columns == "image"


def test_readings_of_hard_attention():
    model = make(select="hard").eval()
    soft = make().eval()
    _, expected = soft.logits_and_weights(batch())
    _, argmax = model.logits_and_weights(batch())
    assert torch.equal(argmax.max(-1).values, torch.ones(2, 4))
    assert torch.equal(argmax[:, 0].argmax(-1), expected[:, 0].argmax(-1))
    model.read = "expectation"
    assert torch.equal(model(batch()), soft(batch()))
    model.read = "sample"
    many = batch(image=pictures(1).expand(60, -1, -1, -1), inputs=INPUTS[:1, :1].expand(60, -1))
    _, sampled = model.logits_and_weights(many)
    assert len(sampled[:, 0].argmax(-1).unique()) > 1 and sampled.max(-1).values.eq(1).all()
    model.read = "mode"
    with pytest.raises(UnknownName, match="expectation"):
        model(batch())


def test_without_attention_the_context_is_the_mean_feature():
    model = make(select="none", gate=False).eval()
    features = torch.randn(2, 6, FEATURES)
    mean = features.mean(1, keepdim=True).expand(-1, 6, -1)
    assert torch.allclose(model(batch(image=features)), model(batch(image=mean)), atol=1e-6)
    assert model.score is None
    with pytest.warns(regard.RegardWarning), regard.record() as seen:
        model(batch())
    assert not list(seen)


def test_hard_attention_trains_with_reinforce():
    model = make(select="hard")
    options = {"samples": 3, "expected": 0.5, "entropy": 0.01, "scale": 1.0}
    training = Training(estimator={**options, "baseline": {"name": "moving-average"}})
    estimator = add_estimator(model, training)

    def row_losses() -> RowLosses:
        inputs, targets = (each.repeat_interleave(3, 0) for each in (INPUTS, TARGETS))
        likelihood = log_likelihood(model(batch(inputs=inputs)), targets)
        return RowLosses(-likelihood, likelihood)

    lengths = (TARGETS != 0).sum(1).repeat_interleave(3)
    loss = sampled_loss(estimator, row_losses, examples=2, lengths=lengths)
    loss.total.backward()
    assert set(loss.shown) == {"loss", "bound", "baseline", "entropy"}
    assert model.score.vector.grad.abs().sum() > 0 and estimator.baseline.average != 0


def test_frozen_encoder_is_not_trained():
    size = {"stride": 8, "pretrained": False}
    model = Captioner(WORDS, width=5, embedding=4, image_encoder="efficientnet-lite0", encoder_options=size)
    model.train()
    assert not model.image_encoder.training
    model(batch()).sum().backward()
    assert all(weight.grad is None for weight in model.image_encoder.parameters())
    assert model.first_cell.weight.grad is not None


@pytest.mark.parametrize(
    "image", [torch.zeros(2, 6, FEATURES + 1), torch.zeros(2, 0, FEATURES), torch.zeros(2, 1, 8, 8)]
)
def test_wrong_images_are_errors(image: Tensor):
    with pytest.raises(ArgumentError):
        make()(batch(image=image))


def test_wrong_arguments_are_errors():
    for options in ({"width": 0}, {"dropout": 1.0}, {"embedding": True}):
        with pytest.raises(ArgumentError):
            Captioner(WORDS, **options)
    for options in ({"select": "soft"}, {"image_encoder": "vgg"}, {"score": "none"}, {"query": "h"}):
        with pytest.raises(UnknownName):
            Captioner(WORDS, **options)
    with pytest.raises(ArgumentError):
        make()(batch(inputs=INPUTS[:, :0]))
    with pytest.raises(ArgumentError):
        make()(batch(inputs=INPUTS[[0, 1, 0]]))
    with pytest.raises(ArgumentError):
        doubly_stochastic_penalty(torch.zeros(2, 3), torch.tensor([1, 2]))
    with pytest.raises(ArgumentError):
        doubly_stochastic_penalty(torch.zeros(2, 3, 4), torch.tensor([1]))
