"""Where things are in the repository, whatever folder a test is in."""

from __future__ import annotations

from pathlib import Path

HELPERS = Path(__file__).parent
TESTS = HELPERS.parent
GOLDEN = TESTS / "golden"
ROOT = TESTS.parent
CONVERT = ROOT / "tools" / "convert_dataset.py"
