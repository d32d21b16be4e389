"""reference: the definition of attention in four steps, without optimisation; allocates T x S.

Every other backend is tested against this backend in float64. Only this backend guarantees the following: if
a key contains NaN or inf, queries that the mask hides it from are not affected, even if other queries attend
to this key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.call import Call, Forward
from regard.positions import Bias
from regard.scores import additive, inner
from regard.select import Selection

__all__ = ["compare", "define", "read", "reasons", "run", "select"]


def reasons(call: Call) -> list[str]:
    """Return an empty list: this backend can run every call."""
    return []


def run(call: Call) -> Forward:
    """Compute attention by its definition, in at least float32, and return the output in the input dtype."""
    forward = define(call.widened())
    return forward._replace(output=forward.output.to(call.value.dtype))


def define(call: Call) -> Forward:
    """Compute attention by its definition (compare, mask, select, read) in the dtype of the call."""
    scores_BHTS, visible_BHTS = compare(call)
    chosen = select(call, scores_BHTS, visible_BHTS)
    weights_BHTS = (
        torch.nn.functional.dropout(chosen.weights, call.dropout) if call.dropout else chosen.weights
    )
    output_BHTE = read(weights_BHTS.to(call.value.dtype), call.spread(call.value), visible_BHTS)
    if isinstance(call.bias, Bias) and call.bias.reads:
        output_BHTE = output_BHTE + call.bias.read(weights_BHTS, call.whole).to(output_BHTE.dtype)
    return Forward(
        output_BHTE, chosen.lse, chosen.weights, chosen.chosen, chosen.log_probability, chosen.entropy
    )


def compare(call: Call) -> tuple[Tensor, Tensor]:
    """Return the scores including the bias, in at least float32, and a bool mask that is True where visible.

    Both tensors have the shape (B, H, T, S). The mask is also False where the bias is -inf.
    """
    key_BHSD = call.spread(call.key)
    finite_BHS = key_BHSD.isfinite().all(-1)
    clean_BHSD = torch.where(finite_BHS.unsqueeze(-1), key_BHSD, 0.0)
    if call.combine == "inner":
        scores = inner(call.query, clean_BHSD, call.scale)
    else:
        assert call.vector is not None
        scores = additive(call.query, clean_BHSD, call.vector)
    scores = call.capped(scores.to(torch.promote_types(scores.dtype, torch.float32)))
    # The scores of a key that is not finite are NaN. Where the key is masked, the mask removes the NaN below.
    scores = scores + torch.where(finite_BHS, 0.0, torch.nan).to(scores.dtype).unsqueeze(-2)
    visible = call.mask.tile(call.whole)
    bias = call.bias_tile(call.query, call.whole)
    if bias is not None:
        visible = visible & (bias != -torch.inf)
        scores = scores + torch.where(bias == -torch.inf, 0.0, bias).to(scores.dtype)
    return scores, call.select.visible(visible.expand_as(scores))


def select(call: Call, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
    """Compute the weights from the scores with call.select, for example Soft (softmax)."""
    return call.select.choose(scores_BHTS, visible_BHTS)


def read(weights_BHTS: Tensor, value_BHSE: Tensor, visible_BHTS: Tensor) -> Tensor:
    """Return the weighted sum of the values, (B, H, T, E).

    A value that is NaN or inf makes the output NaN, but only for the queries that may attend to it according
    to the mask.
    """
    finite_BHSE = value_BHSE.isfinite()
    output = weights_BHTS @ torch.where(finite_BHSE, value_BHSE, 0.0)
    nonfinite_BHTE = visible_BHTS.to(output.dtype) @ (~finite_BHSE).to(output.dtype)
    return output + torch.where(nonfinite_BHTE > 0, torch.nan, 0.0).to(output.dtype)
