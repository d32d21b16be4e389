"""Files: atomic writing, reading of untrusted files, locks, and tensors and arrays on disk."""
