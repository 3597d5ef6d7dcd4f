"""Benchmarks: of real endpoints, and of the length estimator on recorded requests."""
