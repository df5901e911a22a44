"""Layouts of the data sets that public programs expect, made from a folder of photographs, one sub-folder a class.

Photographs stay as they are, as symlinks, where the program reads photographs.  Where it reads the small files of a
known data set (Market-1501, CelebA, horse2zebra, facades, COCO resized for captions), files of that size are written.
"""

from __future__ import annotations

import csv
import io
import json
import random
import tarfile
from pathlib import Path

import drawn_targets
import numpy as np
from PIL import Image

COPIES = 4
WORDS = "a photo of the red small old bird dog boat tree house with two and on near water grass".split()  # noqa: SIM905


def prepare(photographs: Path, data: Path) -> None:
    """Makes every layout under `data`; what is there already stays."""
    files = sorted(path for path in photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    drawn_targets.prepare(files, data)
    _class_folders(files, data / "imagenet/train")
    _flat(files, data / "flat")
    _flat(files, data / "BSDS300/images/train")
    _captions_csv(files, data / "captions")
    _caption_shards(files, data / "caption-shards")
    _resized_coco(files, data / "coco-captions")
    _unpaired(files, data / "unpaired")
    _side_by_side(files, data / "facades/train")
    _faces(files, data / "img_align_celeba")
    _persons(files, data / "market1501")
    _small_pngs(files, data / "png-64")
    _text_lines(files, data / "text-lines")
    _pets(data / "unet", data / "oxford-pet")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target.resolve())


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=92)


def _caption(number: int) -> str:
    choose = random.Random(number)
    return " ".join(choose.choices(WORDS, k=choose.randint(6, 14)))


def _class_folders(files: list[Path], folder: Path) -> None:
    """ImageNet's layout with every photograph COPIES times, under different names."""
    for path in files:
        for copy in range(COPIES):
            _link(folder / path.parent.name / f"{path.stem}_{copy}{path.suffix}", path)


def _flat(files: list[Path], folder: Path) -> None:
    """All photographs in one folder, COPIES times, as .jpg."""
    for number, path in enumerate(files):
        for copy in range(COPIES):
            _link(folder / f"{number:06d}_{copy}.jpg", path)


