"""What is written for ARM's instructions gives the same values there, in an emulator."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

SOURCES = Path(__file__).parents[2] / "fastdata" / "native"
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
MAIN = """
#include "base/crc32c.h"
#include <cstdio>
#include <vector>
int main() {
    std::vector<uint8_t> data(1 << 16);
    data.resize(std::fread(data.data(), 1, data.size(), stdin));
    for (size_t size = 0; size <= data.size(); size = 2 * size + 1)
        std::printf("%08x\\n", static_cast<unsigned>(fastdata::crc32c({data.data() + data.size() - size, size})));
}
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.skipif(EMULATOR is None, reason="qemu-aarch64 is not installed")
def test_checksums_by_instructions(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(MAIN)
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", "-std=c++20", "-O2", "-static"]
    options = ["-DFASTDATA_NEON", "-Wall", "-Werror", f"-I{SOURCES}", "-o", str(tmp_path / "sums")]
    files = [str(SOURCES / "base" / "crc32c.cpp"), str(tmp_path / "main.cpp")]
    done = subprocess.run([*compiler, *options, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = np.random.default_rng(0).bytes(40_000)
    told = subprocess.run([str(EMULATOR), str(tmp_path / "sums")], input=data, capture_output=True, check=True).stdout
    sizes = [2**bits - 1 for bits in range(16)]
    assert told.decode().split() == [f"{google_crc32c.value(data[len(data) - size :]):08x}" for size in sizes]
