"""What differs on Windows in the core compiles for Windows, by a compiler that makes programs for it anywhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import fastdata

SOURCES = Path(fastdata.__file__).parent / "native"


def test_only_these_files_differ() -> None:
    differing = {path.name for path in SOURCES.rglob("*.cpp") if "_WIN32" in path.read_text()}
    assert differing == {"files.cpp", "pool.cpp"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize("name", ["batch/files.cpp", "batch/pool.cpp"])
def test_it_compiles(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "c++",
        "-target",
        "x86_64-windows-gnu",
        "-std=c++20",
        f"-I{SOURCES}",
        "-Wall",
        "-Werror",
    ]
    done = subprocess.run(
        [*command, "-c", str(SOURCES / name), "-o", str(tmp_path / "out.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
