"""slot_search() on a GPU, with captured steps, returns the hypotheses of the simple search."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor

from regard.data.batch import EOS, Batch
from regard.decoding import Average, Beam, Greedy, Prompts, Rules, Sample, Search, averaged, search
from regard.decoding.beam import sortable
from regard.decoding.word_alignment import Place
from regard.errors import RegardWarning
from regard.fast.search import captured, recorded_attention, slot_search
from regard.fast.search.search_loop import EarlyEnds
from regard.fast.search.transformer_decoder import FusedTransformerDecoder, TransformerDecoder
from regard.kernels.search.beam import find_candidates
from regard.models import build_language_model
from regard.models.transformer import Size, Transformer
from tests.fast.search.test_search import MODELS, SIZE, WORDS, assert_same, prepared, simple

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
            kept = next(reversed(captured._kept[model].values()))
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
def test_alignments_follow_from_the_attention(name: str, how: Beam | Greedy) -> None:
    torch.manual_seed(3)
    model = prepared(MODELS[name]()).cuda().float()
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in (3, 6, 40)])
    for _ in range(2):  # the second time, graphs are used again
        hypotheses = [each for some in search(model, batch, how) for each in some]
        alignments = [each.alignment for each in hypotheses]
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
        decoder = kind(own, slots, beams, 64, 48)
        decoder.load(torch.arange(slots, device="cuda"), encoded, own.start(encoded))
        for position in range(40):
            tokens = torch.randint(4, 500, (slots, beams), generator=random, device="cuda")
            parents = torch.randint(0, beams, (slots, beams), generator=random, device="cuda")
            last = decoder.step(tokens, parents, torch.full((slots,), position, device="cuda"), position + 1)
        logits[name] = last.double()
    error, allowed = ((logits[name] - logits["exact"]).norm() for name in ("kernels", "plain"))
    assert error <= 2 * allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_candidates_are_the_most_probable_tokens(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for size in (13, 4096, 9001, 32000):
        logits = (3 * torch.randn(6, size)).to(dtype).cuda()
        barred = torch.zeros(size, dtype=torch.uint8, device="cuda")
        barred[:3] = 1
        generated = torch.tensor([1, 2, 5], device="cuda")
        values, tokens, _, _ = find_candidates(logits, 8, barred, generated, 3, EOS)
        values, tokens = values.flatten(1), tokens.flatten(1)
        expected = logits.float()
        expected[:, :3] = -torch.inf
        expected[:2, EOS] = -torch.inf  # the output would have fewer than 3 tokens
        best, order = expected.sort(dim=-1, descending=True, stable=True)
        places = sortable(values, tokens).topk(8).indices
        assert torch.equal(values.gather(1, places), best[:, :8])
        assert torch.equal(tokens.gather(1, places).long(), order[:, :8])
