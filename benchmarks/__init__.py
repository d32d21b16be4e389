"""Benchmarks: named cases, checked for correctness before timing, with peers measured in the same run."""
