"""Encoded images that claim to be huge: refused before memory is taken for them, with the number and the way out.

The limit is lowered for most tests; that no memory is taken is shown with sparse files of gigabytes.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import images
import pytest
import torch
import torchvision.transforms as v1
from folders import numbered
from PIL import Image
from torchvision.datasets import ImageFolder

import fastdata.limits
from fastdata import DataLoader, DecodeError, ShardDataset, ShardError
from fastdata.cli.main import main
from fastdata.errors import StoreError
from fastdata.jpeg_index.index_file import IndexFile
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.native import available
from fastdata.shards.format import RECORD, Manifest, ShardIndex, crc32c
from fastdata.shards.remote_files import RemoteFiles
from fastdata.shards.verify import verify_folder
from fastdata.system.files import read_file

SMALL = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
WAY_OUT = "set fastdata.limits.MAX_ENCODED_BYTES to a larger number, or to None"
BACKENDS = ["pil", "native", "turbojpeg"]


@contextmanager
def no_more_memory_than(more_bytes: int) -> Iterator[None]:
    """Within it the process's peak may grow by so much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < more_bytes


def sparse(path: Path, size_bytes: int, head: bytes = b"") -> Path:
    path.write_bytes(head)
    os.truncate(path, size_bytes)
    return path


@pytest.mark.parametrize("head", [b"", images.jpeg(40, 30)], ids=["zeros", "jpeg"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sparse_file_above_the_limit(folder: Path, tmp_path: Path, backend: str, head: bytes) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    sparse(tmp_path / "copy" / "apple" / "05.jpg", 1 << 30, head)
    iterator = iter(DataLoader(ImageFolder(tmp_path / "copy", SMALL), 4, num_workers=2, backend=backend))
    next(iterator)
    with no_more_memory_than(200 << 20), pytest.raises(DecodeError, match=WAY_OUT) as caught:
        next(iterator)
    assert f"has {1 << 30} bytes, more than the limit of {512 << 20} bytes" in str(caught.value)
    assert len(list(iterator)) == 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_below_the_limit_are_not_read_to_their_end(folder: Path, tmp_path: Path, backend: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    sparse(tmp_path / "copy" / "apple" / "05.jpg", 500 << 20)
    iterator = iter(DataLoader(ImageFolder(tmp_path / "copy", SMALL), 4, num_workers=2, backend=backend))
    next(iterator)
    with no_more_memory_than(200 << 20), pytest.raises(DecodeError, match="is not an image: it begins with 4096 zeros"):
        next(iterator)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_image_below_the_limit_keeps_its_pixels(tmp_path: Path, backend: str) -> None:
    (tmp_path / "a").mkdir()
    small, large = tmp_path / "a" / "0.jpg", tmp_path / "a" / "1.jpg"
    small.write_bytes(images.jpeg(90, 80))
    large.write_bytes(small.read_bytes() + b"\0" * (20 << 20))
    Image.effect_noise((2400, 2400), 100).convert("RGB").save(tmp_path / "a" / "2.png", compress_level=0)
    assert os.path.getsize(tmp_path / "a" / "2.png") > 16 << 20
    (batch,) = [each[0] for each in DataLoader(ImageFolder(tmp_path, SMALL), 3, backend=backend)]
    assert torch.equal(batch[0], batch[1])
    expected = SMALL(Image.open(tmp_path / "a" / "2.png"))
    assert torch.allclose(batch[2], expected, atol=2 / 255)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_limit_can_be_changed(folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    dataset = numbered(ImageFolder(folder, SMALL))
    sizes = [os.path.getsize(path) for path, _ in dataset.samples]
    most = sorted(sizes)[len(sizes) // 2]
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", most)
    options: Any = {"on_error": "skip", "num_workers": 2, "backend": backend}
    with pytest.warns(fastdata.SamplesSkipped):
        left = [int(label) for _, labels in DataLoader(dataset, 4, **options) for label in labels]
    assert left == [number for number, size in enumerate(sizes) if size <= most]
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", None)
    assert sum(len(labels) for _, labels in DataLoader(dataset, 4, **options)) == len(sizes)


def enlarged(own: Path, size_bytes: int) -> int:
    """Makes the last record of the first shard claim so many bytes, with right checksums; returns its sample."""
    manifest = Manifest.from_text((own / "manifest.json").read_bytes(), "")
    info = manifest.shards[0]
    old = ShardIndex.from_bytes((own / info.index_name).read_bytes(), "")
    records = old.records.copy().astype(RECORD)
    records["size"][-1] = size_bytes
    tar_bytes = int(records["offset"][-1]) + size_bytes
    os.truncate(own / info.name, tar_bytes)
    data = ShardIndex(records, old.keys, tar_bytes, old.tar_crc32c, names=old.names)  # and no indexes of its JPEGs
    (own / info.index_name).write_bytes(data.to_bytes())
    changed = type(info)(
        name=info.name,
        samples=info.samples,
        tar_bytes=tar_bytes,
        tar_crc32c=info.tar_crc32c,
        index_crc32c=crc32c(data.to_bytes()),
    )
    (own / "shard-000000.jpegindex").unlink(missing_ok=True)
    text = Manifest(classes=manifest.classes, shards=[changed, *manifest.shards[1:]]).to_text()
    (own / "manifest.json").write_text(text)
    return info.samples - 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_of_four_gigabytes(own: Path, backend: str) -> None:
    row = enlarged(own, (1 << 32) - 1)
    dataset = ShardDataset(own, SMALL)
    with no_more_memory_than(200 << 20), pytest.raises(DecodeError, match=WAY_OUT) as caught:
        list(DataLoader(dataset, 4, num_workers=0, backend=backend))
    assert caught.value.index == row
    assert f"at byte {dataset._offsets[row]}" in str(caught.value)
    with no_more_memory_than(200 << 20), pytest.raises(ShardError, match=WAY_OUT):
        dataset[row]


def test_verify_lists_a_record_above_the_limit(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = ShardIndex.from_bytes((own / "shard-000000.idx").read_bytes(), "")
    largest = int(index.records["size"].max())
    files = max(os.path.getsize(path) for path in own.iterdir() if path.suffix != ".tar")
    assert largest > files  # or the index itself would be above it
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", largest - 1)
    found = [str(fault) for fault in verify_folder(own)]
    assert any(f"has {largest} bytes, more than fastdata.limits.MAX_ENCODED_BYTES" in fault for fault in found)


def test_an_index_file(own: Path) -> None:
    path = own / "shard-000000.idx"
    os.truncate(path, 1 << 30)
    with no_more_memory_than(200 << 20), pytest.raises(ShardError, match=WAY_OUT) as caught:
        ShardDataset(own, SMALL)
    assert caught.value.shard == str(path)


@pytest.mark.parametrize("command", ["index", "convert"])
def test_a_member_of_a_tar_file(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    index = ShardIndex.from_bytes((own / "shard-000000.idx").read_bytes(), "")
    largest = int(index.records["size"].max())
    for path in own.iterdir():
        if path.name != "shard-000000.tar":
            path.unlink()
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", largest - 1)
    given = [str(own)] if command == "index" else [str(own / "shard-000000.tar"), str(own / "out")]
    assert main([command, *given, "--workers", "1"]) != 0
    told = capsys.readouterr().err
    assert f"has {largest} bytes, more than the limit of {largest - 1} bytes" in told
    assert str(own / "shard-000000.tar") in told


@pytest.mark.skipif(available() is None, reason="indexes are made by the native core")
def test_a_record_of_an_index_of_images(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_index(folder, images_below(folder), to=tmp_path)
    index = IndexFile(made.path)
    rows = index.rows(["apple/05.jpg"])
    assert index.read(rows)[0]
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", 8)
    assert index.read(rows) == [b""]  # the image is decoded without it


@pytest.mark.parametrize(
    ("given", "expected"), [("", str(512 << 20)), ("1000", "1000"), ("none", "None"), ("-1", "expected a number")]
)
def test_the_environment_sets_the_limit_of_commands(given: str, expected: str) -> None:
    environment = {**os.environ, "FASTDATA_MAX_ENCODED_BYTES": given}
    program = "import fastdata.limits; print(fastdata.limits.MAX_ENCODED_BYTES)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert expected in done.stdout + done.stderr


def test_a_remote_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://limits/manifest.json", "wb") as file:
        file.write(bytes(5000))
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", 4999)
    with pytest.raises(StoreError, match=WAY_OUT):
        RemoteFiles().read("memory://limits/manifest.json")


def test_what_a_datasets_own_code_opens_is_left_to_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(torch.utils.data.Dataset[Any]):
        transform = SMALL

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return self.transform(Image.open(folder / "apple" / f"0{index}.jpg").convert("RGB"))

    expected = list(DataLoader(Own(), 4, num_workers=0))
    monkeypatch.setattr(fastdata.limits, "MAX_ENCODED_BYTES", 8)
    (batch,) = DataLoader(Own(), 4, num_workers=0)
    assert torch.allclose(batch, expected[0], atol=2 / 255)


def test_the_limit_is_read_before_the_file(tmp_path: Path) -> None:
    """In a process that has no room for the file."""
    path = sparse(tmp_path / "a.jpg", 8 << 30, images.jpeg(40, 30))
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from fastdata.system.files import read_file\n"
        f"try: read_file({str(path)!r})\n"
        "except OSError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert WAY_OUT in done.stdout
    with pytest.raises(fastdata.limits.TooManyBytes):
        read_file(path)
