"""Logs of a training run: JSON lines in log.jsonl, a live table on the terminal, and TensorBoard files."""
