"""Checkpoints: write them atomically, verify their hashes, and average them."""
