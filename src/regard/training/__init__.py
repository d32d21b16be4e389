"""Training: the training loop, its parts, logs and checkpoints.

    checkpoints = Checkpoints(Path("runs/x"))
    checkpoints.save(100, {"weights": model.state_dict()}, {"epoch": 2})
    checkpoints.latest().tensors("weights")      # also after the process was killed

loop.py has the Trainer. checkpoints/checkpoints.py describes the files of a checkpoint.
"""
