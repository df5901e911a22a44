"""What the rows of gpu_check.py share: their options, the error that fails one, and running a program."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import torch

from fastdata.testing import synthetic_dataset
from fastdata.train.ranks import SHARE_GPU

ROOT = Path(__file__).resolve().parents[1]
CLASSES = 8


class Failed(Exception):
    """A row has not found what it must."""


class Row:
    """Options of a row, and what rows share."""

    def __init__(self, images: Path | None, dry: bool) -> None:
        self.dry, self.device = dry, torch.device("cpu" if dry else "cuda")
        self._scratch = tempfile.TemporaryDirectory()
        self._images = images

    @property
    def scratch(self) -> str:
        """A folder that goes with the row."""
        return self._scratch.name

    def images(self) -> Path:
        """A folder of JPEGs by class."""
        if self._images is None:
            many, size = (8, (96, 72)) if self.dry else (160, (500, 375))
            self._images = synthetic_dataset(
                Path(self._scratch.name) / "images", classes=CLASSES, images_per_class=many, size_px=size
            )
        return self._images

    def wait(self) -> None:
        """Waits for the device."""
        if not self.dry:
            torch.cuda.synchronize()


def run(
    command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None, limit_s: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Runs a program that may share the GPU with others of a group, with the package of this checkout.

    Raises:
        Failed: it runs longer than `limit_s` seconds.
    """
    paths = [str(ROOT)] if (ROOT / "fastdata" / "__init__.py").exists() else []
    paths += [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    known = {**os.environ, SHARE_GPU: "1", "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
    try:
        return subprocess.run(command, env=known, cwd=cwd, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{Path(command[-1]).name}: it ran longer than {limit_s:.0f} s") from error
