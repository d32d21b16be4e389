"""Training: the loss, dropout, residual connections with layer normalisation, and sums of gradients."""
