"""The `fastdata` command."""

from __future__ import annotations

from fastdata.cli.main import main

__all__ = ["main"]
