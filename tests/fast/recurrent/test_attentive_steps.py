"""attend_along() and FastBahdanau give the same results and gradients as a loop over steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.data.batch import Batch
from regard.fast.recurrent import attentive_steps_cpu
from regard.fast.recurrent.bahdanau import FastBahdanau, attend_along
from regard.fast.twins import Twins
from regard.layers.gated_cell import GatedCell
from regard.models import build_model
from regard.models.bahdanau import Bahdanau
from regard.training.losses import cross_entropy


def step_by_step(
    cell: GatedCell, gates: Tensor, state: Tensor, memory: regard.Memory
) -> tuple[Tensor, Tensor]:
    states, contexts = [], []
    for t in range(gates.shape[1]):
        contexts.append(regard.attention(state[:, None], memory).output[:, 0])
        state = cell(gates[:, t], state, contexts[-1])
        states.append(state)
    return torch.stack(states, 1), torch.stack(contexts, 1)


@pytest.mark.parametrize("lengths", [[6, 1, 3], [6, 6, 6], None])
@pytest.mark.parametrize(("steps", "most"), [(1, 2**25), (2, 2**25), (7, 2**25), (7, 0)])
def test_equals_a_loop_over_steps(
    steps: int, most: int, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attentive_steps_cpu, "MOST_BYTES", most)
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
        states, contexts = run(cell, cell.gates(inputs), first, memory)
        loss = states.square().sum() + contexts.sin().sum()
        leaves = [source, inputs, first, *cell.parameters(), *score.parameters()]
        results.append([states, contexts, *torch.autograd.grad(loss, leaves)])
    for plain, along in zip(*results, strict=True):
        torch.testing.assert_close(along, plain, rtol=0, atol=1e-12)


def test_a_source_without_words_and_other_masks_do_not_suit():
    cell, score = GatedCell(3, 4, context_size=5), regard.Additive(4, 5)
    gates, first, source = cell.gates(torch.randn(2, 3, 3)), torch.zeros(2, 4), torch.randn(2, 6, 5)
    for mask in (regard.padding(torch.tensor([6, 0])), regard.window(left=2)):
        assert attend_along(cell, gates, first, regard.prepare(source, score=score, mask=mask)) is None
    memory = regard.prepare(source, score=score)
    assert attend_along(cell, gates.double(), first, memory) is None


def test_gradcheck():
    torch.manual_seed(0)
    cell, score = GatedCell(3, 4, context_size=5).double(), regard.Additive(4, 5, hidden=6).double()
    source, gates, first = (
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 5), (2, 2, 12), (2, 4))
    )

    def run(source: Tensor, gates: Tensor, first: Tensor, *_: Tensor) -> tuple[Tensor, Tensor] | None:
        memory = regard.prepare(source, score=score, mask=regard.padding(torch.tensor([3, 1])))
        return attend_along(cell, gates, first, memory)

    weights = [*score.parameters(), cell.context.weight, cell.gate.weight, cell.state.weight]
    assert torch.autograd.gradcheck(run, (source, gates, first, *weights))


def test_double_backward_raises():
    cell, score = GatedCell(3, 4, context_size=5), regard.Additive(4, 5)
    memory = regard.prepare(torch.randn(2, 6, 5), score=score)
    states, _ = attend_along(cell, cell.gates(torch.randn(2, 3, 3)), torch.zeros(2, 4), memory)
    (gradient,) = torch.autograd.grad(states.square().sum(), [score.vector], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


TARGETS = [[8, 4], [5, 6, 7, 8]]


def loss_and_gradients(model: Bahdanau, batch: Batch) -> list[Tensor]:
    total, _ = cross_entropy(model(batch), batch.labels, 0.1)
    return [total, *torch.autograd.grad(total, list(model.parameters()))]


def small_model(**options: object) -> Bahdanau:
    torch.manual_seed(0)
    return (
        build_model("bahdanau", 9, 9, **{"width": 6, "embedding": 5, "hidden": 7, **options}).double().train()
    )


@pytest.mark.parametrize("encoder", ["gru", "paper"])
@pytest.mark.parametrize("sources", [[[4, 5, 6], [7]], [[4, 5, 6], []]], ids=str)
def test_the_twin_of_bahdanau_has_the_same_gradients(encoder: str, sources: list[list[int]]):
    model, batch = small_model(encoder=encoder), Batch.collate(sources, TARGETS)
    plain = loss_and_gradients(model, batch)
    with Twins(model) as twins:
        assert FastBahdanau in {twin for _, _, twin in twins.chosen}
        fast = loss_and_gradients(model, batch)
    for expected, mine in zip(plain, fast, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-12)


def test_the_twin_is_used_only_for_whole_targets_in_training(monkeypatch: pytest.MonkeyPatch):
    model, batch, calls = small_model(), Batch.collate([[4, 5, 6], [7]], TARGETS), []

    def counted(*given: object) -> None:
        calls.append(given)

    monkeypatch.setattr("regard.fast.recurrent.bahdanau.attend_along", counted)
    seen: list[Tensor] = []
    with Twins(model):
        model(batch)
        assert len(calls) == 1
        with torch.no_grad():
            model(batch)
        model.eval()(batch)
        with regard.record(at="cross") as record:
            model.train()(batch)
        assert record["decoder.cross"][0].weights.shape[:2] == (2, 1)
        for module in (model.cell, model.cell.state):
            handle = module.register_forward_hook(lambda _, __, output: seen.append(output))
            model(batch)
            handle.remove()
        encoded = model.encode(batch.source, batch.source_lengths)
        state, _ = model.step(model.start(encoded).repeat(2), batch.inputs.repeat(2, 1), encoded)
        assert len(calls) == 1 and len(seen) == 2 * batch.inputs.shape[1]
        encoded = model.encode(batch.source, batch.source_lengths)
        model.step(state.select(torch.tensor([0, 2])), batch.inputs, encoded)
    assert len(calls) == 1


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
            states, contexts = run(cell, cell.gates(leaves[1]), leaves[2], memory)
            loss = states.double().square().sum() + contexts.double().sin().sum()
            gradients = torch.autograd.grad(loss, [*leaves, *cell.parameters(), *score.parameters()])
            results.append([each.detach().double() for each in (states, contexts, *gradients)])
        for oracle, plain, along in zip(*results, strict=True):
            error, allowed = ((each - oracle).norm().item() for each in (along, plain))
            assert error <= 2 * allowed + torch.finfo(dtype).eps * oracle.norm().item(), turn
