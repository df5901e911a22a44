"""`fastdata index`: the same batches for less work, and nothing else where an index is missing, old or damaged."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import images
import pytest
import torch
import torch.utils.data
from folders import flip
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import fastdata
from fastdata import DataLoader, ShardDataset
from fastdata.cli import main
from fastdata.dataloader.explain import index_of
from fastdata.jpeg_index import make as make_index_module
from fastdata.jpeg_index.find import open_indexes
from fastdata.jpeg_index.folder_index import index_in, is_writable
from fastdata.jpeg_index.index_file import IndexFile, index_beside
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.lazy import opening as opening_encoded
from fastdata.system import ordered_map

CROP = transforms.Compose(
    [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
)


class Own(torch.utils.data.Dataset[Any]):
    """What people write."""

    def __init__(self, folder: Path, *, by_file: bool = False) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))
        self.transform = CROP
        self.by_file = by_file

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        with path.open("rb") as file, Image.open(file if self.by_file else path) as image:
            return self.transform(image.convert("RGB")), index


def batches(dataset: Any, **options: Any) -> list[torch.Tensor]:
    return [images for images, _ in DataLoader(dataset, 7, seed=5, **{"backend": "native", **options})]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def used() -> int:
    return open_indexes().uses.used


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder that a test may change, and for which there is no index."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@contextmanager
def without_index(folder: Path) -> Iterator[None]:
    index = index_in(folder)
    index.rename(folder / "hidden")
    try:
        yield
    finally:
        (folder / "hidden").rename(index)


SOURCES: dict[str, Any] = {
    "folder": lambda folder: ImageFolder(str(folder), CROP),
    "our folder": lambda folder: fastdata.ImageFolder(folder, CROP),
    "subset": lambda folder: Subset(ImageFolder(str(folder), CROP), range(3, 20)),
    "concatenation": lambda folder: ConcatDataset([fastdata.ImageFolder(folder, CROP)] * 2),
    "a dataset of one's own": Own,
    "open files": lambda folder: Own(folder, by_file=True),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_by_an_index(copy: Path, name: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_encoded, "_CLOCKS_DIFFER_S", -60)  # files are not taken for temporary ones
    dataset = SOURCES[name](copy)
    expected = batches(dataset, num_workers=workers)
    assert used() == 0
    assert main(["index", str(copy)]) == 0
    assert same(batches(dataset, num_workers=workers), expected)
    assert used() == sum(map(len, expected))


def line(loader: DataLoader[Any]) -> str:
    """What `explain()` says of the index."""
    told = loader.explain().partition("\nindex: ")[2]
    return told.partition("\n")[0].strip()


def test_explain_says_so(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(ImageFolder(str(copy), CROP), 7, backend="native")
    list(loader)
    assert line(loader).startswith("none: `fastdata index FOLDER` makes one, by which random crops of JPEGs take ")
    main(["index", str(copy)])
    assert "39 JPEGs indexed, 0 unchanged, 0 without" in capsys.readouterr().out
    list(loader)
    assert line(loader).startswith("windows of JPEGs are decoded without what lies around them, by ")
    assert line(loader).endswith("; so far used for 39 images, 0 had changed")


# ---- shards


def without_indexes_of_jpegs(shards: Path) -> list[torch.Tensor]:
    """Batches of shards without the indexes that lie beside them, which are removed."""
    for path in shards.glob("*.jpegindex"):
        path.unlink()
    before = used()
    made = batches(ShardDataset(shards, transform=CROP))
    assert used() == before
    return made


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_have_the_indexes_of_their_jpegs_beside_them(own: Path, workers: int) -> None:
    before, dataset = used(), ShardDataset(own, transform=CROP)
    made = batches(dataset, num_workers=workers)
    assert used() - before == len(dataset) == 39
    shutil.move(own, own.with_name("elsewhere"))  # where files may have other times
    for path in own.with_name("elsewhere").iterdir():
        os.utime(path, (0, 0))
    assert same(batches(ShardDataset(own.with_name("elsewhere"), transform=CROP)), made)
    assert used() - before == 2 * 39
    assert same(without_indexes_of_jpegs(own.with_name("elsewhere")), made)


def test_shards_that_have_none_get_them(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = without_indexes_of_jpegs(own)
    assert main(["verify", str(own)]) == 1
    told = capsys.readouterr()
    assert "shard-000000.jpegindex is missing" in told.out
    assert f"the images are whole; make indexes again: fastdata index {own}" in told.err
    assert main(["index", str(own)]) == 0
    assert main(["verify", str(own)]) == 0
    before = used()
    assert same(batches(ShardDataset(own, transform=CROP)), expected)
    assert used() - before == 39
    assert main(["index", str(own), "--to", str(own.parent / "there")]) == 0
    assert same(batches(ShardDataset(own.parent / "there", transform=CROP)), expected)


@pytest.mark.parametrize("damage", ["cut", "one index", "of another shard"])
def test_damaged_indexes_beside_shards_are_not_used(own: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    beside = [Path(index_beside(str(path))) for path in sorted(own.glob("*.tar"))]
    first = beside[0].read_bytes()
    if damage == "one index":
        flip(beside[0], 60)
    else:
        beside[0].write_bytes(first[:-3] if damage == "cut" else beside[1].read_bytes())
    says = "holds no indexes of images" if damage == "cut" else "images have changed since they were indexed"
    with pytest.warns(UserWarning, match=says):
        found = batches(ShardDataset(own, transform=CROP))
    assert main(["verify", str(own)]) == 1
    assert f"{beside[0].name}: expected {len(first)} bytes, checksum" in capsys.readouterr().out
    assert same(without_indexes_of_jpegs(own), found)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_files_of_indexes_are_not_kept_open(own: Path) -> None:
    """A dataset may have thousands of shards."""
    loader, before = iter(DataLoader(ShardDataset(own, CROP), 7, backend="native")), used()
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in loader:
        assert len(os.listdir("/proc/self/fd")) <= open_before
    assert used() - before == 39


@pytest.mark.filterwarnings("ignore:not used")
@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_a_file_of_indexes_that_is_cut_short_in_use(copy: Path, own: Path, kind: str) -> None:
    made = [make_index(copy, images_below(copy)).path] if kind == "folder" else list(own.glob("*.jpegindex"))
    dataset: Any = ImageFolder(str(copy), CROP) if kind == "folder" else ShardDataset(own, CROP)
    expected = batches(dataset)
    found = []
    for number, (pixels, _) in enumerate(DataLoader(dataset, 7, seed=5, backend="native")):
        found.append(pixels)
        if number == 1:
            for path in made:
                os.truncate(path, 100)
    assert same(found, expected)


# ---- folders


def test_a_file_that_has_changed_is_decoded_as_before(copy: Path) -> None:
    main(["index", str(copy)])
    paths = sorted(copy.rglob("*.jpg"))
    paths[3].write_bytes(images.jpeg(150, 130, seed=77))
    paths[4].unlink()
    dataset = ImageFolder(str(copy), CROP)
    with without_index(copy):
        expected = batches(dataset)
    with pytest.warns(UserWarning, match="images have changed since they were indexed"):
        assert same(batches(dataset), expected)
    uses = open_indexes().uses
    assert (uses.used, uses.wrong) == (37, 1)


def test_a_later_run_keeps_what_has_not_changed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(copy)])
    paths = sorted(copy.rglob("*.jpg"))
    paths[3].write_bytes(images.jpeg(150, 130, seed=77))
    paths[5].write_bytes(images.saved(progressive=True))
    paths[6].unlink()
    capsys.readouterr()
    main(["index", str(copy), "--workers", "2"])
    assert "1 JPEG indexed, 36 unchanged, 1 without an index" in capsys.readouterr().out
    dataset = ImageFolder(str(copy), CROP)
    with without_index(copy):
        expected = batches(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(batches(dataset), expected)
    assert used() == 37


def test_links_to_folders(copy: Path, tmp_path: Path) -> None:
    (copy / "bear").rename(tmp_path / "elsewhere")
    (copy / "bear").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "link").symlink_to(copy, target_is_directory=True)
    main(["index", str(tmp_path / "link")])
    for root in (copy, tmp_path / "link"):
        dataset, before = ImageFolder(str(root), CROP), used()
        batches(dataset)
        assert used() - before >= 26  # a link in a linked folder is found by the name that was indexed
    batches(Own(copy))


@pytest.mark.parametrize("how", ["copy", "move", "link"])
def test_a_folder_that_is_copied_or_moved_takes_its_index_along(copy: Path, tmp_path: Path, how: str) -> None:
    assert main(["index", str(copy)]) == 0
    there = tmp_path / "there"
    if how == "copy":
        shutil.copytree(copy, there, copy_function=shutil.copyfile)  # the files have other times
    elif how == "move":
        shutil.move(copy, there)
    else:
        there.symlink_to(copy, target_is_directory=True)
    dataset = ImageFolder(str(there), CROP)
    assert dataset.classes == ["apple", "bear", "cup"]  # the index is none
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = batches(dataset)
    assert used() == 39
    with without_index(there):
        assert same(batches(dataset), made)


def test_the_command_names_the_file(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(copy)])
    assert f"{copy}/.fastdata.jpegindex: " in capsys.readouterr().out
    loader = DataLoader(ImageFolder(str(copy), CROP), 7, backend="native")
    assert loader._findings.choice is not None
    assert index_of(loader._route(), loader._findings.choice) == copy / ".fastdata.jpegindex"
    before = IndexFile(index_in(copy))
    assert before.root == ""
    assert str(copy).encode() not in index_in(copy).read_bytes()


def test_a_read_only_folder_has_its_index_in_the_cache(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(make_index_module, "is_writable", lambda folder: False)  # root may write everywhere
        main(["index", str(copy)])
    assert os.environ["XDG_CACHE_HOME"] in capsys.readouterr().out
    assert not index_in(copy).exists()
    batches(ImageFolder(str(copy), CROP))
    assert used() == 39
    main(["index", str(copy)])  # which takes over what was there
    assert "0 JPEGs indexed, 39 unchanged" in capsys.readouterr().out
    assert index_in(copy).exists()


def test_what_can_be_written_is_found_out_by_writing(tmp_path: Path) -> None:
    assert is_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not is_writable(tmp_path / "missing")
    assert not is_writable("/proc")


def test_another_place(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["index", str(copy), "--to", str(tmp_path / "here")]) == 0
    assert open_indexes().file_of(next(images_below(copy))) is None
    monkeypatch.setenv("FASTDATA_INDEX_DIR", str(tmp_path / "here"))
    batches(ImageFolder(str(copy), CROP))
    assert used() == 39


@pytest.mark.parametrize("damage", ["cut", "head", "table", "empty", "grown", "another file"])
def test_a_damaged_file_of_indexes_is_not_used(copy: Path, tmp_path: Path, damage: str) -> None:
    dataset = ImageFolder(str(copy), CROP)
    expected = batches(dataset)
    path = make_index(copy, images_below(copy)).path
    data = path.read_bytes()
    begin = int.from_bytes(data[24:32], "little")
    changed = {
        "cut": data[:-5],
        "empty": b"",
        "grown": data + bytes(8),
        "another file": b"hello" * 30,
        "head": data,
        "table": data,
    }[damage]
    path.write_bytes(changed)
    if damage in ("head", "table"):
        flip(path, {"head": 17, "table": begin + 60}[damage])
    with pytest.warns(UserWarning, match="holds no indexes of images"):
        assert same(batches(dataset), expected)
    assert main(["index", str(copy)]) == 0
    assert same(batches(dataset), expected)
    assert used() == 39


def test_every_flipped_bit_of_the_head_and_the_tables_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(images.jpeg(20, 20))
    path = make_index(tmp_path, images_below(tmp_path), to=tmp_path / "to").path
    data = path.read_bytes()
    begin = int.from_bytes(data[24:32], "little")
    for at in (*range(40), *range(begin, len(data))):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            (tmp_path / "damaged").write_bytes(damaged)
            with pytest.raises(fastdata.DatasetError, match="holds no indexes"):
                IndexFile(tmp_path / "damaged")


def test_an_interrupted_run_leaves_the_earlier_index(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["index", str(copy)])
    path = index_in(copy)
    before, files = path.read_bytes(), sorted(copy.iterdir())

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_index(copy, images_below(copy), on_image=stop)
    assert sorted(copy.iterdir()) == files
    assert path.read_bytes() == before


def test_two_runs_at_once_are_refused(copy: Path) -> None:
    def another_run() -> None:
        with pytest.raises(fastdata.DatasetError, match="another process is indexing"):
            make_index(copy, images_below(copy))

    assert make_index(copy, images_below(copy), on_image=another_run).indexed == 39
    assert make_index(copy, images_below(copy)).kept == 39


def test_files_that_cannot_be_read_are_counted(copy: Path) -> None:
    (copy / "apple" / "broken.jpg").symlink_to("nowhere.jpg")
    done = make_index(copy, images_below(copy))
    assert (done.indexed, done.unreadable) == (39, 1)


def test_mistakes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for place, why in ((tmp_path / "nothing", "no such folder"), (tmp_path / "empty", "no JPEGs below")):
        assert main(["index", str(place)]) == 1
        assert why in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["index", str(folder), "--to", str(tmp_path / "file")]) == 1
    assert "file" in capsys.readouterr().err


def test_a_damaged_index_of_one_image_is_made_again(copy: Path) -> None:
    done = make_index(copy, images_below(copy))
    flip(done.path, 60)  # in the first image's
    again = make_index(copy, images_below(copy))
    assert (again.indexed, again.kept) == (1, 38)


def test_other_bytes_of_the_same_size_and_time_are_noticed(copy: Path) -> None:
    """Files that were unpacked from archives often have one time."""
    paths = sorted(copy.rglob("*.jpg"))
    one, other = (images.jpeg(150, 130, seed=seed) for seed in (1, 2))
    size = max(len(one), len(other))
    paths[0].write_bytes(one + bytes(size - len(one)))
    os.utime(paths[0], ns=(10**18, 10**18))
    make_index(copy, images_below(copy))
    paths[0].write_bytes(other + bytes(size - len(other)))
    os.utime(paths[0], ns=(10**18, 10**18))
    middle = transforms.Compose([transforms.CenterCrop(40), transforms.PILToTensor()])
    dataset = ImageFolder(str(copy), middle)
    with without_index(copy):
        expected = batches(dataset)
    with pytest.warns(UserWarning, match="images have changed"):
        assert same(batches(dataset), expected)


def test_the_newest_index_of_an_image_counts(copy: Path) -> None:
    """Whether it is of the folder or of one around it; and the other, where that does not know the image."""
    make_index(copy / "bear", images_below(copy / "bear"))
    paths = sorted((copy / "bear").rglob("*.jpg"))
    paths[2].write_bytes(images.jpeg(150, 130, seed=77))
    make_index(copy, images_below(copy))
    (copy / "bear" / "new.jpg").write_bytes(images.jpeg(150, 130, seed=78))
    make_index(copy / "bear", images_below(copy / "bear"))
    (copy / "cup" / "unknown.jpg").write_bytes(images.jpeg(150, 130, seed=79))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches(ImageFolder(str(copy), CROP))
    assert used() == 40


def test_a_missing_file_is_no_changed_one(copy: Path) -> None:
    make_index(copy, images_below(copy))
    dataset = ImageFolder(str(copy), CROP)
    sorted(copy.rglob("*.jpg"))[3].unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", fastdata.SamplesSkipped)
        list(DataLoader(dataset, 7, backend="native", on_error="skip"))
    assert used() == 38


def test_long_names_and_links_that_lead_back(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 240)
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.jpg").write_bytes(images.jpeg(40, 30))
    (folder / "a" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "again").symlink_to(folder, target_is_directory=True)
    assert make_index(folder, images_below(folder)).indexed == 1


def test_images_are_made_in_order_and_not_far_ahead(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_map, "_AHEAD", 1)
    done = make_index(copy, images_below(copy), threads=3)
    assert done.indexed == 39
