"""Tasks: what can be trained in a run folder. To add one: its folder, and one line in TASKS.

A task is a subclass of RunTask (runs/run_task.py): its settings, data, model, loss, metrics, and what load()
returns.
"""
