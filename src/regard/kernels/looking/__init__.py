"""The looking pass: entropy, alignment, column mass, pooled weights and the largest weights of each query."""
