"""slot_search() returns the hypotheses and scores of the simple search, which is the reference."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest import mock

import pytest
import torch

from regard.data.batch import EOS, Batch
from regard.decoding import (
    GNMT,
    Average,
    Beam,
    Greedy,
    Prompts,
    Rules,
    Sample,
    Search,
    forced_decoding,
    search,
)
from regard.decoding import beam as highest_values
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_search
from regard.decoding.hypothesis import Hypothesis, SearchResult
from regard.decoding.sampling import sample_search
from regard.errors import RegardError
from regard.fast.search import captured, choice, search_decoder, search_loop, slot_search
from regard.fast.search import decoder as decoder_module
from regard.layers.recurrent import Recurrence
from regard.models import Model, build_language_model
from regard.models.bahdanau import Bahdanau
from regard.models.luong import Luong
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Size, Transformer
from regard.sites import scope
from tests.decoding.toys import Looking, Table

WORDS, SIZE = 13, Size(width=16, heads=4, inner=32, layers=2)


def transformer(**options: str) -> Model:
    return Transformer(WORDS, WORDS, SIZE, **options)  # type: ignore[arg-type]


class Coarse(Table):
    """A model with many equal log-probabilities."""

    steps_use_position = False

    def __init__(self) -> None:
        super().__init__(WORDS, seed=5)
        self.table = self.table.round()


MODELS: dict[str, Callable[[], Model]] = {
    "sinusoidal": transformer,
    "rotary, post": lambda: transformer(position="rotary", norm="post", activation="swiglu"),
    "learned": lambda: transformer(position="learned"),
    "bahdanau": lambda: Bahdanau(WORDS, WORDS, 8),
    "luong, local-p": lambda: Luong(WORDS, WORDS, Recurrence(width=8), view="local-p"),
    "seq2seq": lambda: Seq2Seq(WORDS, WORDS, context="every"),
    "equal scores": Coarse,
}
PREFIXES = [[5, 6], [], [1], [7, 8, 9, 4]]
SEARCHES: list[tuple[Search, list[list[int]] | None]] = [
    (Beam(), None),
    (Beam(size=1), None),
    (Beam(size=3, best=5, length=Average(1.0)), PREFIXES),
    (Beam(size=4, best=2, length=GNMT(0.0), rules=Rules(minimum=6)), None),
    (Greedy(), PREFIXES),
    (Greedy(Rules(minimum=5, forbidden=(1, 7))), None),
    (Sample(seed=3), PREFIXES),
    (Sample(seed=4, count=3, temperature=1.5, rules=Rules(minimum=5, forbidden=(1, 7))), None),
    (Sample(seed=5, count=2, top_k=4), None),
    (Sample(seed=6, top_p=0.8, temperature=0.7), None),
]


def simple(
    model: Model, batch: Batch | Prompts, how: Search, *prefixes: object, **options: Any
) -> SearchResult:
    run: Any = {Beam: beam_search, Greedy: greedy_search, Sample: sample_search}[type(how)]
    return run(model, batch, how, *prefixes, **options).to("cpu")


def supports(model: Model, how: Search, ends: object = None) -> bool:
    return not isinstance(search_decoder(model, how, ends), list)


def assert_same(result: SearchResult, expected: SearchResult) -> None:
    assert torch.equal(result.tokens, expected.tokens)
    torch.testing.assert_close(result.token_scores, expected.token_scores, rtol=0, atol=2e-5)
    torch.testing.assert_close(result.ranking, expected.ranking, rtol=0, atol=2e-5)


def prepared(model: Model) -> Model:
    """Use float64, so that rounding does not change the order of hypotheses, and larger weights."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return model.eval().double()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_same_hypotheses_as_the_simple_search(name: str) -> None:
    torch.manual_seed(len(name))
    model = prepared(MODELS[name]())
    lengths = (3, 6, 1, 4)
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in lengths])
    for how, prefixes in SEARCHES:
        assert supports(model, how)
        assert_same(slot_search(model, batch, how, prefixes), simple(model, batch, how, prefixes))


@pytest.mark.parametrize(("words", "equal"), [(1301, False), (1344, False), (1301, True), (640, True)])
@torch.no_grad()
def test_blocks_of_a_large_vocabulary(words: int, equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1301 tokens are not whole blocks. Of equally probable tokens, the one with the lower id comes first."""
    model = Table(words, seed=3).eval()
    model.table[:, EOS] += 4.0
    model.table = model.table.round() if equal else model.table
    monkeypatch.setattr(Table, "steps_use_position", False, raising=False)
    monkeypatch.setattr(highest_values, "FEWEST_VALUES", 1)
    batch = Batch.collate([[4, 5, 6], [7], [8, 9, 4, 5], [6, 6]])
    for rules in (Rules(minimum=4, forbidden=(7,)), Rules(forbidden=tuple(range(1, 600, 9)))):
        for how in (Beam(), Beam(rules=rules), Beam(size=3, best=3, length=GNMT(0.0), rules=rules)):
            for some in (batch, batch.select(slice(1))):
                assert_same(slot_search(model, some, how), simple(model, some, how))


@pytest.mark.parametrize("name", ["sinusoidal", "rotary, post", "learned", "bahdanau", "luong, local-p"])
@torch.no_grad()
def test_waiting_sentences_and_growing_buffers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences wait for a slot, so that slots are at different positions; buffers grow."""
    monkeypatch.setattr(search_loop, "FIRST_LENGTH", 4)
    monkeypatch.setitem(search_loop.MOST_SLOTS, "cpu", 3)
    torch.manual_seed(6)
    model = prepared(MODELS[name]())
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in (3, 6, 1, 4)])
    for how, prefixes in SEARCHES:
        assert_same(slot_search(model, batch, how, prefixes), simple(model, batch, how, prefixes))
    recorded = search(model, batch, Beam(3, best=2))
    monkeypatch.setitem(decoder_module.MOST_LOOK_BYTES, "cpu", 0)  # too large: forced decoding
    assert_same_attention(recorded, search(model, batch, Beam(3, best=2)))


