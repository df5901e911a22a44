"""The most bytes that one encoded image may have, as Pillow's MAX_IMAGE_PIXELS is the limit of its pixels.

A file, a member of a tar file or a record of a shard can claim any size; it is checked before memory is taken for it.
Index files and manifests are held to the limit, too.

Change it before loaders are made::

    import fastdata.limits

    fastdata.limits.MAX_ENCODED_BYTES = 2 << 30  # or None for no limit

Commands, and worker processes that are spawned and not forked, begin with the number of bytes in the environment
variable FASTDATA_MAX_ENCODED_BYTES, or without a limit if that is "none".
"""

from __future__ import annotations

import os

from fastdata.errors import OptionError

__all__ = ["MAX_ENCODED_BYTES", "TooManyBytes", "check_encoded_bytes", "is_above_limit"]

_VARIABLE = "FASTDATA_MAX_ENCODED_BYTES"


def _at_first() -> int | None:
    given = os.environ.get(_VARIABLE, "").strip()
    if not given:
        return 512 << 20
    if given.lower() == "none":
        return None
    if not (given.isascii() and given.isdigit()) or int(given) == 0:
        raise OptionError(f"{_VARIABLE}={given!r} in the environment; expected a number of bytes, or none")
    return int(given)


MAX_ENCODED_BYTES: int | None = _at_first()
"""Bytes of one encoded image, or of one index or manifest; None for no limit."""


class TooManyBytes(OSError):
    """An encoded image, an index or a manifest has more bytes than `MAX_ENCODED_BYTES`."""


def is_above_limit(size_bytes: int) -> bool:
    """True if an encoded image may not have so many bytes."""
    return MAX_ENCODED_BYTES is not None and size_bytes > MAX_ENCODED_BYTES


def check_encoded_bytes(size_bytes: int, what: str) -> None:
    """Refuses a size before anything is allocated for it.

    Args:
        size_bytes: of the encoded image.
        what: has this size, for the message.

    Raises:
        TooManyBytes: it is above the limit.
    """
    if is_above_limit(size_bytes):
        raise TooManyBytes(
            f"{what} has {size_bytes} bytes, more than the limit of {MAX_ENCODED_BYTES} bytes; if you trust it, set "
            "fastdata.limits.MAX_ENCODED_BYTES to a larger number, or to None (for a command: the environment variable "
            f"{_VARIABLE}, to a number or to none)"
        )
