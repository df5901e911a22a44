"""Batches on their way to an accelerator, and what makes the host wait for it."""
