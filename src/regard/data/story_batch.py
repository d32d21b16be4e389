"""StoryBatch: padded stories, each with a question and an answer; the input of memory networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import PAD
from regard.data.batch_rows import BatchRows
from regard.data.labelled_batch import NO_LABEL
from regard.errors import ArgumentError, message

__all__ = ["NO_FACT", "StoryBatch"]

NO_FACT = -1
"""Padding of `facts`: this hop has no supporting fact."""


@dataclass(frozen=True, eq=False)
class StoryBatch(BatchRows):
    """A batch of B stories, each with one question, as word ids padded with PAD.

    sentences: (B, S, W), the words of each sentence, oldest sentence first.
    lengths: (B,), number of sentences of each story.
    question: (B, W), the words of each question.
    answers: (B,), index of each answer; NO_LABEL if it is not known.
    facts: (B, F), indices of the supporting facts in the story, padded with NO_FACT.
    index: (B,), position of each question in its dataset.
    linear: whether the network computes attention without softmax, as in the first epochs of training
        (linear start).
    noise: (B, noise_size()), uniform random numbers; see models/memory_network.py. In training, an end-to-end
        network inserts empty sentences into each story (random noise). The numbers determine how many, and
        where. None: the network generates the numbers itself.

    >>> batch = StoryBatch.collate([[[5, 6], [7]], [[6]]], [[8, 5], [9]], answers=[0, 1], facts=[[1], []])
    >>> batch.sentences.shape, batch.lengths, batch.facts.tolist()
    (torch.Size([2, 2, 2]), tensor([2, 1]), [[1], [-1]])
    """

    sentences: Tensor
    lengths: Tensor
    question: Tensor
    answers: Tensor
    facts: Tensor
    index: Tensor
    linear: bool = False
    noise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sentences)

    @classmethod
    def collate(
        cls,
        stories: Sequence[Sequence[Sequence[int]]],
        questions: Sequence[Sequence[int]],
        answers: Sequence[int] | None = None,
        facts: Sequence[Sequence[int]] | None = None,
    ) -> StoryBatch:
        """Build a batch from lists of word ids, which are padded to the same length.

        stories: for each story, the word ids of each sentence.
        questions: the word ids of each question.
        answers: the index of each answer. Default: NO_LABEL.
        facts: for each question, the indices of its supporting facts. Default: none.
        """
        for name, rows in (("questions", questions), ("answers", answers), ("facts", facts)):
            if rows is not None and len(rows) != len(stories):
                problem = f"there are {len(stories)} stories and {len(rows)} {name}"
                raise ArgumentError(message("StoryBatch.collate()", problem, expected="the same number"))
        facts = [()] * len(stories) if facts is None else facts
        size = max([1, *map(len, stories)])
        width = max([1, *map(len, questions), *(len(each) for story in stories for each in story)])
        most = max([1, *map(len, facts)])
        sentences = torch.full((len(stories), size, width), PAD)
        for row, story in enumerate(stories):
            for place, words in enumerate(story):
                sentences[row, place, : len(words)] = torch.tensor(list(words), dtype=torch.long)
        asked = torch.full((len(stories), width), PAD)
        chosen = torch.full((len(stories), most), NO_FACT)
        for row, (words, own) in enumerate(zip(questions, facts, strict=True)):
            asked[row, : len(words)] = torch.tensor(list(words), dtype=torch.long)
            chosen[row, : len(own)] = torch.tensor(list(own), dtype=torch.long)
        known = torch.full((len(stories),), NO_LABEL) if answers is None else torch.tensor(list(answers))
        lengths = torch.tensor([len(story) for story in stories])
        return cls(sentences, lengths, asked, known, chosen, torch.arange(len(stories)))

    def padded_to(self, rows: int, sentences: int | None = None) -> StoryBatch:
        """Return the batch, padded to `rows` stories of `sentences` sentences each.

        An added story has no sentences, and the answer to its question is NO_LABEL.

        sentences: number of sentences of each story; None does not change this number.
        """
        size = self.sentences.shape[1] if sentences is None else sentences
        if rows < len(self) or size < self.sentences.shape[1]:
            problem = f"rows={rows} and sentences={size} are too small"
            expected = f"at least {len(self)} rows and {self.sentences.shape[1]} sentences"
            raise ArgumentError(message("StoryBatch.padded_to()", problem, expected=expected))
        grown = self.add_rows(rows - len(self))
        answers, facts = grown.answers.clone(), grown.facts.clone()
        answers[len(self) :], facts[len(self) :] = NO_LABEL, NO_FACT
        longer = pad(grown.sentences, (0, 0, 0, size - self.sentences.shape[1]), value=PAD)
        return replace(grown, sentences=longer, answers=answers, facts=facts)
