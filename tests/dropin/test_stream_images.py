"""Images of iterable datasets stay encoded until their tensors are made: batches equal torch's."""

from __future__ import annotations

import gc
import io
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import images
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image
from taken_over import decodes_natively
from torch.utils.data import IterableDataset
from torchvision.transforms import v2

from fastdata import DataLoader

TRAIN = v1.Compose(
    [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
)
BYTES_FIRST = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomResizedCrop(32, antialias=True),
        v2.ColorJitter(0.3),
        v2.ToDtype(torch.float32, scale=True),
        v2.ToPureTensor(),
    ]
)
COUNT = 26


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("streamed")
    paths = [folder / f"{number:02d}.jpg" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(images.jpeg(60 + number, 50, seed=number))
    return paths


class Files(IterableDataset[Any]):
    """A generator of one's own, with a buffer that shuffles images, and which says what it has met."""

    def __init__(self, paths: list[Path], transform: Callable[[Any], Any]) -> None:
        self.paths, self.transform = paths, transform

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        buffer: list[Any] = []
        for number, path in list(enumerate(self.paths))[first::step]:
            with Image.open(path) as image:
                buffer.append((image.convert("RGB"), number))
            if len(buffer) > 4:
                yield self.made(*buffer.pop(random.randrange(len(buffer))))
        yield from (self.made(*each) for each in buffer)

    def made(self, image: Any, number: int) -> Any:
        try:
            return self.transform(image), number
        except OSError as error:
            return torch.full((3, 32, 32), float(len(str(error)) > 0)), -number


def epoch(cls: Any, dataset: Any, **more: Any) -> list[Any]:
    torch.manual_seed(5)
    random.seed(5)
    return [*cls(dataset, **more), torch.rand(2).tolist()]  # what the program draws afterwards is the same, too


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        assert_same(list(ours.values()), list(theirs.values()))
    else:
        assert ours == theirs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [TRAIN, BYTES_FIRST, v1.Compose([v1.CenterCrop(40), v1.PILToTensor()])])
@pytest.mark.parametrize("more", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}])
def test_batches_are_torchs(files: list[Path], transform: Any, workers: int, more: dict[str, Any]) -> None:
    dataset = Files(files, transform)
    ours = epoch(DataLoader, dataset, num_workers=workers, **more)
    assert_same(ours, epoch(torch.utils.data.DataLoader, dataset, num_workers=workers, **more))


