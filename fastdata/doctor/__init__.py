"""Measuring what loading and training cost."""
