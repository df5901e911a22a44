"""The picture of all augmentations: fastdata's results are torchvision's, or it says how far they are apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from places import ROOT


@pytest.mark.slow
def test_every_operation_is_drawn_and_equal_but_for_the_blur(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "draw_augmentations.py"), "--to", str(tmp_path / "drawn.png")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(told) == 18
    for line in told:
        assert line.endswith(": equal") or (line.startswith("Gaussian blur") and ": 1 level in " in line)
    with Image.open(tmp_path / "drawn.png") as drawn, Image.open(ROOT / "docs" / "augmentations.png") as published:
        assert drawn.size == published.size
