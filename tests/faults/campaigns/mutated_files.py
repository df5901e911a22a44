"""Damage to the files of a dataset or a run is noticed: whatever is read is right, or fastdata's error names the file.

That holds for shards, their indexes and manifest, indexes of JPEGs, a loader's state and a training checkpoint, with
flipped bits, overwritten runs, wrong lengths, or cut short; and `fastdata verify` lists every change of a shard, and of
its indexes.  Files that were forged, whose checksums are right, may say something else, but no other exception comes.
A loader's state has no checksum: one that is changed and could still be is accepted, and the next epoch is whole.
No memory is taken for a length that is only claimed.
"""

from __future__ import annotations

import itertools
import json
import resource
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import images
import psutil
import torch
from loader_states import saved
from mutations import damaged, mutated, with_other_value
from torch.utils.data import IterableDataset, TensorDataset
from torchvision import transforms

from fastdata import DataLoader, EpochSampler, ImageFolder, ShardDataset
from fastdata.errors import FastdataError, ShardError, TrainError
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.format import MANIFEST_NAME
from fastdata.shards.records import list_tar
from fastdata.shards.verify import verify_folder
from fastdata.train.checkpoint_files import load_checkpoint, save_checkpoint

ROUNDS = (600, 10_000, 200_000)
NAMES = ("a/0", "a/1", "a/gr\u00fcn", "b/3", "b/" + 30 * "long", "b/5")
VIEW = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])
MEMORY_BYTES = 3 << 30  # that may be taken: less than the lengths that are claimed
INDEX_HEAD, JPEG_HEAD = 64, 40  # bytes, with checksums at the end
TAR_BLOCK, TAR_TYPE = 512, 156
TAR_FIELDS = (0, 100, 124, TAR_TYPE, 157, 257, 345)  # name, mode, size, type, link, magic, prefix


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with one file each, which is whole again afterwards."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MEMORY_BYTES,) * 2)
    for number, name in enumerate(NAMES):
        path = folder / "images" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.jpeg(40 + number, 30, seed=number))
    shards = [_Shards(folder / "images", folder / "shards"), _Shards(folder / "images", folder / "unpacked", True)]
    kinds: dict[str, Callable[[Random], str]] = {
        "shards": lambda rng: rng.choice(shards).damage(rng),
        "forged shards": lambda rng: rng.choice(shards).forge(rng),
        "tar headers": lambda rng: rng.choice(shards).change_headers(rng),
        "JPEG index": _JpegIndex(folder / "images").damage,
        "state": _States(folder / "images").damage,
        "checkpoint": _Checkpoint(folder / "a.pt").damage,
    }

    def one(rng: Random) -> str:
        kind = rng.choice(sorted(kinds))
        return f"{kind}: {kinds[kind](rng)}"

    return one


@contextmanager
def _changed(path: Path, data: bytes) -> Iterator[None]:
    """While the block runs, the file is another."""
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(whole)


def _pixels(dataset: Any) -> Iterator[torch.Tensor | FastdataError]:
    """What the loader makes of each sample."""
    batches = iter(DataLoader(dataset, 1, num_workers=0, seed=1, backend="native"))
    for _ in range(len(dataset)):
        try:
            yield next(batches)[0]
        except FastdataError as error:
            yield error


def _check_names(error: Exception, name: str) -> None:
    assert name in str(error), error


# ---- shards


