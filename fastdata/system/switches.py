"""Environment variables that turn something on or off."""

from __future__ import annotations

import os

from fastdata.errors import OptionError

__all__ = ["check_compares", "is_off", "is_on", "leaves_images"]

_OFF = ("0", "false", "off", "no")
_ON = ("1", "true", "on", "yes")


def is_on(name: str, *, by_default: bool) -> bool:
    """True if the environment variable turns its switch on; unset or empty leaves it as it is by default.

    Raises:
        OptionError: its value says neither.
    """
    value = os.environ.get(name, "").strip().lower()
    if value and value not in (*_ON, *_OFF):
        raise OptionError(f"{name}={os.environ[name]!r} is not accepted; use one of {', '.join((*_ON, *_OFF))}")
    return value in _ON if value else by_default


def is_off() -> bool:
    """True if FASTDATA=0 leaves everything to torch and Pillow, in this process and those that it starts."""
    return not is_on("FASTDATA", by_default=True)


def leaves_images() -> bool:
    """True if FASTDATA=0 or FASTDATA_DEFER=0 leaves images and transforms to torch and Pillow."""
    return is_off() or not is_on("FASTDATA_DEFER", by_default=True)


def check_compares(what: str) -> None:
    """Raises OptionError if `what`, which compares fastdata with torch, would compare torch with itself."""
    if is_off():
        value = os.environ["FASTDATA"]
        raise OptionError(
            f"{what} compares fastdata with torch, but FASTDATA={value} leaves everything to torch; unset it"
        )
