"""Layers: attention layers with learned parameters, feed-forward layers and recurrent layers."""

from regard.layers.attention_layer import AttentionLayer
from regard.layers.feedforward import FeedForward
from regard.layers.gated_cell import GatedCell
from regard.layers.lstmn import LSTMN
from regard.layers.multihead import MultiHead
from regard.layers.pooling import AttentionPooling
from regard.layers.recurrent import Recurrence, Recurrent
from regard.torch_modules.watch_torch import watch

__all__ = [
    "LSTMN",
    "AttentionLayer",
    "AttentionPooling",
    "FeedForward",
    "GatedCell",
    "MultiHead",
    "Recurrence",
    "Recurrent",
    "watch",
]
