"""Evaluation: how good translations and alignments are."""
