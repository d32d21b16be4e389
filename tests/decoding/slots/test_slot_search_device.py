"""slot_search() on a GPU, with captured steps, returns the hypotheses of the simple search."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.decoding import Average, Beam, Greedy, Prompts, Rules, Sample, Search, averaged, search
from regard.decoding.batch_alignment import Place
from regard.decoding.highest_values import highest_in_order
from regard.decoding.slots import captured_slots, recorded_attention, slot_search
from regard.decoding.slots.candidates import Forbidden, next_tokens
from regard.decoding.slots.early_ends import EarlyEnds
from regard.decoding.slots.fused_transformer_decoder import FusedTransformerDecoder
from regard.decoding.slots.transformer_decoder import TransformerDecoder
from regard.errors import RegardWarning
from regard.models import build_language_model
from regard.models.transformer import Size, Transformer
from tests.decoding.slots.test_slot_search import MODELS, SIZE, WORDS, assert_same, prepared, simple

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_same_hypotheses_as_the_simple_search(name: str) -> None:
    torch.manual_seed(len(name))
    model = prepared(MODELS[name]()).cuda()
    prefixes = [[5, 6], [], [1], [7, 8, 9, 4], []]
    searches: tuple[Search, ...] = (
        Beam(),
        Beam(size=3, best=5, length=Average(1.0)),
        Greedy(),
        Greedy(Rules(minimum=5)),
        Sample(seed=3),
        Sample(seed=4, count=3, top_k=4),
        Sample(seed=5, count=2, top_p=0.8, rules=Rules(minimum=4)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegardWarning)  # given if a step cannot be captured
        for lengths in ((3, 6, 1, 4, 5), (2, 2, 9, 12, 1)):  # the second time, graphs are used again
            sources = [torch.randint(4, WORDS, (length,)).tolist() for length in lengths]
            batch = Batch.collate(sources).to("cuda")
            for how, starts in zip(
                searches, (None, prefixes, prefixes, None, prefixes, None, None), strict=True
            ):
                expected = simple(model, batch, how, starts)
                assert_same(slot_search(model, batch, how, starts), expected)


@torch.no_grad()
def test_prompts_of_a_language_model() -> None:
    torch.manual_seed(1)
    model = prepared(build_language_model("transformer", WORDS, size=SIZE)).cuda()
    prompts = Prompts.collate([[2, 4, 5], [2, 7, 8], [2, 9, 4]]).to("cuda")
    for how in (Beam(3, best=2, rules=Rules(minimum=50, maximum=80)), Greedy(Rules(maximum=70))):
        assert_same(slot_search(model, prompts, how), simple(model, prompts, how))
    rules = Rules(minimum=40, maximum=40)
    for how in (Greedy(rules), Sample(seed=2, count=3, temperature=2.0, rules=rules)):
        result = slot_search(model, prompts, how, early_ends=EarlyEnds(_every_fifth, None))
        assert_same(result, simple(model, prompts, how, ends=_every_fifth))
        assert result.lengths.min() < result.lengths.max()


def _every_fifth(tokens: Tensor, index: Tensor) -> Tensor:
    """End about one of five hypotheses at each step."""
    return (tokens.sum(-1) + index[:, None]) % 5 == 0


@pytest.mark.parametrize("name", ["sinusoidal", "rotary, post", "learned", "bahdanau"])
@torch.no_grad()
def test_kernels_in_float32(name: str) -> None:
    """The Triton kernels, which float64 models do not use, give the hypotheses and the attention."""
    torch.manual_seed(7)
    model = prepared(MODELS[name]()).cuda()
    exact, model = model, copy.deepcopy(model).float()
    earlier, batch = (
        Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in lengths]).to("cuda")
        for lengths in ((37, 33, 40, 9), (3, 6, 1, 40))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegardWarning)  # given if a step cannot be captured
        for how in (Beam(), Beam(3, best=2, rules=Rules(minimum=6)), Greedy()):
            for sources in (earlier, batch):  # the second time, graphs are used again
                recorded = recorded_attention(model, sources, "cross")
                result = slot_search(model, sources, how, recorded=recorded)
            kept = next(reversed(captured_slots._kept[model].values()))
            assert kept.replays and not kept.encoding.failed
            expected = simple(exact, batch, how)
            assert torch.equal(result.tokens, expected.tokens)
            torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=0, atol=1e-3)
            assert recorded is not None and recorded.complete
            places = [(row, 0, int(result.lengths[row, 0])) for row in range(4)]
            alignments = [recorded.alignment(*place) for place in places]
            averages = recorded.averaged([Place(recorded, *place) for place in places], "cross", None)
            attention = [recorded.of_hypothesis(*place)[0] for place in places]
            found = search(exact, batch, how)
            assert alignments == [best.alignment for best, *_ in found]
            for mine, (best, *_) in zip(attention, found, strict=True):
                for site, weights in best.attention.items():
                    torch.testing.assert_close(mine[site], weights, rtol=0, atol=1e-3)
            assert averages is not None
            for mean, (best, *_) in zip(averages, found, strict=True):
                expected_TS = averaged(best.attention).float()
                height, width = expected_TS.shape
                torch.testing.assert_close(
                    torch.from_numpy(mean[:height, :width]), expected_TS, rtol=0, atol=1e-3
                )


@pytest.mark.parametrize("name", ["sinusoidal", "bahdanau"])
@pytest.mark.parametrize("how", [Beam(3, best=2), Greedy()], ids=["beam", "greedy"])
@torch.no_grad()
def test_alignments_need_no_copy_after_the_search(name: str, how: Beam | Greedy) -> None:
    torch.manual_seed(3)
    model = prepared(MODELS[name]()).cuda().float()
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in (3, 6, 40)])
    for _ in range(2):  # the second time, graphs are used again
        hypotheses = [each for some in search(model, batch, how) for each in some]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the mode is a prototype feature
        torch.cuda.set_sync_debug_mode("error")
        try:
            alignments = [each.alignment for each in hypotheses]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert alignments == [tuple(averaged(each.attention).argmax(-1).tolist()) for each in hypotheses]


@pytest.mark.parametrize(
    ("options", "half"),
    [
        ({}, torch.float16),
        ({}, torch.bfloat16),
        ({"position": "rotary", "norm": "post"}, torch.bfloat16),
    ],
    ids=("pre, float16", "pre", "post"),
)
@torch.no_grad()
def test_steps_in_half_precision(options: dict[str, str], half: torch.dtype) -> None:
    """The error of the kernels is at most twice that of PyTorch in the same dtype, against float64."""
    torch.manual_seed(3)
    size, slots, beams = Size(width=192, heads=3, inner=300, layers=3), 5, 4
    model = Transformer(500, 500, size, **options).eval().cuda()  # type: ignore[arg-type]
    batch = Batch.collate([torch.randint(4, 500, (each,)).tolist() for each in (3, 6, 1, 40, 17)]).to("cuda")
    logits = dict[str, Tensor]()
    for kind, dtype, name in (
        (TransformerDecoder, torch.float64, "exact"),
        (TransformerDecoder, half, "plain"),
        (FusedTransformerDecoder, half, "kernels"),
    ):
        own = copy.deepcopy(model).to(dtype)
        encoded, random = (
            own.encode(batch.source, batch.source_lengths),
            torch.Generator("cuda").manual_seed(1),
        )
        decoder = kind.build(own, slots, beams, 64, 48)
        decoder.load(torch.arange(slots, device="cuda"), encoded, own.start(encoded))
        for position in range(40):
            tokens = torch.randint(4, 500, (slots, beams), generator=random, device="cuda")
            parents = torch.randint(0, beams, (slots, beams), generator=random, device="cuda")
            last = decoder.step(tokens, parents, torch.full((slots,), position, device="cuda"), position + 1)
        logits[name] = last.double()
    error, allowed = ((logits[name] - logits["exact"]).norm() for name in ("kernels", "plain"))
    assert error <= 2 * allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_next_tokens_are_the_most_probable_ones(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for size in (13, 4096, 9001, 32000):
        logits = (3 * torch.randn(3, 2, size)).to(dtype)
        forbidden = Forbidden.tokens(torch.tensor([0, 1, 2]), size)
        generated = torch.tensor([1, 2, 5])
        expected = next_tokens(logits, 8, forbidden, generated, 3, None)
        on_gpu = Forbidden(*(each.cuda() for each in forbidden))
        scores, tokens, _ = next_tokens(logits.cuda(), 8, on_gpu, generated.cuda(), 3, None)
        for ours, theirs in zip((scores, tokens), expected[:2], strict=True):
            order = highest_in_order(scores.flatten(0, 1), tokens.flatten(0, 1), 8)
            other = highest_in_order(expected[0].flatten(0, 1), expected[1].flatten(0, 1), 8)
            one, two = ours.flatten(0, 1).gather(1, order).cpu(), theirs.flatten(0, 1).gather(1, other)
            torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
