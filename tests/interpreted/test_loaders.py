"""Loaders whose batches are decoded where they go, on a stand-in for a GPU whose kernels Triton interprets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import images
import pytest
import torch
from fake_cuda import FakeCuda
from packed import Packed, view_of, with_checksum
from PIL import Image
from torchvision.transforms import v2

from fastdata import DataLoader, ImageFolder, ShardDataset
from fastdata.device import packed_batch as module
from fastdata.errors import DamagedOnDevice, DecodeError
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.native import Status
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.make_index import index_folder

CROP = [v2.RandomResizedCrop(18, antialias=True), v2.RandomHorizontalFlip()]
FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]
TO_FLOATS, TO_LEVELS = v2.Compose([*CROP, *FLOATS]), v2.Compose([*CROP, v2.PILToTensor()])
AUGMENTED = v2.Compose([*CROP, v2.RandAugment(num_ops=1), *FLOATS])
ERASED = v2.Compose([*CROP, *FLOATS, v2.RandomErasing(p=0.5)])

Batches = list[Any]

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A device; notes of each batch how many images it has decoded, and how many there were."""
    FakeCuda(monkeypatch)
    for place in ("epoch_paths", "map_style"):
        monkeypatch.setattr(f"fastdata.dataloader.{place}.may_pin", lambda wanted: False)
    noted: list[tuple[int, int]] = []
    run = module.DecodedBatch.run

    def noting(decoded: module.DecodedBatch, arena: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noted.append((decoded.packed, decoded.images))
        return run(decoded, arena)

    monkeypatch.setattr(module.DecodedBatch, "run", noting)
    return noted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven JPEGs and a PNG, small, since an interpreter decodes them."""
    root = tmp_path_factory.mktemp("small")
    for label in ("ant", "bee"):
        (root / label).mkdir()
    for number in range(11):
        data = images.jpeg(30 + number, 44 - number, seed=number, sampling=("4:4:4", "4:2:0", "4:2:2")[number % 3])
        (root / ("ant", "bee")[number % 2] / f"{number:02}.jpg").write_bytes(data)
    (root / "bee" / "png.png").write_bytes(images.saved(31, 30, kind="PNG"))
    return root


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as unpacked records; the PNG stays one."""
    out = tmp_path_factory.mktemp("unpacked") / "shards"
    convert(str(folder), out, ConvertOptions(recoding=Recoding(unpacked=True)))
    return out


ON_GPU: dict[str, Any] = {"device": "cuda", "decode_device": "cuda"}


def few_of(folder: Path, place: Path) -> Path:
    """A folder with three of the JPEGs, and the PNG."""
    for path in (*sorted(folder.rglob("*.jpg"))[4:7], *folder.rglob("*.png")):
        (place / "few" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / "few" / path.parent.name)
    return place / "few"


def values_of(batch: Any) -> list[torch.Tensor]:
    return list(batch.values() if isinstance(batch, dict) else batch)


def assert_same(some: Batches, others: Batches) -> None:
    for one, other in zip(some, others, strict=True):
        for mine, theirs in zip(values_of(one), values_of(other), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("transform", "workers", "layout"),
    [
        (TO_FLOATS, 0, torch.channels_last),
        (TO_LEVELS, 2, torch.contiguous_format),
        (ERASED, 2, torch.contiguous_format),
    ],
)
def test_batches_are_those_of_the_host(
    shards: Path, on_gpu: list[tuple[int, int]], transform: Any, workers: int, layout: torch.memory_format
) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_workers": workers, "memory_format": layout}
    dataset = ShardDataset(shards, transform=transform)
    expected = list(DataLoader(dataset, 5, **options))
    found = list(DataLoader(dataset, 5, **options, **ON_GPU))
    assert_same(expected, found)
    assert all(batch[0].is_contiguous(memory_format=layout) for batch in found)
    assert sum(packed for packed, _ in on_gpu) == 11
    assert sum(count for _, count in on_gpu) == 12


def test_augmentations_of_whole_batches_follow(shards: Path, on_gpu: list[tuple[int, int]]) -> None:
    options: dict[str, Any] = {"seed": 3, "num_workers": 2, "augment_on": "device", "device": "cuda"}
    dataset = ShardDataset(shards, transform=AUGMENTED)
    assert_same(list(DataLoader(dataset, 6, **options)), list(DataLoader(dataset, 6, **options, decode_device="cuda")))
    assert sum(packed for packed, _ in on_gpu) == 11


def test_augmentations_of_each_image_are_done_there_with_the_hosts_bits(
    shards: Path, on_gpu: list[tuple[int, int]]
) -> None:
    loader = DataLoader(ShardDataset(shards, transform=AUGMENTED), 6, seed=3, **ON_GPU)
    assert_same(list(DataLoader(loader.dataset, 6, seed=3)), list(loader))
    assert sum(packed for packed, _ in on_gpu) == 11
    greyed = v2.Compose([*CROP, v2.ToImage(), v2.RandomGrayscale(0.5), *FLOATS[1:]])  # half of them by the host
    loader = DataLoader(ShardDataset(shards, transform=greyed), 12, seed=3, **ON_GPU)
    assert_same(list(DataLoader(loader.dataset, 12, seed=3)), list(loader))
    assert 0 < on_gpu[-1][0] < 11


def test_a_plan_of_several_stages_is_the_cpus(shards: Path, on_gpu: list[tuple[int, int]]) -> None:
    staged = v2.Compose([v2.Resize((30, 30)), v2.ColorJitter(0.3), v2.RandomCrop(18), *FLOATS])
    loader = DataLoader(ShardDataset(shards, transform=staged), 6, seed=3, **ON_GPU)
    assert "the CPU, since augmentations change sizes, or are followed by crops" in loader.explain()
    assert_same(list(DataLoader(loader.dataset, 6, seed=3)), list(loader))
    assert not on_gpu


def test_plain_files_with_an_index(folder: Path, on_gpu: list[tuple[int, int]], tmp_path: Path) -> None:
    small = few_of(folder, tmp_path)
    make_index(small, images_below(small))
    dataset = ImageFolder(small, transform=TO_LEVELS)
    loader = DataLoader(dataset, 3, num_workers=2, seed=1, **ON_GPU)
    assert_same(list(DataLoader(dataset, 3, num_workers=2, seed=1)), list(loader))
    assert sum(packed for packed, _ in on_gpu) == 3
    assert "cuda: unpacked JPEGs" in loader.explain()


class OwnSamples(torch.utils.data.Dataset[dict[str, Any]]):
    """A dataset's own code, which opens files."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.files, self.transform = sorted(folder.rglob("*.*")), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.transform(Image.open(self.files[index]).convert("RGB")), "number": torch.tensor(index)}


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_a_datasets_own_code_opens(folder: Path, on_gpu: list[tuple[int, int]], workers: int) -> None:
    """Records come from the cache, a third of the images in each epoch."""
    jitter = v2.RandomApply([v2.ColorJitter(0.4), v2.GaussianBlur(3)], p=0.3)
    dataset = OwnSamples(folder, v2.Compose([*CROP, jitter, *FLOATS]))
    options: dict[str, Any] = {"num_workers": workers, "seed": 5, "cache": "ram"}
    ours, theirs = DataLoader(dataset, 6, **options, **ON_GPU), DataLoader(dataset, 6, **options)
    for _ in range(3):
        assert_same(list(theirs), list(ours))
    assert 3 < sum(packed for packed, _ in on_gpu) < 33
    assert "decode_device" not in ours.explain()


def test_a_damaged_image_raises_or_is_replaced_as_on_the_host(
    folder: Path, on_gpu: list[tuple[int, int]], tmp_path: Path
) -> None:
    small = few_of(folder, tmp_path)
    first, damaged, *_ = sorted(small.rglob("*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:300])
    make_index(small, [str(first)])
    dataset = ImageFolder(small, transform=TO_LEVELS)
    for policy in ("replace", "skip"):
        options: dict[str, Any] = {"seed": 1, "on_error": policy, "num_workers": 1}
        assert_same(list(DataLoader(dataset, 4, **options)), list(DataLoader(dataset, 4, **options, **ON_GPU)))
    with pytest.raises(DecodeError, match=damaged.name):
        list(DataLoader(dataset, 4, seed=1, **ON_GPU))


def without_some_values(record: bytes) -> bytes:
    """A record changed so that one of its tiles has fewer values than it says, which is seen when those are read."""
    view = view_of((30, 44), (0, 0, 30, 44), (18, 18))
    for at in range(len(record) - 17, len(record) // 2, -1):
        changed = with_checksum(bytearray(record[:at] + b"\xff" + record[at + 1 :]))
        batch = Packed([changed], [view])
        (_, packed), (_, decoded) = batch.fill(packed=True), batch.fill(packed=False)
        if packed.statuses[0] == Status.OK and decoded.statuses[0] == Status.CORRUPT:
            return changed
    raise AssertionError("no byte does that")


def test_what_the_device_finds_is_raised_once_it_is_known(
    shards: Path, on_gpu: list[tuple[int, int]], tmp_path: Path
) -> None:
    """A record with the right checksum and too few values: all batches come, then the error with the sample's place."""
    shutil.copytree(shards, tmp_path / "shards")
    tar = next((tmp_path / "shards").rglob("*.tar"))
    data = bytearray(tar.read_bytes())
    begin = data.index(b"FDCOEF01")
    size = int(data[begin - 512 + 124 : begin - 512 + 135], 8)  # in the member's header
    data[begin : begin + size] = without_some_values(bytes(data[begin : begin + size]))
    tar.write_bytes(bytes(data))
    index_folder(tmp_path / "shards", force=True)
    dataset = ShardDataset(tmp_path / "shards", transform=v2.Compose([v2.Resize((18, 18)), v2.PILToTensor()]))
    loader = DataLoader(dataset, 6, **ON_GPU)
    batches = iter(loader)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(DamagedOnDevice, match=r"sample 0 .*\.tar.*delivered already: .* or make its index, anew"):
        next(batches)
    assert next(batches, None) is None
    assert loader.stats()["failures"] == 1
