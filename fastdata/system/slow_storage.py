"""Recognises storage on which reading small files is slow."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["slow_storage"]

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "fuse.sshfs", "beegfs", "9p"}
_VIRTUAL = ("vd", "xvd", "loop", "dm-", "zram")  # these say they rotate, whatever is below them


def slow_storage(
    path: str, *, mounts: Path = Path("/proc/self/mounts"), devices: Path = Path("/sys/dev/block")
) -> str | None:
    """Says why reading small files in random order from a path will be slow, and what helps; None if it will not.

    Args:
        path: a folder of images.
        mounts: the kernel's list of mounted file systems.
        devices: the kernel's folder of block devices, by device number.
    """
    try:
        real, number = os.path.realpath(path), os.stat(path).st_dev
        places = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    except OSError:  # not Linux
        return None
    mounted = [(place.replace(r"\040", " "), kind) for place, kind in places]
    inside = [(place, kind) for place, kind in mounted if f"{real}/".startswith(f"{place.rstrip('/')}/")]
    kind = max(reversed(inside), key=lambda place: len(place[0]), default=("", ""))[1]  # the last one mounted there
    advice = (
        "convert it to shards, which are read in large pieces: fastdata convert FOLDER SHARDS, then "
        "EpochSampler(order='windowed')"
    )
    if kind in _NETWORK:
        return f"{path} is on a network file system ({kind}), where random reads of small files are slow; {advice}"
    device = (devices / f"{os.major(number)}:{os.minor(number)}").resolve()
    disk = device if (device / "queue").exists() else device.parent  # a partition's disk
    rotates = disk / "queue" / "rotational"
    if disk.name.startswith(_VIRTUAL) or not rotates.exists() or rotates.read_text().strip() != "1":
        return None
    return f"{path} is on a rotating disk, where random reads of small files are slow; {advice}"
