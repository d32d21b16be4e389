"""Logs: the JSON log of a run, the live table on the terminal, TensorBoard."""
