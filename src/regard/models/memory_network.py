"""MemoryNetwork: answer a question about a story with several hops (Sukhbaatar et al. 2015).

A hop is one attention to the sentences of the story; its result changes the query of the next hop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.data.batch import StoryBatch
from regard.layers.memory_hop import HopNetwork, MemoryHop
from regard.layers.sentence_ages import encode_ages, sentence_ages, shifted_ages
from regard.layers.sentence_ages import noise_size as noise_size  # for code that imports it from here
from regard.layers.sentence_encoding import encode_story, with_null_sentences
from regard.options.model_checks import check_memory_network, checked
from regard.select import Linear, Select, Soft

__all__ = ["DEVIATION", "FIRST_ANSWER", "MemoryNetwork"]

FIRST_ANSWER = 2
"""The word id of the first answer. The next ids are the other answers. The ids 0 and 1 are padding and the
unknown word."""

DEVIATION = 0.1
"""Standard deviation of the initial weights (section 4.2)."""

_SOFT, _LINEAR = Soft(), Linear()


class MemoryNetwork(HopNetwork):
    """End-to-end memory network (Sukhbaatar et al. 2015): attention over the sentences of a story, in hops.

    m_i = sum_j l_j * A x_ij + T_A(i),  c_i = sum_j l_j * C x_ij + T_C(i)     (section 4.1)
    u   = sum_j l_j * B q_j
    p_i = softmax(u . m_i),  o = sum_i p_i c_i                                (eq. 1 and 2)
    u^{k+1} = u^k + o^k   (adjacent),   u^{k+1} = H u^k + o^k   (layer-wise)  (eq. 4, section 2.2)
    a   = softmax(W u^{K+1})                                                  (eq. 3)

    x_ij is word j of sentence i, q_j is word j of the question, and l_j are the weights of the encoding. In
    the equation W^T = C^K below, T means the transpose.

    vocabulary_size: number of words, including padding (id 0) and unknown words (id 1).
    answers: number of answers. Their word ids are 2, 3 and so on.
    sentences: maximum number of sentences of a story.
    width: embedding size d.
    hops: number of hops K.
    tying: how the embedding tables are shared. "adjacent": A^1 = B, A^{k+1} = C^k, W^T = C^K. "layer-wise":
        all tables A^k are equal, and all tables C^k are equal.
    encoding: "position" (position encoding) or "bag" (bag of words).
    time: whether to add a temporal encoding, T_A(i) and T_C(i), to the sentences. i = 1 is the last sentence.
    noise: fraction of random noise. In training, empty sentences are inserted into each story at random
        places, at most noise * (number of sentences). They change only the temporal encodings of the
        sentences before them, and so reduce overfitting of these encodings.
    padding: two numbers (sentences, words), for the null symbols of section 4.2. Every story is padded with
        empty sentences to the first number of sentences. The keys and values of empty sentences are 0, but a
        hop can attend to them. The second number is used as the sentence length J in the position encoding of
        every sentence. With 0 as the first number, there are no empty sentences. With 0 as the second number,
        J is the real length of each sentence.

    A batch with linear=True is computed without softmax in the hops (linear start).

    Differs from the paper in two points. The weights l_j are multiplied by 2 (see position_weights()). The
    classes of the output are the answers of the training set, not all words. So W^T = C^K has one row for
    each answer.

    The sites (names) of the attention of the hops are "hop.0", "hop.1" and so on. Each hop has one query and
    one key for each sentence. The query of the first hop is the question. The query of a later hop is the
    state after the previous hop.

    >>> model = MemoryNetwork(vocabulary_size=9, answers=3, sentences=4, width=5, hops=2)
    >>> batch = StoryBatch.collate([[[5, 6], [7]], [[6]]], [[8, 5], [7]])
    >>> model(batch).shape
    torch.Size([2, 3])
    """

    facts_needed = False
    """Whether training needs the supporting facts."""

    @checked(check_memory_network)
    def __init__(
        self,
        vocabulary_size: int,
        answers: int,
        sentences: int = 50,
        *,
        width: int = 20,
        hops: int = 3,
        tying: str = "adjacent",
        encoding: str = "position",
        time: bool = True,
        noise: float = 0.1,
        padding: Sequence[int] = (0, 0),
    ):
        super().__init__()
        self.vocabulary_size, self.answers, self.sentences = vocabulary_size, answers, sentences
        self.width, self.hops, self.tying = width, hops, tying
        self.encoding, self.noise = encoding, noise
        self.slots, self.sentence_words = padding
        self.hop = nn.ModuleList(MemoryHop(number) for number in range(hops))
        adjacent = tying == "adjacent"
        tables = hops + 1 if adjacent else 3
        self.embedding = nn.Parameter(torch.empty(tables, vocabulary_size, width).normal_(0, DEVIATION))
        times = torch.empty(tables if adjacent else 2, sentences, width).normal_(0, DEVIATION)
        self.time = nn.Parameter(times) if time else None
        self.between = None if adjacent else nn.Linear(width, width, bias=False)  # H of eq. 4
        self.output = None if adjacent else nn.Linear(width, answers, bias=False)
        for layer in (self.between, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, 0, DEVIATION)

    def keys(self, sentences: int) -> int:
        """Return the number of keys of each hop for a batch of stories of up to `sentences` sentences."""
        return max(sentences, self.slots)

    def forward(self, batch: StoryBatch) -> Tensor:
        """Return the logits of all answers for each of B questions, (B, answers)."""
        how = self.embedding, self.encoding, self.sentence_words
        memory_BSnD, question_BnD = encode_story(batch.sentences, batch.question, *how)
        state_BD = question_BnD[:, 0 if self.between is None else 2]
        if self.time is not None:
            memory_BSnD = memory_BSnD[:, :, : len(self.time)] + self._times(batch, self.time)
        memory_BSnD, lengths = with_null_sentences(memory_BSnD, batch.lengths, self.slots)
        select: Select = _LINEAR if batch.linear else _SOFT
        for number, hop in enumerate(self.hop):
            keys, values = (number, number + 1) if self.between is None else (0, 1)
            story = memory_BSnD[:, :, keys], memory_BSnD[:, :, values]
            attended = hop(state_BD, *story, lengths, select)
            kept_BD = state_BD if self.between is None else self.between(state_BD)
            state_BD = kept_BD + attended.output.squeeze(1)
        if self.output is not None:
            return self.output(state_BD)
        return state_BD @ self.embedding[-1, FIRST_ANSWER : FIRST_ANSWER + self.answers].T

    def _times(self, batch: StoryBatch, tables: Tensor) -> Tensor:
        """Return the temporal encoding of each sentence, (B, S, n, D).

        The temporal encoding depends on the age of the sentence, see sentence_ages(). In training, noise
        changes the ages.

        tables: (n, N, D), see encode_ages().
        """
        ages_BS = sentence_ages(batch.lengths, batch.sentences.shape[1])
        if self.training and self.noise:
            ages_BS = shifted_ages(ages_BS, batch.lengths, self.noise, batch.noise)
        return encode_ages(ages_BS, tables)
