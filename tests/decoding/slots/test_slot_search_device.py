"""slot_search() on a GPU, with captured steps, returns the hypotheses of the simple search."""

from __future__ import annotations

import warnings

import pytest
import torch

from regard.data.batch import Batch
from regard.decoding import Average, Beam, Greedy, Prompts, Rules
from regard.decoding.slots import slot_search
from regard.decoding.slots.candidates import Forbidden, highest_in_order, next_tokens
from regard.errors import RegardWarning
from regard.models import build_language_model
from tests.decoding.slots.test_slot_search import MODELS, SIZE, WORDS, assert_same, prepared, simple

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_same_hypotheses_as_the_simple_search(name: str) -> None:
    torch.manual_seed(len(name))
    model = prepared(MODELS[name]()).cuda()
    prefixes = [[5, 6], [], [1], [7, 8, 9, 4], []]
    searches: tuple[Beam | Greedy, ...] = (
        Beam(),
        Beam(size=3, best=5, length=Average(1.0)),
        Greedy(),
        Greedy(Rules(minimum=5)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegardWarning)  # given if a step cannot be captured
        for lengths in ((3, 6, 1, 4, 5), (2, 2, 9, 12, 1)):  # the second time, graphs are used again
            sources = [torch.randint(4, WORDS, (length,)).tolist() for length in lengths]
            batch = Batch.collate(sources).to("cuda")
            for how, starts in zip(searches, (None, prefixes, prefixes, None), strict=True):
                expected = simple(model, batch, how, starts)
                assert_same(slot_search(model, batch, how, starts), expected)


@torch.no_grad()
def test_prompts_of_a_language_model() -> None:
    torch.manual_seed(1)
    model = prepared(build_language_model("transformer", WORDS, size=SIZE)).cuda()
    prompts = Prompts.collate([[2, 4, 5], [2, 7, 8], [2, 9, 4]]).to("cuda")
    for how in (Beam(3, best=2, rules=Rules(minimum=50, maximum=80)), Greedy(Rules(maximum=70))):
        assert_same(slot_search(model, prompts, how), simple(model, prompts, how))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
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
