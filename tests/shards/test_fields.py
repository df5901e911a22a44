"""Samples with several fields: written, read with any loader, checked and restored."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
from folders import flip, tree
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastdata import DataLoader, DatasetError, DecodeError, OptionError, ShardDataset, ShardError, ShardWriter
from fastdata.cli.main import main
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.fields import encoded
from fastdata.shards.format import ShardIndex
from fastdata.shards.make_index import index_folder
from fastdata.shards.parts import PartTable
from fastdata.shards.verify import verify_folder

COUNT = 12
FIELDS = ("image", "cls", "txt", "json", "mask.png", "vector.npy", "__key__")


def sample(number: int) -> dict[str, Any]:
    mask = np.zeros((48, 64), np.uint8)
    mask[10 + number :, 20:] = number
    return {
        "__key__": f"{number:03}",
        "jpg": images.jpeg(64, 48, seed=number),
        "cls": number % 3,
        "txt": f"image {number}, größer",
        "json": {"number": number, "boxes": [[1, 2, 3.5, 4]]},
        "mask.png": mask,
        "vector.npy": np.arange(5, dtype=np.float32) + number,
        "bin": bytes([number]) * 3,
    }


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "shards", shard_bytes=60_000) as writer:
        for number in range(COUNT):
            writer.write(sample(number))
    return tmp_path / "shards"


class Joint:
    """Transforms of an image and its mask, as torchvision's v2 has them."""

    def __init__(self) -> None:
        kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
        steps = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(kinds, scale=True)]
        self.steps = v2.Compose([*steps, v2.Normalize([0.5] * 3, [0.25] * 3)])

    def __call__(self, image: Any, mask: Any) -> Any:
        pixels, classes = map(functional.pil_to_tensor, (image, mask))
        return self.steps(tv_tensors.Image(pixels), tv_tensors.Mask(classes))


def test_every_field_comes_back_as_it_was_written(shards: Path) -> None:
    dataset = ShardDataset(shards, fields=(*FIELDS, "bin"))
    assert len(dataset) == COUNT
    assert len(dataset.shard_ends) > 1
    for number in range(COUNT):
        wanted = sample(number)
        image, label, text, data, mask, vector, key, binary = dataset[number]
        assert image.mode == "RGB"
        assert (label, text, data, key) == (number % 3, wanted["txt"], wanted["json"], f"{number:03}")
        assert np.array_equal(np.asarray(mask), wanted["mask.png"])
        assert np.array_equal(vector, wanted["vector.npy"])
        assert binary == wanted["bin"]


def test_the_tar_files_are_plain_webdataset(shards: Path) -> None:
    with tarfile.open(shards / "shard-000000.tar") as archive:
        names = archive.getnames()
        assert names[:7] == ["000.jpg", "000.cls", "000.txt", "000.json", "000.mask.png", "000.vector.npy", "000.bin"]
        assert json.load(archive.extractfile("000.json")) == sample(0)["json"]  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torchs_loader(shards: Path, workers: int) -> None:
    transform = v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = ShardDataset(shards, transform, lambda label: label + 10, fields=("jpg", "cls", "txt", "vector.npy"))
    ours = list(DataLoader(dataset, 5, num_workers=workers, multiprocessing_context="fork" if workers else None))
    theirs = list(TorchLoader(dataset, 5))
    assert len(ours) == len(theirs) == 3
    for batch, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(batch[0], wanted[0])
        assert torch.equal(batch[1], wanted[1])
        assert batch[2] == wanted[2]
        assert torch.equal(batch[3], wanted[3])