def _captions_csv(files: list[Path], folder: Path) -> None:
    """A table of file paths and captions, separated by tabs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", newline="") as out:
        table = csv.writer(out, delimiter="\t")
        table.writerow(["filepath", "title"])
        for number, path in enumerate(files * COPIES):
            table.writerow([str(path.resolve()), _caption(number)])


def _caption_shards(files: list[Path], folder: Path) -> None:
    """WebDataset shards of pairs of .jpg and .txt."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(COPIES):
        name = folder / f"{shard:06d}.tar"
        if name.exists():
            continue
        with tarfile.open(name, "w") as tar:
            for number, path in enumerate(files, shard * len(files)):
                _add(tar, f"{number:06d}.jpg", path.read_bytes())
                _add(tar, f"{number:06d}.txt", _caption(number).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _resized_coco(files: list[Path], folder: Path) -> None:
    """COCO's captions beside images that are resized to 256 × 256, as a caption model's preparation leaves them."""
    images, captions = [], []
    for number, path in enumerate(files):
        name = f"{number:012d}.jpg"
        if not (folder / "resized2014" / name).exists():
            _save(_opened(path).resize((256, 256), Image.Resampling.LANCZOS), folder / "resized2014" / name)
        images.append({"id": number, "file_name": name, "width": 256, "height": 256})
        for copy in range(COPIES):
            identity = number * COPIES + copy
            captions.append({"id": identity, "image_id": number, "caption": _caption(identity)})
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    content = {"info": {}, "images": images, "annotations": captions, "type": "captions"}
    (folder / "annotations/captions_train2014.json").write_text(json.dumps(content))


def _unpaired(files: list[Path], folder: Path) -> None:
    """Two domains of 256 × 256, in the layouts trainA, trainB and train/A, train/B."""
    for number, path in enumerate(files):
        domain = "AB"[number % 2]
        first = folder / f"train{domain}" / f"{number:06d}_0.jpg"
        if not first.exists():
            _save(_opened(path).resize((256, 256), Image.Resampling.BICUBIC), first)
        for copy in range(1, 2 * COPIES):
            _link(folder / f"train{domain}" / f"{number:06d}_{copy}.jpg", first)
    for domain in "AB":
        _link(folder / "train" / domain, folder / f"train{domain}")


def _side_by_side(files: list[Path], folder: Path) -> None:
    """Pairs of 256 × 256, the second to the right of the first in one file."""
    for number, path in enumerate(files):
        first = folder / f"{number:06d}_0.jpg"
        if not first.exists():
            pair = Image.new("RGB", (512, 256))
            pair.paste(_opened(path).resize((256, 256)), (0, 0))
            pair.paste(_opened(files[number - 1]).resize((256, 256)), (256, 0))
            _save(pair, first)
        for copy in range(1, COPIES):
            _link(folder / f"{number:06d}_{copy}.jpg", first)


def _faces(files: list[Path], folder: Path) -> None:
    """Files of the size of aligned CelebA, 178 × 218."""
    for number, path in enumerate(files):
        first = folder / f"{number:06d}_0.jpg"
        if not first.exists():
            _save(_opened(path).resize((178, 218), Image.Resampling.BICUBIC), first)
        for copy in range(1, COPIES):
            _link(folder / f"{number:06d}_{copy}.jpg", first)


def _persons(files: list[Path], folder: Path) -> None:
    """Files with the names and the size of Market-1501, 64 × 128: a photograph is a person, seen by four cameras."""
    for number, path in enumerate(files):
        for camera in range(1, COPIES + 1):
            for part in ("bounding_box_train", "query", "bounding_box_test"):
                if part != "bounding_box_train" and number > 7:
                    continue
                name = folder / part / f"{number + 1:04d}_c{camera}s1_{number:06d}_00.jpg"
                if not name.exists():
                    _save(_strip(_opened(path), camera), name)


def _small_pngs(files: list[Path], folder: Path) -> None:
    """PNGs of 64 × 64 pixels, every photograph COPIES times, a folder for each thousand."""
    for number, path in enumerate(files * COPIES):
        name = folder / f"{number // 1000:05d}/img{number:08d}.png"
        if not name.exists():
            name.parent.mkdir(parents=True, exist_ok=True)
            _opened(path).resize((64, 64), Image.Resampling.LANCZOS).save(name)


def _text_lines(files: list[Path], folder: Path) -> None:
    """An LMDB of strips of photographs, 32 pixels high as lines of text are, with a word each; needs `lmdb`."""
    if (folder / "data.mdb").exists():
        return
    try:
        import lmdb
    except ImportError:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(folder), map_size=1 << 28) as database, database.begin(write=True) as entries:
        for number, path in enumerate(files * COPIES, start=1):
            encoded = io.BytesIO()
            _opened(path).resize((80 + number % 80, 32), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
            entries.put(f"image-{number:09d}".encode(), encoded.getvalue())
            entries.put(f"label-{number:09d}".encode(), WORDS[number % len(WORDS)].encode())
        entries.put(b"num-samples", str(len(files) * COPIES).encode())


def _strip(image: Image.Image, place: int) -> Image.Image:
    """One of four places of a photograph, half as wide as it is high."""
    width, height = image.size
    strip = min(width, height // 2)
    left = (width - strip) * (place - 1) // (COPIES - 1)
    return image.crop((left, 0, left + strip, height)).resize((64, 128), Image.Resampling.BICUBIC)


def _pets(masks: Path, folder: Path) -> None:
    """Oxford's pets: photographs with trimaps of 1, 2 and 3, made from drawn masks."""
    names = []
    (folder / "annotations/trimaps").mkdir(parents=True, exist_ok=True)
    for image in sorted((masks / "imgs").iterdir()):
        trimap = folder / "annotations/trimaps" / f"{image.stem}_0.png"
        if not trimap.exists():
            _trimap(masks / "masks" / f"{image.stem}.png").save(trimap)
        for copy in range(COPIES + 1):
            name = f"{image.stem}_{copy}"
            names.append(name)
            _link(folder / "images" / f"{name}.jpg", image)
            if copy:
                _link(trimap.with_name(f"{name}.png"), trimap)
    (folder / "annotations/trainval.txt").write_text("".join(f"{name} 1 1 1\n" for name in names))


def _trimap(mask: Path) -> Image.Image:
    with Image.open(mask) as image:
        inside = np.asarray(image.convert("L")) > 127
    border = inside ^ np.roll(inside, 2, axis=1) | inside ^ np.roll(inside, 2, axis=0)
    return Image.fromarray(np.where(border, 3, np.where(inside, 1, 2)).astype(np.uint8))
