"""Faithfulness of two models with known results, and of every model against single trials."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data import train_tokenizers
from regard.data.batch import EOS, Batch
from regard.data.tokenizers import train_tokenizer
from regard.decoding import Greedy, Translator
from regard.decoding.forced_decoding import observe
from regard.evaluation import Faithfulness, agreement, faithfulness
from regard.evaluation.erasure import Trial, ranked_and_random
from regard.evaluation.faithfulness import Pair, WordTruth, saliencies, word_scores
from regard.models import Encoded, Model, State, build_model
from regard.models.base import attend
from tests.models.variants import VARIANTS, make

PAIRS = [("a b c d", "a b c d"), ("d c b", "d c b"), ("b e a c d", "b e a c d")]
READERS = ["bahdanau", "luong general", "luong local-p fed", "transformer rotary", "transformer tied"]
SHARP, LOUD = 12.0, 9.0


class Pointer(Model):
    """Copies source token t at step t, with attention as its only input."""

    def __init__(self, size: int):
        super().__init__()
        self.source_size = self.target_size = size
        self.source = nn.Embedding.from_pretrained(LOUD * torch.eye(size).double(), freeze=False)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        places = SHARP * torch.eye(source.shape[1]).double().expand(len(source), -1, -1)
        mask = regard.padding(lengths)
        memory = regard.prepare(places, self.source(source), score=regard.Dot(), mask=mask)
        return Encoded(lengths, (memory,), (self.source(source).sum(1),))

    def start(self, encoded: Encoded) -> State:
        return State()

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        rows = torch.arange(tokens.shape[1]) + state.position
        places = torch.eye(max(encoded.memories[0].length, int(rows[-1]) + 1)).double()[rows]
        query = places[:, : encoded.memories[0].length].expand(len(tokens), -1, -1)
        read = attend(query, encoded.memories[0], start=state.position, site="decoder.cross").output
        return State(state.position + tokens.shape[1]), self.said(read, encoded)

    def said(self, read: Tensor, encoded: Encoded) -> Tensor:
        return read


class Liar(Pointer):
    """Has the attention of Pointer, but its output does not depend on it."""

    def said(self, read: Tensor, encoded: Encoded) -> Tensor:
        return 0 * read + encoded.first[0][:, None]


def translator(kind: type[Model], tokenizer: str = "word") -> Translator:
    source, target = train_tokenizers(PAIRS, tokenizer)
    assert source.size == target.size
    return Translator(kind(source.size), source, target, search=Greedy())  # type: ignore[call-arg]


def sides() -> tuple[list[str], list[str]]:
    return [source for source, _ in PAIRS], [target for _, target in PAIRS]


def test_model_that_uses_its_attention():
    measured = faithfulness(translator(Pointer), *sides(), samples=2)
    size = translator(Pointer).model.target_size
    assert [each.text for each in measured.words if each.item == 1] == ["d", "c", "b"]
    even = []
    for each in measured.words:
        keys = len(PAIRS[each.item][0].split()) + 1
        assert each.looked == (each.place,)
        # Before: nearly all weight on one key, so its logit is 9. Hidden: the other keys get 9 / (keys - 1).
        before = LOUD - math.log(math.exp(LOUD) + size - 1)
        others = keys - 1
        after = -math.log(others * math.exp(LOUD / others) + size - others)
        assert each.hidden == pytest.approx(before - after, rel=0.01)
        assert abs(each.hidden_random) < 0.01 and each.comprehensiveness > 0.7
        assert abs(each.sufficiency) < 0.01 and each.spearman > 0.5
        share = LOUD / keys
        even.append(before - share + math.log(keys * math.exp(share) + size - keys))
    assert measured.better == 1 and measured.uniform == pytest.approx(numpy.mean(even), rel=0.01)
    assert f"{measured.mean('hidden'):.1f} nats" in measured.summary() and measured.summary().endswith(" 0.0")


def test_small_costs_have_two_digits():
    def summary(*costs: float) -> str:
        word = WordTruth(0, 0, "cat", (1,), 0.5, *costs, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        return Faithfulness((word,), 0.0, 1, 1).summary()

    assert " 1.3 nats" in summary(1.26, 0.06) and summary(1.26, 0.06).endswith(" 0.06")
    assert " 1.0 nats" in summary(0.96, -0.001) and summary(0.96, -0.001).endswith(" 0.0")
    assert str(Faithfulness((), 0.0, 1, 1)) == Faithfulness((), 0.0, 1, 1).summary()


def test_model_that_does_not_use_its_attention():
    measured = faithfulness(translator(Liar), *sides())
    for each in measured.words:
        assert (each.hidden, each.hidden_random, each.comprehensiveness, each.sufficiency) == (0, 0, 0, 0)
        assert each.unknown > 1  # the word is needed, but not through attention
    assert measured.uniform == 0 and measured.better == 0
    assert " 0.0 nats" in measured.summary() and measured.summary().endswith(" 0.0")


def test_all_tokens_of_a_word_are_erased():
    source, target = train_tokenizers([("abc de f", "fed cba b")], "character")
    torch.manual_seed(1)
    model = build_model("transformer", source.size, target.size, width=8, heads=2, inner=8, layers=1)
    made = Translator(model, source, target, unit="word")
    measured = faithfulness(made, "abc de f", "fed cba b")
    assert [(each.place, each.text) for each in measured.words] == [(0, "fed"), (1, "cba"), (2, "b")]
    scored = made.score("abc de f", "fed cba b")
    weights, passage = scored.align().matrix, scored.passages[0]
    pair = Pair((*source.encode("abc de f"), EOS), (*target.encode("fed cba b"), EOS))
    for each in measured.words:
        assert each.looked == (int(weights[each.place].argmax()),)
        rows = tuple(place for place, word in enumerate(passage.words) if word == each.place)
        gone = tuple(place for place, word in enumerate(passage.source_words) if word == each.looked[0])
        before, after = word_scores(model, [pair], [Trial(0, rows), Trial(0, rows, gone)])
        assert each.hidden == pytest.approx(before - after, abs=1e-4)


def test_summary_names_the_units_of_source_and_target():
    source, target = train_tokenizer("character", ["abc"]), train_tokenizer("word", ["c b a"])
    model = build_model("bahdanau", source.size, target.size, width=4)
    measured = faithfulness(Translator(model, source, target), "abc", "c b")
    assert measured.units == ("character", "word")
    assert "source character" in str(measured) and "a random character" in str(measured)
    assert str(measured).endswith("(2 target words)")


@pytest.mark.parametrize("name", READERS)
def test_batched_trials_equal_single_trials_and_interventions(name: str):
    model = make(name)
    sources, targets = [[4, 5, 6, 7], [8, 9, 10]], [[5, 6, 7], [4, 9, 8, 5, 6]]
    pairs = [Pair((*a, EOS), (*b, EOS)) for a, b in zip(sources, targets, strict=True)]
    trials = [
        Trial(0, (1,)),
        Trial(1, (3, 4), hidden=(0, 2)),
        Trial(0, (0, 1), unknown=(3,)),
        Trial(0, (2,), hidden=(1,)),
        Trial(1, (5,)),
    ]
    together = word_scores(model, pairs, trials)
    alone = [word_scores(model, pairs, [trial])[0] for trial in trials]
    assert together.tolist() == pytest.approx(alone, abs=1e-5)
    for trial, score in zip(trials, together.tolist(), strict=True):
        source = [1 if place in trial.unknown else each for place, each in enumerate(sources[trial.item])]
        cuts = [(row, key) for row in trial.rows for key in trial.hidden]
        with regard.intervene(cut=cuts, at="*cross"):
            seen = observe(model, Batch.collate([source], [targets[trial.item]]))
        assert score == pytest.approx(seen.token_scores[0, list(trial.rows)].sum().item(), abs=1e-5)


@pytest.mark.parametrize("name", READERS[:-1])  # tied embeddings change the output too
def test_gradient_times_input_equals_finite_differences(name: str):
    model = make(name).train()
    pair, trial = Pair((*[4, 5, 6, 7], EOS), (*[8, 9, 10], EOS)), Trial(0, (1, 2))
    (measured,) = saliencies(model, [pair], [trial])
    assert measured.shape == (5,) and model.training and all(p.grad is None for p in model.parameters())
    model.eval()
    step = 1e-4
    for place, token in enumerate(pair.source):
        row = model.source.weight.data[token]
        before, sides = row.clone(), []
        for factor in (1 + step, 1 - step):
            row.copy_(factor * before)
            sides.append(_precise(model, pair, trial))
        row.copy_(before)
        assert abs(sides[0] - sides[1]) / (2 * step) == pytest.approx(measured[place], rel=1e-3, abs=1e-5)


def _precise(model: Model, pair: Pair, trial: Trial) -> float:
    """Return the log-probability of a trial's word in float64, for finite differences."""
    batch = Batch.collate([pair.source[:-1]], [pair.target[:-1]])
    with torch.no_grad():
        scores = model(batch).log_softmax(-1).gather(-1, batch.labels[..., None])[0, :, 0]
    return float(scores[list(trial.rows)].sum())


