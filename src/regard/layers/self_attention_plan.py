"""SelfAttentionPlan: run self-attention of MultiHead without gradients, without checking the call again.

For small inputs, checking a call takes as long as computing it. So MultiHead keeps, for each shape of its
input, the plan of attention() (backends/plans.py) and the sizes of its heads. What a user can change between
calls is still checked in each call: hooks, submodules, parameters, transforms and open scopes of record().
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from regard import sites
from regard.attended import Attended
from regard.backends import BACKENDS
from regard.backends.plans import Plan, is_transformed, plan_of
from regard.layers.adjacent_weights import Joint, joint_parameters
from regard.layers.joint_linear import are_plain_linear, linear_without_gradients
from regard.scores import ScaledDot

__all__ = ["SelfAttentionPlan", "keep_self_attention", "planned_self_attention"]

KEPT = 64
"""Maximum number of plans of a layer. When it is reached, all plans are removed."""


class SelfAttentionPlan(NamedTuple):
    """How a layer computes self-attention without a mask and without gradients, for inputs of one shape.

    plan: the plan of attention().
    joint: the weights of query, key and value as one tensor.
    sizes: (B, T, 3, H, D), the shape of the projected queries, keys and values.
    """

    plan: Plan
    joint: Joint
    sizes: tuple[int, ...]


def planned_self_attention(layer: Any, x: Tensor) -> Attended | None:
    """Return layer(x) of a MultiHead, computed by a plan; None if there is no valid plan.

    Gradients must be disabled.
    """
    attributes = layer.__dict__
    kept: SelfAttentionPlan | None = attributes["_plans"].get((x.shape, x.dtype, x.device))
    if kept is None or type(x) is not Tensor or not x.is_contiguous() or sites._any_open or is_transformed():
        return None
    modules = attributes["_modules"]
    layers = modules["query"], modules["key"], modules["value"], modules["output"]
    if (attributes["training"] and attributes["dropout"]) or not are_plain_linear(layers):
        return None
    plan, joint, sizes = kept
    if (
        attributes["heads"] != sizes[3]
        or attributes["key_heads"] != sizes[3]
        or not attributes["batch_first"]
    ):
        return None
    score = attributes.get("score")  # a score or position with parameters is a submodule, not in this dict
    if type(score) is not ScaledDot or attributes.get("position", attributes) is not None:
        return None
    query, key, value, output = [each._parameters for each in layers]
    if joint_parameters((query, key, value), joint) is not joint:
        return None
    if BACKENDS.get(plan.name) is not plan.backend:
        return None
    linear: Any = linear_without_gradients if x.is_cuda else functional.linear
    product: Tensor = linear(x, joint.weight, joint.bias)
    queries, keys, values = product.view(sizes).permute(2, 0, 3, 1, 4).unbind()
    attended = plan.run(score, queries, keys, values, None)
    assert attended is not None  # run() returns None only for wrong lengths of a mask
    joined = attended.output.transpose(1, 2).flatten(-2)
    return Attended(linear(joined, output["weight"], output["bias"]), *attended[1:])


def keep_self_attention(layer: Any, x: Tensor, heads: tuple[Tensor, ...], joint: Joint | None) -> None:
    """Keep a plan for later calls layer(x), after attention() was called with these projected heads.

    heads: query, key and value, (B, H, T, D). joint: the result of joint_parameters().
    """
    if joint is None or layer.heads != layer.key_heads or type(x) is not Tensor or not x.is_contiguous():
        return
    plan = plan_of(*heads)
    if type(plan) is not Plan:
        return
    batch, count, length, size = heads[0].shape
    if len(layer._plans) >= KEPT:
        layer._plans.clear()
    layer._plans[x.shape, x.dtype, x.device] = SelfAttentionPlan(plan, joint, (batch, length, 3, count, size))