@pytest.mark.parametrize("workers", [0, 2])
def test_it_says_what_it_does(files: list[Path], workers: int) -> None:
    loader = DataLoader(Files(files, TRAIN), 4, num_workers=workers)
    assert loader.verdict().kind == "not known before the first batches"
    list(loader)
    assert loader.verdict().kind == "accelerated"
    assert decodes_natively(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_damage_is_met_by_the_streams_own_code(files: list[Path], tmp_path: Path, workers: int) -> None:
    """Its Huffman table is nonsense, which only the decoder notices, while the transform makes a tensor."""
    data, damaged = files[7].read_bytes(), tmp_path / "damaged.jpg"
    at = data.index(b"\xff\xc4") + 5
    damaged.write_bytes(data[:at] + bytes([255]) * 16 + data[at + 16 :])
    with Image.open(damaged) as image, pytest.raises(OSError, match="broken data stream"):
        image.convert("RGB")
    small = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
    dataset = Files([*files[:7], damaged, *files[8:]], small)
    batches = epoch(DataLoader, dataset, batch_size=4, num_workers=workers)[:-1]
    assert sorted(int(number) for _, some in batches for number in some) == [-7, *range(7), *range(8, COUNT)]


class Raising(Files):
    def made(self, image: Any, number: int) -> Any:
        if number == 9:
            raise ValueError("sample 9 is not wanted")
        return super().made(image, number)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_raises_ends_as_torchs(files: list[Path], workers: int) -> None:
    def until_it_raises(cls: Any) -> tuple[list[Any], bool]:
        torch.manual_seed(1)
        random.seed(1)
        batches, seen = iter(cls(Raising(files, TRAIN), 2, num_workers=workers)), list[Any]()
        try:
            seen += [*batches]
        except ValueError as error:
            seen.append(str(error).splitlines()[-1])
        return [*seen, *batches], "sample 9 is not wanted" in seen[-1]

    assert_same(until_it_raises(DataLoader), until_it_raises(torch.utils.data.DataLoader))


class Pictures(Files):
    def made(self, image: Any, number: int) -> Any:
        return image.crop((3, 4, 30, 40)), number


def as_it_is(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("workers", [0, 2])
def test_images_may_leave_the_stream(files: list[Path], workers: int) -> None:
    more = {"batch_size": 4, "num_workers": workers, "collate_fn": as_it_is}
    ours, theirs = (epoch(cls, Pictures(files, TRAIN), **more) for cls in (DataLoader, torch.utils.data.DataLoader))
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert [number for _, number in one] == [number for _, number in other]
        assert [image.tobytes() for image, _ in one] == [image.tobytes() for image, _ in other]


class Counting(Files):
    """Says with each image how many the process holds."""

    def made(self, image: Any, number: int) -> Any:
        everything = gc.get_objects() if number % 13 == 12 else ()  # which takes long
        return self.transform(image), sum(type(each).__name__ == "EncodedSource" for each in everything)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_that_are_gone_leave_nothing(files: list[Path], workers: int) -> None:
    held = [held for _, held in DataLoader(Counting(files * 6, TRAIN), None, num_workers=workers)]
    assert len(held) == 6 * COUNT
    counted = [number for number in held if number]  # with those that earlier tests have left
    assert len(counted) == 12
    assert max(counted) - min(counted) < 12


def test_files_that_are_deleted_at_once(files: list[Path], tmp_path: Path) -> None:
    class Temporary(Files):
        def __iter__(self) -> Iterator[Any]:
            for number, path in enumerate(self.paths):
                copy = tmp_path / path.name
                copy.write_bytes(path.read_bytes())
                image = Image.open(copy)
                copy.unlink()
                yield self.transform(image.convert("RGB")), number

    for workers in (0, 1):
        ours, theirs = (
            epoch(cls, Temporary(files, TRAIN), batch_size=4, num_workers=workers)
            for cls in (DataLoader, torch.utils.data.DataLoader)
        )
        assert_same(ours, theirs)


@pytest.fixture(scope="module")
def tars(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(2):
        with tarfile.open(folder / f"{shard:06d}.tar", "w") as tar:
            for number, path in list(enumerate(files))[shard::2]:
                for ending, data in (("jpg", path.read_bytes()), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{number:04d}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its tar files open
@pytest.mark.parametrize("workers", [0, 2])
def test_webdatasets_pipelines(tars: Path, workers: int) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed: pip install webdataset")
    shards = [str(path) for path in sorted(tars.iterdir())]
    dataset = (
        wds.WebDataset(shards, shardshuffle=False, empty_check=False)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(TRAIN, as_it_is)
        .batched(4)
    )
    ours = epoch(DataLoader, dataset, batch_size=None, num_workers=workers)
    assert_same(ours, epoch(torch.utils.data.DataLoader, dataset, batch_size=None, num_workers=workers))
    assert sum(len(numbers) for _, numbers in ours[:-1]) == COUNT


def brighter(image: Any) -> Any:
    return image.point(lambda level: min(255, level + 9))


CHAINS: dict[str, Any] = {
    "colour": v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor()]),
    "grey now and then": v1.Compose([v1.RandomCrop(40, padding=4), v1.RandomGrayscale(0.5), v1.ToTensor()]),
    "RandAugment": v2.Compose([v2.RandomResizedCrop(32), v2.RandAugment(), v2.ToImage(), v2.ToDtype(torch.float32)]),
    "an own step": v1.Compose([v1.RandomResizedCrop(32), brighter, v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "two crops": v1.Compose([v1.CenterCrop(40), v1.Resize((24, 20)), v1.RandomRotation(20), v1.ToTensor()]),
    "erasing": v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), v1.RandomErasing(0.7)]),
    "pixels": v1.Compose([v1.RandomResizedCrop(32), v1.RandomSolarize(100, 0.5), v1.PILToTensor()]),
}


class KeptInAVariable(Files):
    """The transform is looked up once, when the stream begins."""

    def __iter__(self) -> Iterator[Any]:
        transform, paths = self.transform, self.paths[(torch.utils.data.get_worker_info() or Alone).id :: 2]

        def made() -> Iterator[Any]:
            for path in paths:
                yield transform(Image.open(path).convert("RGB")), path.name

        return made()


class Alone:
    id = 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Files, KeptInAVariable])
@pytest.mark.parametrize("chain", CHAINS)
def test_fused_transforms_of_streams_draw_torchs_numbers(
    files: list[Path], chain: str, kind: type[Files], workers: int
) -> None:
    dataset = kind(files, CHAINS[chain])
    ours = epoch(DataLoader, dataset, batch_size=4, num_workers=workers)
    assert_same(ours, epoch(torch.utils.data.DataLoader, dataset, batch_size=4, num_workers=workers))


@pytest.mark.parametrize("kind", [Files, KeptInAVariable])
def test_what_is_fused_in_a_stream_is_not_done_by_torchvision(files: list[Path], kind: type[Files]) -> None:
    dataset = kind(files, v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.4), v1.ToTensor()]))
    assert _asked_for_brightness(lambda: list(torch.utils.data.DataLoader(dataset, 4))) >= COUNT // 2
    list(DataLoader(dataset, 4))  # a plan is compared with the library's code when it is made first
    assert _asked_for_brightness(lambda: list(DataLoader(dataset, 4))) == 0
    assert type(dataset.transform) is v1.Compose


def _asked_for_brightness(run: Callable[[], object]) -> int:
    """Calls of torchvision's function, which is followed and not replaced: then all would be left to torch."""
    code, calls = v1.functional.adjust_brightness.__code__, 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is code

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def prepared(row: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": TRAIN(row["image"].convert("RGB")), "number": row["number"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_faces_streams(files: list[Path], workers: int) -> None:
    hugging_face = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    columns = {"image": [str(path) for path in files], "number": list(range(COUNT))}
    rows = hugging_face.Dataset.from_dict(columns).cast_column("image", hugging_face.Image())
    dataset = rows.to_iterable_dataset(num_shards=2).map(prepared, remove_columns=["image"])
    loader = DataLoader(dataset, 4, num_workers=workers)
    ours = epoch(lambda *_, **__: loader, dataset)
    assert_same(ours, epoch(torch.utils.data.DataLoader, dataset, batch_size=4, num_workers=workers))
    assert loader.verdict().kind == "accelerated"
    assert decodes_natively(loader)
