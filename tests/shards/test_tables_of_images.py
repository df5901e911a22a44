"""Parquet files and tables as sources, on a disk and in a store: which files are meant, and whose labels agree."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import images
import pytest
from folders import SHARD_BYTES, tree
from http_stores import store_of

from fastdata import ConversionError, DatasetError, ShardDataset, StoreError
from fastdata.shards import remote_files
from fastdata.shards.conversion.convert import ConvertOptions, convert

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

OPTIONS = ConvertOptions(shard_bytes=SHARD_BYTES)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fsspec's memory, where failures cost no time."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


def write(path: Path, labels: list[Any], names: list[str] | None = None, **columns: list[Any]) -> Path:
    """A Parquet file of drawn images, with the names of a ClassLabel in its schema."""
    rows = {"image": [images.jpeg(40 + n, 30) for n in range(len(labels))], "label": labels, **columns}
    table = pyarrow.table(rows)
    if names is not None:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
    return path


def put(store: Any, folder: Path, place: str = "/bucket/from") -> str:
    """The URL of a copy in the store."""
    for name, data in tree(folder).items():
        store.pipe_file(f"{place}/{name}", data)
    return f"memory://{place.lstrip('/')}"


def shards_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if not name.endswith(".json")}


# ---- labels


@pytest.mark.parametrize("splits", [("a", "b"), ("train", "val")])
def test_files_whose_classes_differ_are_refused(tmp_path: Path, splits: tuple[str, str]) -> None:
    first, second = (tmp_path / "from" / f"{split}-0.parquet" for split in splits)
    write(first, [0, 1, 0], ["cat", "dog"])
    write(second, [0, 1, 0], ["dog", "cat", "emu"])
    with pytest.raises(ConversionError, match=r"different class names for column 'label' \(cat, dog; dog, cat, emu\)"):
        convert(str(tmp_path / "from"), tmp_path / "out", OPTIONS)
    write(second, [0, 1, 0], ["cat", "dog"])
    assert set(convert(str(tmp_path / "from"), tmp_path / "out", OPTIONS).manifests) <= {"", "train", "val"}


def test_a_number_that_no_class_has_is_told_or_skipped(tmp_path: Path) -> None:
    write(tmp_path / "from.parquet", [0, 5, 1], ["cat", "dog"])
    with pytest.raises(ConversionError, match=r"from\.parquet: row 1 has the label 5, but there are 2 classes"):
        convert(str(tmp_path / "from.parquet"), tmp_path / "out", OPTIONS)
    skipping = ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip")
    (manifest,) = convert(str(tmp_path / "from.parquet"), tmp_path / "out", skipping).manifests.values()
    assert [key for key, _ in manifest.skipped] == ["000000001"]


@pytest.mark.parametrize(
    "asked",
    [{"columns": (None, "fine")}, {"columns": ("other", None)}, {"classes": ["x", "y"]}],
)
def test_other_columns_or_classes_are_another_conversion(tmp_path: Path, asked: dict[str, Any]) -> None:
    others = [images.jpeg(30, 30) for _ in range(3)]
    source = str(write(tmp_path / "from.parquet", [0, 1, 0], fine=[1, 0, 1], other=others))
    convert(source, tmp_path / "out", OPTIONS)
    assert convert(source, tmp_path / "out", OPTIONS).was_finished
    with pytest.raises(ConversionError, match=r"overwrite"):
        convert(source, tmp_path / "out", OPTIONS, **asked)
    assert not convert(source, tmp_path / "out", OPTIONS, **asked, overwrite=True).was_finished


def test_an_image_that_cannot_be_read_is_named_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "from.parquet"
    parquet.write_table(pyarrow.table({"image": [images.jpeg(40, 30), b"nothing"], "label": [0, 1]}), path)
    with pytest.raises(ConversionError, match=r"from\.parquet: row 1 cannot be converted: "):
        convert(str(path), tmp_path / "out", OPTIONS)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    schema = pyarrow.schema([("image", pyarrow.binary()), ("label", pyarrow.int64())])
    parquet.write_table(schema.empty_table(), tmp_path / "from.parquet")
    with pytest.raises(DatasetError, match=r"from\.parquet has no samples"):
        convert(str(tmp_path / "from.parquet"), tmp_path / "out", OPTIONS)


# ---- which files a folder means: the same on a disk and in a store


def two_configurations(folder: Path) -> None:
    write(folder / "one" / "train-0.parquet", [0])
    write(folder / "two" / "train-0.parquet", [1])


def beside_images(folder: Path) -> None:
    write(folder / "meta.parquet", [0])
    (folder / "cat").mkdir()
    (folder / "cat" / "a.jpg").write_bytes(images.jpeg(40, 30))


def beside_tars(folder: Path) -> None:
    write(folder / "a.parquet", [0])
    (folder / "b.tar").write_bytes(bytes(1024))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (two_configurations, r"contains Parquet files in \S+one, \S+two; name one of these folders"),
        (beside_images, r"contains both folders of images and meta\.parquet"),
        (beside_tars, r"contains both \.tar and \.parquet files"),
    ],
)
def test_an_unclear_folder_is_refused_wherever_it_is(tmp_path: Path, store: Any, make: Any, message: str) -> None:
    make(tmp_path / "from")
    for source in (str(tmp_path / "from"), put(store, tmp_path / "from")):
        with pytest.raises(ConversionError, match=message):
            convert(source, tmp_path / "out", OPTIONS)


@pytest.mark.parametrize("below", ["", "data/", "default/train/", "train/"])
def test_hidden_files_are_none_wherever_they_are(tmp_path: Path, store: Any, below: str) -> None:
    write(tmp_path / "from" / f"{below}train-0.parquet", [0, 1])
    for hidden in (f"{below}._train-0.parquet", ".tmp/train-0.parquet"):
        write(tmp_path / "from" / hidden, [1])
    convert(str(tmp_path / "from"), tmp_path / "local", OPTIONS)
    convert(put(store, tmp_path / "from"), tmp_path / "remote", OPTIONS)
    assert shards_of(tmp_path / "local") == shards_of(tmp_path / "remote")
    assert len(ShardDataset(tmp_path / "local" / "train")) == 2


# ---- damage


def damaged(path: Path) -> None:
    """Breaks the header of the first page, which pyarrow reports as an OSError without a number."""
    data = bytearray(path.read_bytes())
    data[4:24] = b"\xff" * 20
    path.write_bytes(bytes(data))


def test_a_damaged_file_is_no_fault_of_the_store(tmp_path: Path, store: Any) -> None:
    damaged(write(tmp_path / "from" / "a.parquet", [0, 1]))
    for source in (str(tmp_path / "from"), put(store, tmp_path / "from")):
        with pytest.raises(ConversionError, match=r"a\.parquet is not a Parquet file, or damaged"):
            convert(source, tmp_path / "out", OPTIONS, overwrite=True)


# ---- over HTTP


def test_a_server_that_sends_no_parts_is_told(tmp_path: Path) -> None:
    write(tmp_path / "from" / "a.parquet", [0, 1], other=[os.urandom(300_000)] * 2)  # more than is asked for at once
    with store_of(tmp_path / "from") as (address, _, _), pytest.raises(StoreError, match=r"download the file first"):
        convert(f"{address}/a.parquet", tmp_path / "out", OPTIONS)


def test_names_in_urls_are_those_of_the_files(tmp_path: Path) -> None:
    for number, name in enumerate(("my cat", "d#g", "pct%20x")):
        (tmp_path / "from" / name).mkdir(parents=True)
        (tmp_path / "from" / name / f"{number} a.jpg").write_bytes(images.jpeg(40 + number, 30))
    convert(str(tmp_path / "from"), tmp_path / "local", OPTIONS)
    with store_of(tmp_path / "from") as (address, _, _):
        convert(f"{address}/", tmp_path / "remote", OPTIONS)
    assert shards_of(tmp_path / "local") == shards_of(tmp_path / "remote")
    assert ShardDataset(tmp_path / "remote").classes == ["d#g", "my cat", "pct%20x"]


def test_a_pattern_is_looked_up_over_http(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "shards", OPTIONS)
    with store_of(tmp_path / "shards") as (address, _, _):
        summary = convert(f"{address}/shard-*.tar", tmp_path / "out", OPTIONS)
    assert summary.manifests[""].samples == len(ShardDataset(tmp_path / "shards"))


# ---- tables of paths


def written(folder: Path, to: Path, kind: str) -> Path:
    """A table of the images in a folder, beside them."""
    shutil.copytree(folder, to)
    names = [name for name in sorted(tree(folder)) if not name.endswith(".txt")]
    rows = [{"file_name": name, "label": name.partition("/")[0], "caption": f"of {name}"} for name in names]
    if kind == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        text = "".join(",".join(line) + "\n" for line in lines)
    path = to / f"table.{kind}"
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_in_a_store_gives_the_same_shards(folder: Path, tmp_path: Path, store: Any, kind: str) -> None:
    path = written(folder, tmp_path / "from", kind)
    fields = {"txt": "caption"}
    convert(str(path), tmp_path / "local", OPTIONS, fields=fields)
    url = f"{put(store, tmp_path / 'from')}/{path.name}"
    convert(url, tmp_path / "remote", OPTIONS, fields=fields)
    assert shards_of(tmp_path / "local") == shards_of(tmp_path / "remote")
    assert convert(url, tmp_path / "remote", OPTIONS, fields=fields).was_finished


def test_images_of_a_table_in_a_store_may_be_elsewhere_and_missing(tmp_path: Path, store: Any) -> None:
    store.pipe_file("/bucket/far/a.jpg", images.jpeg(40, 30))
    store.pipe_file("/bucket/near/b.jpg", images.jpeg(40, 30))
    rows = ["memory://bucket/far/a.jpg", "b.jpg", "gone.jpg"]
    store.pipe_file("/bucket/near/table.csv", "\n".join(["path", *rows]).encode())
    with pytest.raises(ConversionError, match=r"memory://bucket/near/gone\.jpg is gone"):
        convert("memory://bucket/near/table.csv", tmp_path / "out", OPTIONS)
    skipping = ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip")
    (manifest,) = convert("memory://bucket/near/table.csv", tmp_path / "out", skipping).manifests.values()
    assert manifest.samples == 2
    assert [key for key, _ in manifest.skipped] == ["gone"]


def test_images_of_other_servers_that_are_silent_are_skipped_or_named(tmp_path: Path, store: Any) -> None:
    store.pipe_file("/bucket/a.jpg", images.jpeg(40, 30))
    silent = ["nosuch://host/b.jpg", "http://127.0.0.1:1/c.jpg"]
    store.pipe_file("/bucket/table.csv", "\n".join(["path", "a.jpg", *silent]).encode())
    with pytest.raises(ConversionError, match=r"nosuch://host/b\.jpg cannot be read: .*Protocol not known"):
        convert("memory://bucket/table.csv", tmp_path / "out", OPTIONS)
    skipping = ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip")
    (manifest,) = convert("memory://bucket/table.csv", tmp_path / "out", skipping).manifests.values()
    assert manifest.samples == 1
    assert [key for key, _ in manifest.skipped] == ["host/b", "127.0.0.1:1/c"]


def test_many_silent_servers_in_succession_are_the_networks_fault(tmp_path: Path, store: Any) -> None:
    store.pipe_file("/bucket/a.jpg", images.jpeg(40, 30))
    silent = [f"nosuch://host/{number}.jpg" for number in range(70)]
    store.pipe_file("/bucket/table.csv", "\n".join(["path", "a.jpg", *silent]).encode())
    with pytest.raises(StoreError, match=r"nosuch://host/63\.jpg cannot be opened"):
        convert("memory://bucket/table.csv", tmp_path / "out", ConvertOptions(shard_bytes=SHARD_BYTES, on_error="skip"))
