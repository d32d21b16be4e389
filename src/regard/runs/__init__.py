"""Runs: the run folder and its manifest, devices, and the report on this machine, for any task."""
