"""Converts JPEG files to unpacked records, whose coefficients are not entropy-coded (docs/format.md), and back.

The native core decodes such records as it decodes files, in half the time.  Other readers get the restored file.
"""

from __future__ import annotations

from fastdata.errors import BackendUnavailable
from fastdata.loaders.resample import exact_core, options_for
from fastdata.native import NativeMissing
from fastdata.views.header import UNPACKED_MAGIC

__all__ = ["as_file", "is_unpacked", "unpack"]


def is_unpacked(data: bytes) -> bool:
    """True for bytes that begin as a record does, whole or not."""
    return data.startswith(UNPACKED_MAGIC)


def unpack(jpeg: bytes) -> bytes | None:
    """Returns the record of a JPEG; None for an image that is damaged, of another format, or unusually coded.

    Raises:
        NativeMissing: there is no native core.
    """
    core, order = exact_core()
    return core.unpack(jpeg, options=options_for(order, "exact"))


def as_file(data: bytes) -> bytes:
    """Returns the file that a record was made from; other data unchanged.

    Raises:
        BackendUnavailable: there is no native core, which restores records.
        OSError: the record is damaged.
    """
    if not is_unpacked(data):
        return data
    try:
        core, order = exact_core()
    except NativeMissing as error:
        raise BackendUnavailable(f"unpacked JPEGs need the native backend, which is not available: {error}") from error
    restored = core.restore(data, options=options_for(order, "exact"))
    if restored is None:
        raise OSError(f"damaged record of an unpacked JPEG, of {len(data)} bytes")
    return restored
