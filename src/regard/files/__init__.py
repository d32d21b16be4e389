"""Files: write files atomically, read untrusted files, lock folders, and store tensors and arrays."""
