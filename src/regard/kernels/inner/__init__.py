"""Inner-product attention with masks: forward and backward pass."""
