"""Benchmarks: named cases, a correctness gate before any clock, peers in the same run, losses shown too."""
