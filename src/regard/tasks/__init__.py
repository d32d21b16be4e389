"""Tasks: batches, loss and evaluation of a kind of model; the trainer uses only this interface.

To add a task: a folder here; the training loop does not change.
"""
