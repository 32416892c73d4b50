"""Benchmarks: what needs minutes or hours, and prints ratios against a peer or a physical limit."""