@pytest.mark.parametrize(("k", "drawn"), [(1, {0, 2, 3, 4}), (2, {0, 2, 4}), (4, {2})])
def test_random_words_are_not_the_most_attended_ones(k: int, drawn: set[int]):
    order, samples = ranked_and_random([0.1, 0.4, 0.05, 0.3, 0.15], k, samples=50, seed=[0])
    assert order == [1, 3, 4, 0, 2] and set().union(*samples) == drawn
    assert (
        {len(sample) for sample in samples}
        == {len(set(sample)) for sample in samples}
        == {min(k, len(drawn))}
    )


def test_random_words_depend_only_on_the_seed():
    source, target = train_tokenizers(PAIRS, "word")
    torch.manual_seed(0)
    made = Translator(build_model("bahdanau", source.size, target.size, width=6), source, target)
    whole, again = faithfulness(made, *sides()), faithfulness(made, *sides())
    assert whole.words == again.words
    first = faithfulness(made, *PAIRS[0])
    for one, other in zip(first.words, whole.words, strict=False):
        assert one.hidden_random == pytest.approx(other.hidden_random, abs=1e-6)
    assert faithfulness(made, *sides(), seed=1).mean("hidden_random") != whole.mean("hidden_random")


def test_without_targets_the_translations_are_evaluated():
    made = translator(Pointer)
    sources, targets = sides()
    measured = faithfulness(made, sources)
    said = [each.text for each in made.translate(sources)]
    assert all(text.startswith(target) for text, target in zip(said, targets, strict=True))
    assert len(measured.words) == sum(len(text.split()) for text in said)


