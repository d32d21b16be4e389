"""Small-input path of the blocked backend: additive attention without blocks.

tanh(q + k) is computed as one tensor, which autograd saves for the backward pass. For small inputs, this is
faster than a loop over blocks with its own backward pass. An example is a recurrent decoder, which calls
attention() once per word. FEW limits the memory for the saved tensor; larger inputs are computed block by
block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.blocks.additive_blocks import at_once
from regard.call import Call, Forward

__all__ = ["WIDE", "attend", "attend_wide", "fits", "log_sum_exp", "run"]

FEW = 1 << 18
"""Maximum number of elements of tanh(q + k) on a CPU: 1 MiB of float32. There are B * H * T * S * A elements.
For GPUs, at_once() computes a larger limit from this number."""


def fits(call: Call) -> bool:
    """Whether this call can be computed without blocks.

    The score must be additive, without bias, soft cap, dropout or groups (query heads that share a key
    head), and tanh(q + k) must have few elements (FEW).
    """
    if call.combine != "additive" or call.bias is not None or call.softcap is not None:
        return False
    if call.dropout or call.groups != 1:
        return False
    batch, heads, queries, keys = call.sizes
    return batch * heads * queries * keys * call.query.shape[-1] <= at_once(FEW, call.query.device)


def run(call: Call) -> Forward:
    """Compute additive attention for a small input, with tanh(q + k) as one tensor."""
    assert call.vector is not None
    visible = bias = seeing = None
    if call.mask.parts:
        visible = call.mask.tile(call.whole)
        seeing = visible.any(-1)
        if call.mask.only("lengths"):
            bias = torch.where(visible | ~seeing.unsqueeze(-1), 0.0, -torch.inf)
    tensors = (call.query, call.key, call.value, call.vector)
    output, scores_BHTS, weights_BHTS = attend(*tensors, visible, bias, seeing, call.temperature)
    return Forward(output, log_sum_exp(scores_BHTS, weights_BHTS, seeing))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    seeing: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output (B, H, T, E), and scores and weights (B, H, T, S), from which log_sum_exp() computes lse.

    vector: (H, A), or (1, A) or (A,) if all heads share it.
    visible: the mask, a bool tensor broadcastable to (B, H, T, S); None if no key is hidden.
    bias: added to the scores, which is faster than to apply `visible`: -inf for hidden keys, otherwise 0. The
        hidden keys must be finite, and the rows of queries that see no key must be 0. None to use `visible`.
    seeing: which queries see some key, broadcastable to (B, H, T); None if all do.

    With one head, the other tensors may lack the head dimension.
    """
    dtype = value.dtype
    if dtype not in WIDE:
        query, key, value, vector = query.float(), key.float(), value.float(), vector.float()
    output, scores_BHTS, weights_BHTS = attend_wide(
        query, key, value, vector, visible, bias, seeing, temperature
    )
    return output if dtype in WIDE else output.to(dtype), scores_BHTS, weights_BHTS


def attend_wide(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, visible: Tensor | None, bias: Tensor | None,
    seeing: Tensor | None, temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """attend() for a dtype in WIDE."""
    scores_BHTS = _scores(query, key, vector)
    if temperature != 1:
        scores_BHTS = scores_BHTS / temperature
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    elif visible is not None:
        hidden = _HIDDEN[scores_BHTS.dtype] if scores_BHTS.is_cpu else -torch.inf
        scores_BHTS = torch.where(visible, scores_BHTS, hidden)
    weights_BHTS = torch.softmax(scores_BHTS, -1)
    read_BHTS = weights_BHTS
    if seeing is not None:  # the softmax of a row of -inf is NaN
        read_BHTS = torch.where(seeing.unsqueeze(-1), weights_BHTS, 0.0)
    output = torch.bmm(read_BHTS, value) if value.dim() == 3 else read_BHTS @ value
    return output, scores_BHTS, weights_BHTS


def _scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Return v . tanh(q + k), (B, H, T, S)."""
    single = query.shape[-2] == 1
    added = query + key if single else query.unsqueeze(-2) + key.unsqueeze(-3)
    hidden_BHTSA = added.tanh_()  # (B, H, S, A) if T = 1
    if vector.dim() == 1 or vector.shape[0] == 1:
        scores = torch.matmul(hidden_BHTSA, vector if vector.dim() == 1 else vector[0])
    else:
        per_head = vector[:, :, None] if single else vector[:, None, :, None]
        scores = torch.matmul(hidden_BHTSA, per_head).squeeze(-1)
    return scores.unsqueeze(-2) if single else scores


def log_sum_exp(scores_BHTS: Tensor, weights_BHTS: Tensor, seeing: Tensor | None) -> Tensor:
    """Return the lse (B, H, T), without a gradient, from the results of attend() for the same `seeing`."""
    scores_BHTS, weights_BHTS = scores_BHTS.detach(), weights_BHTS.detach()
    if not scores_BHTS.shape[-1]:
        return torch.full_like(scores_BHTS.sum(-1), -torch.inf)
    # The largest weight is 1 / sum_s exp(score_s - best). This is faster than torch.logsumexp.
    lse_BHT = scores_BHTS.amax(-1) - weights_BHTS.amax(-1).log()
    return lse_BHT if seeing is None else torch.where(seeing, lse_BHT, -torch.inf)


_HIDDEN = {
    dtype: torch.full((), -torch.inf, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)
}
"""-inf as a tensor: torch.where() converts a Python number in each call, which takes longer."""

WIDE = tuple(_HIDDEN)
"""The dtypes in which attention is computed. Inputs of other dtypes are converted to float32."""
