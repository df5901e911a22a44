"""Measures the cost of loading and training."""
