"""A toy sentiment data set: neutral words, and one word that decides the label; and a trained classifier."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from regard.data import LabelledBatches, LabelledTexts, encode_texts, labelled_from_lists, train_tokenizer
from regard.evaluation import TextClassifier
from regard.models import build_classifier

SENTIMENT = {
    "pos": ("good", "great", "fine", "lovely", "superb"),
    "neg": ("bad", "poor", "awful", "dull", "weak"),
}
NEUTRAL = ("the", "a", "this", "film", "plot", "story", "cast", "was", "is", "seems", "and", "with", "it")


def toy_texts(count: int, seed: int) -> LabelledTexts:
    """Texts of 5 to 12 words, with the sentiment word at a random place."""
    draw = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        label = draw.choice(sorted(SENTIMENT))
        words = [draw.choice(NEUTRAL) for _ in range(draw.randint(4, 11))]
        words.insert(draw.randint(0, len(words)), draw.choice(SENTIMENT[label]))
        texts.append(" ".join(words))
        labels.append(label)
    return labelled_from_lists(texts, labels)


def sentiment_word(text: str) -> int:
    """Return the place of the sentiment word."""
    known = {word for words in SENTIMENT.values() for word in words}
    return next(place for place, word in enumerate(text.split()) if word in known)


@cache
def trained(name: str, epochs: int = 8, **options: Any) -> TextClassifier:
    """Return a small classifier trained on the toy data set, in about a second."""
    torch.manual_seed(0)
    texts = toy_texts(400, seed=1)
    tokenizer, labels = train_tokenizer("word", texts.texts), texts.label_set()
    model = build_classifier(name, tokenizer.size, len(labels), dropout=0.1, word_dropout=0.05, **options)
    batches = LabelledBatches(encode_texts(texts, labels, tokenizer), tokens=400)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            loss = functional.cross_entropy(model(batch), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return TextClassifier(model, tokenizer, labels)
