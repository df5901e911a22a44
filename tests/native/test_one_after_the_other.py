"""Images in a row: none leaves anything behind for the next, neither tables nor memory."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import images
import numpy as np
import psutil
import pytest
from core_alone import view_of
from PIL import Image

from fastdata.loaders import create_backend
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each

WIDTH, HEIGHT = 60, 50
HUFFMAN_TABLES, QUANTISATION_TABLES = 0xC4, 0xDB
BEFORE = {
    "nothing": None,
    "optimised": images.saved(WIDTH, HEIGHT, optimize=True),
    "coarse": images.jpeg(WIDTH, HEIGHT, quality=5),
    "progressive": images.saved(WIDTH, HEIGHT, progressive=True),
    "damaged": images.jpeg(WIDTH, HEIGHT)[:-200],
}
WHOLE = images.jpeg(WIDTH, HEIGHT)
INCOMPLETE = {
    "Motion JPEG, without Huffman tables": images.without_segments(WHOLE, HUFFMAN_TABLES),
    **{
        f"without Huffman table {number}": images.without_segments(
            images.saved(WIDTH, HEIGHT, optimize=True), HUFFMAN_TABLES, which=number
        )
        for number in range(4)
    },
    "without quantisation tables": images.without_segments(WHOLE, QUANTISATION_TABLES),
    "without quantisation table 1": images.without_segments(images.saved(WIDTH, HEIGHT), QUANTISATION_TABLES, which=1),
}


def decode_in_a_row(*files: bytes) -> np.ndarray | None:
    """The last file's pixels, decoded by one thread after the others; None if it is refused."""
    view = view_of((0, 0, WIDTH, HEIGHT))
    out = np.zeros((len(files), HEIGHT, WIDTH, 3), np.uint8)
    statuses = decode_each(create_backend("native"), [inspect(data) for data in files], [view] * len(files), list(out))
    return out[-1] if statuses[-1] is None else None


def by_pillow(data: bytes) -> np.ndarray | None:
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except OSError:
        return None


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_file_without_tables_is_what_pillow_sees_whatever_came_before(name: str, before: str) -> None:
    first = BEFORE[before]
    decoded = decode_in_a_row(*([first] if first is not None else []), INCOMPLETE[name])
    expected = by_pillow(INCOMPLETE[name])
    if expected is None:
        assert decoded is None
    else:
        np.testing.assert_array_equal(decoded, expected)


@pytest.mark.bounded_memory
@pytest.mark.slow
def test_memory_for_a_huge_image_is_given_back_with_the_next() -> None:
    side = 4000
    huge = {
        "png": images.saved(side, side, kind="PNG", mode="L"),
        "npy": _npy(np.zeros((side, side, 3), np.uint8)),
        "jpeg": images.jpeg(side, side, sampling="grey", quality=10),
    }
    backend, process = create_backend("native"), psutil.Process()

    def decode(data: bytes, width: int, height: int) -> None:
        out = np.zeros((1, 8, 8, 3), np.uint8)
        assert decode_each(backend, [inspect(data)], [view_of((0, 0, width, height), (8, 8))], list(out)) == [None]

    small = {"png": images.saved(8, 8, kind="PNG"), "npy": _npy(np.zeros((8, 8, 3), np.uint8)), "jpeg": WHOLE}
    for kind in huge:
        decode(small[kind], 8, 8)
    before = process.memory_info().rss
    for kind, data in huge.items():
        decode(data, side, side)
        decode(small[kind], 8, 8)
        kept = process.memory_info().rss - before
        assert kept < 30 << 20, f"{kind} keeps {kept >> 20} MB"  # one image has 64 MB in each of its buffers


def _npy(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, pixels)
    return buffer.getvalue()


_REPACK_WITHOUT_MEMORY = """
import resource, sys
from fastdata.loaders import resample
from fastdata.views.resampling import Interpolation
core, order = resample.exact_core()
options = resample.options_for(order, "exact")
data = open(sys.argv[1], "rb").read()
whole = core.repack(data, restart_rows=1, options=options)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
found = set()
for step in range(0, 120, 2):
    resource.setrlimit(resource.RLIMIT_AS, (used + (step << 18), resource.RLIM_INFINITY))
    try:
        repacked = core.repack(data, restart_rows=1, options=options)
    except MemoryError:
        repacked = "refused"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found.add("whole" if repacked == whole else repacked)
assert "whole" in found and len(found) > 1 and found <= {"whole", None, "refused"}, found
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory as Linux does")
@pytest.mark.bounded_memory
def test_repacking_without_memory_ends_in_an_error_not_in_a_crash(tmp_path: Path) -> None:
    """Memory is refused at 60 points of the work, also while the output grows."""
    (tmp_path / "large.jpg").write_bytes(images.jpeg(1500, 1200, quality=98))
    command = [sys.executable, "-c", _REPACK_WITHOUT_MEMORY, str(tmp_path / "large.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