class _Shards:
    """A folder of shards."""

    def __init__(self, source: Path, folder: Path, unpacked: bool = False) -> None:
        convert(str(source), folder, ConvertOptions(shard_bytes=3_000, recoding=Recoding(unpacked=unpacked)))
        self._folder = folder
        self._files = sorted(path for path in folder.iterdir() if path.is_file())
        dataset = ShardDataset(folder, VIEW)
        self._encoded = [dataset.read_encoded(index) for index in range(len(NAMES))]
        self._samples = [(dataset.key(index), dataset.read_target(index)) for index in range(len(NAMES))]
        self._pixels = list(_pixels(dataset))
        self._refs = {path: list_tar(str(path)) for path in self._files if path.suffix == ".tar"}
        assert len(self._refs) > 1
        assert not list(verify_folder(folder))

    def damage(self, rng: Random) -> str:
        """Reads all with a damaged file."""
        path = rng.choice(self._files)
        data = damaged(path.read_bytes(), rng)
        with _changed(path, data):
            outcome = self._read(path)
            try:
                faults = [str(fault) for fault in verify_folder(self._folder)]
                found = all(path.stem in fault for fault in faults) and bool(faults)
            except FastdataError as error:
                found = path.stem in str(error)
            same = path.name == MANIFEST_NAME and outcome == "right"  # as where a space has become another
            assert found or same, f"{path.name}: verify does not find the damage"
        return f"{path.suffix[1:]}, {outcome}"

    def _read(self, path: Path) -> str:
        """Compares every sample, or its error."""
        try:
            dataset = ShardDataset(self._folder, VIEW)
        except FastdataError as error:
            _check_names(error, path.stem)
            return "refused"
        errors = 0
        for index, (encoded, sample) in enumerate(zip(self._encoded, self._samples, strict=True)):
            assert (dataset.key(index), dataset.read_target(index)) == sample
            try:
                assert dataset.read_encoded(index) == encoded, f"sample {index}"
            except ShardError as error:
                _check_names(error, path.name)
                errors += 1
        for pixels, expected in zip(_pixels(dataset), self._pixels, strict=True):
            if isinstance(pixels, FastdataError):
                assert path.name in str(pixels), pixels
                errors -= 1
            else:
                assert torch.equal(pixels, expected)
        assert errors == 0, "bytes and pixels are not refused alike"
        assert path.suffix == ".tar" or errors == 0
        return "right"

    def forge(self, rng: Random) -> str:
        """Reads what it can with an index or a manifest that has been changed and has the right checksum."""
        path = rng.choice([path for path in self._files if path.suffix in (".idx", ".json", ".jpegindex")])
        forged = _FORGERS[path.suffix](path.read_bytes(), rng)
        if forged is None:
            return "json, not JSON"
        manifest = self._folder / MANIFEST_NAME
        content = json.loads(manifest.read_bytes())
        for shard in content["shards"]:
            if path.suffix == ".idx" and shard["name"] == f"{path.stem}.tar":
                shard["index_crc32c"] = google_crc32c.value(forged)
        with _changed(manifest, _with_checksum(content)), _changed(path, forged):
            try:
                list(verify_folder(self._folder))
                dataset = ShardDataset(self._folder, VIEW)
                list(dataset.keys())
                list(dataset.source_paths())
            except FastdataError:
                return f"{path.suffix[1:]}, refused"
            for index in range(len(dataset)):
                try:
                    dataset.read_encoded(index)
                    dataset.location(index)
                except FastdataError:
                    pass
            list(_pixels(dataset))
        return f"{path.suffix[1:]}, read"

    def change_headers(self, rng: Random) -> str:
        """Lists a tar file whose headers are changed; by its index, all images are still right, or refused."""
        path = rng.choice(sorted(self._refs))
        data = bytearray(path.read_bytes())
        heads = [at for at in range(0, len(data), TAR_BLOCK) if data[at + 257 : at + 262] == b"ustar"]
        for at in rng.sample(heads, rng.choice((1, 1, 2))):
            _change_header(data, at, rng)
        if rng.random() < 0.3:
            data = bytearray(mutated(bytes(data), rng))
        with _changed(path, bytes(data)):
            self._read(path)
            try:
                refs = list_tar(str(path))
            except FastdataError as error:
                _check_names(error, path.name)
                return "refused"
        return "listed as before" if refs == self._refs[path] else "listed otherwise"


def _change_header(data: bytearray, at: int, rng: Random) -> None:
    """Puts something else in one or two fields of a tar header, mostly with a checksum that is right."""
    for field in rng.sample(TAR_FIELDS, rng.choice((1, 2))):
        values = (
            b"%011o" % rng.choice((0, 1, 511, 4 << 30, 8**11 - 1)),
            b"\x80" + bytes(3) + struct.pack(">Q", rng.choice((1 << 32, 1 << 63, (1 << 64) - 1))),
            b"\xff" * 12,
            rng.randbytes(rng.randrange(1, 13)),
        )
        value = rng.choice(b"01234567xgLKSVDN\0").to_bytes() if field == TAR_TYPE else rng.choice(values)
        data[at + field : at + field + len(value)] = value
    if rng.random() < 0.9:
        head = data[at : at + 148] + b" " * 8 + data[at + 156 : at + TAR_BLOCK]
        data[at + 148 : at + 156] = b"%06o\0 " % sum(head)


def _forged_index(data: bytes, rng: Random) -> bytes:
    """An index of a shard, as `ShardIndex` reads it, with other contents."""
    changed = bytearray(damaged(data, rng)).ljust(INDEX_HEAD, b"\0")
    changed[:16] = data[:16]
    if rng.random() < 0.9:
        text_bytes = len(changed) - INDEX_HEAD - 40 * struct.unpack_from("<Q", changed, 16)[0]
        struct.pack_into("<Q", changed, 32, max(0, text_bytes))
    struct.pack_into("<I", changed, 44, google_crc32c.value(bytes(changed[INDEX_HEAD:])))
    struct.pack_into("<I", changed, 60, google_crc32c.value(bytes(changed[:60])))
    return bytes(changed)


def _forged_manifest(data: bytes, rng: Random) -> bytes | None:
    """A manifest with other contents; None where it is no JSON."""
    try:
        content = json.loads(data if rng.random() < 0.7 else damaged(data, rng))
    except ValueError:
        return None
    content = with_other_value(content, rng)
    return _with_checksum(content) if isinstance(content, dict) else json.dumps(content).encode()


