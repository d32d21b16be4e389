"""Tasks: what can be trained in a run folder. To add one: its folder, and one line in TASKS.

A task is a subclass of regard.runs.RunTask: its settings, data, model, loss, metrics, and what load() returns.
"""
