"""Shards: images in tar files that any tool can read, each with an index file; docs/format.md describes the format."""

from __future__ import annotations