@pytest.mark.parametrize("name", ["transformer", "lstm"])
@torch.no_grad()
def test_prompts_and_growing_buffers(name: str) -> None:
    torch.manual_seed(1)
    options = {"size": SIZE} if name == "transformer" else {"width": 8}
    model = prepared(build_language_model(name, WORDS, **options))
    prompts = Prompts.collate([[2, 4, 5], [2, 7, 8], [2, 9, 4]])
    long, shorter = Rules(minimum=70, maximum=80), Rules(minimum=66, maximum=70)
    for how in (Beam(3, best=2, rules=long), Greedy(shorter), Sample(seed=1, count=2, rules=long)):
        assert_same(slot_search(model, prompts, how), simple(model, prompts, how))


@pytest.mark.parametrize(
    ("build", "how", "reason"),
    [
        (transformer, Beam(coverage=0.2), "coverage"),
        (transformer, Beam(rules=Rules(repeat=2)), "repeat"),
        (transformer, Greedy(Rules(repeat=3)), "repeat"),
        (transformer, Sample(rules=Rules(repeat=2)), "repeat"),
        (transformer, Beam(choice.MOST_BEAMS + 1), "above 40"),
        (transformer, Greedy(Rules(forbidden=(1, *range(4, WORDS)))), "all tokens but one"),
        (lambda: transformer(position="alibi"), Beam(), "positions"),
        (lambda: transformer(score="dot"), Beam(), "inner product"),
        (lambda: transformer(select="sparsemax"), Beam(), "softmax"),
        (lambda: Luong(WORDS, WORDS, view="local-m"), Beam(), "position"),
        (Looking, Beam(), "position"),  # a model of a user does not declare steps_use_position
    ],
)
def test_reasons_for_the_simple_search(build: Callable[[], Model], how: Search, reason: str) -> None:
    reasons = search_decoder(build(), how)
    assert isinstance(reasons, list) and any(reason in each for each in reasons)


def test_simple_search_is_used_where_slots_do_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer()
    assert supports(model, Beam())
    assert not supports(model, Beam(), ends=lambda tokens, index: tokens[..., -1] == 5)
    with scope():
        assert not supports(model, Beam())
    monkeypatch.setenv("REGARD_FAST", "0")
    assert search_decoder(model, Beam()) == ["REGARD_FAST=0 is set"]
    search(model, Batch.collate([[4, 5]]), Beam(rules=Rules(maximum=2)))


def test_a_hook_changes_the_scores_of_a_search() -> None:
    torch.manual_seed(0)
    model, batch, how = transformer().eval(), Batch.collate([[4, 5, 6]]), Greedy(Rules(maximum=3))
    handle = model.get_submodule("output").register_forward_hook(
        lambda module, inputs, output: output + 50.0 * (torch.arange(WORDS) == 9)
    )
    assert search(model, batch, how)[0][0].tokens == (9, 9, 9)
    handle.remove()
    assert supports(model, how) and search(model, batch, how)[0][0].tokens != (9, 9, 9)


@torch.no_grad()
def test_large_float32_vocabulary() -> None:
    """The log-probabilities overwrite the logits: minimum length and forbidden tokens still work."""
    torch.manual_seed(6)
    model = Transformer(WORDS, 7000, SIZE).eval()
    model.output.weight.mul_(4.0)
    batch = Batch.collate([[4, 5, 6], [7], [8, 9, 4, 5], [6, 6]])
    how = Beam(rules=Rules(minimum=3, maximum=6, forbidden=(7, 900)))
    assert_same(slot_search(model, batch, how), simple(model, batch, how))
    model.output.bias[5] = torch.nan
    with pytest.raises(RegardError, match="NaN"):
        search(model, batch, how, look=None)


@pytest.mark.parametrize("name", ["score.key_weight", "score.query_weight"])
@torch.no_grad()
def test_bahdanau_with_weights_whose_exponential_overflows(name: str) -> None:
    torch.manual_seed(4)
    model = prepared(MODELS["bahdanau"]())
    model.get_parameter(name).mul_(2000.0)
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in (3, 6, 1, 4, 5)])
    assert_same(slot_search(model, batch, Beam()), simple(model, batch, Beam()))


