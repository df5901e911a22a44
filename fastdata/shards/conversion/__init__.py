"""Converts datasets of several kinds to shards: reading, planning, writing, continuing after an interruption."""
