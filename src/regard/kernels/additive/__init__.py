"""Additive attention: forward and backward pass, for any length, mask and dtype."""