def test_nan_scores_are_an_error() -> None:
    model = transformer()
    with torch.no_grad():
        model.get_parameter("output.bias")[5] = torch.nan
    for how in (Beam(), Greedy()):
        with pytest.raises(RegardError, match="NaN"):
            search(model, Batch.collate([[4, 5]]), how, look=None)


def assert_same_attention(hypotheses: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for mine, theirs in zip(chain(*hypotheses), chain(*expected), strict=True):
        assert mine.tokens == theirs.tokens
        assert all(mine.attention.role(site) == theirs.attention.role(site) for site in theirs.attention)
        for own, other in ((mine.attention, theirs.attention), (mine.values, theirs.values)):
            assert list(own) == list(other)
            for site in own:
                torch.testing.assert_close(own[site], other[site], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "look"), [("learned", "cross"), ("learned", "*1.cross"), ("bahdanau", "*")])
def test_steps_record_the_attention_of_forced_decoding(
    name: str, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(search_loop.MOST_SLOTS, "cpu", 2)
    torch.manual_seed(4)
    model = prepared(MODELS[name]())
    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in (3, 6, 1, 4)])
    observe = mock.Mock(wraps=forced_decoding.observe)
    monkeypatch.setattr(sys.modules["regard.decoding.search"], "observe", observe)
    for how in (Beam(3, best=5), Beam(2, rules=Rules(maximum=3)), Greedy()):
        prefixes = PREFIXES if isinstance(how, Greedy) or how.best > 1 else None
        observe.reset_mock()
        recorded = search(model, batch, how, prefixes=prefixes, look=look)
        observe.assert_not_called()
        with monkeypatch.context() as patch:
            patch.setitem(decoder_module.MOST_LOOK_BYTES, "cpu", 0)  # too large: forced decoding
            forced = search(model, batch, how, prefixes=prefixes, look=look)
        observe.assert_called()
        for mine, theirs in zip(chain(*recorded), chain(*forced), strict=True):  # before attention is read
            assert mine.alignment == theirs.alignment and len(mine.alignment) == len(mine.tokens)
        first = recorded[0][0]
        for copied in (copy.deepcopy(first), replace(first, ranking=0.0)):  # before the attention is read
            assert copied.tokens == first.tokens and list(copied.attention) == list(first.attention)
        with pytest.raises(AttributeError, match="weights"):
            first.weights  # noqa: B018
        assert_same_attention(recorded, forced)
        assert first.alignment == forced[0][0].alignment


@torch.no_grad()
def test_fewer_slots_if_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model, counts, allocated = prepared(transformer()), list[int](), search_loop._allocated

    def allocate(*arguments: Any) -> Any:
        counts.append(arguments[3])
        if arguments[3] > 1:
            raise torch.OutOfMemoryError("no memory")
        return allocated(*arguments)

    batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in (3, 6, 1, 4)])
    expected = search(model, batch, Beam(3))
    monkeypatch.setattr(search_loop, "_allocated", allocate)
    assert_same_attention(search(model, batch, Beam(3)), expected)
    assert counts == [4, 2, 1]
    monkeypatch.setattr(search_loop, "_allocated", mock.Mock(side_effect=torch.OutOfMemoryError("no memory")))
    with pytest.raises(torch.OutOfMemoryError):
        slot_search(model, batch, Beam(3))


@pytest.mark.parametrize("name", ["rotary, post", "bahdanau"])
@torch.no_grad()
def test_waiting_sentences_and_captured_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[Callable[[], None]]()

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        step()
        step()
        steps.append(step)
        return step

    monkeypatch.setitem(search_loop.MOST_SLOTS, "cpu", 2)
    monkeypatch.setattr(captured, "_cuda_graph", capture)
    torch.manual_seed(3)
    model = prepared(MODELS[name]())
    for lengths in ((3, 6, 1, 4, 2), (5, 2, 2)):
        batch = Batch.collate([torch.randint(4, WORDS, (length,)).tolist() for length in lengths])
        for how in (Beam(size=3, best=2), Greedy(), Sample(seed=len(lengths), count=2)):
            expected = simple(model, batch, how)
            assert_same(slot_search(model, batch, how), expected)
            sentences = search_loop.sentences_of(model, batch, how)
            assert_same(search_loop.captured_search(model, how, sentences), expected)
            if isinstance(how, Sample):
                continue
            with monkeypatch.context() as patch:
                patch.setitem(search_loop.MOST_SLOTS, "cpu", 8)
                encoded_later = search_loop.not_encoded(model, batch, how)
                assert_same(search_loop.captured_search(model, how, encoded_later, None, batch), expected)
    # Once for each search method, because sizes are rounded up, with 2 slots and with 4 or 8. Sampling runs
    # only with 2 slots, and its steps do not depend on the seed. A recurrent decoder has no cache of which
    # only a part is read. The encoder is captured for 4 and 8 slots.
    parts = 1 if name == "bahdanau" else captured.PARTS
    assert len(steps) == 2 * (3 * parts + 2) + parts
