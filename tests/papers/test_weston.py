"""Weston, Chopra and Bordes 2014, Memory networks."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data.batch import StoryBatch
from regard.errors import ArgumentError, UnknownName
from regard.models.supervised_memory_network import (
    ANSWER_FACT,
    ANSWER_QUESTION,
    AS_MEMORY,
    FROM_FACT,
    FROM_QUESTION,
    SupervisedMemoryNetwork,
    margin_ranking_loss,
)

STORIES = [[[5, 6], [8, 6], [9]], [[7, 5]]]
QUESTIONS = [[8, 5], [6]]
FACTS = [[2, 0], [0]]
ANSWERS = [1, 2]


def network(**options) -> SupervisedMemoryNetwork:
    torch.manual_seed(2)
    options = {"width": 4, "hops": 2, "encoding": "bag", "time": False, **options}
    return SupervisedMemoryNetwork(10, answers=3, sentences=5, **options).double().eval()


def batch() -> StoryBatch:
    return StoryBatch.collate(STORIES, QUESTIONS, ANSWERS, FACTS)


def features(model: SupervisedMemoryNetwork, words: list[int], table: int) -> torch.Tensor:
    return sum((model.embedding[table, word] for word in words), torch.zeros(4, dtype=torch.double))


def test_reads_are_the_argmax_of_the_scores():
    model = network()
    with regard.record(regard.Look(weights=True)) as seen:
        scores = model(batch())
    for row, (story, question) in enumerate(zip(STORIES, QUESTIONS, strict=True)):
        query = features(model, question, FROM_QUESTION)
        read = features(model, question, ANSWER_QUESTION)
        for hop in range(2):
            keys = [model.no_fact, *(features(model, words, AS_MEMORY) for words in story)]
            best = int(torch.stack([query @ key for key in keys]).argmax())
            weights = seen[f"hop.{hop}"][0].weights[row, 0]
            assert weights.sum() == 1 and int(weights.argmax()) == best
            if best:
                query = query + features(model, story[best - 1], FROM_FACT)
                read = read + features(model, story[best - 1], ANSWER_FACT)
        torch.testing.assert_close(scores[row], model.output @ read / model.margin)


def test_loss_is_the_margin_ranking_loss_with_the_true_facts():
    """Equations 6 to 8; after the last fact, the true key is "no further fact"."""
    model = network(margin=0.3)
    facts, answers = torch.zeros(()).double(), torch.zeros(()).double()
    for story, question, own, answer in zip(STORIES, QUESTIONS, FACTS, ANSWERS, strict=True):
        query = features(model, question, FROM_QUESTION)
        read = features(model, question, ANSWER_QUESTION)
        keys = [model.no_fact, *(features(model, words, AS_MEMORY) for words in story)]
        for true in ([*(fact + 1 for fact in own), 0, 0])[:2]:
            scores = [query @ key for key in keys]
            others = [score for place, score in enumerate(scores) if place != true]
            facts = facts + sum((0.3 - scores[true] + score).clamp(min=0) for score in others)
            if true:
                query = query + features(model, story[true - 1], FROM_FACT)
                read = read + features(model, story[true - 1], ANSWER_FACT)
        scores = model.output @ read
        others = [score for place, score in enumerate(scores) if place != answer]
        answers = answers + sum((0.3 - scores[answer] + score).clamp(min=0) for score in others)
    loss = model.ranking_loss(batch())
    torch.testing.assert_close(loss.facts, facts)
    torch.testing.assert_close(loss.answer, answers)


def test_loss_is_zero_when_every_margin_is_kept():
    scores = torch.tensor([[3.0, 1.0, 2.5]])
    true = torch.tensor([[True, False, False]])
    assert margin_ranking_loss(scores, true, torch.ones_like(true), 0.5) == 0
    assert margin_ranking_loss(scores, true, torch.ones_like(true), 1.0) == 0.5
    assert margin_ranking_loss(scores, ~torch.ones_like(true), torch.ones_like(true), 1.0) == 0


def test_padding_changes_neither_loss_nor_answers():
    model = network(time=True, encoding="position")
    whole, padded = batch(), batch().padded_to(4, 5)
    torch.testing.assert_close(model.ranking_loss(whole), model.ranking_loss(padded))
    torch.testing.assert_close(model(whole), model(padded)[:2])


def test_all_weights_get_a_gradient():
    model = network(time=True)
    loss = model.ranking_loss(batch())
    gradients = torch.autograd.grad(loss.facts + loss.answer, list(model.parameters()))
    assert all(each.isfinite().all() and each.any() for each in gradients)


@pytest.mark.parametrize("options", [{"margin": 0}, {"hops": 0}, {"encoding": "x"}, {"time": 1}])
def test_wrong_options_are_errors(options: dict):
    with pytest.raises((ArgumentError, UnknownName)):
        network(**options)
