"""What is said about slow storage."""

from __future__ import annotations

import os
from pathlib import Path

from fastdata.system.slow_storage import slow_storage


def test_slow_storage_is_named(tmp_path: Path) -> None:
    mounts, devices = tmp_path / "mounts", tmp_path / "devices"
    data = tmp_path / "data"
    data.mkdir()
    number = os.stat(data).st_dev
    queue = devices / f"{os.major(number)}:{os.minor(number)}" / "queue"
    queue.mkdir(parents=True)
    told = {}
    for kind, rotates in (("ext4", "0"), ("ext4", "1"), ("nfs4", "0")):
        mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} {kind} rw 0 0\n")
        (queue / "rotational").write_text(f"{rotates}\n")
        told[kind, rotates] = slow_storage(str(data), mounts=mounts, devices=devices)
    assert told["ext4", "0"] is None
    spaced = tmp_path / "a folder"
    (spaced / "inside").mkdir(parents=True)
    mounts.write_text(
        f"auto {tmp_path.resolve()}/a\\040folder autofs rw 0 0\nx {tmp_path.resolve()}/a\\040folder nfs rw\n"
    )
    assert "network file system (nfs)" in (slow_storage(str(spaced / "inside"), mounts=mounts) or "")
    assert "rotating disk" in (told["ext4", "1"] or "")
    assert "network file system (nfs4), where random reads of small files are slow; convert" in (
        told["nfs4", "0"] or ""
    )
    (data / "a.tar").touch()
    assert slow_storage(str(data), mounts=mounts, devices=devices) is None
    assert slow_storage("s3://bucket/x") is None
    assert slow_storage(str(tmp_path / "none"), mounts=mounts) is None
