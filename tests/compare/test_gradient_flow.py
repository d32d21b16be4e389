"""Gradients of each loss with respect to each encoder state and input, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.compare.gradient_flow import _capturing, encoder_jacobian, gradient_flow, measured_flow
from regard.compare.study_context import COMPARED
from regard.data.batch import Batch
from regard.models import build_model

S, T, V, STEP = 4, 3, 11, 1e-6


def build(label: str):
    """Return a small model in float64, and a batch of two pairs without padding."""
    settings = {"width": 6, **COMPARED[label]}
    if settings["name"] == "transformer":
        settings |= {"width": 8, "layers": 1, "heads": 2, "inner": 8}
    torch.manual_seed(0)
    model = build_model(settings.pop("name"), V, V, **settings).double().eval()
    ids = torch.randint(4, V, (2, 2, S - 1), generator=torch.Generator().manual_seed(1)).tolist()
    return model, Batch.collate(ids[0], [row[: T - 1] for row in ids[1]])


def losses(model, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch).transpose(1, 2), batch.labels, reduction="none")


@pytest.mark.parametrize("label", ["seq2seq-reversed", "bahdanau", "luong-local-p", "lstmn", "transformer"])
def test_input_gradients_agree_with_finite_differences(label):
    model, batch = build(label)
    flow = gradient_flow(model, batch)
    table = model.source

    def perturbed(j: int, m: int, step: float) -> torch.Tensor:
        # The tokens are read in reverse order by seq2seq-reversed: position j of its input is another word.
        at = {**{k: S - 2 - k for k in range(S - 1)}, S - 1: S - 1}[j] if "reversed" in label else j

        def add(module, arguments, output):
            changed = output.clone()
            changed[:, at, m] += step
            return changed

        hook = table.register_forward_hook(add)
        try:
            with torch.no_grad():
                return losses(model, batch)
        finally:
            hook.remove()

    width = table.weight.shape[1]
    for j in range(S):
        slopes = [(perturbed(j, m, STEP) - perturbed(j, m, -STEP)) / (2 * STEP) for m in range(width)]
        torch.testing.assert_close(
            flow.inputs[:, :, j], torch.stack(slopes).norm(dim=0), rtol=1e-5, atol=1e-8
        )


@pytest.mark.parametrize("label", ["seq2seq", "bahdanau", "luong-dot", "lstmn"])
def test_stepwise_encoder_gives_the_same_logits(label):
    model, batch = build(label)
    with _capturing(model) as captured, torch.no_grad():
        stepwise = model(batch)
    assert len(captured.states) == S
    torch.testing.assert_close(stepwise, model(batch))
    assert "encode" not in vars(model.encoder) and "run" not in vars(model.encoder)


def test_state_gradient_includes_the_path_through_later_states():
    """The last state of seq2seq is a function of all states before it: each has a gradient."""
    model, batch = build("seq2seq")
    flow = gradient_flow(model, batch)
    assert (flow.states > 0).all() and flow.values is None
    embedded = model.source(batch.source)

    def loss_from(state_BM: torch.Tensor, j: int) -> torch.Tensor:
        """Run the encoder on from the state after word j, then the decoder."""
        hidden = (state_BM[:, None],)
        if j + 1 < S:
            _, hidden = model.encoder.run(embedded[:, j + 1 :], hidden)
        encoded = model.encode(batch.source, batch.source_lengths)
        start = type(model.start(encoded))(hidden=hidden)
        logits = model.step(start, batch.inputs, encoded)[1]
        return functional.cross_entropy(logits.transpose(1, 2), batch.labels, reduction="none")

    with torch.no_grad():
        states_BSM, _ = model.encoder.encode(embedded, batch.source_lengths)
        for j in range(S):
            slopes = []
            for m in range(states_BSM.shape[-1]):
                change = torch.zeros_like(states_BSM[:, j])
                change[:, m] = STEP
                up, down = (loss_from(states_BSM[:, j] + sign * change, j) for sign in (1, -1))
                slopes.append((up - down) / (2 * STEP))
            torch.testing.assert_close(
                flow.states[:, :, j], torch.stack(slopes).norm(dim=0), rtol=1e-5, atol=1e-9
            )


def test_value_gradient_of_one_step_is_proportional_to_its_weight():
    """d loss_0 / d v_j = a_0j d loss_0 / d c_0, whatever the key is; later steps have more paths."""
    model, batch = build("luong-dot")
    flow = gradient_flow(model, batch)
    assert flow.weights is not None and flow.values is not None
    torch.testing.assert_close(flow.weights.sum(-1), torch.ones(2, T, dtype=torch.float64))
    ratio = flow.values[:, 0] / flow.weights[:, 0]
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-6, atol=0)


@pytest.mark.parametrize("label", ["bahdanau", "transformer"])
def test_encoder_jacobian_agrees_with_autograd(label):
    model, batch = build(label)
    exact = encoder_jacobian(model, batch, probes=None)
    estimated = encoder_jacobian(model, batch, probes=400)
    torch.testing.assert_close(estimated, exact, rtol=0.25, atol=1e-9)
    kept = []
    hook = model.source.register_forward_hook(lambda module, arguments, output: kept.append(output))
    states = []
    encoder = model.encoded if label == "transformer" else model.encoder
    second = encoder.register_forward_hook(lambda module, arguments, output: states.append(output))
    model.encode(batch.source, batch.source_lengths)
    hook.remove(), second.remove()
    j, i = 1, 2
    of_source = states[0][0] if label == "bahdanau" else states[0]  # (states, first backward state)
    rows = [torch.autograd.grad(each, kept[0], retain_graph=True)[0][0, i] for each in of_source[0, j]]
    torch.testing.assert_close(exact[0, j, i], torch.stack(rows).norm())


def test_gradient_of_a_value_row_is_its_weight_times_that_of_the_context():
    """In the only step, d loss / d v_j = a_j d loss / d c: the ratio is the same for all rows."""
    model, batch = build("bahdanau")
    batch = Batch.collate([batch.source[0, :-1].tolist()], [[]])
    with torch.no_grad():
        model.score.vector.mul_(30.0)  # weights that differ
    flow = gradient_flow(model, batch)
    assert flow.values.shape == (1, 1, S) and flow.weights.max() > 2 * flow.weights.min()
    ratios = flow.values / flow.weights
    torch.testing.assert_close(ratios, ratios[..., :1].expand_as(ratios))
    points = measured_flow(model, batch)["value"]
    assert len(points) > 1
    for _, weight, norm in points:
        assert norm == pytest.approx(weight * ratios[0, 0, 0].item())
