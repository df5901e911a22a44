"""The core compiles for Windows and macOS, by a compiler that makes programs for them anywhere."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "fastdata" / "native"
HEADERS = "jpeglib.h", "jmorecfg.h", "jerror.h", "jconfig.h", "libdeflate.h"  # of libraries, alike everywhere
TARGETS = {"x86_64-windows-gnu": "neon", "x86_64-macos": "neon", "aarch64-macos": "avx2"}  # and what is not for them


def test_only_these_files_differ() -> None:
    differing = {path.name for path in SOURCES.rglob("*.cpp") if "_WIN32" in path.read_text()}
    assert differing == {"files.cpp", "pool.cpp"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles(target: str, tmp_path: Path) -> None:
    for name in HEADERS:
        found = [path for folder in ("/usr/include", "/usr/local/include") for path in Path(folder).rglob(name)]
        if not found:
            pytest.skip(f"{name} is not installed")
        shutil.copy(found[0], tmp_path)
    files = [
        path for path in SOURCES.glob("*/*.cpp") if path.parent.name != "checks" and TARGETS[target] not in path.name
    ]
    options = ["-DFASTDATA_NEON"] if "aarch64" in target else ["-DFASTDATA_AVX2", "-mavx2", "-mfma"]
    options += ["-DFASTDATA_DEFLATE", "-std=c++20", "-Wall", "-Werror", f"-I{SOURCES}", f"-I{tmp_path}"]
    command = [sys.executable, "-m", "ziglang", "c++", "-target", target, *options]

    def problem(path: Path) -> str:
        made = [*command, "-c", str(path), "-o", str(tmp_path / f"{path.stem}.o")]
        done = subprocess.run(made, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{path.name}: {done.stderr}"

    with ThreadPoolExecutor(2) as pool:
        assert "".join(pool.map(problem, files)) == ""
