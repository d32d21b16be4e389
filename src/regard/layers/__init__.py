"""Layers: attention with parameters around it, each at a named site."""

from regard.layers.attention_layer import AttentionLayer
from regard.layers.multihead import MultiHead

__all__ = ["AttentionLayer", "MultiHead"]
