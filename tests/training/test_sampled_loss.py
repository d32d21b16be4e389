"""sampled_loss(): the terms of the loss, the expected context, padding rows, and features of the baseline."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import ArgumentError
from regard.models import build_model
from regard.training.estimators import (
    LearnedBaseline,
    Reinforce,
    RowLosses,
    add_estimator,
    embedding_features,
    features_size,
    hard_selections,
    likelihood_bound,
    sampled_loss,
)
from regard.training.losses import cross_entropy, sequence_losses
from regard.training.settings import EstimatorSettings, Training
from tests.facts import facts


def attend(rows: int, steps: int = 2, *, select: regard.Select | None = None, **options) -> regard.Attended:
    query, key = torch.randn(rows, steps, 4, requires_grad=True), torch.randn(rows, 5, 4)
    return regard.attention(query, key, select=select or regard.Hard(), **options)


def test_sequence_losses_sum_to_the_cross_entropy():
    logits, labels = torch.randn(3, 4, 7), torch.tensor([[4, 5, 3, 0], [6, 3, 0, 0], [0, 0, 0, 0]])
    for smoothing in (0.0, 0.2):
        for each, total in zip(
            sequence_losses(logits, labels, smoothing), cross_entropy(logits, labels, smoothing), strict=True
        ):
            assert each.shape == (3,) and each[2] == 0
            torch.testing.assert_close(each.sum(), total)


def test_loss_has_the_terms_of_the_estimator_and_the_log_its_values():
    estimator, rows = (
        Reinforce(samples=2, entropy=0.1),
        torch.tensor([1.0, 2.0, 3.0, 5.0], requires_grad=True),
    )

    def row_losses() -> RowLosses:
        attend(4)
        return RowLosses(2 * rows, -rows)

    torch.manual_seed(1)
    loss = sampled_loss(estimator, row_losses, 2)
    torch.manual_seed(1)
    with hard_selections() as drawn:
        row_losses()
    estimate = Reinforce(samples=2, entropy=0.1)(drawn, -2 * rows)
    torch.testing.assert_close(loss.total, rows.sum() + estimate.loss)
    assert set(loss.shown) == {"loss", "bound", "baseline", "entropy"}
    assert not any(value.requires_grad for value in loss.shown.values())
    assert loss.shown["loss"].item() == 5.5  # the mean of the samples, summed over two examples
    torch.testing.assert_close(loss.shown["bound"], likelihood_bound(-rows, 2))
    assert estimator.baseline.average.item() == pytest.approx(0.1 * -5.5)  # of the rewards


def test_rows_of_padding_do_not_count():
    drawn_rows, counted = torch.tensor([-2.0, -4.0, 0.0]), torch.tensor([True, True, False])
    for baseline in ("moving-average", {"name": "learned", "features": 3, "hidden": 2}):
        torch.manual_seed(2)
        short, long = Reinforce(baseline, entropy=0.1), Reinforce(baseline, entropy=0.1)
        long.load_state_dict(short.state_dict())
        features, query = torch.randn(3, 3), torch.randn(3, 1, 4)
        results = []
        for estimator, rows in ((short, 2), (long, 3)):
            with hard_selections() as drawn:
                select = regard.Hard(torch.Generator().manual_seed(5))
                regard.attention(query[:rows], torch.ones(rows, 1, 4), select=select)
            mask = None if rows == 2 else counted
            results.append(estimator(drawn, drawn_rows[:rows], None, features[:rows], mask))
        one, other = results
        torch.testing.assert_close(one.loss, other.loss)
        torch.testing.assert_close(one.baseline_loss, other.baseline_loss)
        torch.testing.assert_close(one.shown, other.shown)
        torch.testing.assert_close(dict(short.state_dict()), dict(long.state_dict()))


@pytest.mark.parametrize("beams", [1, 2])
def test_an_expected_example_reads_the_softmax_at_all_steps(beams: int):
    """Xu et al. 2015, section 4.1: with probability 0.5, the sample is replaced by its expected value."""
    torch.manual_seed(3)
    query, key = torch.randn(40, 3 * beams, 4), torch.randn(40, 5, 4)
    soft = regard.attention(query, key).output
    with hard_selections(expected=0.5, examples=40) as drawn:
        calls = [regard.attention(query, key, select=regard.Hard(), beams=beams) for _ in range(2)]
        best = regard.attention(query, key, select=regard.Best()).output
    same = [torch.isclose(call.output, soft).all((1, 2)) for call in calls]
    assert torch.equal(*same) and 8 < same[0].sum() < 32
    assert torch.equal(best, regard.attention(query, key, select=regard.Best()).output)
    sums = drawn.sums()
    zero = (sums.log_probability == 0).unflatten(0, (40, beams))
    assert torch.equal(zero.all(1), same[0]) and torch.equal(zero.any(1), same[0])
    assert (sums.entropy > 0).all()


def test_samples_of_an_example_are_expected_together():
    torch.manual_seed(4)
    with hard_selections(expected=0.5, examples=20) as drawn:
        attend(60)
    zero = (drawn.sums().log_probability == 0).unflatten(0, (20, 3))
    assert torch.equal(zero.all(1), zero.any(1)) and 0 < zero.all(1).sum() < 20
    with hard_selections(expected=0.5, examples=7), pytest.raises(ArgumentError, match="7 examples"):
        attend(60)


def test_lengths_of_several_calls_of_one_site():
    with hard_selections() as drawn:
        first, second = (attend(2, 3, site="encoder.0.self") for _ in range(2))
    lengths = [torch.tensor([3, 1]), torch.tensor([2, 2])]
    expected = first.entropy[1, 0] + second.entropy[1, :2].sum()
    torch.testing.assert_close(drawn.sums({"source": lengths}).entropy[1], expected)
    with pytest.raises(ArgumentError, match=facts("more", 1)):
        drawn.sums({"source": lengths[:1]})


def test_features_are_means_of_embeddings_without_padding():
    table = nn.Embedding(9, 4)
    tokens, alone = torch.tensor([[5, 6, 0], [7, 0, 0]]), torch.tensor([[7]])
    both = embedding_features((table, tokens), (table, tokens))
    assert both.shape == (2, features_size(table, table)) and not both.requires_grad
    torch.testing.assert_close(both[1:, :5], embedding_features((table, alone)))
    torch.testing.assert_close(both[0, :4], table.weight[[5, 6]].mean(0).detach())


def test_estimator_is_a_part_of_the_model():
    model = build_model("bahdanau", 9, 9, width=4, select="hard")
    settings = EstimatorSettings.model_validate({"baseline": {"name": "learned", "hidden": 3}})
    estimator = add_estimator(model, Training(estimator=settings), features=5)
    assert model.estimator is estimator and estimator.baseline.hidden.weight.shape == (3, 5)
    names = {name for name in model.state_dict() if name.startswith("estimator.baseline.")}
    assert len(names) == 6 and names <= set(model.state_dict())
    assert add_estimator(build_model("bahdanau", 9, 9, width=4), Training()) is None


def test_learned_baseline_predicts_rewards_of_any_scale():
    torch.manual_seed(5)
    baseline = LearnedBaseline(features=2, hidden=8)
    optimizer = torch.optim.Adam(baseline.parameters(), 0.05)

    def batch() -> tuple[Tensor, Tensor]:
        features = torch.randn(32, 2)
        return features, -100 + 30 * features[:, 0]

    for _ in range(100):
        features, reward = batch()
        optimizer.zero_grad()
        baseline(reward, features)[1].sum().backward()
        baseline.update(reward)
        optimizer.step()
    features, reward = batch()
    value, _ = baseline(reward, features)
    assert (value - reward).square().mean() < 0.2 * reward.var()
