"""The parts of the REINFORCE estimator: what is collected, the baselines' state, and errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import ArgumentError, RegardError, UnknownName
from regard.training.distributed import Processes
from regard.training.estimators import (
    HardSelections,
    LearnedBaseline,
    MovingAverage,
    Reinforce,
    build_baseline,
    check_estimator,
    hard_selections,
)
from regard.training.settings import BaselineSettings, EstimatorSettings, Section, Training, build
from tests.facts import facts
from tests.making import log_likelihood


def attend(
    rows: int, steps: int, *, heads: int = 1, site: str = "decoder.cross", **options
) -> regard.Attended:
    query = torch.randn(rows, heads, steps, 4, requires_grad=True)
    return regard.attention(query, torch.randn(rows, heads, 5, 4), select=regard.Hard(), site=site, **options)


def drawn_once(rows: int = 2) -> HardSelections:
    with hard_selections() as drawn:
        attend(rows, 3)
    return drawn


def test_sums_are_over_steps_heads_and_sites():
    with hard_selections() as drawn:
        calls = [attend(2, 3, heads=2), attend(2, 4, site="decoder.self")]
        regard.attention(torch.randn(2, 3, 4), torch.randn(2, 5, 4))  # soft: draws nothing
    assert len(drawn) == 2
    sums = drawn.sums()
    for total, name in ((sums.log_probability, "log_probability"), (sums.entropy, "entropy")):
        torch.testing.assert_close(total, sum(getattr(call, name).sum((1, 2)) for call in calls))
        assert total.requires_grad
    with hard_selections(at="*.self") as drawn:
        attend(2, 3)
        call = attend(2, 4, site="decoder.self")
    torch.testing.assert_close(drawn.sums().entropy, call.entropy.sum((1, 2)))


def test_steps_on_padding_do_not_count():
    lengths = torch.tensor([3, 1])
    with hard_selections() as drawn:
        calls = [attend(2, 1, heads=2, start=at) for at in range(3)]
    whole = torch.cat([call.log_probability for call in calls], -1)
    expected = torch.stack((whole[0].sum(), whole[1, :, :1].sum()))
    torch.testing.assert_close(drawn.sums(lengths).log_probability, expected)
    with hard_selections() as drawn:
        encoder, decoder = attend(2, 4, site="encoder.self"), attend(2, 3)
    sums = drawn.sums({"source": torch.tensor([2, 4]), "target": lengths})
    first = encoder.entropy[0, 0, :2].sum() + decoder.entropy[0].sum()
    torch.testing.assert_close(sums.entropy[0], first)
    torch.testing.assert_close(
        drawn.sums({"target": lengths}).entropy[1], encoder.entropy[1].sum() + decoder.entropy[1, 0, 0]
    )


def test_beams_are_rows_and_an_encoder_counts_for_each_of_them():
    with hard_selections() as drawn:
        encoder = attend(2, 4, site="encoder.self")
        decoder = attend(2, 3 * 2, heads=2, beams=3, start=1)  # three samples of two steps each
    sums = drawn.sums({"target": torch.tensor([3, 2])})
    assert sums.entropy.shape == (6,)
    by_beam = decoder.entropy.unflatten(-1, (3, 2))
    torch.testing.assert_close(sums.entropy[1], encoder.entropy[0].sum() + by_beam[0, :, 1].sum())
    torch.testing.assert_close(sums.entropy[5], encoder.entropy[1].sum() + by_beam[1, :, 2, 0].sum())


def test_collecting_does_not_change_the_output():
    query, key, results = torch.randn(2, 3, 4), torch.randn(2, 5, 4), []
    for collects in (False, True):
        select = regard.Hard(torch.Generator().manual_seed(1))
        if collects:
            with hard_selections():
                results.append(regard.attention(query, key, select=select))
        else:
            results.append(regard.attention(query, key, select=select))
    assert torch.equal(results[0].output, results[1].output)
    assert torch.equal(results[0].chosen, results[1].chosen)


def test_log_likelihood_ignores_padding():
    logits, labels = torch.randn(2, 3, 7), torch.tensor([[4, 5, 3], [6, 3, 0]])
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(2, 3)
    expected = -torch.stack((losses[0].sum(), losses[1, :2].sum()))
    torch.testing.assert_close(log_likelihood(logits, labels), expected)
    assert log_likelihood(logits.bfloat16(), labels).dtype == torch.float32


def test_state_dict_restores_the_moving_average():
    estimator, copy = Reinforce(), Reinforce()
    for reward in ([-3.0, -5.0], [-2.0, -9.0]):
        estimator(drawn_once(), torch.tensor(reward))
    assert estimator.baseline.average.item() == pytest.approx(0.9 * -0.4 + 0.1 * -5.5)
    copy.load_state_dict(estimator.state_dict())
    assert set(estimator.state_dict()) == {"baseline.average"}
    after = []
    for each in (estimator, copy):
        each(drawn_once(), torch.tensor([-1.0, -2.0]))
        after.append(each.baseline.average)
    assert torch.equal(*after)


def test_moving_average_is_updated_in_training_mode_only_and_in_place():
    estimator = Reinforce()
    buffer = estimator.baseline.average
    estimator.eval()(drawn_once(), torch.tensor([-3.0, -5.0]))
    assert buffer.item() == 0.0
    estimator.train()(drawn_once(), torch.tensor([-3.0, -5.0]))
    assert estimator.baseline.average is buffer and buffer.item() == pytest.approx(-0.4)
    for value in (torch.nan, -torch.inf):
        estimator(drawn_once(), torch.tensor([-3.0, value]))
    assert buffer.item() == pytest.approx(-0.4), "a reward that is not finite is ignored"


def test_processes_share_the_mean_of_all_rewards():
    class Two(Processes):
        def sum(self, values: Tensor) -> Tensor:
            return values + torch.tensor([-12.0, 1.0])  # the other process: one row

    estimator = Reinforce(processes=Two(world=2))
    estimator(drawn_once(), torch.tensor([-3.0, -6.0]))
    assert estimator.baseline.average.item() == pytest.approx(0.1 * -7.0)


def test_leave_one_out_needs_several_samples_and_gets_their_number():
    estimator = Reinforce("leave-one-out", samples=3)
    settings = EstimatorSettings(samples=3, baseline=BaselineSettings(name="leave-one-out"))
    for each in (estimator, Reinforce(**settings.options(features=1))):
        value, loss = each.baseline(torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 6.0]))
        assert value.tolist() == [2.5, 2.0, 1.5, 3.0, 3.0, 0.0] and not loss.any()
        assert not each.state_dict()
    with pytest.raises(ArgumentError, match="samples"):
        Reinforce("leave-one-out", samples=1)


def test_default_is_two_samples_and_the_expected_context_for_half_of_the_examples():
    """benchmarks/results/2026-11-18-hard-attention.md has the measurements."""
    default = EstimatorSettings()
    assert (default.samples, default.expected, default.scale, default.entropy) == (2, 0.5, 0.1, 0.0)
    assert default.baseline == BaselineSettings(name="leave-one-out")
    assert EstimatorSettings.model_validate({"samples": 1}).baseline.name == "moving-average"
    for given in ({"samples": 1, "baseline": {"name": "none"}}, {"baseline": {"decay": 0.5}}):
        settings = EstimatorSettings.model_validate(given)
        assert settings.baseline == BaselineSettings(**given["baseline"])
    former = {"name": "reinforce", "samples": 1, "expected": 0.0, "scale": 1.0, "entropy": 0.0}
    former["baseline"] = {"name": "moving-average"}  # as in a config.toml of the former default
    assert EstimatorSettings.model_validate(former).model_dump(exclude_none=True) == former


def test_learned_baseline_is_trained_by_its_own_loss():
    estimator = Reinforce({"name": "learned", "features": 4, "hidden": 3, "weight": 0.5})
    features, reward = torch.randn(2, 4, requires_grad=True), torch.tensor([-3.0, -5.0], requires_grad=True)
    value, _ = estimator.baseline(reward.detach(), features)  # before the estimate updates the averages
    estimate = estimator(drawn_once(), reward, features=features)
    torch.testing.assert_close(
        estimate.baseline_loss.detach(), 0.5 * (reward - value).square().sum().detach()
    )
    estimate.loss.backward(retain_graph=True)
    assert all(each.grad is None for each in estimator.parameters())
    estimate.baseline_loss.backward()
    assert all(each.grad is not None and each.grad.any() for each in estimator.parameters())
    assert features.grad is None and reward.grad is None


class Attending(nn.Module):
    def __init__(self, select: regard.Select):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.select = select


def test_selections_that_cannot_be_trained_raise():
    none, reinforce = Training(), Training(estimator=EstimatorSettings())
    check_estimator(Attending(regard.Hard()), reinforce)
    check_estimator(Attending(regard.StraightThrough()), none)
    check_estimator(nn.Linear(2, 2), none)
    for select, settings, match in (
        (regard.Hard(), none, "training.estimator"),
        (regard.Best(), none, "argmax"),
        (regard.Best(), reinforce, "argmax"),
        (regard.Soft(), reinforce, "Soft"),
    ):
        with pytest.raises(ArgumentError, match=match):
            check_estimator(Attending(select), settings)


def test_estimator_is_built_from_plain_settings():
    assert isinstance(Reinforce().baseline, MovingAverage)
    learned = {"name": "learned", "features": 6}
    estimator = Reinforce(entropy=0.1, baseline=learned)
    assert estimator.entropy == 0.1 and isinstance(estimator.baseline, LearnedBaseline)
    assert learned["name"] == "learned", "the settings are not changed"
    assert build_baseline(estimator.baseline) is estimator.baseline


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ("reinforced", "reinforce"),
        ("straight-through", "select"),
        ({"name": "reinforce", "sample": 2}, "samples"),
        ({"name": "reinforce", "samples": 0}, "training.estimator.samples is 0"),
        ({"name": "reinforce", "entropy": -1}, "training.estimator.entropy is -1"),
        ({"name": "reinforce", "baseline": "mean"}, "training.estimator.baseline.name is 'mean'"),
        ({"name": "reinforce", "baseline": {"name": "moving-average", "decay": 1}}, "decay is 1"),
        ({"name": "reinforce", "baseline": {"name": "moving-average", "dekay": 0.9}}, "decay"),
        ({"name": "reinforce", "baseline": {"name": "none", "decay": 0.9}}, "decay"),
    ],
)
def test_invalid_settings_raise(settings, match: str):
    class Run(Section):
        training: Training

    with pytest.raises(RegardError, match=match):
        build(Run, {"training": {"estimator": settings}}, "config.toml")


def test_shapes_that_do_not_match_raise():
    with pytest.raises(ArgumentError, match="reward"):
        Reinforce()(drawn_once(), torch.zeros(3))
    with pytest.raises(ArgumentError, match="samples=3"):
        Reinforce(samples=3)(drawn_once(), torch.zeros(2))
    with pytest.raises(ArgumentError, match="3 lengths"):
        drawn_once().sums(torch.tensor([1, 2, 3]))
    with pytest.raises(ArgumentError, match=facts("features", "None")):
        Reinforce({"name": "learned", "features": 4})(drawn_once(), torch.zeros(2))
    with hard_selections() as drawn:
        regard.attention(torch.randn(2, 3, 4), torch.randn(2, 5, 4), site="here")
    with pytest.raises(ArgumentError, match="here"):
        drawn.sums()
    with pytest.raises(UnknownName):
        build_baseline({"decay": 0.5})


@pytest.mark.parametrize("baseline", ["moving-average", {"name": "learned", "features": 4, "hidden": 8}])
def test_hard_attention_learns_to_look_up_a_key(baseline):
    """Each query is one of four keys in random order; the class of its value must be predicted."""
    torch.manual_seed(4)
    score, estimator = regard.General(4, 4), Reinforce(baseline, entropy=0.01, samples=2)
    optimizer = torch.optim.Adam([*score.parameters(), *estimator.parameters()], 0.05)

    def predict(select: regard.Select, rows: int = 32) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the right class, (2 rows,), and the queries."""
        order = torch.stack([torch.randperm(4) for _ in range(rows)]).repeat_interleave(2, 0)
        classes, wanted = torch.randint(4, order.shape), torch.randint(4, (rows,)).repeat_interleave(2)
        one_hot = nn.functional.one_hot
        query, keys, values = (one_hot(each, 4).float() for each in (wanted, order, classes))
        output = regard.attention(query[:, None], keys, values, score=score, select=select).output[:, 0]
        label = classes[order == wanted[:, None]]
        return (4 * output).log_softmax(-1).gather(1, label[:, None]).squeeze(1), query

    for _ in range(200):
        optimizer.zero_grad()
        with hard_selections() as drawn:
            reward, query = predict(regard.Hard())
        estimate = estimator(drawn, reward, features=query)
        (estimate.loss + estimate.baseline_loss - reward.sum() / 2).backward()
        optimizer.step()
    with torch.no_grad():
        likely, _ = predict(regard.Best(), 100)
    assert (likely > -0.1).float().mean() > 0.95