@pytest.mark.parametrize("workers", [0, 2])
def test_joint_transforms_draw_as_with_torchs_loader_and_stay_encoded(shards: Path, workers: int) -> None:
    dataset, batches = ShardDataset(shards, fields=("image", "mask.png"), transforms=Joint()), []
    for kind in (TorchLoader, DataLoader):
        torch.manual_seed(3)
        loader = kind(dataset, 4, shuffle=True, num_workers=workers)
        batches.append(list(loader))
    for theirs, ours in zip(*batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert loader.verdict().kind == "accelerated"  # type: ignore[attr-defined]


def test_fields_are_read_after_pickling(shards: Path) -> None:
    dataset = pickle.loads(pickle.dumps(ShardDataset(shards, fields=("txt", "json"))))
    assert dataset[4] == (sample(4)["txt"], sample(4)["json"])


def test_a_field_that_no_sample_has_is_named_with_those_that_there_are(shards: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"no sample .* has a field 'caption'; there are image, cls, txt, json, mask"
    ):
        ShardDataset(shards, fields=("image", "caption"))


def test_options_that_do_not_fit_are_refused(shards: Path) -> None:
    with pytest.raises(OptionError, match=r"write fields=\('txt',\)"):
        ShardDataset(shards, fields="txt")
    with pytest.raises(OptionError, match="either transforms, or transform and target_transform"):
        ShardDataset(shards, Joint(), transforms=Joint())


def test_a_sample_without_a_field_is_an_error_of_that_sample(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards") as writer:
        for number in range(COUNT):
            made = sample(number)
            if number in (3, 8):
                del made["txt"]
            writer.write(made)
    dataset = ShardDataset(
        tmp_path / "shards", v2.Compose([v2.Resize((8, 8)), v2.PILToTensor()]), fields=("jpg", "txt")
    )
    with pytest.raises(DecodeError, match=r"sample 3 \(.*key 003\) has not every field .*: there is no 'txt'"):
        dataset[3]
    with pytest.warns(match="2 samples were left out"):
        batches = list(DataLoader(dataset, 4, on_error="skip"))
    assert sum(len(text) for _, text in batches) == COUNT - 2


def test_a_field_that_is_not_what_its_extension_says(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards") as writer:
        writer.write(
            {"__key__": "a", "jpg": images.jpeg(20, 20), "json": b"{", "npy": pickle.dumps([1]), "txt": b"\xff"}
        )
    for field in ("json", "npy", "txt"):
        with pytest.raises(DecodeError, match=rf"key a\) .* '{field}' cannot be read"):
            ShardDataset(tmp_path / "shards", fields=(field,))[0]


@pytest.mark.parametrize("what", ["read", "verify"])
def test_damage_to_a_member_is_found(shards: Path, what: str) -> None:
    place = next(ShardDataset(shards).members())["json"]
    flip(shards / "shard-000000.tar", place.offset + 3)
    if what == "read":
        with pytest.raises(ShardError, match=rf"damaged json at byte {place.offset}: expected checksum"):
            ShardDataset(shards, fields=("json",))[0]
    else:
        faults = [str(fault) for fault in verify_folder(shards)]
        assert any(f"at byte {place.offset}: checksum of 000.json" in fault for fault in faults)


def test_whole_shards_have_no_faults(shards: Path) -> None:
    assert list(verify_folder(shards, decode=True)) == []


def test_indexes_made_of_the_tar_files_list_every_member(shards: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in shards.glob("*.idx")}
    for path in shards.glob("*"):
        if path.suffix != ".tar":
            path.unlink()
    index_folder(shards)
    assert {path.name: path.read_bytes() for path in shards.glob("*.idx")} == before
    assert list(verify_folder(shards)) == []


@pytest.mark.parametrize("unpacked", [False, True])
def test_converting_and_restoring_keeps_every_member(shards: Path, tmp_path: Path, unpacked: bool) -> None:
    options = ConvertOptions(recoding=Recoding(unpacked=unpacked), shard_bytes=40_000)
    convert(str(shards), tmp_path / "again", options)
    ours = ShardDataset(tmp_path / "again", fields=FIELDS)
    for mine, theirs in zip(ours, ShardDataset(shards, fields=FIELDS), strict=True):
        assert np.array_equal(np.asarray(mine[0]), np.asarray(theirs[0]))
        assert mine[1:4] == theirs[1:4]
    assert main(["restore", str(tmp_path / "again"), str(tmp_path / "files")]) == 0
    files = tree(tmp_path / "files")
    assert len(files) == COUNT * 6
    for number in range(COUNT):
        made = sample(number)
        assert files[f"{number:03}.jpg"] == made["jpg"]
        assert json.loads(files[f"{number:03}.json"]) == made["json"]
        assert files[f"{number:03}.bin"] == made["bin"]
    assert main(["restore", str(tmp_path / "again"), str(tmp_path / "files"), "--resume"]) == 0


def test_inspect_names_the_fields(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(shards)]) == 0
    assert "beside the images: txt (12), json (12), mask.png (12), vector.npy (12), bin (12)" in capsys.readouterr().out


def test_an_index_without_other_members_is_of_the_first_version(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "plain") as writer:
        writer.write({"__key__": "a", "jpg": images.jpeg(20, 20), "cls": 1})
    data = (tmp_path / "plain" / "shard-000000.idx").read_bytes()
    assert int.from_bytes(data[8:12], "little") == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda table: table[:-1], "wrong length"),
        (lambda table: table[:2], "wrong length"),
        (lambda table: table[:-28] + (99).to_bytes(4, "little") + table[-24:], "member 1 .* invalid"),
        (lambda table: table[:-24] + (7).to_bytes(4, "little") + table[-20:], "member 1 .* invalid"),
        (lambda table: table[:-20] + (1 << 40).to_bytes(8, "little") + table[-12:], "member 1 .* invalid"),
    ],
    ids=["cut by one", "cut", "sample", "field", "offset"],
)
def test_a_table_of_members_that_is_wrong_is_refused(change: Any, problem: str) -> None:
    table = PartTable.of([(0, "txt", 512, 5, 1), (1, "txt", 2048, 5, 1)]).to_bytes()
    known = {"samples": 2, "tar_bytes": 4096, "name": "a.idx"}
    assert PartTable.from_bytes(table, **known).fields == ("txt",)
    with pytest.raises(ShardError, match=problem):
        PartTable.from_bytes(change(table), **known)


