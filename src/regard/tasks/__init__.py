"""Tasks: what can be trained in a run folder. To add a task: add its folder here, and one line in TASKS.

A task is a subclass of RunTask (runs/run_task.py). It defines its settings, data, model, loss and metrics,
and the object that load() returns.
"""
