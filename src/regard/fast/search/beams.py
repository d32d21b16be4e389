"""BeamSlots: the hypotheses of beam search on preallocated tensors. Same results as regard.decoding.beam."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import EOS
from regard.decoding.beam import Beam, highest, highest_sums
from regard.fast.search.decoder import SlotDecoder
from regard.fast.search.slots import (
    Array,
    Outputs,
    SearchSlots,
)

__all__ = ["BeamSlots"]


class BeamSlots(SearchSlots):
    """The state of beam search in B slots. A finished hypothesis is stored as a beam and its log-probability.

    sums: (B, K), the log-probability of each beam, -inf for unused beams.
    pool_ranking: (B, N), the ranking of the N best finished hypotheses, -inf for missing ones.
    pool_steps, pool_beams: (B, N), the number of tokens before EOS, and the beam that EOS follows.
    pool_scores: (B, N), the log-probability of EOS.
    divisors, cpu_divisors: the length penalty at each length, from 0 tokens; the second is on the CPU.
    """

    fetched = (*SearchSlots.fetched, "sums", "pool_ranking", "pool_steps", "pool_beams", "pool_scores")

    def __init__(self, decoder: SlotDecoder, how: Beam, prefix: int, longest: int, device: torch.device):
        super().__init__(decoder, how.rules, prefix, device)
        self.how = how
        self.sums = torch.full(self.last.shape, -torch.inf, device=device)
        self.pool_ranking = torch.full((self.slots, how.best), -torch.inf, device=device)
        self.pool_steps = torch.zeros(self.slots, how.best, dtype=torch.long, device=device)
        self.pool_beams, self.pool_scores = self.pool_steps.clone(), torch.zeros_like(self.pool_ranking)
        self.index_C = torch.arange(2 * how.size, device=device)
        self.cpu_divisors = how.length.table(longest + 1, torch.device("cpu"))
        self.divisors = self.cpu_divisors.to(device)

    def per_slot(self) -> tuple[str, ...]:
        pool = ("pool_ranking", "pool_steps", "pool_beams", "pool_scores")
        return (*super().per_slot(), "sums", *pool)

    def start(self, slots: Tensor, first: Tensor, limits: Tensor, prefix: Tensor, offset: int) -> None:
        super().start(slots, first, limits, prefix, offset)
        self.sums.index_fill_(0, slots, -torch.inf)
        self.sums[:, 0].index_fill_(0, slots, 0.0)  # sums[slots, 0] = 0.0 would wait for the device
        self.pool_ranking.index_fill_(0, slots, -torch.inf)

    def select(self, logits_BKV: Tensor) -> None:
        size, vocabulary = self.how.size, logits_BKV.shape[-1]
        # No beam has more than 2K of the 2K best continuations.
        candidates = self.candidates(logits_BKV, min(2 * size, vocabulary))
        if candidates is not None:
            # Imported here, because it imports Triton.
            from regard.kernels.search.beam import beam_step

            if beam_step(logits_BKV, candidates, self, EOS):
                return
        scores_BKV = self.permitted(logits_BKV)
        sums_BC, place_BC = highest_sums(self.sums, scores_BKV, 2 * size)
        beam_BC, token_BC = place_BC // vocabulary, place_BC % vocabulary
        score_BC = scores_BKV.flatten(1).gather(1, place_BC)

        chosen, ends_BC = (token_BC, beam_BC, score_BC, sums_BC), token_BC == EOS
        if ends_BC.is_cuda or ends_BC.any():  # a GPU would have to wait for the answer
            self._add_finished(*(each[:, :size] for each in (ends_BC, sums_BC, beam_BC, score_BC)))
            # The first K continuations without EOS. All numbers differ, so the result of topk() is unique.
            next_BK = (self.index_C + 2 * size * ends_BC).topk(size, largest=False).values % (2 * size)
            *tree, sums_BK = (each.gather(1, next_BK) for each in chosen)
        else:
            *tree, sums_BK = (each[:, :size] for each in chosen)
        self.write_step(*tree)
        torch.where(self.done[:, None], self.sums, sums_BK, out=self.sums)
        self.count.add_(~self.done)

        largest_B = torch.maximum(self.divisors[self.count + 1], self.divisors[self.limits])
        final_B = self.pool_ranking[:, -1] >= self.sums.amax(-1) / largest_B
        self.done.logical_or_(final_B | (self.count >= self.limits))

    def results(self, slots: Tensor, longest: int, attention: bool = False) -> Outputs:
        # With NumPy, because PyTorch takes longer for small arrays.
        *tree, count_b, sums_bK, ranking_bN, steps_bN, beams_bN, ends_bN = self.fetch(slots, longest)
        none_b1 = ranking_bN[:, :1] == -np.inf
        if none_b1.any():
            unfinished_bN, own_bN = self._unfinished(sums_bK, count_b)
            ranking_bN = np.where(none_b1, unfinished_bN, ranking_bN)
            beams_bN = np.where(none_b1, own_bN, beams_bN)
            steps_bN = np.where(none_b1, count_b[:, None], steps_bN)
        exists_bN = ranking_bN != -np.inf
        exists_bN[:, 0] = True  # even if its log-probability is -inf
        steps_bN = np.where(exists_bN, steps_bN, 0)
        tokens, scores, readers = follow(tree, steps_bN, beams_bN, room=1)
        # An unfinished output has all tokens of a beam; a finished one has the tokens before EOS, and EOS.
        ended_bN = exists_bN & ~none_b1
        at = (*np.nonzero(ended_bN), steps_bN[ended_bN])
        tokens[at], scores[at], readers[at] = EOS, ends_bN[ended_bN], beams_bN[ended_bN]
        length = int((steps_bN + ended_bN).max())
        readers_bNT = torch.from_numpy(readers[..., :length])
        outputs = tokens[..., :length], scores[..., :length], ranking_bN, readers_bNT
        return Outputs(*outputs, self.decoder.attention(slots, readers_bNT) if attention else None)

    def _unfinished(self, sums_bK: Array, count_b: Array) -> tuple[Array, Array]:
        """Return ranking and beam of the N best unfinished outputs, (b, N); ranking -inf for missing ones."""
        divisors_b1 = self.cpu_divisors.numpy()[count_b][:, None]
        order_bN = (-sums_bK).argsort(1, kind="stable")[:, : self.how.best]
        ranking_bN = sums_bK[np.arange(len(sums_bK))[:, None], order_bN] / divisors_b1
        if self.how.best > self.how.size:
            missing = ((0, 0), (0, self.how.best - self.how.size))
            return np.pad(ranking_bN, missing, constant_values=-np.inf), np.pad(order_bN, missing)
        return ranking_bN, order_bN

    def _add_finished(self, ends: Tensor, sums: Tensor, beams: Tensor, scores: Tensor) -> None:
        """Add the continuations that end with EOS to the pool, if their ranking is high enough.

        ends, sums, beams, scores: (B, K), the K most probable continuations: whether they end, their
            log-probabilities, the beams they continue, and the log-probabilities of their last tokens.
        """
        ranking_BK = sums / self.divisors[self.count + 1][:, None]
        ranking_BK = torch.where(ends & ~self.done[:, None], ranking_BK, -torch.inf)
        ranking_BN = torch.cat((self.pool_ranking, ranking_BK), 1)
        place = highest(ranking_BN, self.how.best)
        self.pool_ranking.copy_(ranking_BN.gather(1, place))
        steps_BK = self.count[:, None].expand_as(beams)
        for pool, new in (
            (self.pool_steps, steps_BK),
            (self.pool_beams, beams),
            (self.pool_scores, scores),
        ):
            pool.copy_(torch.cat((pool, new), 1).gather(1, place))


def follow(tree: Sequence[Array], steps: Array, beams: Array, room: int = 0) -> tuple[Array, Array, Array]:
    """Return tokens, log-probabilities and readers of some outputs, (b, N, L), padded with PAD, 0 and 0.

    tree: tokens, links and token_scores, (b, T, K), as in SearchSlots.
    steps: (b, N), the number of tokens of each output; L is the largest, plus `room`.
    beams: (b, N), the beam of each output after its last token.

    For readers, see Outputs.
    """
    tokens, links, token_scores = tree
    length, beam, (sentences, longest, size) = int(steps.max(initial=0)), beams, links.shape
    first_Lb1 = (np.arange(sentences)[:, None] * longest + np.arange(length)[:, None, None]) * size
    path, readers = (np.zeros((length, *steps.shape), np.int64) for _ in range(2))
    least = int(steps.min(initial=length))
    for at in range(length - 1, -1, -1):
        place = np.add(first_Lb1[at], beam, out=path[at])
        reader = links.take(place, out=readers[at], mode="clip")  # the default mode copies `out`
        beam = reader if at < least else np.where(at < steps, reader, beam)
    inside = np.arange(length)[:, None, None] < steps
    path = np.where(inside, path, 0)
    results = []
    for values in (tokens.take(path), token_scores.take(path), readers):
        result = np.zeros((*steps.shape, length + room), values.dtype)  # PAD is 0
        np.copyto(result[..., :length], values.transpose(1, 2, 0), where=inside.transpose(1, 2, 0))
        results.append(result)
    return results[0], results[1], results[2]
