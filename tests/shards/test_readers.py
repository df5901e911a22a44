"""Nobody is locked in: other people's programs read the shards."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import originals
from PIL import Image

from fastdata import ImageFolder, ShardDataset
from fastdata.shards.format import index_name
from fastdata.shards.make_index import index_folder


def shards(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.tar"))


def test_tar_reads_them(folder: Path, converted: Path, tmp_path: Path) -> None:
    for shard in shards(converted):
        subprocess.run(["tar", "xf", shard, "-C", str(tmp_path)], check=True, stderr=subprocess.PIPE)
    for path, label in ImageFolder(folder).samples:
        name = Path(path).relative_to(folder)
        assert (tmp_path / name).read_bytes() == Path(path).read_bytes()
        assert (tmp_path / name).with_suffix(".cls").read_text() == str(label)


@pytest.mark.filterwarnings("ignore")
def test_webdataset_reads_them(folder: Path, converted: Path) -> None:
    import webdataset

    dataset = webdataset.WebDataset(shards(converted), shardshuffle=False, empty_check=False)
    assert [(sample["jpg"], int(sample["cls"])) for sample in dataset] == originals(folder)
    decoded = (
        webdataset.WebDataset(shards(converted), shardshuffle=False, empty_check=False)
        .decode("pil")
        .to_tuple("jpg", "cls")
    )
    assert [label for _, label in decoded] == [label for _, label in originals(folder)]


@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_loader_reads_them(folder: Path, converted: Path, tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_dataset("webdataset", data_files=shards(converted), split="train", streaming=True)
    found = [(np.asarray(row["jpg"]), int(row["cls"])) for row in loaded]
    for (pixels, label), (data, true_label) in zip(found, originals(folder), strict=True):
        assert label == true_label
        np.testing.assert_array_equal(pixels, np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.skipif(sys.platform != "linux", reason="DALI is for Linux")
@pytest.mark.filterwarnings("ignore")
def test_dali_reads_them(folder: Path, converted: Path) -> None:
    dali = pytest.importorskip("nvidia.dali")

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        return tuple(dali.fn.readers.webdataset(paths=shards(converted), ext=["jpg", "cls"]))

    made = pipeline()
    made.build()
    for data, label in originals(folder):
        image, text = (output.as_array()[0] for output in made.run())
        assert image.tobytes() == data
        assert int(text.tobytes()) == label


@pytest.mark.filterwarnings("ignore")
def test_what_webdataset_writes_is_read_after_indexing(folder: Path, tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for number, (data, label) in enumerate(originals(folder)):
            writer.write({"__key__": f"{number:06}", "jpg": data, "json": {"label": label}})
    index_folder(tmp_path)
    dataset = ShardDataset(tmp_path)
    assert [(dataset.read_encoded(i), dataset.targets[i]) for i in range(len(dataset))] == originals(folder)
    assert dataset.classes is None


def test_indices_and_manifest_are_made_again_from_the_tar_files_alone(own: Path) -> None:
    """But for the names that files had before they were converted, which are in the indexes only."""

    def entries() -> list[Any]:
        dataset = ShardDataset(own)
        return [(dataset.read_encoded(i), dataset.targets[i], dataset.location(i)) for i in range(len(dataset))]

    before = entries()
    for shard in shards(own):
        Path(index_name(shard)).unlink()
    index_folder(own)
    assert entries() == before
    again = {path.name: path.read_bytes() for path in own.iterdir()}
    for shard in shards(own):
        Path(index_name(shard)).unlink()
    index_folder(own)
    assert {path.name: path.read_bytes() for path in own.iterdir()} == again
