"""Layers: attention layers with learned parameters, feed-forward layers and recurrent layers."""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.layers.attention_layer import AttentionLayer
    from regard.layers.feedforward import FeedForward
    from regard.layers.gated_cell import GatedCell
    from regard.layers.lstmn import LSTMN
    from regard.layers.multihead import MultiHead
    from regard.layers.pooling import AttentionPooling
    from regard.layers.recurrent import Recurrence, Recurrent
    from regard.torch_modules.watch_torch import watch
else:
    import_lazily(__name__)

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
