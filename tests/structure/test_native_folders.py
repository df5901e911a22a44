"""The folders of the C++ core: what includes what."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "fastdata" / "native"
BELOW = {
    "api": {"batch", "jpeg", "png", "resize", "effects", "kernels", "base"},
    "batch": {"jpeg", "png", "resize", "effects", "kernels", "base"},
    "jpeg": {"kernels", "base"},
    "png": {"kernels", "base"},
    "resize": {"kernels", "base"},
    "effects": {"kernels", "base"},
    "kernels": {"base"},
    "base": set(),
}


def test_includes_point_down() -> None:
    wrong = []
    for folder, below in BELOW.items():
        for path in (SOURCES / folder).iterdir():
            included = set(re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE))
            wrong += [f"{folder}/{path.name}: {other}" for other in included - below - {folder}]
    assert wrong == []


def test_every_folder_is_explained() -> None:
    folders = {path.name for path in SOURCES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    text = (SOURCES / "README.md").read_text().split("## Folders")[1]
    assert folders == {*BELOW, "checks"}
    assert all(re.search(rf"^    .*\b{folder}\b", text, re.MULTILINE) for folder in folders)