def test_an_index_that_is_cut_in_its_table_is_refused(shards: Path) -> None:
    path = shards / "shard-000000.idx"
    data = path.read_bytes()
    with pytest.raises(ShardError, match="damaged index"):
        ShardIndex.from_bytes(data[:-28], path.name)


# ---- the writer


def test_an_error_while_writing_leaves_full_shards_and_no_manifest(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with ShardWriter(tmp_path / "shards", shard_bytes=20_000) as writer:
            for number in range(COUNT):
                writer.write(sample(number))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    names = {path.name for path in (tmp_path / "shards").iterdir()}
    assert "shard-000000.tar" in names
    assert "manifest.json" not in names
    assert not any(name.endswith(".partial") for name in names)
    index_folder(tmp_path / "shards")
    assert 0 < len(ShardDataset(tmp_path / "shards")) < COUNT


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"__key__": None}, "has no '__key__'; its fields are jpg"),
        ({"jpg": None}, r"sample 0 \(000\) has no image; its fields are __key__, cls"),
        ({"jpg": b"nonsense"}, r"sample 0 \(000\): the image cannot be converted"),
        ({"cls": "dog"}, r"has the label 'dog' of type str; labels must be integers"),
        ({"json": {1, 2}}, r"field 'json' cannot be stored: set is nothing that JSON can hold"),
        ({"txt": 5}, r"field 'txt' is a int; give the bytes of a file"),
        ({"mask.png": np.zeros((2, 2, 7), np.uint8)}, r"field 'mask.png' cannot be stored"),
        ({"vector.npy": np.array([object()])}, r"field 'vector.npy' cannot be stored"),
    ],
)
def test_a_sample_that_cannot_be_written_is_named_and_the_next_is_written(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    made = {name: value for name, value in {**sample(0), **change}.items() if value is not None}
    with ShardWriter(tmp_path / "shards") as writer:
        with pytest.raises(ConversionError, match=problem):
            writer.write(made)
        writer.write(sample(1))
    assert [key for (key,) in ShardDataset(tmp_path / "shards", fields=("__key__",))] == ["001"]


def test_a_folder_with_something_in_it_is_refused(shards: Path) -> None:
    with pytest.raises(ConversionError, match="is not empty"):
        ShardWriter(shards)


def test_nothing_written_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="no sample was written"), ShardWriter(tmp_path / "shards"):
        pass


def test_images_of_pillow_arrays_and_paths_are_stored(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(images.jpeg(30, 20, seed=1))
    pixels = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)
    with ShardWriter(tmp_path / "shards") as writer:
        writer.write({"__key__": "path", "jpg": tmp_path / "a.jpg"})
        writer.write({"__key__": "array", "image": pixels})
        writer.write(
            {"__key__": "pillow", "png": Image.fromarray(pixels), "depth.png": pixels[..., 0].astype(np.uint16)}
        )
    dataset = ShardDataset(tmp_path / "shards")
    assert dataset.read_encoded(0) == (tmp_path / "a.jpg").read_bytes()
    assert all(np.array_equal(np.asarray(dataset[number][0]), pixels) for number in (1, 2))


