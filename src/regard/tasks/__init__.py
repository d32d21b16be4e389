"""Tasks, such as translation, language modelling, text classification and image captioning.

`regard train` trains a model for a task. To add a task, add a folder for it here, and one line to TASKS in
task_table.py.

A task is a subclass of RunTask (runs/run_task.py). It defines its settings, data, model, loss and metrics,
and the object that load() returns.
"""
