"""Training: the loop and its parts, and the checkpoints that a run folder keeps.

    checkpoints = Checkpoints(Path("runs/x"))
    checkpoints.save(100, {"weights": model.state_dict()}, {"epoch": 2})
    checkpoints.latest().tensors("weights")                    # whatever happened to the process

checkpoint.py says what is written where, and in which order.
"""
