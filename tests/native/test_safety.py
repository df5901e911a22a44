"""What keeps the core from harm: structs that agree, symbols and signals of its own, sizes that do not wrap."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import images
import numpy as np
import pytest
from core_alone import view_of

from fastdata import native
from fastdata.loaders import resample
from fastdata.native import abi
from fastdata.tables import Format, Recipes, addresses
from fastdata.views.view import windows_of

SOURCES = Path(__file__).parents[2] / "fastdata" / "native"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at Linux's files")


def test_a_library_with_other_structs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(abi.CViews):
        _fields_ = (("more", ctypes.c_int64),)  # type: ignore[assignment]

    monkeypatch.setattr(abi, "_STRUCTS", {"fd_format": abi.CFormat, "fd_views": Longer})
    with pytest.raises(abi.NativeMissing, match="lays out fd_views in another way"):
        abi.open_library()


def test_every_struct_of_the_interface_is_compared() -> None:
    library = native.load().library
    header = (SOURCES / "fastdata_native.h").read_text()
    named = set(re.findall(r"^} (fd_\w+);", header, re.MULTILINE))
    assert named | {"PackedHead"} == set(abi._layouts())
    assert all(library.fd_struct_layout(name.encode(), None, 0) > 1 for name in named)
    assert library.fd_struct_layout(b"fd_nothing", None, 0) == 0


def test_structs_are_compared_without_docstrings_too() -> None:
    program = "from fastdata import native; print(native.load().kernels)"
    assert subprocess.check_output([sys.executable, "-OO", "-c", program], text=True).strip() == native.load().kernels


def test_libjpegs_entropy_decoder_was_seen_to_be_replaced() -> None:
    assert native.load().library.fd_features() & 2
    assert "own entropy decoder" not in native.load().description


@pytest.mark.skipif(shutil.which("nm") is None or sys.platform != "linux", reason="needs nm")
def test_nothing_but_the_interface_can_be_seen_from_outside() -> None:
    path = native.load().library._name
    lines = subprocess.check_output(["nm", "-D", "--defined-only", path], text=True).splitlines()
    visible = {line.split()[-1] for line in lines if line.split()[-2] in "TDBR"}
    assert {name for name in visible if not name.startswith("fd_")} == set()


def huge(side: int) -> bytes:
    """The head of a PNG of so many pixels across and down, and a little data."""

    def chunk(name: bytes, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [2**31 - 1, 2**20 + 1])
def test_sizes_whose_bytes_cannot_be_counted_are_left_to_pillow(side: int) -> None:
    core, order = resample.exact_core()
    out = np.zeros((10, 10, 3), np.uint8)
    recipes = Recipes(
        data=[huge(side)],
        windows=windows_of([view_of((0, 0, 10, 10))]),
        format=Format(),
        out=addresses(out.ctypes.data, out.nbytes, 1),
    )
    limits = replace(resample.options_for(order, "exact"), max_pixels=None)
    assert core.fill(recipes, options=limits).statuses[0] == native.Status.UNSUPPORTED


PROGRAM = """
import sys
from pathlib import Path
import time
import numpy as np
from fastdata.loaders import create_backend
from fastdata.tables import Format, Recipes, addresses
from fastdata.views.view import View, windows_of

def tasks():
    return set(Path("/proc/self/task").iterdir())

out = np.zeros((2, 40, 40, 3), np.uint8)
views, places = windows_of([View.whole(40, 40)] * 2), addresses(out.ctypes.data, out.strides[0], 2)
recipes = Recipes(paths=[sys.argv[1]] * 2, windows=views, format=Format(), out=places)
filler, before = create_backend("native").filler(threads=2), tasks()
assert not filler.fill(recipes).refused
time.sleep(0.5)  # the system blocks all signals while a thread begins
for task in tasks() - before:
    print(*(line.split()[1] for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk")))
"""


@LINUX
def test_threads_of_the_core_get_none_of_the_programs_signals(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(images.jpeg(40, 40))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a.jpg")]
    masks = [int(mask, 16) for mask in subprocess.check_output(command, text=True).split()]
    assert len(masks) == 2
    for mask in masks:
        blocked = {number for number in range(1, 32) if mask >> (number - 1) & 1}
        assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM} <= blocked
        assert not {signal.SIGSEGV, signal.SIGBUS} & blocked


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("nm") is None, reason="AVX2 only")
@pytest.mark.parametrize("file", ["kernels_avx2", "jpeg_loops_avx2", "unpacked_avx2"])
def test_loops_for_newer_processors_are_called_by_nobody_else(file: str, tmp_path: Path) -> None:
    """A function that is no file's own is linked once: older processors might be given the one made for newer ones."""
    made = tmp_path / "made.o"
    flags = [
        "-std=c++20",
        "-O3",
        "-mavx2",
        "-mfma",
        "-fPIC",
        "-DFASTDATA_AVX2",
        "-fno-math-errno",
        "-fno-trapping-math",
    ]
    subprocess.run(["c++", *flags, f"-I{SOURCES}", "-c", SOURCES / "kernels" / f"{file}.cpp", "-o", made], check=True)
    found = subprocess.check_output(["nm", "-C", made], text=True)
    assert re.findall(r"^.* [WV] .*$", found, re.MULTILINE) == []
