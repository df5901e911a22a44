"""Single samples, and where their images lie."""

from __future__ import annotations

from pathlib import Path

from torchvision import transforms

from fastdata import ImageFolder, ShardDataset
from fastdata.dataloader.loader import DataLoader
from fastdata.diagnosis.examine import examine_loader
from fastdata.diagnosis.samples import encoded_jpegs, measure_samples
from fastdata.native import available
from fastdata.transforms import RandomResizedCrop, ToTensor


def test_images_of_shards_are_found_where_they_lie(converted: Path, folder: Path) -> None:
    shards, files = ShardDataset(converted, RandomResizedCrop(32)), ImageFolder(folder, RandomResizedCrop(32))
    (of_shards, pieces), (of_files, whole) = (measure_samples(each, None, seconds=60) for each in (shards, files))
    assert sorted(piece.read() for piece in pieces) == sorted(shards.read_encoded(at) for at in range(len(shards)))
    assert [piece.read(2) for piece in pieces] == [b"\xff\xd8"] * len(shards)
    assert len(encoded_jpegs(whole)) == 24
    for found in (of_shards, of_files):
        assert found.samples == len(shards)
        assert found.progressive == 0
        assert found.file_bytes == sum(piece.size() for piece in whole) / len(whole)


def test_a_file_that_has_gone_is_left_out(folder: Path, tmp_path: Path) -> None:
    _, pieces = measure_samples(ImageFolder(folder, ToTensor()), None, seconds=60)
    gone = pieces[0]._replace(path=str(tmp_path / "gone.jpg"))
    assert encoded_jpegs([gone, *pieces[:3]]) == encoded_jpegs(pieces[:3])


def test_users_of_shards_are_told_what_unpacking_would_give(converted: Path) -> None:
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    loader = DataLoader(ShardDataset(converted, transform), 8, num_workers=1)
    seen = examine_loader(loader, seconds=1.0)
    assert seen.limitations == []
    if available() is None:
        return
    assert seen.has_index
    assert {"file", "unpacked"} <= seen.decode_ms.keys()
