"""Runs: the run folder and its manifest, devices, and the report on this machine; no task is known here."""
