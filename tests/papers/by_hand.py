"""Vector operations on lists, to compute a paper's equations in plain Python."""

from __future__ import annotations

from math import exp, tanh

from torch import Tensor

Vector = list[float]


def times(matrix: Tensor, vector: Vector) -> Vector:
    """W x, for a weight of shape (out, in)."""
    return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in matrix.tolist()]


def add(*vectors: Vector) -> Vector:
    return [sum(each) for each in zip(*vectors, strict=True)]


def sigma(vector: Vector) -> Vector:
    return [1 / (1 + exp(-x)) for x in vector]


def tanhs(vector: Vector) -> Vector:
    return [tanh(x) for x in vector]


def gate(gates: Vector, vector: Vector) -> Vector:
    """Each element times its gate."""
    return [g * x for g, x in zip(gates, vector, strict=True)]


def mixed(gates: Vector, new: Vector, old: Vector) -> Vector:
    """(1 - z) * old + z * new"""
    return [z * n + (1 - z) * o for z, n, o in zip(gates, new, old, strict=True)]


def softmax(scores: Vector) -> Vector:
    total = sum(map(exp, scores))
    return [exp(each) / total for each in scores]


def average(weights: Vector, vectors: list[Vector]) -> Vector:
    """sum_j a_j h_j"""
    return add(*([a * x for x in vector] for a, vector in zip(weights, vectors, strict=True)))


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
