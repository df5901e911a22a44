"""Bad images, all made here: cut short, damaged, mislabelled, empty, bombs.  Their names say what is wrong."""

from __future__ import annotations

import io
import struct
import zlib

import images
from PIL import Image

SIZE = (120, 90)


def bad_images() -> dict[str, bytes]:
    """Encoded images by name."""
    baseline, progressive = images.jpeg(*SIZE), images.saved(*SIZE, progressive=True)
    png, gif, webp = (images.saved(*SIZE, kind=kind) for kind in ("PNG", "GIF", "WEBP"))
    bmp, tiff = images.saved(*SIZE, kind="BMP"), images.saved(*SIZE, kind="TIFF")
    return {
        "empty": b"",
        "one byte": b"\xff",
        "zeros": bytes(4000),
        "text": b"<html><body>404 Not Found</body></html>",
        "the head of a JPEG alone": baseline[:2],
        "JPEG cut in its head": baseline[:100],
        "JPEG cut in the middle": baseline[: len(baseline) // 2],
        "JPEG cut by one byte": baseline[:-1],
        "JPEG without its end marker": baseline[:-2],
        "JPEG with bytes behind its end": baseline + b"more bytes" * 20,
        "JPEG with zeros in its scan": _overwritten(baseline, bytes(60)),
        "JPEG with a marker in its scan": _overwritten(baseline, b"\xff\xd9"),
        "JPEG with a restart marker in its scan": _overwritten(baseline, b"\xff\xd3"),
        "JPEG without Huffman tables": images.without_segments(baseline, 0xC4),
        "JPEG without quantisation tables": images.without_segments(baseline, 0xDB),
        "JPEG of width 0": _sized(baseline, width=0),
        "JPEG of height 0": _sized(baseline, height=0),
        "JPEG that claims more rows than it has": _sized(baseline, height=900),
        "JPEG that claims fewer rows than it has": _sized(baseline, height=30),
        "JPEG of 65500 by 65500": _sized(baseline, width=65500, height=65500),
        "JPEG of arithmetic coding": baseline.replace(b"\xff\xc0", b"\xff\xc9", 1),
        "JPEG of twelve bits": _with_precision(baseline, 12),
        "progressive JPEG cut in the middle": progressive[: len(progressive) // 2],
        "progressive JPEG without its last scan": progressive[: progressive.rindex(b"\xff\xda")] + b"\xff\xd9",
        "PNG cut in the middle": png[: len(png) // 2],
        "PNG with a wrong checksum": _overwritten(png, b"\x00" * 4),
        "PNG without data": _png(SIZE, b""),
        "PNG whose data end early": _png(SIZE, zlib.compress(bytes(200))),
        "PNG with an unknown filter": _png(SIZE, zlib.compress((b"\x09" + bytes(360)) * 90)),
        "PNG bomb of 30000 by 30000": _png((30000, 30000), zlib.compress(bytes(1 << 16))),
        "PNG of width 0": _png((0, 90), zlib.compress(b"")),
        "GIF cut in the middle": gif[: len(gif) // 2],
        "WebP cut in the middle": webp[: len(webp) // 2],
        "BMP cut in the middle": bmp[: len(bmp) // 2],
        "TIFF cut in the middle": tiff[: len(tiff) // 2],
        "TIFF whose directory is behind its end": tiff[:4] + struct.pack("<I", 1 << 30) + tiff[8:],
        "PNG in the name of a JPEG": png,
        "an image in a damaged ICC profile": _with_icc(b"\x00" * 40),
        "an image with a damaged EXIF segment": images.saved(*SIZE, exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f"),
    }


def _overwritten(data: bytes, by: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + by + data[middle + len(by) :]


def _frame(data: bytes) -> int:
    """The place of a baseline JPEG's frame header."""
    return data.index(b"\xff\xc0") + 4


def _sized(data: bytes, *, width: int | None = None, height: int | None = None) -> bytes:
    changed, at = bytearray(data), _frame(data)
    if height is not None:
        changed[at + 1 : at + 3] = height.to_bytes(2, "big")
    if width is not None:
        changed[at + 3 : at + 5] = width.to_bytes(2, "big")
    return bytes(changed)


def _with_precision(data: bytes, bits: int) -> bytes:
    changed = bytearray(data)
    changed[_frame(data)] = bits
    return bytes(changed)


def _png(size: tuple[int, int], data: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + (chunk(b"IDAT", data) if data else b"") + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _with_icc(profile: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(images.jpeg(*SIZE))).save(buffer, "JPEG", icc_profile=profile)
    return buffer.getvalue()
