"""Sukhbaatar, Szlam, Weston and Fergus 2015, End-to-end memory networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import regard
from regard.data.batch import StoryBatch
from regard.errors import ArgumentError, UnknownName
from regard.layers.memory_hop import STORY_MEMORY
from regard.layers.sentence_ages import encode_ages, noise_size, sentence_ages, shifted_ages
from regard.layers.sentence_encoding import position_weights
from regard.models.memory_network import MemoryNetwork
from regard.sites import declared_sites

STORIES = [[[5, 6, 7], [8, 6], [9]], [[7, 7, 5]]]
QUESTIONS = [[8, 5], [6]]


def network(**options) -> MemoryNetwork:
    torch.manual_seed(1)
    model = MemoryNetwork(10, answers=3, sentences=6, **{"width": 4, "hops": 3, **options})
    return model.double().eval()


def forward_by_hand(model: MemoryNetwork, story, question, linear: bool = False) -> tuple[list, np.ndarray]:
    """Equations 1 to 4 with numpy, sentence by sentence. Returns the weights of each hop and the logits."""
    tables = model.embedding.detach().numpy()
    times = None if model.time is None else model.time.detach().numpy()

    def encoded(words, table):
        j = np.arange(1, len(words) + 1)[:, None] / (model.sentence_words or len(words))
        k = np.arange(1, model.width + 1) / model.width
        weights = (
            2 * ((1 - j) - k * (1 - 2 * j)) if model.encoding == "position" else np.ones((len(words), 1))
        )
        return sum(weights[place] * tables[table][word] for place, word in enumerate(words))

    adjacent = model.between is None
    u, all_weights = encoded(question, 0 if adjacent else 2), []
    for hop in range(model.hops):
        a, c = (hop, hop + 1) if adjacent else (0, 1)
        keys, values = [], []
        for place, words in enumerate(story):
            age = len(story) - place
            keys.append(encoded(words, a) + (0 if times is None else times[a][age - 1]))
            values.append(encoded(words, c) + (0 if times is None else times[c][age - 1]))
        for _ in range(model.slots - len(story)):  # empty sentences, section 4.2
            keys.append(np.zeros(model.width))
            values.append(np.zeros(model.width))
        scores = np.array([u @ key for key in keys])
        weights = scores if linear else np.exp(scores) / np.exp(scores).sum()
        o = sum(weight * value for weight, value in zip(weights, values, strict=True))
        u = (u if adjacent else model.between.weight.detach().numpy() @ u) + o
        all_weights.append(weights)
    output = tables[-1][2:5] if adjacent else model.output.weight.detach().numpy()
    return all_weights, output @ u


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hops": 1},
        {"tying": "layer-wise"},
        {"encoding": "bag", "time": False},
        {"tying": "layer-wise", "hops": 2, "time": False},
        {"padding": [6, 3]},
        {"padding": (2, 7), "tying": "layer-wise"},
    ],
)
@pytest.mark.parametrize("linear", [False, True])
def test_network_follows_the_equations(options: dict, linear: bool):
    model = network(**options)
    batch = StoryBatch.collate(STORIES, QUESTIONS)
    batch = StoryBatch(**{**vars(batch), "linear": linear})
    with regard.record(regard.Look(weights=True)) as seen:
        logits = model(batch)
    for row, (story, question) in enumerate(zip(STORIES, QUESTIONS, strict=True)):
        weights, expected = forward_by_hand(model, story, question, linear)
        np.testing.assert_allclose(logits[row].detach().numpy(), expected, rtol=1e-9, atol=1e-12)
        for hop, own in enumerate(weights):
            recorded = seen[f"hop.{hop}"][0].weights[row, 0, : len(own)].detach().numpy()
            np.testing.assert_allclose(recorded, own, rtol=1e-9, atol=1e-12)


def test_position_encoding_is_that_of_section_4_1():
    weights = position_weights(5, 4)
    for j in range(1, 6):
        for k in range(1, 5):
            paper = (1 - j / 5) - (k / 4) * (1 - 2 * j / 5)
            assert weights[j - 1, k - 1].item() == pytest.approx(2 * paper, abs=1e-6)
    assert position_weights(100, 100).mean().item() == pytest.approx(1, abs=0.01)  # as in a bag of words


def test_adjacent_and_layer_wise_tying_have_the_tables_of_section_2_2():
    adjacent, recurrent = network(), network(tying="layer-wise")
    assert adjacent.embedding.shape == (4, 10, 4) and adjacent.time.shape == (
        4,
        6,
        4,
    )  # A1 = B, C1 ... C3 = W
    assert recurrent.embedding.shape == (3, 10, 4) and recurrent.time.shape == (2, 6, 4)  # A, C, B
    assert recurrent.between.weight.shape == (4, 4) and recurrent.output.weight.shape == (3, 4)
    assert network(tying="layer-wise", hops=9).embedding.shape == recurrent.embedding.shape


def test_temporal_encoding_counts_from_the_last_sentence():
    assert sentence_ages(torch.tensor([3]), 4).tolist() == [[3, 2, 1, 0]]
    table = torch.arange(1.0, 4.0).view(1, 3, 1)
    assert encode_ages(torch.tensor([[9, 2, 1]]), table).flatten().tolist() == [3, 2, 1]


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_random_noise_inserts_empty_memories_and_keeps_the_order(noise: float):
    torch.manual_seed(0)
    lengths = torch.tensor([10, 4, 1, 0]).repeat(100)
    ages = sentence_ages(lengths, 10)
    shifted = shifted_ages(ages, lengths, noise, torch.rand(400, noise_size(10, noise)))
    real = ages > 0
    most = (noise * lengths).ceil()
    assert torch.equal(shifted[~real], ages[~real])
    assert (shifted >= ages).all() and (shifted - ages <= most[:, None]).all()
    later = (shifted[:, :-1] - shifted[:, 1:])[real[:, 1:]]
    assert (later >= 1).all()  # a sentence stays older than the next one
    gaps = (shifted - ages).amax(1)
    assert gaps[0::4].max() == most[0] and gaps[0::4].min() == 0
    assert 0.3 < (gaps[0::4] > 0).float().mean() < 0.95


def test_empty_memories_are_inserted_at_uniform_places():
    lengths = torch.full((6000,), 2)
    torch.manual_seed(0)
    random = torch.rand(6000, noise_size(2, 1.0))
    random[:, 0] = 0.99  # always 2 empty sentences: 6 ways to place them among 4
    shifted = shifted_ages(sentence_ages(lengths, 2), lengths, 1.0, random)
    ways, counts = shifted.unique(dim=0, return_counts=True)
    assert ways.tolist() == [[2, 1], [3, 1], [3, 2], [4, 1], [4, 2], [4, 3]]
    assert (counts - 1000).abs().max() < 120


def test_random_numbers_of_the_noise_can_be_given():
    model = network(noise=1.0).train()
    batch = StoryBatch.collate(STORIES, QUESTIONS)
    given = StoryBatch(**{**vars(batch), "noise": torch.rand(2, noise_size(3, 1.0))})
    assert torch.equal(model(given), model(given))
    assert torch.equal(model.eval()(given), model(batch))


def test_noise_is_for_training_only():
    model = network(noise=1.0)
    batch = StoryBatch.collate(STORIES, QUESTIONS)
    assert torch.equal(model(batch), model(batch))
    model.train()
    torch.manual_seed(0)
    assert len({tuple(model(batch).flatten().tolist()) for _ in range(8)}) > 1


@pytest.mark.parametrize("slots", [0, 6])
def test_padding_does_not_change_the_answer(slots: int):
    model = network(padding=(slots, 0))
    alone = model(StoryBatch.collate(STORIES[1:], QUESTIONS[1:]))
    together = model(StoryBatch.collate(STORIES, QUESTIONS).padded_to(5, 6))
    torch.testing.assert_close(together[1:2], alone)
    assert together[3:].isfinite().all()


def test_every_hop_is_declared_with_its_role():
    sites = declared_sites(network(hops=2))
    assert dict(sites) == {"hop.0": STORY_MEMORY, "hop.1": STORY_MEMORY}
    assert network(hops=2).sites == ("hop.0", "hop.1")


@pytest.mark.parametrize(
    "options",
    [
        {"width": 0},
        {"hops": 0},
        {"noise": -0.1},
        {"noise": True},
        {"time": "yes"},
        {"tying": "none"},
        {"encoding": "words"},
        {"padding": (-1, 0)},
        {"padding": (0, 1.5)},
        {"padding": (0,)},
    ],
)
def test_wrong_options_are_errors(options: dict):
    with pytest.raises((ArgumentError, UnknownName)):
        network(**options)
    with pytest.raises(ArgumentError, match="answers"):
        MemoryNetwork(4, answers=3)
