"""Images get back the paths that they had before the conversion, for every kind of source."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import images
import pytest

from fastdata import ShardDataset
from fastdata.cli import main
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.restore import restore_folder
from fastdata.shards.format import ShardIndex, index_name

NAMES = [
    "n01440764/a.JPEG",
    "n01440764/a.JPG",
    "n01440764/A.JPG",
    "n01440764/a.jpeg",
    "n01440764/a.jpg",
    "n01440764/.hidden.jpg",
    "n01440764/two.dots.jpg",
    "n01440764/deeper/b.JPEG",
    "n01443537/a.JPEG",
    "n01443537/is_a_jpeg.png",
    os.fsdecode(b"n01443537/caf\xe9.jpg"),
    "n01443537/caf\u00e9.jpg",
]


def write_names(root: Path) -> None:
    for number, name in enumerate(NAMES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(images.jpeg(40, 30, seed=number))


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_names(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize("options", [[], ["--unpacked"], ["--shuffle-seed", "3"], ["--shard-size", "6K"]])
def test_a_folder_comes_back_as_it_was(source: Path, tmp_path: Path, options: list[str]) -> None:
    made, again = str(tmp_path / "made"), tmp_path / "again"
    assert main(["convert", str(source), made, "--workers", "2", *options]) == 0
    assert main(["verify", made, "--decode"]) == 0
    assert main(["restore", made, str(again), "--workers", "2"]) == 0
    assert files_below(again) == files_below(source)
    assert sorted(ShardDataset(made).source_paths()) == sorted(NAMES)


def test_the_number_of_workers_changes_nothing(source: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        convert(str(source), tmp_path / str(workers), ConvertOptions(shard_bytes=6000), workers=workers)
    assert files_below(tmp_path / "1") == files_below(tmp_path / "3")


def test_an_index_that_is_made_again_keeps_the_paths(source: Path, tmp_path: Path) -> None:
    convert(str(source), tmp_path / "made", ConvertOptions())
    before = files_below(tmp_path / "made")
    assert main(["index", str(tmp_path / "made"), "--force"]) == 0
    assert files_below(tmp_path / "made") == before


def test_shards_that_are_converted_again_keep_the_paths(source: Path, tmp_path: Path) -> None:
    convert(str(source), tmp_path / "once", ConvertOptions(recoding=Recoding(unpacked=True)))
    convert(str(tmp_path / "once"), tmp_path / "twice", ConvertOptions(shard_bytes=6000))
    restore_folder(ShardDataset(tmp_path / "twice"), tmp_path / "again")
    assert files_below(tmp_path / "again") == files_below(source)


def test_shards_without_paths_are_restored_by_their_keys(source: Path, tmp_path: Path) -> None:
    """As earlier versions have made them."""
    made = tmp_path / "made"
    convert(str(source), made, ConvertOptions())
    (tar,) = map(str, made.glob("*.tar"))
    index = ShardIndex.from_bytes(Path(index_name(tar)).read_bytes(), tar)
    assert index.names
    Path(index_name(tar)).unlink()  # and the tar file alone does not say them
    assert main(["index", str(made)]) == 0
    dataset = ShardDataset(made)
    assert set(dataset.source_paths()) == {""}
    assert restore_folder(dataset, tmp_path / "again").files == len(NAMES)
    assert {"n01440764/a.jpg", "n01440764/a~2.jpg", "n01440764/_hidden.jpg"} <= set(files_below(tmp_path / "again"))


def test_images_of_another_format_are_called_by_their_keys(source: Path, tmp_path: Path) -> None:
    (source / "n01443537" / "picture.PNG").write_bytes(images.saved(80, 60, kind="PNG"))
    convert(str(source), tmp_path / "made", ConvertOptions(recoding=Recoding(quality=80)))
    restore_folder(ShardDataset(tmp_path / "made"), tmp_path / "again")
    found = set(files_below(tmp_path / "again"))
    assert "n01443537/picture.jpg" in found
    assert "n01440764/a.JPEG" in found


def write_tar(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(names):
            data = images.jpeg(40, 30, seed=number)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_names_in_tar_files(tmp_path: Path) -> None:
    """Where two would be one file, or lead out of the folder, the key remains."""
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "a.tar", ["./x/a.JPEG", "b.Jpg", "../out.jpg"])
    write_tar(tmp_path / "tars" / "b.tar", ["b.Jpg"])
    convert(str(tmp_path / "tars"), tmp_path / "made", ConvertOptions())
    assert list(ShardDataset(tmp_path / "made").source_paths()) == ["x/a.JPEG", "b.Jpg", "", ""]
    restore_folder(ShardDataset(tmp_path / "made"), tmp_path / "again")
    assert set(files_below(tmp_path / "again")) == {"x/a.JPEG", "b.Jpg", "out.jpg", "b~2.jpg"}


def test_names_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import images\ndef samples():\n    for key in ('x/a.JPEG', 'b'):\n        yield key, images.jpeg(40, 30), 0\n"
    )
    (tmp_path / "named_source.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "named_source", raising=False)
    convert("named_source:samples", tmp_path / "made", ConvertOptions())
    assert list(ShardDataset(tmp_path / "made").source_paths()) == ["x/a.JPEG", ""]


def test_names_that_are_one_in_the_file_system_are_an_error(tmp_path: Path) -> None:
    """A link makes one file of two names here, as file systems do that do not tell `a` from `A`."""
    source, again = tmp_path / "source", tmp_path / "again"
    (source / "x").mkdir(parents=True)
    between = [f"B{number:03}.jpg" for number in range(100)]  # more than are written ahead of the first callback
    for number, name in enumerate(("A.jpg", *between, "a.jpg")):
        (source / "x" / name).write_bytes(images.jpeg(40, 30, seed=number))
    convert(str(source), tmp_path / "made", ConvertOptions())

    def link() -> None:
        if not (again / "x" / "a.jpg").exists():
            (again / "x" / "a.jpg").symlink_to("A.jpg")

    with pytest.raises(ConversionError, match=r"x/a\.jpg is there already: another image has a name that is the same"):
        restore_folder(ShardDataset(tmp_path / "made"), again, threads=1, on_image=link)
    assert (again / "x" / "A.jpg").read_bytes() == (source / "x" / "A.jpg").read_bytes()