def test_an_open_dataset_reads_no_index_again(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take longer for every sample the larger the shards are."""
    dataset, asked = ShardDataset(shards, fields=(*FIELDS, "bin")), []
    read = ShardIndex.from_bytes
    monkeypatch.setattr(ShardIndex, "from_bytes", lambda *given: asked.append(given) or read(*given))
    assert len(list(dataset)) == COUNT
    assert asked == []
    dataset.key(0)
    assert len(asked) == 1


def test_an_image_does_not_stand_for_a_picture_that_is_missing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards") as writer:
        for number in range(3):
            other = {"other.png": np.zeros((4, 4), np.uint8)} if number != 1 else {}
            writer.write({"__key__": f"{number}", "jpg": images.jpeg(20, 20), **other})
    with pytest.raises(DecodeError, match=r"key 1\) .*: there is no 'other.png'"):
        list(ShardDataset(tmp_path / "shards", fields=("jpg", "other.png")))
    with pytest.raises(DecodeError, match="there is no 'png', and its image has another format"):
        ShardDataset(tmp_path / "shards", fields=("png",))[0]
    assert len(list(ShardDataset(tmp_path / "shards", fields=("image", "jpeg")))) == 3


def test_what_a_field_claims_takes_no_memory_and_ends_no_epoch(tmp_path: Path) -> None:
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**6)})
    bad = [{"npy": huge.getvalue()}, {"npy": b"PK\x03\x04"}, {"json": b"[" * 100_000}, {"npy": b""}]
    with ShardWriter(tmp_path / "shards") as writer:
        for number, fields in enumerate([*bad, {"npy": np.arange(3)}]):
            writer.write(
                {"__key__": f"{number}", "jpg": images.jpeg(20, 20), "json": {}, "npy": np.arange(2), **fields}
            )
    dataset = ShardDataset(tmp_path / "shards", fields=("npy", "json"))
    with pytest.warns(match="4 samples were left out"):
        assert [array.tolist() for array, _ in DataLoader(dataset, 1, on_error="skip")] == [[[0, 1, 2]]]


def test_what_json_calls_a_label_is_not_one(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards") as writer:
        writer.write({"__key__": "a", "jpg": images.jpeg(20, 20), "json": {"label": 3}})
    assert list(verify_folder(tmp_path / "shards")) == []


@pytest.mark.parametrize("name", ["", "a/b", "../x", "CLS", "a..b", "a.", 7])
def test_names_that_no_member_can_have_are_refused(tmp_path: Path, name: Any) -> None:
    with ShardWriter(tmp_path / "shards") as writer:
        with pytest.raises(ConversionError, match=r"fields are named like txt or mask\.png"):
            writer.write({"__key__": "a", "jpg": images.jpeg(20, 20), name: b"x"})
        with pytest.raises(ConversionError, match="has two images, png and jpg; give the one"):
            writer.write({"__key__": "a", "png": b"x", "jpg": images.jpeg(20, 20)})
        writer.write({"__key__": "a", "jpg": images.jpeg(20, 20), "npy": np.zeros(2), "__url__": "of WebDataset"})


def test_a_field_that_two_images_share_is_restored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("7.jpg", "7.png"):
        (tmp_path / "files").mkdir(exist_ok=True)
        data = images.jpeg(20, 20) if name == "7.jpg" else encoded("png", np.zeros((5, 5, 3), np.uint8), "")
        (tmp_path / "files" / name).write_bytes(data)
    (tmp_path / "files" / "7.txt").write_text("both")
    module = type(sys)("sharing")
    module.samples = lambda: (  # type: ignore[attr-defined]
        {"__key__": path.name, "img": path, "txt": "both"} for path in sorted((tmp_path / "files").glob("7.[jp]*"))
    )
    monkeypatch.setitem(sys.modules, "sharing", module)
    convert("sharing:samples", tmp_path / "shards", ConvertOptions())
    assert main(["restore", str(tmp_path / "shards"), str(tmp_path / "again")]) == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "files")


def test_a_function_yields_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(images.__file__).parent))
    for workers in (1, 2):
        convert("generated:with_fields", tmp_path / str(workers), ConvertOptions(shard_bytes=20_000), workers=workers)
        found = list(ShardDataset(tmp_path / str(workers), fields=("__key__", "cls", "txt", "json")))
        assert found == [(f"{n:03}", n % 3, f"text {n}", {"n": n}) for n in range(20)]
    same = [(tmp_path / name / "manifest.json").read_bytes() for name in ("1", "2")]
    assert same[0] == same[1]
