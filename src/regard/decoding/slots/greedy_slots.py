"""GreedySlots: one step of greedy search on preallocated tensors. Same results as regard.decoding.greedy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import EOS
from regard.decoding.highest_values import highest_in_order
from regard.decoding.rules import Rules
from regard.decoding.slots.decoder import SlotDecoder
from regard.decoding.slots.host_forbidden import HostForbidden
from regard.decoding.slots.search_slots import Outputs, SearchSlots, Sources, trimmed, with_attention
from regard.kernels.choice import by_kernel

__all__ = ["GreedySlots"]


class GreedySlots(SearchSlots):
    """The state of greedy search in B slots, with one beam each."""

    def __init__(self, decoder: SlotDecoder, rules: Rules, prefix: int, device: torch.device):
        super().__init__(decoder, rules, prefix, device)
        self._host: HostForbidden | None = None

    def step(self, upto: int) -> None:
        logits_B1V = self.logits(upto)
        candidates = self.candidates(logits_B1V, 1)
        if candidates is not None:
            # Imported here, because it imports Triton.
            from regard.kernels.search.beam import greedy_step

            greedy_step(candidates, self, EOS)
            return
        if logits_B1V.device.type == "cpu" and not self.prefix.shape[1]:
            self._step_on_host(logits_B1V)
            return
        value_B1C, token_B1C = self.next_tokens(logits_B1V, 1)
        value_BC, token_BC = value_B1C.flatten(1), token_B1C.flatten(1)
        token_B1, score_B1 = token_BC, value_BC
        if token_BC.shape[1] > 1:  # the kernel returns one token for each block of the vocabulary
            place_B1 = highest_in_order(value_BC, token_BC, 1)
            token_B1, score_B1 = token_BC.gather(1, place_B1), value_BC.gather(1, place_B1)
        self.write_step(token_B1, self.parents, score_B1)
        self.count.add_(~self.done)
        self.done.logical_or_((token_B1[:, 0] == EOS) | (self.count >= self.limits))

    def _step_on_host(self, logits_B1V: Tensor) -> None:
        """Select the next tokens with NumPy, which starts operations on a few numbers faster than PyTorch."""
        scores_B1V, rows = logits_B1V.float().log_softmax(-1).numpy(), self.rows.numpy()
        count, done = self.count.numpy(), self.done.numpy()
        if self._host is None:
            assert self.forbidden is not None
            self._host = HostForbidden(self.forbidden.ids.numpy(), self.rules.minimum)
        self._host.forbid(scores_B1V, count)
        scores_BV = scores_B1V[:, 0]
        token_B = scores_BV.argmax(1)
        # The only parent is beam 0, which `links` and `parents` contain from the beginning.
        self.tokens.numpy()[rows, count, 0] = token_B
        self.token_scores.numpy()[rows, count, 0] = scores_BV[rows, token_B]
        self.last.numpy()[:, 0] = token_B
        count += ~done
        done |= (token_B == EOS) | (count >= self.limits.numpy())

    def results(self, slots: Tensor, longest: int, sources: Sources | None = None) -> Outputs:
        weights, aligned = None, None
        if sources is not None and by_kernel(self.token_scores):
            # Before the host waits for the outputs, so that it waits only once.
            weights, aligned = self.decoder.attention(slots, self._readers(slots, longest), *sources)
        also = [] if aligned is None else [aligned]
        tokens_bL1, _, scores_bL1, count_b, *rest = self.fetch(slots, longest, "count", also=also)
        length = int(count_b.max(initial=0))
        inside_b1L = np.arange(length) < count_b[:, None, None]
        tokens, scores = (
            np.where(inside_b1L, each[:, :length].transpose(0, 2, 1), 0).astype(each.dtype)
            for each in (tokens_bL1, scores_bL1)
        )  # PAD is 0
        # PyTorch adds in the same order as in greedy_search(); NumPy may not.
        ranking = torch.from_numpy(scores).sum(-1).numpy()
        outputs = tokens, scores, ranking, self._readers(slots, length)
        if sources is None:
            return Outputs(*outputs)
        if weights is None:
            return with_attention(outputs, *self.decoder.attention(slots, outputs[-1], *sources))
        shorter, own = trimmed(weights, length), rest[0][..., :length] if rest else None
        return with_attention(outputs, shorter, own, shorter is weights)

    def _readers(self, slots: Tensor, length: int) -> Tensor:
        """Return the beams that generated each token, (b, 1, length): there is only beam 0."""
        return torch.zeros(len(slots), 1, length, dtype=torch.int32, device=slots.device)
