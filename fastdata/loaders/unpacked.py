"""JPEGs whose coefficients lie open (docs/format.md): made of files, and made files again.

The native core decodes such records as it decodes files, in half the time.  Whoever else reads images gets the file.
"""

from __future__ import annotations

from fastdata.errors import BackendUnavailable
from fastdata.loaders.resample import exact_core, options_for
from fastdata.native import NativeMissing
from fastdata.views.header import UNPACKED_MAGIC

__all__ = ["as_file", "is_unpacked", "unpack"]


def is_unpacked(data: bytes) -> bool:
    """True for a record, whole or not."""
    return data.startswith(UNPACKED_MAGIC)


def unpack(jpeg: bytes) -> bytes | None:
    """The record of a JPEG; None for what cannot be one: damaged, unusually coded, or of another format.

    Raises:
        NativeMissing: there is no native core.
    """
    core, order = exact_core()
    return core.unpack(jpeg, options=options_for(order, "exact"))


def as_file(data: bytes) -> bytes:
    """The file that a record was made of; other data as it is.

    Raises:
        BackendUnavailable: there is no native core, which knows records.
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
