"""Tasks: what a batch is, its loss, how a model is judged and what is shown; the trainer knows only this.

To add one: its folder, and nothing in the loop.
"""
