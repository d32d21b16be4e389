"""Perplexity: values worked out by hand, sliding windows against each conditional, carried states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from regard.data.batch import BOS, EOS, PAD, TextBatch
from regard.data.encoded_text import (
    DocumentBatches,
    EncodedText,
    SlidingWindows,
    StreamBatches,
    TextCounts,
    WindowBatches,
)
from regard.data.tokenizers import train_tokenizer
from regard.errors import ArgumentError
from regard.evaluation.perplexity import TextLoss, text_loss, token_losses
from regard.models import LanguageModel, State, build_language_model
from regard.positions import POSITIONS
from tests.facts import facts

LINES = ["to be or", "not to", "be that is", "the question or", "not"]
TOKENIZER = train_tokenizer("word", LINES)
CONTINUOUS = EncodedText.from_lines(LINES, TOKENIZER, layout="continuous")
DOCUMENTS = EncodedText.from_lines(LINES, TOKENIZER, layout="documents")


class Bigram(LanguageModel):
    """Predicts EOS with probability 1/2 after word 4, 1/4 after anything else, and words 4 and 5 equally."""

    target_size = 6

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 1)

    def step(self, state, tokens, encoded):
        end = torch.where(tokens == 4, 0.5, 0.25)
        word = (1 - end) / 2
        zero = torch.zeros_like(end)
        return state, torch.stack((zero, zero, zero, end, word, word), -1).log()


def small(name: str, size: int = TOKENIZER.size, **options: object) -> LanguageModel:
    sizes = {"width": 8, "heads": 2, "inner": 16, "layers": 2} if name == "transformer" else {"width": 6}
    return build_language_model(name, size, dropout=0.5, **{**sizes, **options}).double()


def test_values_worked_out_by_hand():
    """The lines "a b" and "a": p(a | start) p(b | a) p(EOS | b) p(a | start) p(EOS | a)."""
    tokenizer = train_tokenizer("word", ["a b", "a"])
    assert tokenizer.tokens == ["a", "b"]
    probability = 3 / 8 * 1 / 4 * 1 / 4 * 3 / 8 * 1 / 2
    for layout in ("documents", "continuous"):
        text = EncodedText.from_lines(["a b", "a"], tokenizer, layout=layout)
        loss = text_loss(Bigram(), SlidingWindows(text, window=8), text)
        assert loss.total == pytest.approx(-math.log(probability), abs=1e-6) and loss.tokens == 5
        assert loss.counts == TextCounts(lines=2, words=3, characters=4)
        assert loss.perplexity == pytest.approx(probability ** (-1 / 5), rel=1e-6)
        assert loss.word_perplexity == pytest.approx(probability ** (-1 / 5), rel=1e-6)
        assert loss.bits_per_character == pytest.approx(-math.log2(probability) / 6, rel=1e-6)
    characters = train_tokenizer("character", ["ab", "a"])
    text = EncodedText.from_lines(["ab", "a"], characters, layout="continuous")
    loss = text_loss(Bigram(), StreamBatches(text, window=2, streams=1).epoch(0), text)
    assert loss.total == pytest.approx(-math.log(probability), abs=1e-6) and loss.tokens == 5
    assert loss.word_perplexity == pytest.approx(probability ** (-1 / 4), rel=1e-6)
    assert loss.bits_per_character == pytest.approx(-math.log2(probability) / 5, rel=1e-6)


def test_scores_by_name():
    loss = TextLoss(3 * math.log(8), 3, TextCounts(lines=1, words=2, characters=8))
    assert loss.scores() == pytest.approx(
        {"loss": math.log(8), "perplexity": 8.0, "word_perplexity": 8.0, "bits_per_character": 1.0}
    )
    unknown = TextLoss(3 * math.log(8), 3)
    assert list(unknown.scores()) == ["loss", "perplexity"]
    for name in ("word_perplexity", "bits_per_character"):
        with pytest.raises(ArgumentError, match=facts(name, "words")):
            getattr(unknown, name)
    assert TextLoss(1e6, 1).perplexity == math.inf and math.isnan(TextLoss(math.nan, 1).perplexity)


def direct(model: LanguageModel, sequence: list[int], window: int) -> float:
    """-log p of each token of a sequence after its first, from at most `window` tokens, one at a time."""
    model.eval()
    total, encoded = 0.0, model.source_free(1)
    with torch.no_grad():
        for at in range(1, len(sequence)):
            context = torch.tensor([sequence[max(at - window, 0) : at]])
            logits = model.step(model.start(encoded), context, encoded)[1]
            total -= logits[0, -1].log_softmax(-1)[sequence[at]].item()
    return total


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("window", [1, 4, 50])
def test_sliding_windows_with_stride_1_equal_each_conditional(position: str, window: int):
    model = small("transformer", position=position)
    expected = direct(model, CONTINUOUS.flat().tolist(), window)
    loss = text_loss(model, SlidingWindows(CONTINUOUS, window, 1, tokens=20), CONTINUOUS)
    assert loss.total == pytest.approx(expected, abs=1e-9) and loss.tokens == CONTINUOUS.token_count
    one_each = [[BOS, *TOKENIZER.encode(line), EOS] for line in LINES]
    expected = sum(direct(model, sequence, window) for sequence in one_each)
    loss = text_loss(model, SlidingWindows(DOCUMENTS, window, 1, tokens=20), DOCUMENTS)
    assert loss.total == pytest.approx(expected, abs=1e-9)


def test_windows_that_cover_a_document_equal_the_whole_document():
    for name in ("lstm", "transformer"):
        model = small(name)
        whole = text_loss(model, DocumentBatches(DOCUMENTS, tokens=9, shuffle=False).epoch(0), DOCUMENTS)
        for stride in (1, 3, 10):
            loss = text_loss(model, SlidingWindows(DOCUMENTS, 10, stride), DOCUMENTS)
            assert loss.total == pytest.approx(whole.total, abs=1e-9) and loss.counts == whole.counts


@pytest.mark.parametrize("name", ["lstm", "gru", "transformer"])
def test_a_carried_state_makes_the_window_length_irrelevant(name: str):
    model = small(name)
    expected = direct(model, CONTINUOUS.flat().tolist(), CONTINUOUS.token_count)
    for window in (1, 2, 7, CONTINUOUS.token_count):
        loss = text_loss(model, StreamBatches(CONTINUOUS, window, streams=1).epoch(0), CONTINUOUS)
        assert loss.total == pytest.approx(expected, abs=1e-9) and loss.tokens == 17
    without = text_loss(model, WindowBatches(CONTINUOUS, 2, shuffle=False).epoch(0), CONTINUOUS)
    assert abs(without.total - expected) > 1e-3


def test_several_epochs_start_from_the_initial_state():
    model, batches = small("lstm"), StreamBatches(CONTINUOUS, 5, streams=1)
    once = text_loss(model, batches.epoch(0))
    twice = text_loss(model, [*batches.epoch(0), *batches.epoch(1)])
    assert twice.total == pytest.approx(2 * once.total) and twice.tokens == 2 * once.tokens
    assert once.counts is None


def test_evaluation_is_without_dropout_and_leaves_the_mode():
    model = small("lstm")
    model.train()
    losses = {text_loss(model, SlidingWindows(CONTINUOUS, 8)).total for _ in range(3)}
    assert len(losses) == 1 and model.training and all(weight.grad is None for weight in model.parameters())


def test_token_losses_sum_to_the_total():
    model = small("gru").eval()
    batch = TextBatch.collate([TOKENIZER.encode(line) for line in LINES])
    state, losses = token_losses(model, batch)
    assert isinstance(state, State) and state.position == batch.inputs.shape[1]
    assert torch.equal(losses == 0, batch.targets == PAD)
    total = text_loss(model, [batch], DOCUMENTS).total
    assert losses.sum().item() == pytest.approx(total, abs=1e-9)
    half = model.to(torch.bfloat16)
    assert token_losses(half, batch)[1].dtype == torch.float32


def test_batches_that_do_not_count_each_token_once_raise():
    model = small("lstm")
    with pytest.raises(ArgumentError, match=facts(16, 17)):
        text_loss(model, StreamBatches(CONTINUOUS, 4, streams=4).epoch(0), CONTINUOUS)
    assert text_loss(model, StreamBatches(CONTINUOUS, 4, streams=4).epoch(0)).tokens == 16
    for batches in ([], [TextBatch(*(torch.zeros(1, 1, dtype=torch.long) for _ in range(4)))]):  # type: ignore[misc, arg-type]
        with pytest.raises(ArgumentError, match="no "):
            text_loss(model, batches)
