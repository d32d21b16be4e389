"""SupervisedMemoryNetwork: each hop reads one sentence, chosen by argmax (Weston et al. 2014).

The network is trained with the supporting facts of each question: the sentences that are needed to answer it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batch import StoryBatch
from regard.layers.memory_hop import HopNetwork, MemoryHop
from regard.layers.sentence_ages import encode_ages, sentence_ages
from regard.layers.sentence_encoding import encode_story
from regard.models.memory_network import DEVIATION
from regard.options.model_checks import check_supervised_memory_network, checked
from regard.select import Best

__all__ = ["RankingLoss", "SupervisedMemoryNetwork", "margin_ranking_loss"]

_BEST = Best()

FROM_QUESTION, FROM_FACT, AS_MEMORY, ANSWER_QUESTION, ANSWER_FACT = range(5)
"""The indices of the five embedding tables. A word has a different embedding for each use:

FROM_QUESTION: a word of the question, for the query of a hop.
FROM_FACT: a word of a sentence that an earlier hop has read, for the query of a hop.
AS_MEMORY: a word of a sentence, for the key of this sentence.
ANSWER_QUESTION: a word of the question, for the vector from which the answer is computed.
ANSWER_FACT: a word of a sentence that a hop has read, for the vector from which the answer is computed.
"""


class RankingLoss(NamedTuple):
    """The margin ranking loss of a supervised memory network, summed over the questions of a batch.

    facts: the loss of the hops. Each hop has to rank the true supporting fact above other sentences.
    answer: the loss of the output. The model has to rank the true answer above other answers.
    """

    facts: Tensor
    answer: Tensor


class SupervisedMemoryNetwork(HopNetwork):
    """Memory network in which each hop reads one sentence, chosen by argmax.

    It is trained with the supporting facts of each question, by a margin ranking loss.

    s_O(x, y) = Phi_x(x)^T U_O^T U_O Phi_y(y)                                  (eq. 5)
    o_1 = argmax_i s_O(x, m_i),  o_2 = argmax_i s_O([x, m_o1], m_i), ...       (eq. 2 and 3)
    r = argmax_w s_R([x, m_o1, m_o2, ...], w)                                  (eq. 4)

    vocabulary_size: number of words, including padding (id 0) and unknown words (id 1).
    answers: number of answers. Their word ids are 2, 3 and so on.
    sentences: maximum number of sentences of a story.
    width: embedding size.
    hops: maximum number of supporting facts that are read.
    encoding: "position" (position encoding) or "bag" (bag of words), as in the paper.
    time: whether each sentence has an embedding of its age.
    margin: the margin of the ranking loss, gamma in eq. 6 to 8.

    Key 0 of every hop is not a sentence: it means "no further fact", and is a learned vector. So questions
    can have different numbers of facts (adaptive memory, Weston et al. 2015, section 4.1). A hop that reads
    key 0 adds nothing to the query.

    Differs from the paper in two points. The age of a sentence is an embedding, as in the end-to-end network.
    The paper uses features of pairs of sentences (section 3.4). The loss compares with all other sentences
    and answers, not with a sample of them.

    The sites (names) of the attention of the hops are "hop.0", "hop.1" and so on. Each hop has one query. Its
    keys are key 0 and one key for each sentence.

    >>> model = SupervisedMemoryNetwork(vocabulary_size=9, answers=3, sentences=4, width=5, hops=2)
    >>> batch = StoryBatch.collate([[[5, 6], [7]], [[6]]], [[8, 5], [7]], answers=[0, 2], facts=[[1], [0]])
    >>> model(batch).shape, model.ranking_loss(batch).facts > 0
    (torch.Size([2, 3]), tensor(True))
    """

    facts_needed = True

    @checked(check_supervised_memory_network)
    def __init__(
        self,
        vocabulary_size: int,
        answers: int,
        sentences: int = 50,
        *,
        width: int = 50,
        hops: int = 3,
        encoding: str = "position",
        time: bool = True,
        margin: float = 0.1,
    ):
        super().__init__()
        self.vocabulary_size, self.answers, self.sentences = vocabulary_size, answers, sentences
        self.width, self.hops, self.encoding, self.margin = width, hops, encoding, margin
        self.hop = nn.ModuleList(MemoryHop(number) for number in range(hops))
        self.embedding = nn.Parameter(torch.empty(5, vocabulary_size, width).normal_(0, DEVIATION))
        # Each age has two embeddings: index 0 for queries (of the sentences that were read), index 1 for
        # keys.
        times = torch.empty(2, sentences, width).normal_(0, DEVIATION)
        self.time = nn.Parameter(times) if time else None
        self.no_fact = nn.Parameter(torch.empty(width).normal_(0, DEVIATION))
        self.output = nn.Parameter(torch.empty(answers, width).normal_(0, DEVIATION))

    def keys(self, sentences: int) -> int:
        """Return the number of keys of each hop for a batch of stories of up to `sentences` sentences."""
        return sentences + 1

    def forward(self, batch: StoryBatch) -> Tensor:
        """Return the scores of all answers for each of B questions, divided by the margin, (B, answers).

        Each hop reads the sentence with the highest score. The softmax of the returned scores gives
        probabilities, but they are not calibrated, because the model is trained with a ranking loss.
        """
        state_BM, keys_BSD, values_BSM, lengths = self._memory(batch)
        for hop in self.hop:
            attended = hop(state_BM[:, : self.width], keys_BSD, values_BSM, lengths, _BEST)
            state_BM = state_BM + attended.output.squeeze(1)
        return self._answer_scores(state_BM) / self.margin

    def ranking_loss(self, batch: StoryBatch) -> RankingLoss:
        """Return the margin ranking loss, summed over the batch (eq. 6 to 8).

        In each hop, the true key is the next supporting fact, or "no further fact" after the last one. Its
        score has to exceed the score of every other key by the margin. A hop always reads the true fact, even
        if another sentence has a higher score.
        """
        state_BM, keys_BSD, values_BSM, lengths = self._memory(batch)
        facts_BK = nn.functional.pad(batch.facts, (0, self.hops), value=-1)[:, : self.hops] + 1
        number_S = torch.arange(keys_BSD.shape[1], device=lengths.device)
        # Rows with an empty story are padding: no key of theirs is compared.
        visible_BS = (number_S < lengths[:, None]) & (lengths[:, None] > 1)
        loss = keys_BSD.new_zeros(())
        for number, hop in enumerate(self.hop):
            scores_BS = hop.scores(state_BM[:, : self.width], keys_BSD, values_BSM, lengths)
            true_BS = number_S == facts_BK[:, number, None]
            loss = loss + margin_ranking_loss(scores_BS, true_BS, visible_BS, self.margin).sum()
            state_BM = state_BM + (true_BS.to(state_BM.dtype).unsqueeze(1) @ values_BSM).squeeze(1)
        scores_BA = self._answer_scores(state_BM)
        # A row without a label has no true answer, so its loss is 0.
        true_BA = torch.arange(self.answers, device=lengths.device) == batch.answers[:, None]
        answer_losses_B = margin_ranking_loss(scores_BA, true_BA, torch.ones_like(true_BA), self.margin)
        return RankingLoss(loss, answer_losses_B.sum())

    def _memory(self, batch: StoryBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Encode a batch. Key 0 of a story means "no further fact".

        Returns the questions (B, M), the keys (B, 1 + S, D), the values (B, 1 + S, M), and the number of keys
        of each story, (B,). A value and a question have M = 2 D elements: D for the query of the next hop,
        and D for the answer.
        """
        story_BSnD, query_BnD = encode_story(batch.sentences, batch.question, self.embedding, self.encoding)
        keys_BSD, reads_BSD = story_BSnD[:, :, AS_MEMORY], story_BSnD[:, :, FROM_FACT]
        if self.time is not None:
            ages_BS = sentence_ages(batch.lengths, story_BSnD.shape[1])
            times_BSnD = encode_ages(ages_BS, self.time)
            reads_BSD, keys_BSD = reads_BSD + times_BSnD[:, :, 0], keys_BSD + times_BSnD[:, :, 1]
        no_fact_B1D = self.no_fact.expand(len(batch), 1, -1)
        values_BSM = torch.cat((reads_BSD, story_BSnD[:, :, ANSWER_FACT]), -1)
        return (
            torch.cat((query_BnD[:, FROM_QUESTION], query_BnD[:, ANSWER_QUESTION]), -1),
            torch.cat((no_fact_B1D, keys_BSD), 1),
            nn.functional.pad(values_BSM, (0, 0, 1, 0)),
            batch.lengths + 1,
        )

    def _answer_scores(self, state_BM: Tensor) -> Tensor:
        return state_BM[:, self.width :] @ self.output.T


def margin_ranking_loss(scores: Tensor, true: Tensor, visible: Tensor, margin: float) -> Tensor:
    """Return the margin ranking loss of each row of scores, (B,).

    sum_{j != i} max(0, margin - score_i + score_j)     (Weston et al. 2014, eq. 6 to 8)

    i is the index of the true candidate, and j runs over the other candidates.

    scores: (B, S), the scores of S candidates, such as sentences or answers.
    true: (B, S), True for the true candidate of each row. A row without a true candidate has the loss 0.
    visible: (B, S), True for the candidates that are compared.

    >>> scores = torch.tensor([[1.0, 0.95, 0.2]])
    >>> margin_ranking_loss(scores, torch.tensor([[True, False, False]]), torch.ones(1, 3) > 0, 0.1)
    tensor([0.0500])
    """
    best_B1 = (scores * true).sum(-1, keepdim=True)
    compared = visible & ~true & true.any(-1, keepdim=True)
    return torch.where(compared, (margin - best_B1 + scores).clamp(min=0), 0.0).sum(-1)
