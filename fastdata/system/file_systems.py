"""Recognises devices that are disks of this machine, on which nobody else changes files unnoticed."""

from __future__ import annotations

import os
from functools import cache

__all__ = ["is_on_this_machine"]

_LOCAL = {
    "bcachefs",
    "btrfs",
    "erofs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "iso9660",
    "jfs",
    "overlay",
    "ramfs",
    "reiserfs",
}
_LOCAL |= {"squashfs", "tmpfs", "vfat", "xfs", "zfs"}


@cache
def is_on_this_machine(device: int) -> bool:
    """True if a device (`st_dev`) is mounted with a file system of local disks, or of memory.

    Where that cannot be known, as outside of Linux, it is False.  Asked for once per device and process.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return any(_is_local(line) for line in mounts if line.split(" ", 3)[2] == wanted)
    except OSError:
        return False


def _is_local(mount: str) -> bool:
    """True if a line of mountinfo names a local file system, which follows a hyphen there."""
    return mount.partition(" - ")[2].split(" ", 1)[0] in _LOCAL
