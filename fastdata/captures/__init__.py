"""Transforms that are found in datasets of one's own, and what stands in their place while the loader makes samples."""
