"""Stories as tensors: vocabulary, padding, truncation, and unknown words."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import NO_FACT, NO_LABEL, StoryBatch
from regard.data.story_text import StoryQuestion, StoryWords, encode_stories, last_sentences
from regard.errors import ArgumentError, DataError
from tests.facts import mentions

MARY, ANN = "Mary went home.", "Ann went to the garden."


def question(*sentences: str, asked: str = "Where is Mary?", answer: str = "home", facts=(0,), task="qa1"):
    return StoryQuestion(sentences, asked, answer, tuple(facts), task, "a.txt, line 9", 0)


def test_answers_are_the_first_words_of_the_vocabulary():
    words = StoryWords.of([question(MARY), question(ANN, answer="garden,home")])
    assert words.answers == ("garden,home", "home")
    assert words.encode("home")[0] == 3 and words.answer_index("home") == 1
    assert words.answer_index("mary") == NO_LABEL == words.answer_index(None)
    assert words.unknown("Mary slept and slept") == ("slept", "and")
    with pytest.raises(ArgumentError):
        StoryWords(("one",), ())
    with pytest.raises(ArgumentError):
        StoryWords(("a", "b"), ("a",))


def test_encoded_stories_equal_collated_batches():
    questions = [question(MARY, ANN, facts=(0,)), question(ANN, answer="garden", facts=())]
    words = StoryWords.of(questions)
    encoded = encode_stories(questions, words, ["qa1"])
    batch = encoded.batch(torch.tensor([1, 0]))
    other = StoryBatch.collate(
        [[words.encode(each) for each in q.sentences] for q in questions[::-1]],
        [words.encode(q.question) for q in questions[::-1]],
        [words.answer_index(q.answer) for q in questions[::-1]],
        [q.facts for q in questions[::-1]],
    )
    assert len(encoded.vectors) == 3  # two different sentences, and the empty one
    for name in ("sentences", "lengths", "question", "answers", "facts"):
        assert torch.equal(getattr(batch, name), getattr(other, name)), name
    assert batch.facts.tolist() == [[NO_FACT], [0]] and not batch.linear
    assert encoded.batch(torch.tensor([0]), linear=True).linear


def test_the_last_sentences_of_a_long_story_are_kept():
    long = question(*(f"Ann sat {number}." for number in range(7)), facts=(1, 6))
    cut = last_sentences(long, 3)
    assert cut.sentences == ("Ann sat 4.", "Ann sat 5.", "Ann sat 6.") and cut.facts == (2,)
    words = StoryWords.of([long, question(MARY, answer="garden")])
    encoded = encode_stories([long], words, ["qa1"], most=3)
    assert encoded.stories.shape == (1, 3) and encoded.facts.tolist() == [[2]]


def test_a_question_without_known_words_is_an_error():
    words = StoryWords(("garden", "home"), ("mary", "went"))
    with pytest.raises(DataError) as raised:
        encode_stories([question(MARY, asked="Wo ist sie?")], words, ["qa1"])
    assert mentions(raised.value.message.call, "a.txt", "line 9")


def test_padding_a_batch_adds_empty_stories_without_answers():
    batch = StoryBatch.collate([[[5, 6]]], [[7]], [1], [[0]])
    padded = batch.padded_to(3, 2)
    assert padded.sentences.shape == (3, 2, 2) and padded.lengths.tolist() == [1, 0, 0]
    assert padded.answers.tolist() == [1, NO_LABEL, NO_LABEL]
    assert padded.facts.tolist() == [[0], [NO_FACT], [NO_FACT]]
    with pytest.raises(ArgumentError):
        batch.padded_to(0)
    with pytest.raises(ArgumentError):
        StoryBatch.collate([[[5]]], [])