def test_result_is_accepted_and_its_summary_is_under_the_picture():
    pointer = translator(Pointer)
    said, given = pointer.translate("d c b"), pointer.score("d c b", "d c a")
    for result in (said, given):
        measured = faithfulness(pointer, result)
        assert measured == faithfulness(pointer, result.source, result.text)
        assert str(measured) in str(result.seen().noted(measured).picture()).replace("\n", " ")
    assert faithfulness(pointer, said, "d c a") == faithfulness(pointer, given)


def test_short_sources_are_skipped_and_models_without_attention_raise():
    made = translator(Pointer)
    measured = faithfulness(made, ["a", "", "a b c"], ["a", "b", "a b c"], k=2)
    assert measured.skipped == 2 and {each.item for each in measured.words} == {2}
    none = faithfulness(made, ["a"], ["a"])
    assert "too few" in none.summary() and json.loads(json.dumps(none.written()))["hidden"] is None
    assert none.written()["skipped"] == 1
    written = json.loads(json.dumps(measured.written(), allow_nan=False))
    assert written["k"] == 2 and written["hidden"] == measured.mean("hidden")
    blind = Translator(
        build_model("seq2seq", made.model.source_size, made.model.source_size, width=4),
        made.source_tokenizer,
        made.target_tokenizer,
    )
    with pytest.raises(regard.ArgumentError, match="attention"):
        faithfulness(blind, *sides())
    with pytest.raises(regard.ArgumentError, match="k is 0"):
        faithfulness(made, *sides(), k=0)


def test_one_layer_or_head_can_be_evaluated():
    source, target = train_tokenizers(PAIRS, "word")
    kind, options = VARIANTS["transformer rotary"]
    model = build_model(kind, source.size, target.size, **options)
    made = Translator(model, source, target, look=None)
    measured = {
        at: faithfulness(made, *sides(), at=at) for at in ("decoder.0.cross", "decoder.1.cross", "*cross")
    }
    assert made.look is None and len({each.uniform for each in measured.values()}) == 3
    one = faithfulness(made, *sides(), at="decoder.1.cross", head=1)
    assert one.written()["head"] == 1 and numpy.isfinite(one.mean("kendall"))
    with pytest.raises(regard.UnknownName, match=r"decoder\.0\.cross"):
        faithfulness(made, *sides(), at="decoder.7.cross")


