"""The looking pass: entropy, alignment, column mass, pooled weights and the largest weights of each query."""

from __future__ import annotations

__all__ = ["ARGUMENTS"]

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor lse, Tensor? bias, Tensor? table, Tensor? lengths, "
    "Tensor? document_of_query, Tensor? document_of_key, SymInt start, SymInt? left, SymInt? right, "
    "float scale, float cap, float bias_scale"
)
"""The arguments of inner_look() and inner_top() that define the weights, as part of their schemas."""
