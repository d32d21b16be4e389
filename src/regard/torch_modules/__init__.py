"""Tools for any nn.Module: watch(), for the attention layers of PyTorch, and in_eval_mode()."""
