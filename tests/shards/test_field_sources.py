"""Sources of samples with several fields: files beside images, annotations, tables, and code."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import images
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from fastdata import ConversionError, DatasetError, OptionError, ShardDataset
from fastdata.cli.main import main
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.fields import encoded, parse_fields

COUNT = 6
OPTIONS = ConvertOptions()


def mask_of(number: int) -> np.ndarray:
    return np.full((30, 40), number, np.uint8)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Images without classes, with captions and masks beside them."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number}.jpg").write_bytes(images.jpeg(40, 30, seed=number))
        (folder / f"{number}.txt").write_text(f"picture {number}")
        Image.fromarray(mask_of(number)).save(folder / f"{number}.mask.png")
    return folder


def read(shards: Path, *fields: str) -> list[Any]:
    return list(ShardDataset(shards, fields=fields))


def check_masks(found: list[Any]) -> None:
    assert [np.asarray(mask)[0, 0] for mask in found] == list(range(COUNT))


# ---- files


def test_files_beside_the_images(pictures: Path, tmp_path: Path) -> None:
    summary = convert(str(pictures), tmp_path / "out", OPTIONS, fields={"txt": "", "mask.png": ""})
    assert summary.manifests[""].samples == COUNT
    assert summary.ignored[""] == 0
    assert read(tmp_path / "out", "txt", "cls") == [(f"picture {number}", None) for number in range(COUNT)]
    check_masks([mask for (mask,) in read(tmp_path / "out", "mask.png")])


def test_files_beside_the_images_of_classes_and_splits(pictures: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            shutil.copytree(pictures, tmp_path / "whole" / split / name)
    assert main(["convert", str(tmp_path / "whole"), str(tmp_path / "out"), "--fields", "mask.png", "txt"]) == 0
    for split in ("train", "val"):
        found = read(tmp_path / "out" / split, "__key__", "cls", "txt")
        assert found[0] == ("cat/0", 0, "picture 0")
        assert found[-1] == (f"dog/{COUNT - 1}", 1, f"picture {COUNT - 1}")


def test_a_folder_of_masks(pictures: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    for number in range(COUNT):
        (pictures / f"{number}.mask.png").rename(masks / f"{number}.png")
        (pictures / f"{number}.txt").unlink()
    convert(str(pictures), tmp_path / "out", OPTIONS, fields={"mask.png": str(masks)})
    check_masks([mask for (mask,) in read(tmp_path / "out", "mask.png")])


def test_an_image_without_its_file_is_named_or_skipped(pictures: Path, tmp_path: Path) -> None:
    (pictures / "2.txt").unlink()
    with pytest.raises(ConversionError, match=r"2\.jpg \(2\) .* it has no field 'txt', since there is no .*2\.txt"):
        convert(str(pictures), tmp_path / "out", OPTIONS, fields={"txt": "", "mask.png": ""})
    skipping = ConvertOptions(on_error="skip")
    summary = convert(str(pictures), tmp_path / "out", skipping, fields={"txt": "", "mask.png": ""})
    assert [key for key, _ in summary.manifests[""].skipped] == ["2"]
    assert len(ShardDataset(tmp_path / "out")) == COUNT - 1


def test_other_fields_are_another_conversion(pictures: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"fields": {"txt": "", "mask.png": ""}}
    convert(str(pictures), tmp_path / "out", OPTIONS, **given)
    assert convert(str(pictures), tmp_path / "out", OPTIONS, **given).was_finished
    with pytest.raises(ConversionError, match="already holds a converted dataset"):
        convert(str(pictures), tmp_path / "out", OPTIONS, fields={"mask.png": ""})


def test_without_fields_a_folder_of_images_has_no_classes(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no class folders"):
        convert(str(pictures), tmp_path / "out", OPTIONS)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["a b"], "is not NAME or NAME=PLACE"),
        ([".txt"], "is not NAME or NAME=PLACE"),
        (["cls"], "cls is stored anyway"),
        (["txt", "TXT=caption"], "TXT was given twice"),
    ],
)
def test_fields_that_cannot_be_are_refused(given: list[str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_fields(given)


# ---- annotations


def coco(folder: Path, **content: Any) -> str:
    path = folder / f"{len(list(folder.glob('*.json')))}.json"
    entries = [{"id": 10 + number, "file_name": f"{number}.jpg", "width": 40, "height": 30} for number in range(4)]
    path.write_text(json.dumps({"images": entries, **content}))
    return str(path)


def test_coco_annotations_of_several_files_come_together(pictures: Path, tmp_path: Path) -> None:
    boxes = coco(
        tmp_path,
        annotations=[{"id": 1, "image_id": 12, "category_id": 44, "bbox": [1, 2, 3, 4]}],
        categories=[{"id": 44, "name": "bottle"}],
    )
    captions = coco(tmp_path, annotations=[{"id": 5, "image_id": 12, "caption": "a bottle"}])
    given = ["convert", str(pictures), str(tmp_path / "out"), "--annotations", boxes, captions]
    assert main(given) == 0
    found = [data for (data,) in read(tmp_path / "out", "json")]
    assert len(found) == 4  # the others are not in the annotations
    assert found[0] == {"id": 10, "file_name": "0.jpg", "width": 40, "height": 30, "annotations": []}
    assert found[2]["annotations"] == [
        {"id": 1, "image_id": 12, "category_id": 44, "bbox": [1, 2, 3, 4], "category": "bottle"},
        {"id": 5, "image_id": 12, "caption": "a bottle"},
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[", "is not a file of COCO annotations"),
        ("{}", r"is not a file of COCO annotations, .* \(KeyError: 'images'\)"),
        ('{"images": [], "annotations": [{"image_id": 3}]}', r"\(KeyError: 3\)"),
    ],
)
def test_a_file_that_is_not_cocos_is_refused(pictures: Path, tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(ConversionError, match=problem):
        convert(str(pictures), tmp_path / "out", OPTIONS, annotations=[str(path)])


def test_annotations_of_no_image_there_is_are_refused(pictures: Path, tmp_path: Path) -> None:
    path = tmp_path / "others.json"
    path.write_text('{"images": [{"id": 1, "file_name": "elsewhere.jpg"}]}')
    with pytest.raises(DatasetError, match=r"none of the images in .* has annotations"):
        convert(str(pictures), tmp_path / "out", OPTIONS, annotations=[str(path)])
    with pytest.raises(DatasetError, match="no such file or folder of annotations"):
        convert(str(pictures), tmp_path / "out", OPTIONS, annotations=[str(tmp_path / "missing.json")])


_VOC = """<annotation><filename>{0}.jpg</filename><size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>dog</name><pose>Left</pose><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax><ymax>{0}</ymax></bndbox></object></annotation>"""


def test_pascal_voc_annotations_with_masks(pictures: Path, tmp_path: Path) -> None:
    for number in range(COUNT):
        (tmp_path / "xml").mkdir(exist_ok=True)
        (tmp_path / "xml" / f"{number}.xml").write_text(_VOC.format(number))
    convert(str(pictures), tmp_path / "out", OPTIONS, annotations=[str(tmp_path / "xml")], fields={"mask.png": ""})
    found = read(tmp_path / "out", "json", "mask.png")
    check_masks([mask for _, mask in found])
    wanted = {"width": 40, "height": 30, "objects": [{"name": "dog", "bbox": [1, 2, 30.5, 3], "difficult": 1}]}
    assert found[3][0] == wanted


@pytest.mark.parametrize(
    ("text", "problem"), [("<a>", "is not XML"), ("<a><object><name>x</name></object></a>", "no bndbox")]
)
def test_xml_that_is_not_vocs_is_refused(pictures: Path, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml" / "0.xml").write_text(text)
    with pytest.raises(ConversionError, match=problem):
        convert(str(pictures), tmp_path / "out", OPTIONS, annotations=[str(tmp_path / "xml")])


# ---- tables


def rows() -> list[dict[str, Any]]:
    kinds = ["even", "odd"]
    captions = [f'a "{number}",\nin two lines' for number in range(COUNT)]
    return [
        {"path": f"pictures/{number}.jpg", "caption": caption, "kind": kinds[number % 2], "note": number}
        for number, caption in enumerate(captions)
    ]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables_with_paths_of_images(pictures: Path, tmp_path: Path, kind: str) -> None:
    table = tmp_path / f"table.{kind}"
    if kind == "jsonl":
        table.write_text("\n".join(map(json.dumps, rows())) + "\n")
    else:
        with open(table, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows()[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows())
    given = [
        "convert",
        str(table),
        str(tmp_path / "out"),
        "--label-column",
        "kind",
        "--fields",
        "txt=caption",
        "json=*",
    ]
    assert main(given) == 0
    dataset = ShardDataset(tmp_path / "out", fields=("__key__", "cls", "txt", "json"))
    assert dataset.classes == ["even", "odd"]
    key, label, text, row = dataset[3]
    assert (key, label, text) == ("pictures/3", 1, 'a "3",\nin two lines')
    assert row == {"caption": text, "kind": "odd", "note": 3 if kind == "jsonl" else "3"}


@pytest.mark.parametrize(
    ("text", "given", "problem"),
    [
        ("path,caption\n", {}, "has no rows"),
        ("path,caption\na.jpg\n", {}, r"line 2 does not have the 2 columns of line 1"),
        ("path,caption\n,x\n", {}, "line 2 names no image"),
        ("path,caption\nhttps://a/b.jpg,x\n", {}, "convert reads local files: download the images first"),
        (
            "path,caption\na.jpg,x\n",
            {"fields": {"txt": "title"}},
            "no column 'title' for the field txt; its columns are path",
        ),
        ("a,b\n1,2\n", {}, "cannot tell which column holds the image; its columns are a, b; name one with --image-col"),
        ("path,label\na.jpg,-7\n", {}, "labels must be from 0"),
        ("path,label\na.jpg,0.5\n", {}, "has the label 0.5; a label must be an integer or a class name"),
        ("path,label,label\na.jpg,1,2\n", {}, "has two columns 'label'; rename one"),
        ("path,label\n\xff.jpg,1\n", {}, "is not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_words(
    tmp_path: Path, text: str, given: dict[str, Any], problem: str
) -> None:
    (tmp_path / "table.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises((ConversionError, DatasetError), match=problem):
        convert(str(tmp_path / "table.csv"), tmp_path / "out", OPTIONS, **given)


def test_lines_that_are_not_objects_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text('{"path": "a.jpg"}\n[1]\n')
    with pytest.raises(ConversionError, match="line 2 is a list; every line must be an object"):
        convert(str(tmp_path / "table.jsonl"), tmp_path / "out", OPTIONS)


def test_rows_whose_image_or_field_is_missing_can_be_skipped(pictures: Path, tmp_path: Path) -> None:
    made = [{"path": "pictures/0.jpg", "caption": "x"}, {"path": "pictures/77.jpg", "caption": "y"}]
    made.append({"path": "pictures/1.jpg", "caption": None})
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, made)))
    with pytest.raises(ConversionError, match=r"77\.jpg"):
        convert(str(tmp_path / "table.jsonl"), tmp_path / "out", OPTIONS, fields={"txt": "caption"})
    skipping = ConvertOptions(on_error="skip")
    summary = convert(str(tmp_path / "table.jsonl"), tmp_path / "out", skipping, fields={"txt": "caption"})
    assert [key for key, _ in summary.manifests[""].skipped] == ["pictures/77", "pictures/1"]


ODD_LINES = {
    "jsonl": [
        '{"path": "pictures/0.jpg", "label": 1}',
        "{",
        "[1]",
        '{"path": 3}',
        '{"path": "pictures/1.jpg", "label": 0.5}',
    ],
    "csv": ["path,label", "pictures/0.jpg,1", "pictures/1.jpg", ",2", "pictures/2.jpg,0.5", "pictures/1.jpg,0"],
}


@pytest.mark.parametrize("kind", ODD_LINES)
def test_lines_that_are_no_rows_can_be_skipped(pictures: Path, tmp_path: Path, kind: str) -> None:
    table = tmp_path / f"table.{kind}"
    table.write_text("\n".join(ODD_LINES[kind]))
    first = 2 if kind == "jsonl" else 3
    with pytest.raises(ConversionError, match=f"line {first} .*--on-error skip"):
        convert(str(table), tmp_path / "out", OPTIONS)
    summary = convert(str(table), tmp_path / "out", ConvertOptions(on_error="skip"))
    manifest = summary.manifests[""]
    assert manifest.samples == (1 if kind == "jsonl" else 2)
    assert [key for key, _ in manifest.skipped] == [
        f"line {number}" for number in range(first, first + len(manifest.skipped))
    ]
    assert all(f"line {first + number} " in why for number, (_, why) in enumerate(manifest.skipped))


def encoded_rows() -> list[dict[str, Any]]:
    made = []
    for number in range(COUNT):
        png = encoded("mask.png", mask_of(number), "mask")
        image, mask = ({"bytes": data, "path": None} for data in (images.jpeg(40, 30, seed=number), png))
        made.append({"image": image, "caption": f"picture {number}", "extra": number, "mask": mask})
    return made


def check_encoded(shards: Path) -> None:
    found = read(shards, "txt", "json", "mask.png", "cls")
    assert [each[0] for each in found] == [f"picture {number}" for number in range(COUNT)]
    assert [each[1]["extra"] for each in found] == list(range(COUNT))
    check_masks([each[2] for each in found])
    assert found[0][3] is None


def test_parquet_columns_become_fields(tmp_path: Path) -> None:
    rows = encoded_rows()
    for row in rows:
        row["meta"] = {"extra": row["extra"]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "table.parquet")
    given = ["convert", str(tmp_path / "table.parquet"), str(tmp_path / "out"), "--fields", "txt=caption", "json=meta"]
    assert main([*given, "mask.png=mask"]) == 0
    check_encoded(tmp_path / "out")


def test_a_saved_hugging_face_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = encoded_rows()
    features = datasets.Features(
        image=datasets.Image(),
        caption=datasets.Value("string"),
        extra=datasets.Value("int64"),
        mask=datasets.Image(),
        kind=datasets.ClassLabel(names=["even", "odd"]),
    )
    rows = [{**row, "kind": row["extra"] % 2} for row in rows]
    whole = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict(train=whole, test=whole).save_to_disk(str(tmp_path / "saved"))
    given = ["convert", str(tmp_path / "saved"), str(tmp_path / "out"), "--label-column", "kind"]
    assert main([*given, "--fields", "txt=caption", "mask.png=mask"]) == 0
    for split in ("train", "test"):
        dataset = ShardDataset(tmp_path / "out" / split, fields=("txt", "mask.png", "cls"))
        assert dataset.classes == ["even", "odd"]
        assert [(text, label) for text, _, label in dataset] == [(f"picture {n}", n % 2) for n in range(COUNT)]
        check_masks([mask for _, mask, _ in dataset])


def test_a_null_in_a_field_is_named(tmp_path: Path) -> None:
    rows = encoded_rows()
    rows[4]["caption"] = None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "table.parquet")
    with pytest.raises(ConversionError, match=r"row 4 has no field 'txt' \(null in column 'caption'\)"):
        convert(str(tmp_path / "table.parquet"), tmp_path / "out", OPTIONS, fields={"txt": "caption"})


# ---- code


def test_a_function_yields_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(images.__file__).parent))
    for workers in (1, 2):
        convert("generated:with_fields", tmp_path / str(workers), ConvertOptions(shard_bytes=20_000), workers=workers)
        found = read(tmp_path / str(workers), "__key__", "cls", "txt", "json")
        assert found == [(f"{n:03}", n % 3, f"text {n}", {"n": n}) for n in range(20)]
    same = [(tmp_path / name / "manifest.json").read_bytes() for name in ("1", "2")]
    assert same[0] == same[1]


def test_fields_are_refused_for_sources_that_have_their_own(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"fields \(txt\) are for folders and tables"):
        convert("generated:with_fields", tmp_path / "out", OPTIONS, fields={"txt": ""})
    with pytest.raises(OptionError, match=r"annotations .* are for folders of images"):
        convert("generated:with_fields", tmp_path / "out", OPTIONS, annotations=["a.json"])


def test_labels_are_found_whatever_the_first_row_or_spaces_in_the_header_say(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"path": "pictures/0.jpg"}\n{"path": "pictures/1.jpg", "label": "--5"}')
    (tmp_path / "b.csv").write_text("path, label\npictures/0.jpg,cat\npictures/1.jpg,dog\n")
    for name, classes, labels in (("a.jsonl", ["--5"], [-1, 0]), ("b.csv", ["cat", "dog"], [0, 1])):
        convert(str(tmp_path / name), tmp_path / name[0], OPTIONS)
        dataset = ShardDataset(tmp_path / name[0])
        assert (dataset.classes, dataset.labels.tolist()) == (classes, labels)


def test_long_cells_are_read(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"path,note\npictures/0.jpg,{'x' * 200_000}\n")
    convert(str(tmp_path / "a.csv"), tmp_path / "out", OPTIONS, fields={"txt": "note"})
    assert len(read(tmp_path / "out", "txt")[0][0]) == 200_000


def test_annotations_of_one_image_go_to_no_other(pictures: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(pictures, tmp_path / "whole" / split / "x")
    boxes = coco(tmp_path, annotations=[{"id": 1, "image_id": 12, "category_id": 44, "bbox": [1, 2, 3, 4]}])
    with pytest.raises(ConversionError, match=r"has one image 0\.jpg, but there are train/x/0\.jpg and val/x/0\.jpg"):
        convert(str(tmp_path / "whole"), tmp_path / "out", OPTIONS, annotations=[boxes])
    entry = {"id": 10, "file_name": "0.jpg", "width": 99, "height": 30}
    (tmp_path / "other.json").write_text(json.dumps({"images": [entry]}))
    with pytest.raises(ConversionError, match=r"image 0\.jpg has width 99, but 40 in a file before it"):
        convert(str(pictures), tmp_path / "out", OPTIONS, annotations=[boxes, str(tmp_path / "other.json")])


def test_images_beside_class_folders_are_not_guessed_about(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "whole" / "cat")
    shutil.copy(pictures / "0.jpg", tmp_path / "whole" / "stray.jpg")
    with pytest.raises(ConversionError, match="it is unclear whether the folders are classes"):
        convert(str(tmp_path / "whole"), tmp_path / "out", OPTIONS, fields={"txt": ""})
