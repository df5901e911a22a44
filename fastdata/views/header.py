"""Reads width, height and kind of an image from its first bytes, without decoding.

A view can only be drawn when the image's size is known, and parsing twenty bytes in place is a hundred times
cheaper than opening a decoder.  The result is ``None`` for formats not known here, for those whose frames may
be larger than the header says (GIF), and for headers that make no sense: Pillow then decides.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from fastdata import native

__all__ = ["UNPACKED_MAGIC", "ImageHeader", "JpegFrame", "has_whole_scans", "parse_header"]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
UNPACKED_MAGIC = b"FDCOEF01"
_UNPACKED_HEAD_BYTES = 32
_NPY_MAGIC = b"\x93NUMPY\x01"
_STANDALONE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN_MARKER, _METADATA_MARKER = 0xDA, 0xE1
_END_MARKERS = frozenset({0xD9, 0xD8})
_MARKER_IN_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither a stuffed byte, nor a restart, nor a fill byte
# Between two scans: tables, restart intervals, comments, application data, the next scan's header.
_BETWEEN_SCANS = frozenset({0xC4, 0xDB, _SCAN_MARKER, 0xDD, 0xFE, *range(0xE0, 0xF0)})


@dataclass(frozen=True, kw_only=True)
class JpegFrame:
    """Coding details from a JPEG's frame header and first scan header (ITU T.81, B.2.2 and B.2.3).

    Attributes:
        height_at: offset in bytes of the 16-bit big-endian height inside the file.
        sequential: baseline or extended Huffman coding; False for progressive, arithmetic, lossless.
        precision_bits: sample precision.
        components: number of colour components.
        mcu_height_px: rows in one row of MCUs.
        single_scan: the first scan holds every component, so rows are coded from top to bottom.
        scan_at: offset in bytes of the first scan's marker.
        has_metadata: there is an APP1 segment before the scan, where Exif and XMP are.
    """

    height_at: int
    scan_at: int
    sequential: bool
    precision_bits: int
    components: int
    mcu_height_px: int
    single_scan: bool
    has_metadata: bool


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """Size and kind of an encoded image.

    Attributes:
        kind: "jpeg", "png", "bmp", "webp", or "npy" (raw pixels).
        width: columns in pixels, before any EXIF rotation.
        height: rows in pixels, before any EXIF rotation.
        jpeg: coding details, for kind "jpeg" only.
    """

    kind: str
    width: int
    height: int
    jpeg: JpegFrame | None = None


def parse_header(data: bytes | memoryview) -> ImageHeader | None:
    """Reads the size of an encoded image.

    Args:
        data: the whole encoded file, or at least everything up to its pixel data.

    Returns:
        The header, or None when the kind is not known here or the header is cut short or absurd.
    """
    if data[:2] == b"\xff\xd8":
        return _parse_jpeg(data)
    if data[:8] == _PNG_SIGNATURE and data[12:16] == b"IHDR" and len(data) >= 24:
        return _checked("png", *struct.unpack_from(">II", data, 16))
    if data[:2] == b"BM" and len(data) >= 26:
        return _parse_bmp(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _parse_webp(data)
    if data[:7] == _NPY_MAGIC:
        return _parse_npy(data)
    if data[:8] == UNPACKED_MAGIC and len(data) >= _UNPACKED_HEAD_BYTES:
        return _parse_unpacked(data)
    return None


def has_whole_scans(data: bytes | memoryview, frame: JpegFrame) -> bool:
    """True if a JPEG's entropy-coded data runs to an end marker, and holds no marker that may not occur there.

    Some libraries fill in missing data, or stop at an error, without reporting it; Pillow refuses such a file.
    """
    core = native.available()
    if core is not None:
        return core.has_whole_scans(data, frame.scan_at, one_scan=frame.sequential and frame.single_scan)
    return _has_whole_scans(data, frame)


def _has_whole_scans(data: bytes | memoryview, frame: JpegFrame) -> bool:
    """`has_whole_scans` without the native core."""
    allowed = frozenset() if frame.sequential and frame.single_scan else _BETWEEN_SCANS
    at = frame.scan_at
    while at + 4 <= len(data):
        found = _MARKER_IN_SCAN.search(data, at + 2 + int.from_bytes(data[at + 2 : at + 4], "big"))
        if found is None:
            return False
        at = found.start()
        if data[at + 1] == 0xD9:
            return True
        if data[at + 1] not in allowed:
            return False
    return False


def _checked(kind: str, width: int, height: int, jpeg: JpegFrame | None = None) -> ImageHeader | None:
    if width <= 0 or height <= 0:
        return None
    return ImageHeader(kind=kind, width=width, height=height, jpeg=jpeg)


def _parse_jpeg(data: bytes | memoryview) -> ImageHeader | None:
    at, end, frame_at, has_metadata = 2, len(data), 0, False
    while at + 4 <= end:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _STANDALONE_MARKERS:
            at += 2
        elif marker in _END_MARKERS:
            return None
        else:
            if marker in _FRAME_MARKERS:
                frame_at = at
            elif marker == _SCAN_MARKER:
                return _read_frame(data, frame_at, scan_at=at, has_metadata=has_metadata) if frame_at else None
            has_metadata |= marker == _METADATA_MARKER
            length = data[at + 2] << 8 | data[at + 3]
            if length < 2:
                return None
            at += 2 + length
    return None


def _read_frame(data: bytes | memoryview, at: int, *, scan_at: int, has_metadata: bool) -> ImageHeader | None:
    length = data[at + 2] << 8 | data[at + 3]
    components = data[at + 9]
    if length < 8 + 3 * components or components == 0 or scan_at + 5 > len(data):
        return None
    height, width = struct.unpack_from(">HH", data, at + 5)
    vertical = [data[at + 11 + 3 * c] & 15 for c in range(components)]
    frame = JpegFrame(
        height_at=at + 5,
        scan_at=scan_at,
        sequential=data[at + 1] in (0xC0, 0xC1),
        precision_bits=data[at + 4],
        components=components,
        mcu_height_px=8 * max(vertical),
        single_scan=data[scan_at + 4] == components,
        has_metadata=has_metadata,
    )
    return _checked("jpeg", width, height, frame)


def _parse_bmp(data: bytes | memoryview) -> ImageHeader | None:
    if struct.unpack_from("<I", data, 14)[0] == 12:  # the OS/2 header has 16-bit sizes
        return _checked("bmp", *struct.unpack_from("<HH", data, 18))
    width, height = struct.unpack_from("<ii", data, 18)
    return _checked("bmp", width, abs(height))  # a negative height means rows from the top


def _parse_npy(data: bytes | memoryview) -> ImageHeader | None:
    """Parses NumPy's file format, version 1.0, of uint8 (height, width, 3)."""
    header = data[10 : 10 + int.from_bytes(data[8:10], "little")]
    shape = re.search(rb"'shape': \((\d{1,9}), (\d{1,9}), 3\)", header)
    plain = b"'descr': '|u1'" in header and b"'fortran_order': False" in header
    return _checked("npy", int(shape[2]), int(shape[1])) if shape is not None and plain else None


def _parse_unpacked(data: bytes | memoryview) -> ImageHeader | None:
    """Parses an unpacked JPEG's record, which holds the first bytes of its file."""
    size = int.from_bytes(data[20:24], "little")
    of_file = _parse_jpeg(data[_UNPACKED_HEAD_BYTES : _UNPACKED_HEAD_BYTES + size])
    return _checked("unpacked", of_file.width, of_file.height) if of_file is not None else None


def _parse_webp(data: bytes | memoryview) -> ImageHeader | None:
    chunk = data[12:16]
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return _checked("webp", width & 0x3FFF, height & 0x3FFF)
    if chunk == b"VP8L" and data[20] == 0x2F:
        bits = struct.unpack_from("<I", data, 21)[0]
        return _checked("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if chunk == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        return _checked("webp", width, height)
    return None
