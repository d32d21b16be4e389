"""reference: attention as it is defined, in four verbs. The oracle: plain, materialising, never optimised.

Every other backend is tested against this one in float64. It alone promises that a row is untouched by what
a key holds that this row may not see, even NaN or inf, and even where other rows do see that key.
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
    """Why this backend cannot run the call: it always can."""
    return []


def run(call: Call) -> Forward:
    """The definition, in float32 where the call is in half precision, and in its own dtype where not."""
    found = define(call.widened())
    return found._replace(output=found.output.to(call.value.dtype))


def define(call: Call) -> Forward:
    """Compare, mask, select, read, in the dtype of the call."""
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
    """Scores with the bias added, (B, H, T, S), at least in float32, and which of them a row can select."""
    key_BHSD = call.spread(call.key)
    finite_BHS = key_BHSD.isfinite().all(-1)
    clean_BHSD = torch.where(finite_BHS.unsqueeze(-1), key_BHSD, 0.0)
    if call.combine == "inner":
        scores = inner(call.query, clean_BHSD, call.scale)
    else:
        assert call.vector is not None
        scores = additive(call.query, clean_BHSD, call.vector)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    # A key that is not finite is NaN to the rows that see it, and nothing to those that do not.
    scores = scores + torch.where(finite_BHS, 0.0, torch.nan).to(scores.dtype).unsqueeze(-2)
    visible = call.mask.tile(call.whole)
    bias = call.bias_tile(call.query, call.whole)
    if bias is not None:
        visible = visible & (bias != -torch.inf)
        scores = scores + torch.where(bias == -torch.inf, 0.0, bias).to(scores.dtype)
    return scores, call.select.visible(visible.expand_as(scores))


def select(call: Call, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
    """Weights from scores, by the call's selection."""
    return call.select.choose(scores_BHTS, visible_BHTS)


def read(weights_BHTS: Tensor, value_BHSE: Tensor, visible_BHTS: Tensor) -> Tensor:
    """Sum the values by their weights; what is not finite reaches the rows that may see it, and no other."""
    finite_BHSE = value_BHSE.isfinite()
    output = weights_BHTS @ torch.where(finite_BHSE, value_BHSE, 0.0)
    hurt_BHTE = visible_BHTS.to(output.dtype) @ (~finite_BHSE).to(output.dtype)
    return output + torch.where(hurt_BHTE > 0, torch.nan, 0.0).to(output.dtype)
