"""attend_along() gives the same states, contexts and gradients as a loop over steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.data.batch import Batch
from regard.layers.attentive_cell import attend_along
from regard.layers.gated_cell import GatedCell
from regard.models import build_model
from regard.models.bahdanau import Bahdanau
from regard.training.losses import cross_entropy


def step_by_step(
    cell: GatedCell, gates: Tensor, state: Tensor, memory: regard.Memory, site: str
) -> tuple[Tensor, Tensor]:
    states, contexts = [], []
    for t in range(gates.shape[1]):
        contexts.append(regard.attention(state[:, None], memory).output[:, 0])
        state = cell(gates[:, t], state, contexts[-1])
        states.append(state)
    return torch.stack(states, 1), torch.stack(contexts, 1)


@pytest.mark.parametrize("lengths", [[6, 1, 3], [6, 6, 6], None, [6, 0, 3]])  # the last one calls attention()
@pytest.mark.parametrize(("steps", "most"), [(1, 2**25), (2, 2**25), (7, 2**25), (7, 0)])
def test_equals_a_loop_over_steps(
    steps: int, most: int, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regard.layers.attentive_cpu_steps.MOST_BYTES", most)
    torch.manual_seed(0)
    cell = GatedCell(input_size=3, width=4, context_size=5).double()
    score = regard.Additive(4, 5, hidden=6).double()
    source = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    inputs = torch.randn(3, steps, 3, dtype=torch.float64, requires_grad=True)
    first = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for run in (step_by_step, attend_along):
        mask = None if lengths is None else regard.padding(torch.tensor(lengths))
        memory = regard.prepare(source, score=score, mask=mask)
        states, contexts = run(cell, cell.gates(inputs), first, memory, "here")
        loss = states.square().sum() + contexts.sin().sum()
        leaves = [source, inputs, first, *cell.parameters(), *score.parameters()]
        results.append([states, contexts, *torch.autograd.grad(loss, leaves)])
    for plain, along in zip(*results, strict=True):
        torch.testing.assert_close(along, plain, rtol=0, atol=1e-12)


def test_half_precision_is_as_precise_as_a_loop():
    """Error against float64: at most twice that of the loop under autocast, plus one rounding step."""
    torch.manual_seed(0)
    cell, score = GatedCell(6, 8, context_size=10), regard.Additive(8, 10)
    source, inputs, first = torch.randn(4, 9, 10), torch.randn(4, 12, 6), torch.randn(4, 8)
    results = []
    for run, kind in ((step_by_step, torch.float64), (step_by_step, None), (attend_along, None)):
        cell.double() if kind else cell.float()
        score.double() if kind else score.float()
        dtype = kind or torch.float32
        with torch.autocast("cpu", torch.bfloat16, enabled=kind is None):
            memory = regard.prepare(source.to(dtype), score=score)
            gates = cell.gates(inputs.to(dtype))
            states, contexts = run(cell, gates, first.to(gates.dtype), memory, "")
        loss = states.double().square().sum() + contexts.double().sin().sum()
        gradients = torch.autograd.grad(loss, [*cell.parameters(), *score.parameters()])
        results.append([each.detach().double() for each in (states, contexts, *gradients)])
    for oracle, plain, along in zip(*results, strict=True):
        error, allowed = ((each - oracle).norm().item() for each in (along, plain))
        assert error <= 2 * allowed + torch.finfo(torch.bfloat16).eps * oracle.norm().item()


def test_double_backward_raises():
    cell, score = GatedCell(3, 4, context_size=5), regard.Additive(4, 5)
    memory = regard.prepare(torch.randn(2, 6, 5), score=score)
    states, _ = attend_along(cell, cell.gates(torch.randn(2, 3, 3)), torch.zeros(2, 4), memory, "")
    (gradient,) = torch.autograd.grad(states.square().sum(), [score.vector], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("encoder", ["gru", "paper"])
def test_bahdanau_has_the_same_gradients_with_it(encoder: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = build_model("bahdanau", 9, 9, width=6, embedding=5, hidden=7, encoder=encoder).double().train()
    batch = Batch.collate([[4, 5, 6], [7]], [[8, 4], [5, 6, 7, 8]])
    results = []
    for fused in (False, True):
        monkeypatch.setattr(Bahdanau, "_can_fuse", lambda *_, fused=fused: fused)
        total, _ = cross_entropy(model(batch), batch.labels, 0.1)
        results.append([total, *torch.autograd.grad(total, list(model.parameters()))])
    for plain, along in zip(*results, strict=True):
        torch.testing.assert_close(along, plain, rtol=1e-6, atol=1e-12)


def test_paper_encoder_runs_in_half_precision():
    model = build_model("bahdanau", 9, 9, width=6, encoder="paper")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(Batch.collate([[4, 5, 6], [7]], [[8, 4], [5]]))
    assert logits.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "lengths", "sizes"),
    [
        (dtype, lengths, (64, 128, 72))
        for dtype in (torch.float32, torch.bfloat16)
        for lengths in ([40, 1, 17], [3 + row % 38 for row in range(80)], None)
    ]
    + [(torch.bfloat16, [40, 1, 17], (7, 10, 5)), (torch.bfloat16, [40, 2, 9, 3, 17], (1000, 2000, 1000))],
)
def test_all_steps_on_a_gpu(dtype: torch.dtype, lengths: list[int] | None, sizes: tuple[int, int, int]):
    """All steps at once are as precise as one call per step. The reference is float64.

    sizes: of the states, the values, and the hidden layer of the score function.
    """
    batch, (width, depth, hidden) = len(lengths or [1, 2, 3]), sizes
    cell = GatedCell(input_size=30, width=width, context_size=depth).cuda()
    score = regard.Additive(width, depth, hidden=hidden).cuda()
    mask = None if lengths is None else regard.padding(torch.tensor(lengths, device="cuda"))
    for turn in range(4):
        torch.manual_seed(turn)
        shapes = (batch, 40, depth), (batch, 25, 30), (batch, width)
        inputs = [torch.randn(shape, device="cuda") for shape in shapes]
        results = []
        for run, kind in ((step_by_step, torch.float64), (step_by_step, dtype), (attend_along, dtype)):
            leaves = [each.to(dtype).to(kind).requires_grad_() for each in inputs]
            cell.to(dtype).to(kind), score.to(dtype).to(kind)
            memory = regard.prepare(leaves[0], score=score, mask=mask)
            states, contexts = run(cell, cell.gates(leaves[1]), leaves[2], memory, "")
            loss = states.double().square().sum() + contexts.double().sin().sum()
            gradients = torch.autograd.grad(loss, [*leaves, *cell.parameters(), *score.parameters()])
            results.append([each.detach().double() for each in (states, contexts, *gradients)])
        for oracle, plain, along in zip(*results, strict=True):
            error, allowed = ((each - oracle).norm().item() for each in (along, plain))
            assert error <= 2 * allowed + torch.finfo(dtype).eps * oracle.norm().item(), turn
