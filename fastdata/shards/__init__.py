"""Shards: images in tar files that any tool reads, each with an index beside it; docs/format.md has the bytes."""

from __future__ import annotations
