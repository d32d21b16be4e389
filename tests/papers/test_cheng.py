"""Cheng, Dong and Lapata 2016, Long short-term memory-networks for machine reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import regard
from regard.data.batch import LabelledBatch, TextBatch
from regard.data.labelled_text import Labels
from regard.data.tokenizers import train_tokenizer
from regard.decoding import Greedy, Rules, search
from regard.decoding.active_rows import Prompts
from regard.evaluation.text_classifier import TextClassifier
from regard.layers import LSTMN
from regard.layers.lstmn import LSTMNLayer
from regard.models import build_classifier, build_language_model
from regard.roles import ENCODER_SELF, READING_SELF
from regard.sites import declared_sites
from tests.papers.by_hand import Vector, add, average, dot, gate, sigma, softmax, tanhs, times

INPUTS, WIDTH, HIDDEN, STEPS = 3, 4, 5, 6
LAYERS = {
    "one layer": {},
    "plain": {"depth": 2, "connections": "plain"},
    "skip": {"depth": 3, "connections": "skip"},
    "gated": {"depth": 3, "connections": "gated"},
    "limited tape": {"depth": 2, "tape": 2},
}


def make(name: str, **options: Any) -> LSTMN:
    return LSTMN(INPUTS, WIDTH, hidden=HIDDEN, **{**LAYERS[name], **options}).double()


def layer_by_hand(
    layer: LSTMNLayer, xs: list[Vector], lowers: list[Vector], tape: int | None
) -> tuple[list[Vector], list[Vector], list[Vector]]:
    """Equations 4 to 9, one step after the other. Returns all h_t, all c_t and all attention weights s."""
    n = layer.width
    w_x, w_summary = layer.score.query_weight.T.split((layer.input.in_features, n), 1)
    w_h, v = layer.score.key_weight.T, layer.score.vector.tolist()
    of_x, of_summary = layer.input.weight.split(n), layer.summary.weight.split(n)
    biases = [bias.tolist() for bias in layer.input.bias.split(n)]
    hidden, cells, weights, summary = [], [], [], [0.0] * n
    for t, x in enumerate(xs):
        past = range(max(0, t - tape) if tape else 0, t)
        a = [
            dot(v, tanhs(add(times(w_h, hidden[i]), times(w_x, x), times(w_summary, summary)))) for i in past
        ]
        s = softmax(a) if a else []
        summary = average(s, [hidden[i] for i in past]) if s else [0.0] * n
        memory = average(s, [cells[i] for i in past]) if s else [0.0] * n
        parts = [
            add(times(u, x), times(w, summary), b) for u, w, b in zip(of_x, of_summary, biases, strict=True)
        ]
        take, forget, show, new = sigma(parts[0]), sigma(parts[1]), sigma(parts[2]), tanhs(parts[3])
        cells.append(add(gate(forget, memory), gate(take, new)))
        if len(parts) > 4:
            cells[t] = add(cells[t], gate(sigma(parts[4]), lowers[t]))
        hidden.append(gate(show, tanhs(cells[t])))
        weights.append([0.0] * past.start + s + [0.0] * (len(xs) - t))
    return hidden, cells, weights


def by_hand(layers: LSTMN, xs: list[Vector]) -> tuple[list[Vector], list[list[Vector]]]:
    """Returns the outputs h_t of the last layer (eq. 10 for upper layers), and the weights of every layer."""
    inputs, lowers, weights = xs, xs, []
    for k, layer in enumerate(layers.layers):
        if k and layers.connections == "skip":
            inputs = [lower + x for lower, x in zip(inputs, xs, strict=True)]
        inputs, lowers, own = layer_by_hand(layer, inputs, lowers, layers.tape)
        weights.append(own)
    return inputs, weights


@pytest.mark.parametrize("name", LAYERS)
def test_equations_by_hand(name: str):
    layers, x = make(name), torch.randn(2, STEPS, INPUTS).double()
    with torch.no_grad(), regard.record() as seen:
        recorded, state = layers.run(x, layers.zeros(x))
    outputs, after = layers.run(x, layers.zeros(x))
    kept = min(STEPS, layers.tape or STEPS)
    assert [tuple(each.shape) for each in after] == [
        (2, len(layers.layers), kept, 2 * WIDTH),
        (2, len(layers.layers), kept, HIDDEN),
        (2, len(layers.layers), WIDTH),
    ]
    for one, other in zip(state, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for row in range(2):
        expected, weights = by_hand(layers, x[row].tolist())
        for result in (outputs, recorded):
            torch.testing.assert_close(result[row].tolist(), expected, rtol=0, atol=1e-12)
        for k, rows in enumerate(weights):
            calls = seen[f"lstmn.{k}.self"]
            assert [call.weights.shape[-1] for call in calls] == list(range(STEPS))
            own = [functional.pad(call.weights[row, 0, 0], (0, STEPS - t)) for t, call in enumerate(calls)]
            torch.testing.assert_close(torch.stack(own).tolist(), rows, rtol=0, atol=1e-12)
            sums = torch.stack(own).sum(-1).tolist()
            assert sums[0] == 0 and sums[1:] == pytest.approx([1.0] * (STEPS - 1))


@pytest.mark.parametrize("name", ["skip", "gated", "limited tape"])
def test_gradients(name: str):
    layers, x = make(name, depth=2), torch.randn(1, 4, INPUTS, dtype=torch.double, requires_grad=True)
    names = [each for each, _ in layers.named_parameters()]
    start = [
        torch.randn(1, 2, size, width).double().requires_grad_()
        for size, width in ((2, 2 * WIDTH), (2, HIDDEN))
    ]

    def run(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        weights = dict(zip(names, tensors[2:], strict=True))
        state = (*tensors[:2], torch.ones(1, 2, WIDTH).double())
        return torch.func.functional_call(
            _Run(layers), {f"layers.{k}": w for k, w in weights.items()}, (x, state)
        )

    assert torch.autograd.gradcheck(run, (x, *start, *layers.parameters()), fast_mode=True)


class _Run(torch.nn.Module):
    def __init__(self, layers: LSTMN):
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.layers.run(x, state)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_later_inputs_change_nothing(name: str):
    layers, x = make(name), torch.randn(2, STEPS, INPUTS).double()
    changed = x.clone()
    changed[:, 3:] = 9.0
    states = [layers.run(each, layers.zeros(each))[0] for each in (x, changed)]
    assert torch.equal(states[0][:, :3], states[1][:, :3])
    assert (states[0][:, 3:] != states[1][:, 3:]).all()
    lengths = torch.tensor([STEPS, 3])
    encoded = layers.encode(x, lengths)
    assert torch.equal(encoded[0], states[0][0]) and not encoded[1, 3:].any()
    changed[0] = x[0]
    assert torch.equal(layers.encode(changed, lengths), encoded)


def test_keys_are_projected_once():
    """W_h h_i is part of the state: a later step with other weights W_h still uses it."""
    layers, x = make("one layer"), torch.randn(1, 3, INPUTS).double()
    _, state = layers.run(x, layers.zeros(x))
    torch.testing.assert_close(state[1], state[0][..., :WIDTH] @ layers.layers[0].score.key_weight)
    expected = layers.run(x[:, :1], state)[0]
    with torch.no_grad():
        layers.layers[0].score.key_weight.fill_(9.0)
    assert torch.equal(layers.run(x[:, :1], state)[0], expected)


def test_tape_of_one_step_is_an_lstm():
    """With one step on the tapes, the attention is that step: h~_t = h_t-1 and c~_t = c_t-1."""
    layers, x = make("one layer", tape=1), torch.randn(2, STEPS, INPUTS).double()
    layer, lstm = layers.layers[0], torch.nn.LSTM(INPUTS, WIDTH, batch_first=True).double()
    with torch.no_grad():
        order = torch.cat([torch.arange(WIDTH) + WIDTH * gate for gate in (0, 1, 3, 2)])  # torch: i, f, c^, o
        lstm.weight_ih_l0.copy_(layer.input.weight[order])
        lstm.weight_hh_l0.copy_(layer.summary.weight[order])
        lstm.bias_ih_l0.copy_(layer.input.bias[order])
        lstm.bias_hh_l0.zero_()
    torch.testing.assert_close(layers.run(x, layers.zeros(x))[0], lstm(x)[0])


def test_interventions_use_positions_in_the_text():
    """A cut link has the same effect in one call and step by step, also after steps have left the tapes."""
    model = build_language_model("lstmn", 9, width=6, depth=2, tape=3).double().eval()
    tokens, encoded = torch.randint(4, 9, (2, 8)), model.source_free(2)
    plain = model.step(model.start(encoded), tokens, encoded)[1]
    with regard.intervene(cut=(6, 4), at="decoder.0.self") as changed:
        whole = model.step(model.start(encoded), tokens, encoded)[1]
        state, steps = model.start(encoded), []
        for each in tokens.split(1, 1):
            state, logits = model.step(state, each, encoded)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    torch.testing.assert_close(whole[:, :6], plain[:, :6])
    assert changed == {"decoder.0.self": 2} and ((whole - plain)[:, 6].abs() > 1e-9).any()
    with regard.intervene(cut=(6, 2), at="self"):  # step 2 is no longer on the tapes
        torch.testing.assert_close(model.step(model.start(encoded), tokens, encoded)[1], plain)


def test_roles_are_declared():
    language, classifier = build_language_model("lstmn", 9, depth=2), build_classifier("lstmn", 9, 2)
    assert declared_sites(language) == {"decoder.0.self": READING_SELF, "decoder.1.self": READING_SELF}
    assert declared_sites(classifier)["encoder.0.self"] == ENCODER_SELF


def test_window_tape_keeps_one_step_between_windows():
    model = build_language_model("lstmn", 9, width=6, tape="window").double().eval()
    windows = [torch.randint(4, 9, (2, 5)) for _ in range(2)]
    batches = [
        TextBatch(each, each, torch.full((2,), 5), torch.arange(2), carried=number > 0)
        for number, each in enumerate(windows)
    ]
    state, _ = model.read(batches[0])
    assert [each.shape[2] for each in state.hidden[:2]] == [1, 1] and state.position == 5
    # Not views: a resumed run, whose state comes from a file, must compute the same bits.
    assert all(each.is_contiguous() and each.storage_offset() == 0 for each in state.hidden)
    with regard.record() as seen:
        again, _ = model.read(batches[1], state)
    assert [call.weights.shape[-1] for call in seen["decoder.0.self"]] == [1, 2, 3, 4, 5]
    assert seen["decoder.0.self"][0].weights.flatten().tolist() == [1, 1] and again.hidden[0].shape[2] == 1


def test_language_model_learns_to_copy_from_the_past():
    """The second half of each text repeats the first, so the tape is needed."""
    torch.manual_seed(0)
    model = build_language_model("lstmn", 8, width=24)
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.02), []
    for _ in range(50):
        half = torch.randint(4, 8, (32, 2))
        batch = TextBatch.collate(torch.cat((half, half), 1).tolist())
        logits = model(batch)
        loss = functional.cross_entropy(logits[:, 2:4].flatten(0, 1), batch.targets[:, 2:4].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.3 and sum(losses[-5:]) / 5 < 0.3
    prompts = Prompts.collate([[2, 5, 7]])
    ((best, *_),) = search(model, prompts, Greedy(rules=Rules(maximum=2)), look=None)
    assert best.tokens == (5, 7)


@pytest.mark.parametrize("pairs", [False, True])
def test_classifier_records_every_word_over_the_words_before_it(pairs: bool):
    lines = ["a good film", "a bad film indeed"]
    tokenizer, labels = train_tokenizer("word", lines), Labels(("neg", "pos"))
    model = build_classifier("lstmn", tokenizer.size, 2, width=6, layers=2, pairs=pairs)
    classifier = TextClassifier(model, tokenizer, labels)
    texts = [("a good film", "a film"), ("a bad film indeed", "bad")] if pairs else lines
    results = classifier.classify(texts, look="*")
    for result in results:
        for read in result.texts:
            size = len(read.tokens)
            assert set(read.attention) == {"encoder.0.self", "encoder.1.self", "pool"}
            weights = read.attention["encoder.1.self"]
            assert weights.shape == (1, size, size) and not np.triu(weights).any()
            np.testing.assert_allclose(weights.sum(-1), [[0.0] + [1.0] * (size - 1)], atol=1e-6)
            assert read.weights is not None and sum(read.weights) == pytest.approx(1)
    site = results[0].seen().site("second.encoder.0.self" if pairs else "encoder.0.self")
    assert site.rows == site.columns == (("a", "film", "</s>") if pairs else ("a", "good", "film", "</s>"))


def test_classifier_learns_the_order_of_two_words():
    torch.manual_seed(0)
    model = build_classifier("lstmn", 8, 2, width=16, dropout=0.0, pooling="mean")
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(40):
        texts = torch.stack([torch.randperm(4) + 4 for _ in range(32)])
        first = (texts == 4).int().argmax(1) < (texts == 5).int().argmax(1)
        batch = LabelledBatch.collate(texts.tolist(), labels=first.long().tolist())
        logits = model(batch)
        loss = functional.cross_entropy(logits, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (logits.argmax(-1) == batch.labels).double().mean() > 0.95
