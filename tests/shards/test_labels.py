"""Labels of every source: integers as they are, names as numbers of classes, anything else an error that says where."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch

from fastdata import ShardDataset
from fastdata.cli.main import main
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.make_index import index_folder
from fastdata.shards.verify import verify_folder

OPTIONS = ConvertOptions()
PICTURE = images.jpeg(30, 20)


def write_tar(path: Path, samples: list[dict[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, parts in enumerate(samples):
            for extension, data in parts.items():
                info = tarfile.TarInfo(f"{number:03}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def labelled(*labels: bytes) -> list[dict[str, bytes]]:
    return [{"jpg": PICTURE, "cls": label} for label in labels]


# ---- tar files


def test_names_in_tar_files_become_classes(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", labelled(b"dog", b"cat\n", b"dog"))
    summary = convert(str(source), tmp_path / "out", OPTIONS)
    dataset = ShardDataset(tmp_path / "out")
    assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, 1])
    assert "no label" not in str(summary)
    assert list(verify_folder(tmp_path / "out", decode=True)) == []


def test_splits_have_the_same_classes(tmp_path: Path) -> None:
    write_tar(tmp_path / "set" / "train" / "a.tar", labelled(b"dog", b"ant", b"cat"))
    write_tar(tmp_path / "set" / "val" / "a.tar", labelled(b"dog", b"cat"))
    convert(str(tmp_path / "set"), tmp_path / "out", OPTIONS)
    assert ShardDataset(tmp_path / "out" / "val").targets == [2, 1]
    assert ShardDataset(tmp_path / "out" / "val").classes == ["ant", "cat", "dog"]


def test_names_may_be_given_their_numbers(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", labelled(b"dog", b"cat"))
    (tmp_path / "names.txt").write_text("dog\ncat\nemu\n")
    arguments = [str(source), str(tmp_path / "out"), "--classes", str(tmp_path / "names.txt"), "--workers", "1"]
    assert main(["convert", *arguments]) == 0
    assert ShardDataset(tmp_path / "out").targets == [0, 1]
    with pytest.raises(
        ConversionError, match=r"a\.tar: 001 has the label 'cat', which is neither a number .* known classes \(dog\)"
    ):
        convert(str(source), tmp_path / "no", OPTIONS, classes=["dog"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([b"3", b"dog"], r"all numbers or all names: .*a\.tar: 000 has the number 3, but .*001 has the name 'dog'"),
        ([b"dog", b"7"], r"001 has the number 7, but .*000 has the name 'dog'"),
        ([b"1.5"], r"000\.cls holds 1\.5; a label must be an integer or a class name"),
        ([b"-4"], r"000\.cls has the label -4; labels must be from 0 to"),
        ([b"9" * 30], r"000\.cls has the label 9{30}; labels must be from 0 to"),
        ([b"\xff\xfe"], r"000\.cls is not text"),
    ],
)
def test_labels_of_tar_files_that_make_no_sense(tmp_path: Path, labels: list[bytes], message: str) -> None:
    source = write_tar(tmp_path / "a.tar", labelled(*labels))
    with pytest.raises(ConversionError, match=message):
        convert(str(source), tmp_path / "out", OPTIONS)


def test_samples_without_a_label_are_counted(tmp_path: Path) -> None:
    kinds = [{"label": "three"}, {"label": 2.0}, {"words": 1}, {"label": 4}]
    samples = [{"jpg": PICTURE, "json": json.dumps(kind).encode()} for kind in kinds]
    source = write_tar(tmp_path / "a.tar", [*samples, {"jpg": PICTURE}, {"jpg": PICTURE, "json": b"no json"}])
    for _ in range(2):  # also when it is finished already
        summary = convert(str(source), tmp_path / "out", OPTIONS)
        assert "  5 samples have no label (-1): no .cls" in str(summary)
    assert ShardDataset(tmp_path / "out").targets == [-1, -1, -1, 4, -1, -1]


def test_an_index_needs_the_classes_of_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "set" / "a.tar", labelled(b"dog", b"cat"))
    with pytest.raises(ConversionError, match=r"has the label 'dog', .*--classes FILE, or let convert number"):
        index_folder(tmp_path / "set")


# ---- other parts of a sample


@pytest.mark.filterwarnings("ignore")
def test_other_parts_of_a_sample_are_kept(tmp_path: Path) -> None:
    import webdataset

    samples = [
        {"json": json.dumps({"label": n, "by": "me"}).encode(), "jpg": PICTURE, "txt": b"a dog", "Seg.png": bytes(9000)}
        for n in range(6)
    ]
    source = write_tar(tmp_path / "a.tar", [*samples, {"txt": b"no image"}])
    options = ConvertOptions(shard_bytes=40_000)
    summary = convert(str(source), tmp_path / "out", options, workers=2)
    assert len(summary.manifests[""].shards) > 1
    assert "1 file without an image extension ignored" in str(summary)
    shards = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    assert all(Path(shard).stat().st_size <= 40_000 for shard in shards)
    found = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))
    for number, (before, after) in enumerate(zip(samples, found, strict=True)):
        assert {name: after[name.lower()] for name in before} == before
        assert int(after["cls"]) == number
    assert ShardDataset(tmp_path / "out").targets == list(range(6))
    assert list(verify_folder(tmp_path / "out", decode=True)) == []
    with tarfile.open(shards[0]) as tar:
        assert tar.getnames()[:5] == ["000.jpg", "000.cls", "000.json", "000.txt", "000.Seg.png"]


def test_parts_are_part_of_what_a_source_is(tmp_path: Path) -> None:
    for text in (b"one", b"another"):
        write_tar(tmp_path / "a.tar", [{"jpg": PICTURE, "txt": text}])
        convert(str(tmp_path / "a.tar"), tmp_path / text.decode(), OPTIONS)
    with pytest.raises(ConversionError, match="already holds a converted dataset"):
        convert(str(tmp_path / "a.tar"), tmp_path / "one", OPTIONS)


def test_an_image_does_not_take_the_name_of_another_part(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", [{"png": PICTURE, "jpg": b"something else"}])
    with pytest.raises(ConversionError, match=r"stored as 000\.jpg, but the sample has another part with that name"):
        convert(str(source), tmp_path / "out", OPTIONS)


def test_a_part_that_memory_would_not_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.shards.conversion.tars._MOST_MEMBER_BYTES", 5000)
    source = write_tar(tmp_path / "a.tar", [{"jpg": PICTURE, "mp4": bytes(6000)}])
    with pytest.raises(ConversionError, match=r"a\.tar: 000 has a part of 6000 bytes; at most 5000 are accepted"):
        convert(str(source), tmp_path / "out", OPTIONS)


# ---- functions


def convert_labels(labels: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    module = type(sys)("labels_from_here")
    module.samples = lambda: ((f"{n}", PICTURE, label) for n, label in enumerate(labels))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "labels_from_here", module)
    convert("labels_from_here:samples", tmp_path / "out", OPTIONS)
    return ShardDataset(tmp_path / "out").targets


def test_whatever_is_an_integer_is_a_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [3, np.int64(4), np.uint8(5), torch.tensor(6), -1]
    assert convert_labels(labels, tmp_path, monkeypatch) == [3, 4, 5, 6, -1]


@pytest.mark.parametrize("label", [1.7, 3.0, np.float32(3), True, np.bool_(True), "5", None, 1 << 62, -2], ids=repr)
def test_what_is_no_integer_is_not_made_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: Any) -> None:
    with pytest.raises(ConversionError, match=r"labels_from_here:samples: item 1 \(1\) has the label "):
        convert_labels([0, label], tmp_path, monkeypatch)
