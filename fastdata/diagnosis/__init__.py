"""Finds what holds a training program back: measures its steps, its loader and its compute, and advises."""
