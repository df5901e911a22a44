"""Disks that are soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Makes `folder` a disk of some size ("200k") within a `with` block; skips the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def enlarge(folder: Path, size: str) -> None:
    """Gives such a disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
