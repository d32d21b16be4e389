"""Search with the kernels of decoding under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch

from regard.data.batch import Batch
from regard.decoding import Average, Beam, Greedy, Rules
from regard.decoding.beam import beam_search
from regard.decoding.forced_decoding import observe
from regard.decoding.greedy import greedy_search
from regard.decoding.word_alignment import averaged
from regard.fast.search import captured, recorded_attention, search_loop, slot_search
from regard.fast.search.beams import BeamSlots
from regard.fast.search.choice import decoder_for
from regard.fast.search.transformer_decoder import FusedTransformerDecoder
from regard.kernels.search.decoder_step import reorder_history
from regard.models import Model
from regard.models.bahdanau import Bahdanau
from regard.models.transformer import Size, Transformer

WORDS, SIZE = 13, Size(width=12, heads=2, inner=16, layers=2)
RULES = Rules(minimum=3, maximum=6)
SEARCHES = (Beam(5, rules=RULES), Beam(2, best=3, length=Average(1.0), rules=RULES), Greedy(RULES))


def assert_same_search(model: Model, lengths: tuple[int, ...], how: Beam | Greedy) -> None:
    """Compare with the simple search in float64."""
    torch.manual_seed(1)
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in lengths])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
        recorded = recorded_attention(model, batch, "cross")
        result = slot_search(model.eval(), batch, how, recorded=recorded)
        run = beam_search if isinstance(how, Beam) else greedy_search
        expected = run(model.double(), batch, how)  # type: ignore[operator]
    assert torch.equal(result.tokens, expected.tokens)
    torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=0, atol=1e-4)
    torch.testing.assert_close(result.ranking, expected.ranking, rtol=0, atol=1e-4)
    assert recorded is not None and recorded.complete
    for row, source in enumerate(batch.source):
        pair = Batch.collate([source[: lengths[row]].tolist()], [result.tokens[row, 0].tolist()])
        length = int(result.lengths[row, 0])
        alignment = recorded.alignment(row, 0, length)
        attention, _ = recorded.of_hypothesis(row, 0, length)
        assert alignment == tuple(averaged(attention).argmax(-1).tolist())
        for site, weights in observe(model, pair, "cross").attention.items():
            mine = attention[site]
            torch.testing.assert_close(mine, weights[0][..., :length, :], rtol=0, atol=1e-4)


@pytest.mark.parametrize("how", SEARCHES, ids=("beam", "n-best", "greedy"))
@pytest.mark.parametrize("options", [{}, {"position": "rotary", "norm": "post"}], ids=("pre", "post"))
def test_transformer(options: dict[str, str], how: Beam | Greedy) -> None:
    torch.manual_seed(0)
    model = Transformer(WORDS, WORDS, SIZE, **options)  # type: ignore[arg-type]
    assert decoder_for(model) is FusedTransformerDecoder
    assert_same_search(model, (3, 1) if isinstance(how, Beam) else (70, 3), how)  # one tile, or three


def test_equal_scores() -> None:
    """With only three different logits, most continuations have equal scores: the order decides."""
    torch.manual_seed(2)
    model = Bahdanau(WORDS, WORDS, 4)
    with torch.no_grad():
        model.readout.output.weight.zero_()
        model.readout.output.bias.copy_(torch.arange(WORDS) % 3)
    assert_same_search(model, (2, 3), Beam(4, best=2, rules=RULES))


@pytest.mark.parametrize("how", SEARCHES[1:], ids=("n-best", "greedy"))
def test_bahdanau(how: Beam | Greedy) -> None:
    torch.manual_seed(0)
    assert_same_search(Bahdanau(WORDS, WORDS, 9), (10, 3), how)


@pytest.mark.parametrize("most", [2, 7])
def test_slots_of_captured_steps_end_at_different_times(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two slots, sentences wait for a free slot. Their attention weights are recorded."""
    monkeypatch.setattr(captured, "_cuda_graph", lambda step: step)
    lengths, how = (2, 9, 3, 1, 4, 2, 5), Beam(3, best=2, rules=Rules(maximum=18))
    torch.manual_seed(5)
    model = Bahdanau(WORDS, WORDS, 6).eval()
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in lengths])
    with torch.no_grad():
        model.readout.output.weight.mul_(4.0)
        recorded = recorded_attention(model, batch, "cross")
        sentences = search_loop.sentences_of(model, batch, how)
        result = search_loop.captured_search(model, how, sentences, recorded, most=most)
        expected = beam_search(copy.deepcopy(model).double(), batch, how)
    assert len(result.lengths[:, 0].unique()) > 2
    assert torch.equal(result.tokens, expected.tokens)
    torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=0, atol=1e-4)
    assert recorded is not None and recorded.complete
    for row, source in enumerate(batch.source):
        for rank in range(2):
            tokens, length = result.tokens[row, rank].tolist(), int(result.lengths[row, rank])
            attention, _ = recorded.of_hypothesis(row, rank, length)
            assert recorded.alignment(row, rank, length) == tuple(averaged(attention).argmax(-1).tolist())
            pair = Batch.collate([source[: lengths[row]].tolist()], [tokens])
            for site, weights in observe(model, pair, "cross").attention.items():
                torch.testing.assert_close(attention[site], weights[0][:length], rtol=0, atol=1e-4)


