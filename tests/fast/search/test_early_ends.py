"""Stop strings and Ctrl-C in a search on preallocated tensors, which may check several steps at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.decoding import Beam, Greedy, Prompts, Rules, Sample, Search, search
from regard.fast.search import captured, search_loop, slot_search
from regard.fast.search.search_loop import EarlyEnds
from regard.models import build_language_model
from tests.fast.search.test_search import SIZE, WORDS, assert_same, prepared, simple, supports

SAMPLED = Sample(seed=2, count=3, temperature=2.0)


@pytest.mark.parametrize("how", [Greedy(), SAMPLED], ids=["greedy", "sample"])
@torch.no_grad()
def test_outputs_end_where_the_simple_search_ends_them(
    how: Greedy | Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(6)
    model = prepared(build_language_model("transformer", WORDS, size=SIZE))
    prompts = Prompts.collate([[2, token] for token in range(4, 11)])
    seen = list[tuple[int, ...]]()

    def ends(tokens_bKt: Tensor, index_b: Tensor) -> Tensor:
        for number, rows in zip(index_b.tolist(), tokens_bKt.tolist(), strict=True):
            seen.extend((number, *row) for row in rows)
        return (tokens_bKt.sum(-1) + index_b[:, None]) % 7 == 0

    how = replace(how, rules=Rules(minimum=20, maximum=20))
    expected = simple(model, prompts, how, ends=ends)
    assert expected.lengths.min() < 8 < expected.lengths.max()
    prefixes = set(seen)
    monkeypatch.setitem(search_loop.MOST_SLOTS, "cpu", 4)  # the other sentences wait
    assert supports(model, how, ends)
    seen.clear()
    assert_same(slot_search(model, prompts, how, early_ends=EarlyEnds(ends, None)), expected)
    assert set(seen) <= prefixes
    monkeypatch.setattr(captured, "_cuda_graph", lambda step: step)
    sentences = search_loop.sentences_of(model, prompts, how)
    seen.clear()
    result = search_loop.captured_search(model, how, sentences, early_ends=EarlyEnds(ends, None))
    assert_same(result, expected)
    assert set(seen) <= prefixes  # also if 8 steps are checked at once


@pytest.mark.parametrize("how", [Beam(3), Greedy(), Sample()], ids=["beam", "greedy", "sample"])
@torch.no_grad()
def test_a_stopped_search_returns_the_tokens_so_far(how: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(search_loop.MOST_SLOTS, "cpu", 2)
    torch.manual_seed(7)
    how, calls = replace(how, rules=Rules(minimum=50, maximum=60)), list[None]()

    def stopping() -> bool:
        calls.append(None)
        return len(calls) >= 10

    model = prepared(build_language_model("gru", WORDS, width=8))
    assert supports(model, how)
    prompts = Prompts.collate([[2, 5], [2, 6], [2, 7]])
    slots = search(model, prompts, how, look=None, stopping=stopping)
    assert [len(best.tokens) for best, *_ in slots] == [11, 11, 1]  # the last one waited for a slot
    calls.clear()
    how = replace(how, rules=replace(how.rules, repeat=60))
    assert not supports(model, how)
    others = search(model, prompts, how, look=None, stopping=stopping)
    assert [len(best.tokens) for best, *_ in others] == [10, 10, 10]
