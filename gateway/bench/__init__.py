"""Measurements: of the estimator on recorded requests, and of real endpoints."""
