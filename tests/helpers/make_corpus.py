"""Writes the seed corpus of a fuzz target: two small JPEGs or PNGs of every kind, with the bytes of a view behind.

python tests/helpers/make_corpus.py FOLDER             for fuzz
python tests/helpers/make_corpus.py FOLDER --records   for fuzz_records
"""

from __future__ import annotations

import sys
from pathlib import Path

import images
from places import GOLDEN

from fastdata.loaders.resample import exact_core, options_for

# See fuzz.cpp: image width and height, window, resize, crop, flips, format, filter, options.
VIEW = bytes([60, 50, 10, 10, 128, 90, 128, 128, 255, 255, 1, 2, 90, 1])


def seeds() -> dict[str, bytes]:
    """Encoded images by name."""
    found = {f"{sampling.replace(':', '')}": images.jpeg(60, 50, sampling=sampling) for sampling in images.SAMPLINGS}
    found["progressive"] = images.saved(60, 50, progressive=True)
    found["optimised"] = images.saved(60, 50, optimize=True)
    found["restart"] = images.saved(60, 50, restart_marker_blocks=2)
    found["restart-rows"] = images.saved(60, 50, restart_marker_rows=1)
    found["cmyk"] = images.saved(60, 50, mode="CMYK")
    for mode in ("RGB", "RGBA", "L", "LA", "P", "1"):
        found[f"png-{mode}"] = images.saved(60, 50, kind="PNG", mode=mode)
    grey = bytearray(images.jpeg(60, 50, sampling="grey"))
    grey[grey.index(b"\xff\xc0") + 11] = 0x22
    found["grey22"] = bytes(grey)
    found["one"] = images.jpeg(1, 1)
    found["no-huffman-tables"] = images.without_segments(images.jpeg(60, 50), 0xC4)
    found["no-quantisation-tables"] = images.without_segments(images.jpeg(60, 50), 0xDB)
    found |= {path.stem: path.read_bytes() for path in GOLDEN.glob("*.jpg")}
    core, order = exact_core()
    records = {name: core.unpack(data, options=options_for(order, "exact")) for name, data in found.items()}
    return found | {f"record-{name}": record for name, record in records.items() if record is not None}


def behind(first: bytes, second: bytes) -> bytes:
    """A seed: two images, the view, and the share of the bytes that is the first image."""
    share = -(-len(first) * 65536 // len(first + second))
    return first + second + VIEW + share.to_bytes(2, "big")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = seeds()
    if sys.argv[2:] == ["--records"]:
        for name, data in found.items():
            if name.startswith("record-"):
                (folder / name).write_bytes(data + VIEW[2:6])
        sys.exit()
    for before, (name, data) in zip(found.values(), [*list(found.items())[1:], *list(found.items())[:1]], strict=True):
        (folder / name).write_bytes(behind(before, data))
