"""EarlyEnds: end outputs of a search on preallocated tensors before they generate EOS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.decoding.active_rows import Ends
from regard.decoding.slots.search_slots import SearchSlots

__all__ = ["EarlyEnds"]


class EarlyEnds:
    """Ends outputs at a stop string or after Ctrl-C: see `ends` and `stopping` of search().

    On a GPU, several steps are checked at a time. An output ends at the first step for which ends() returns
    True, and its later tokens are dropped. So ends() gives the same outputs as a check after each step. When
    stopping() returns True, each output ends after one more token.

    stopped: whether stopping() has returned True.
    """

    def __init__(self, ends: Ends | None, stopping: Callable[[], bool] | None):
        self.ends, self.stopping, self.stopped = ends, stopping, False
        self._checked: dict[int, int] = {}

    def clear(self) -> None:
        """Forget which steps were checked, because the search starts again."""
        self._checked.clear()

    def check(self, slots: SearchSlots, rows: Sequence[int | None], samples: int) -> None:
        """Check all steps since the last call.

        slots: the state of the search. The slots of outputs that end are marked as done.
        rows: for each slot, the number of the output that it generates, or None.
        samples: the number of outputs of each sentence.
        """
        if self.ends is not None:
            self._end_outputs(self.ends, slots, rows, samples)
        if not self.stopped and self.stopping is not None and self.stopping():
            self.stopped = True
            slots.limits.copy_(torch.minimum(slots.limits, slots.count + 1))

    def limits(self, limits: Tensor) -> Tensor:
        """Return the maximum number of tokens of new outputs: `limits`, or 1 if the search is stopped."""
        return limits.clamp(max=1) if self.stopped else limits

    def _end_outputs(self, ends: Ends, slots: SearchSlots, rows: Sequence[int | None], samples: int) -> None:
        running = [(slot, row) for slot, row in enumerate(rows) if row is not None]
        tokens_BL, counts = slots.tokens[:, :, 0].cpu(), slots.count.tolist()
        checked, ended = self._checked, dict[int, int]()
        first = min(checked.get(row, 0) for _, row in running)
        for step in range(first + 1, max(counts[slot] for slot, _ in running) + 1):
            some = [
                (slot, row)
                for slot, row in running
                if checked.get(row, 0) < step <= counts[slot] and slot not in ended
            ]
            if not some:
                continue
            tokens_b1t = tokens_BL[[slot for slot, _ in some], None, :step]
            flags = ends(tokens_b1t, torch.tensor([row // samples for _, row in some]))
            for (slot, _), end in zip(some, flags[:, 0].tolist(), strict=True):
                if end:
                    ended[slot] = step
        checked.update((row, counts[slot]) for slot, row in running)
        if ended:
            index = torch.tensor(list(ended), device=slots.count.device)
            slots.count.index_copy_(0, index, torch.tensor(list(ended.values()), device=index.device))
            slots.done.index_fill_(0, index, True)
