"""Checkpoints: written atomically, hashed, averaged."""
