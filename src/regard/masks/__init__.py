"""Masks: which keys each query may attend to. Combine them with &, | and ~."""

from regard.masks.constructors import causal, dense, documents, padding, where, window
from regard.masks.mask import Mask, as_mask

__all__ = ["Mask", "as_mask", "causal", "dense", "documents", "padding", "where", "window"]