def step_of_both(
    states: list[dict[str, torch.Tensor]], logits: torch.Tensor, how: Beam
) -> list[dict[str, torch.Tensor]]:
    """Return the tensors of BeamSlots after one step, with the kernel and with PyTorch.

    states: the state before the step, with the kernel and with PyTorch.
    """
    results = []
    slots, beams, _ = logits.shape
    for kernel, state in zip((True, False), states, strict=True):
        decoder = mock.Mock(
            slots=slots, beams=beams, length=8, step=lambda *_: logits, in_inference_mode=False
        )
        search = BeamSlots(decoder, how, 0, 8, logits.device)
        names = (*search.per_slot(), "tokens", "links", "token_scores")
        for name, values in state.items():
            getattr(search, name).copy_(values)
        with mock.patch("regard.fast.search.slots.by_kernel", mock.Mock(return_value=kernel)):
            search.step(8)
        results.append({name: getattr(search, name).clone() for name in names})
    return results


@pytest.mark.parametrize("seed", range(3))
def test_one_step_with_equal_rankings(seed: int) -> None:
    """Sums, logits and rankings have few values, so that most comparisons are between equal numbers."""
    random = torch.Generator().manual_seed(seed)
    how, slots = Beam(3, best=2, length=Average(0.5), rules=Rules(minimum=2)), 12

    def few(*sizes: int) -> torch.Tensor:
        return torch.randint(-2, 1, sizes, generator=random).float()

    logits = few(slots, 3, WORDS)
    state = {
        "sums": few(slots, 3).sort(descending=True).values,
        "count": torch.randint(0, 6, (slots,), generator=random),
        "limits": torch.full((slots,), 6),
        "done": torch.rand(slots, generator=random) < 0.2,
        "pool_ranking": torch.full((slots, 2), -torch.inf),
        "pool_beams": torch.randint(0, 3, (slots, 2), generator=random),
    }
    # The rankings of the pool are equal to the new ones. Kernel and PyTorch round differently.
    states = [
        {**state, "pool_ranking": each["pool_ranking"]} for each in step_of_both([state] * 2, logits, how)
    ]
    for each in states:
        each["pool_ranking"][::3, 1] = -torch.inf
    mine, expected = step_of_both(states, logits, how)
    running = ~state["done"]
    for name, values in expected.items():
        torch.testing.assert_close(mine[name][running], values[running], rtol=0, atol=1e-6, msg=name)
    for name in ("sums", "count", "done", "pool_ranking", "pool_steps", "pool_beams"):
        assert torch.equal(mine[name][~running], expected[name][~running]), name


@torch.inference_mode()
def test_a_beam_continues_the_whole_history_of_its_parent() -> None:
    torch.manual_seed(0)
    history = torch.randint(3, (4, 150, 3), dtype=torch.int32)
    parents, position = (
        torch.tensor([[2, 0, 0], [1, 1, 2], [0, 1, 2], [2, 1, 0]]),
        torch.tensor([0, 1, 64, 149]),
    )
    expected = history.clone()
    for slot, now in enumerate(position.tolist()):
        expected[slot, :now] = history[slot, :now][:, parents[slot]]
        expected[slot, now] = torch.arange(3)
    reorder_history(history, parents, position)
    assert torch.equal(history, expected)