def _with_checksum(content: dict[str, Any]) -> bytes:
    content = {name: value for name, value in content.items() if name != "checksum"}
    crc = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return json.dumps({**content, "checksum": f"{crc:08x}"}).encode()


def _forged_jpeg_index(data: bytes, rng: Random) -> bytes:
    """A file of indexes of JPEGs, as `IndexFile` reads it, with another head or table."""
    changed = bytearray(damaged(data, rng)).ljust(JPEG_HEAD, b"\0")
    changed[:12] = data[:12]
    begin = struct.unpack_from("<Q", data, 24)[0]
    checksum = google_crc32c.value(bytes(changed[: JPEG_HEAD - 8] + changed[begin:]))
    struct.pack_into("<Q", changed, JPEG_HEAD - 8, checksum)
    return bytes(changed)


_FORGERS: dict[str, Callable[[bytes, Random], bytes | None]] = {
    ".idx": _forged_index,
    ".json": _forged_manifest,
    ".jpegindex": _forged_jpeg_index,
}


# ---- others


class _JpegIndex:
    """The index of an image folder."""

    def __init__(self, folder: Path) -> None:
        self._dataset = ImageFolder(folder, VIEW)
        self._pixels = list(_pixels(self._dataset))
        self._path = make_index(folder, images_below(folder)).path

    def damage(self, rng: Random) -> str:
        """All pixels are right; if it is forged, there are some."""
        forged = rng.random() < 0.3
        with _changed(self._path, (_forged_jpeg_index if forged else damaged)(self._path.read_bytes(), rng)):
            found = list(_pixels(self._dataset))
        assert forged or all(map(torch.equal, found, self._pixels))
        return "forged" if forged else "right"


class _Counts(IterableDataset[int]):
    """Numbers, with a state."""

    def __init__(self) -> None:
        self._next = 0

    def __iter__(self) -> Iterator[int]:
        while self._next < 12:
            self._next += 1
            yield self._next
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("next") not in range(13):
            raise Foreign
        self._next = state["next"]


class Foreign(Exception):
    """The dataset's own, which refuses its own state."""


class _States:
    """States of several loaders in the middle of an epoch, as JSON."""

    def __init__(self, folder: Path) -> None:
        numbers = TensorDataset(torch.arange(24))
        pictures = ImageFolder(folder, VIEW)
        self._makers: list[Callable[[], DataLoader]] = [
            lambda: DataLoader(pictures, 2, shuffle=True, num_workers=0, seed=3),
            lambda: DataLoader(pictures, 2, sampler=EpochSampler(pictures, seed=1), num_workers=0),
            lambda: DataLoader(numbers, 4, shuffle=True, num_workers=0),
            lambda: DataLoader(numbers, 4, shuffle=True, num_workers=0, generator=torch.Generator()),
            lambda: DataLoader(_Counts(), 3, num_workers=0),
        ]
        self._texts = []
        for make, batches in itertools.product(self._makers, (0, 1, 2, 99)):
            loader = make()
            for _ in itertools.islice(loader, batches):
                pass
            size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 12
            self._texts.append((make, size, json.dumps(saved(loader)).encode()))

    def damage(self, rng: Random) -> str:
        """Loads a damaged state, and reads what is left of the epoch and a whole one."""
        make, size, text = rng.choice(self._texts)
        if rng.random() < 0.7:
            state = with_other_value(json.loads(text), rng)
        else:
            try:
                state = json.loads(damaged(text, rng))
            except ValueError:
                return "not JSON"
        loader = make()
        try:
            loader.load_state_dict(state)
        except (FastdataError, Foreign):
            return "refused"
        try:
            assert sum(1 for _ in itertools.islice(loader, 100)) < 100
        except (FastdataError, Foreign):
            return "refused when it is used"
        assert sum(_size(batch) for batch in loader) == size
        return "accepted"


def _size(batch: Any) -> int:
    return len(batch[0] if isinstance(batch, list | tuple) else batch)


class _Checkpoint:
    """A checkpoint of a training."""

    def __init__(self, path: Path) -> None:
        self._path = path
        model = torch.nn.Linear(3, 2)
        save_checkpoint(path, {"version": 3, "training": {"model": model.state_dict(), "steps": 7}})
        self._whole = path.read_bytes()

    def damage(self, rng: Random) -> str:
        """Every change is refused, by name."""
        self._path.write_bytes((damaged if rng.random() < 0.7 else _other)(self._whole, rng))
        try:
            load_checkpoint(self._path)
        except TrainError as error:
            _check_names(error, self._path.name)
            return "refused"
        raise AssertionError("a damaged checkpoint was loaded")


def _other(data: bytes, rng: Random) -> bytes:
    changed = mutated(data, rng)
    return changed if changed != data else data[:-1]
