"""ShardDataset: the same samples as the folder it was made from, in every loader; damage is named."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from folders import flip
from torch.utils.data import ConcatDataset, Subset

from fastdata import DataLoader, DatasetError, DecodeError, ImageFolder, ShardDataset, ShardError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.format import ShardIndex, index_name
from fastdata.sources.recognise import has_file_ranges

CROP = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])
SMALL = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])
BACKENDS = ["pil", "native", "turbojpeg", "opencv"]


def batches(loader: Any) -> list[tuple[torch.Tensor, list[int]]]:
    return [(images, labels.tolist()) for images, labels in loader]


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(torch.equal(x[0], y[0]) and x[1] == y[1] for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_equal_those_of_the_folder(folder: Path, converted: Path, backend: str, workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "backend": backend, "num_workers": workers}
    ours = batches(DataLoader(ShardDataset(converted, CROP), 7, **options))
    assert equal(ours, batches(DataLoader(ImageFolder(folder, CROP), 7, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_torchs_own_loader_reads_it(folder: Path, converted: Path, context: str) -> None:
    options: dict[str, Any] = {"batch_size": 7, "num_workers": 2, "multiprocessing_context": context}
    ours = batches(torch.utils.data.DataLoader(ShardDataset(converted, SMALL), **options))
    assert equal(ours, batches(torch.utils.data.DataLoader(ImageFolder(folder, SMALL), batch_size=7)))


def test_it_has_what_torchvisions_folder_has(folder: Path, converted: Path) -> None:
    ours, theirs = ShardDataset(converted), ImageFolder(folder)
    assert (ours.classes, ours.class_to_idx, ours.targets) == (theirs.classes, theirs.class_to_idx, theirs.targets)
    assert len(ours) == len(theirs)
    assert ours[-1][0].tobytes() == theirs[len(theirs) - 1][0].tobytes()
    assert [ours.key(index) for index in (0, 38)] == ["apple/00", "cup/12"]
    assert ours.sizes_px[5].tolist() == list(theirs[5][0].size)
    assert len(ours.shard_ends) > 3
    assert has_file_ranges(ours)
    with pytest.raises(IndexError):
        ours[len(ours)]


def test_patterns_and_lists_name_shards(converted: Path) -> None:
    names = sorted(str(path) for path in converted.glob("*.tar"))
    last = len(names) - 1
    whole = ShardDataset(converted)
    for path in (names, f"{converted}/shard-{{000000..{last:06}}}.tar", f"{converted}/*.tar", [converted]):
        assert ShardDataset(path).targets == whole.targets
        assert ShardDataset(path).classes == whole.classes
    assert len(ShardDataset(names[1])) < len(whole)


def test_a_copy_in_another_process_is_small_and_whole(converted: Path) -> None:
    dataset = ShardDataset(converted, SMALL)
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[4][0], dataset[4][0])


def test_no_descriptor_stays_open(converted: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    dataset = ShardDataset(converted, SMALL)
    for _ in DataLoader(dataset, 5, num_workers=2):
        pass
    [dataset.read_encoded(index) for index in range(len(dataset))]
    assert not before or len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("backend", BACKENDS)
def test_raw_pixels_are_an_image_like_any_other(folder: Path, tmp_path: Path, backend: str) -> None:
    convert(str(folder), tmp_path / "raw", ConvertOptions(recoding=Recoding(raw=4000)))
    options: dict[str, Any] = {"seed": 3, "backend": backend, "num_workers": 2}
    ours = batches(DataLoader(ShardDataset(tmp_path / "raw", CROP), 7, **options))
    assert equal(ours, batches(DataLoader(ImageFolder(folder, CROP), 7, **options)))


def test_unlabelled_samples_have_no_target(tmp_path: Path, own: Path) -> None:
    dataset = ShardDataset(own)
    dataset.labels[:] = -1
    assert dataset.read_targets([0, 1]) == [None, None]


# ---- damage


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_flipped_bit_in_an_image_is_found(own: Path, backend: str) -> None:
    flip(own / "shard-000001.tar", 2000)
    dataset = ShardDataset(own, SMALL)
    bad = int(dataset.shard_ends[0])
    match = (
        rf"sample {bad} .*shard-000001\.tar at byte 512.*damaged image.*expected checksum [0-9a-f]+, found [0-9a-f]+"
    )
    with pytest.raises(DecodeError, match=match):
        list(DataLoader(dataset, 4, num_workers=2, backend=backend))
    loader = DataLoader(dataset, 4, backend=backend, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == len(dataset) - 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_flipped_bit_is_found_through_concatenations_and_subsets(folder: Path, own: Path, backend: str) -> None:
    flip(own / "shard-000000.tar", 3000)
    for dataset in (Subset(ShardDataset(own, SMALL), range(4)), ConcatDataset([ShardDataset(own, SMALL)] * 2)):
        with pytest.raises(DecodeError, match="damaged image"):
            list(DataLoader(dataset, 4, backend=backend))
    mixed = ConcatDataset([ImageFolder(folder, SMALL), ShardDataset(own, SMALL)])
    loader = DataLoader(mixed, 4, backend=backend, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 2 * 39 - 1


def test_a_shard_cut_short_is_refused_when_opened(own: Path) -> None:
    path = own / "shard-000001.tar"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(ShardError, match=r"shard-000001\.tar: tar file has the wrong length: expected \d+"):
        ShardDataset(own)


def test_a_shard_cut_short_later_is_an_error_at_its_samples(own: Path) -> None:
    dataset = ShardDataset(own, SMALL)
    path = own / "shard-000001.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DecodeError, match=r"shard-000001\.tar"):
        list(DataLoader(dataset, 4))


def test_a_damaged_index_is_refused_when_opened(own: Path) -> None:
    flip(own / "shard-000002.idx", 100)
    with pytest.raises(ShardError, match=r"shard-000002\.idx: damaged index at byte 64"):
        ShardDataset(own)


@pytest.mark.parametrize("given", ["", "shard-*.tar"])
def test_an_index_of_another_shard_is_refused_when_opened(own: Path, given: str) -> None:
    """It is whole in itself, and its tar file has the right length; only the manifest knows better."""
    other = ShardIndex.from_bytes((own / "shard-000001.idx").read_bytes(), "")
    records = other.records.copy()
    records["label"] = 2
    path = own / "shard-000001.idx"
    path.write_bytes(ShardIndex(records, other.keys, other.tar_bytes, other.tar_crc32c).to_bytes())
    match = r"shard-000001\.idx: its checksum is not the one in manifest\.json .*: expected checksum \w{8}, found \w{8}"
    with pytest.raises(ShardError, match=match):
        ShardDataset(own / given)
    os.remove(own / "manifest.json")
    assert len(ShardDataset(own / "shard-000001.tar")) == len(records)


def test_missing_things_are_named_with_what_to_do(own: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no such folder or shard: .*nowhere"):
        ShardDataset(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"holds no shards.*fastdata convert"):
        ShardDataset(tmp_path / "empty")
    (own.parent / "splits").mkdir()
    own.rename(own.parent / "splits" / "train")
    own = own.parent / "splits" / "train"
    with pytest.raises(DatasetError, match=r"contains the splits train; name one of them: .*/splits/train"):
        ShardDataset(own.parent)
    os.remove(index_name(str(own / "shard-000000.tar")))
    with pytest.raises(DatasetError, match=r"shard-000000\.tar has no index file .*fastdata index"):
        ShardDataset(own)
    os.remove(own / "manifest.json")
    with pytest.raises(DatasetError, match=r"no manifest\.json.*fastdata index"):
        ShardDataset(own)
    with pytest.raises(DatasetError, match="an empty list of shards"):
        ShardDataset([])
