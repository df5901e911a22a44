"""Photographs and difficult files of other projects, which are not in the repository."""

from __future__ import annotations

import os
from pathlib import Path

from places import ROOT

PHOTOS = Path(os.environ.get("FASTDATA_PHOTOS") or ROOT.parent / "shared" / "data")


def photographs(folder: str) -> list[Path]:
    """The files of one of its folders; none where it is absent."""
    return sorted(path for path in (PHOTOS / folder).rglob("*") if path.is_file())
