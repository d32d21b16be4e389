"""Small models and a tokenizer for the tests of decoding, and exhaustive search."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

import regard
from regard.data.batch import EOS, Batch
from regard.decoding import Beam
from regard.decoding.forced_decoding import observe
from regard.models import Encoded, Model, State
from regard.models.base import attend

LINES = 10_007


class Table(Model):
    """A model whose logits are rows of a random table; a hash of the source and all tokens gives the row."""

    def __init__(self, size: int, seed: int, spread: float = 2.0):
        super().__init__()
        drawn = torch.randn(LINES, size, generator=torch.Generator().manual_seed(seed))
        self.table: Tensor
        self.register_buffer("table", spread * drawn)
        self.source_size = self.target_size = size

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        number = lengths.clone()
        for column in range(source.shape[1]):
            number = torch.where(column < lengths, self._after(number, source[:, column]), number)
        return Encoded(lengths, first=(number,))

    def start(self, encoded: Encoded) -> State:
        return State(hidden=encoded.first)

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        (number,), logits = state.hidden, []
        for column in range(tokens.shape[1]):
            number = self._after(number, tokens[:, column])
            logits.append(self.table[number])
        return State(state.position + tokens.shape[1], hidden=(number,)), torch.stack(logits, 1)

    @staticmethod
    def _after(number: Tensor, token: Tensor) -> Tensor:
        return (number * 31 + 7 * token + 1) % LINES


class Looking(Model):
    """A tanh RNN decoder with attention to the source embeddings."""

    def __init__(self, size: int = 11, width: int = 6, seed: int = 0):
        super().__init__()
        self.source_size = self.target_size = size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.words = nn.Embedding(size, width)
            self.cell = nn.Linear(3 * width, width)
            self.output = nn.Linear(2 * width, size)
        self.dropout = nn.Dropout(0.5)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        states = self.words(source)
        real = (torch.arange(source.shape[1]) < lengths[:, None])[..., None]
        memory = regard.prepare(states, score=regard.Dot(), mask=regard.padding(lengths))
        return Encoded(lengths, (memory,), ((states * real).sum(1).tanh(),))

    def start(self, encoded: Encoded) -> State:
        return State(hidden=encoded.first)

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        (hidden,), logits = state.hidden, []
        for column in self.words(tokens).unbind(1):
            read = attend(2 * hidden[:, None], encoded.memories[0], site="decoder.cross").output[:, 0]
            hidden = self.cell(torch.cat((hidden, read, column), -1)).tanh()
            logits.append(3 * self.output(self.dropout(torch.cat((hidden, read), -1))))
        return State(state.position + tokens.shape[1], hidden=(hidden,)), torch.stack(logits, 1)


class Spaced:
    """A tokenizer that splits words into pieces of `cut` letters; token ids are assigned as pieces occur.

    A piece that does not begin its word is marked by a +. Everything past `size` is unknown.
    """

    def __init__(self, size: int = 11, cut: int = 2, lines: Iterable[str] = ()):
        self.size, self.cut = size, cut
        self.names = ["<pad>", "<unk>", "<s>", "</s>"]
        self.encode_lines(list(lines))

    def encode(self, line: str) -> list[int]:
        tokens = []
        for word in line.split():
            for first in range(0, len(word), self.cut):
                piece = ("+" if first else "") + word[first : first + self.cut]
                if piece not in self.names and len(self.names) < self.size:
                    self.names.append(piece)
                tokens.append(self.names.index(piece) if piece in self.names else 1)
        return tokens

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self.names[token] if token < len(self.names) else f"w{token}" for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        pieces = self.pieces([token for token in tokens if token not in (0, 2, 3)])
        return "".join(piece[1:] if piece[0] == "+" else " " + piece for piece in pieces).strip()

    def words(self, tokens: Sequence[int]) -> list[int]:
        numbers, word = [], -1
        for token, piece in zip(tokens, self.pieces(tokens), strict=True):
            word += piece[0] != "+" or word < 0
            numbers.append(-1 if token in (0, 2, 3) else word)
        return numbers


def everything(model: Model, source: Sequence[int], how: Beam) -> list[tuple[float, tuple[int, ...]]]:
    """Return every sentence of at most `maximum` tokens, EOS included, with its ranking; best first."""
    assert how.rules.maximum is not None
    words = [token for token in range(1, model.target_size) if token not in (2, EOS, *how.rules.forbidden)]
    lengths = range(how.rules.minimum - 1, how.rules.maximum)
    sentences = [each for length in lengths for each in itertools.product(words, repeat=length)]
    batch = Batch.collate([source] * len(sentences), sentences)
    observed = observe(model, batch)
    ranked = []
    for row, sentence in enumerate(sentences):
        length = len(sentence) + 1
        ranking = float(observed.log_probability[row]) / how.length.base(length) ** how.length.alpha
        if how.coverage:
            weights = observed.attention["decoder.cross"][row, :length, : len(source) + 1]
            ranking += how.coverage * float(weights.sum(0).clamp(max=1).log().sum())
        ranked.append((ranking, (*sentence, EOS)))
    return sorted(ranked, reverse=True)