def test_agreement_of_a_model_with_itself_and_with_another():
    made, other = translator(Pointer), translator(Liar)
    assert agreement(made, other, *sides()).written() == {"distance": 0.0, "same": 1.0, "words": 12}
    source, target = made.source_tokenizer, made.target_tokenizer
    random: list[Any] = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        random.append(Translator(build_model("bahdanau", source.size, target.size, width=6), source, target))
        nn.init.normal_(random[-1].model.score.vector, std=3)
    measured = agreement(*random, *sides())
    assert 0 < measured.distance < 1 and measured.same < 1 and "distance" in str(measured)
    blank = ["", ""]
    with pytest.raises(regard.ArgumentError, match="target"):
        agreement(made, made, blank, blank)


class Paused(Pointer):
    """A Pointer with dropout whose forward pass first calls a function, set for each thread."""

    def __init__(self, size: int):
        super().__init__(size)
        self.first: dict[int, Any] = {}

    def forward(self, batch: Batch) -> Tensor:
        self.first.get(threading.get_ident(), lambda: None)()
        return nn.functional.dropout(super().forward(batch), 0.5, self.training)


def test_threads_that_share_a_model_keep_it_in_eval_mode():
    model, pair, trial = Paused(9), Pair((5, 6, 7, 3), (5, 6, 7, 3)), Trial(0, (1,), hidden=(1,))
    expected = word_scores(model, [pair], [trial])
    started, done, measured = threading.Event(), threading.Event(), {}

    def run(name: str, first: Any) -> None:
        model.first[threading.get_ident()] = first
        measured[name] = word_scores(model, [pair], [trial])

    def wait_for_second() -> None:
        second.start()
        assert started.wait(60)

    def wait_for_first() -> None:
        started.set()
        assert done.wait(60)

    second = threading.Thread(target=run, args=("second", wait_for_first))
    first = threading.Thread(target=run, args=("first", wait_for_second))
    first.start()
    first.join(60)
    done.set()
    second.join(60)
    assert measured["first"] == expected and measured["second"] == expected
    assert all(module.training for module in model.modules())


def test_saliencies_do_not_change_the_embeddings_of_other_threads():
    model, pair, trial = Paused(9), Pair((5, 6, 7, 3), (5, 6, 7, 3)), Trial(0, (1,))
    (expected,) = saliencies(model, [pair], [trial])
    other: list[Tensor] = []

    def embed_in_another_thread() -> None:
        thread = threading.Thread(target=lambda: other.append(model.source(torch.tensor([[1, 2]]))))
        thread.start()
        thread.join(60)

    model.first[threading.get_ident()] = embed_in_another_thread
    (measured,) = saliencies(model, [pair], [trial])
    assert numpy.array_equal(measured, expected) and expected.any()
    assert other[0].grad_fn is not None  # still a function of the table


def test_means_are_properties_and_a_negative_decrease_raises():
    word = WordTruth(0, 0, "cat", (1,), 0.5, 0.77, -0.04, 4.0, 1.0, 0.9, 0.1, 0.8, math.nan)
    report = Faithfulness((word,), uniform=2.0, k=1, sentences=1)
    names = ("hidden", "hidden_random", "unknown", "unknown_random", "comprehensiveness", "sufficiency")
    assert [getattr(report, name) for name in names] == [0.77, -0.04, 4.0, 1.0, 0.9, 0.1]
    assert report.kendall == 0.8 and math.isnan(report.spearman)
    assert "lowers" in report.summary() and "raises it by 0.04" in report.summary()
    assert "-0.04" not in report.summary()


@pytest.mark.parametrize("arguments", [(3,), (b"ab",), (["a"], ["b", "c"]), (["a", 3],), ("a", 3)], ids=str)
def test_errors_name_faithfulness(arguments: tuple[Any, ...]):
    tokenizer, _ = train_tokenizers(PAIRS, "word")
    translator = Translator(Pointer(tokenizer.size), tokenizer, tokenizer, search=Greedy())
    with pytest.raises(regard.ArgumentError, match=r"faithfulness\(\): "):
        faithfulness(translator, *arguments)


@pytest.mark.parametrize(
    ("translator", "fact"),
    [
        ("runs/first", "regard.load('runs/first')"),
        (Path("runs/first"), "regard.load('runs/first')"),
        (SimpleNamespace(config={}, model=None), "erase_tokens"),
        (nn.Linear(1, 1), "Linear"),
    ],
)
def test_what_is_not_a_translator_raises(translator: Any, fact: str):
    with pytest.raises(regard.ArgumentError) as error:
        faithfulness(translator, ["a"])
    assert fact in str(error.value) and "regard.load" in str(error.value)
