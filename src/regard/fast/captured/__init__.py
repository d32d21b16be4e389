"""Training steps and validation losses as CUDA graphs of PyTorch.

The trainer asks capture_chosen() in graphs.py whether to capture, and captured_steps() in steps.py for
the object that takes them. Without a GPU, and with REGARD_FAST=0, steps run without graphs.
"""
