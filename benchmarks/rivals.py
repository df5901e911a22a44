"""fastdata against the other image loaders on the same files, in one run, taking turns in every round.

Setup: batches of 64, shuffled where training; threads and worker processes equal in number; the folder repeated to at
least 1000 images; every peer set up as its documentation recommends for speed, with antialiased resizing.  A peer that
is not installed is left out (pip install nvidia-dali-cuda120 turboloader ffcv).  TurboLoader reads a tar of the same
files, written to a temporary folder; it only trains in float32, and only with its own views.  FFCV encodes images anew
(JPEG, quality 90), so it has a comparison of its own in which everybody reads those bytes.  "index" and "unpacked" are
fastdata on shards of the same files, as `fastdata convert` and `fastdata convert --unpacked` write them.
Result: benchmarks/results/rivals.json.

    python benchmarks/rivals.py IMAGENET_FOLDER CAMERA_FOLDER
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch.utils.data
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, ShardDataset
from fastdata.diagnosis.measure import Contender, Measurement, installed, measure, ratios, table, write_json
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding

TORCH = "torch + torchvision"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, SIDE = 64, 224


@dataclass(frozen=True, kw_only=True)
class Work:
    """One comparison.

    Attributes:
        folder: one folder of images per class.
        validation: Resize(256) and CenterCrop(224) instead of RandomResizedCrop(224) and a flip.
        as_float: float32 after Normalize instead of uint8.
        size: side of the result.
        images: at least so many per pass.
        originals: what the folder's files were encoded from, for FFCV, which encodes for itself.
    """

    folder: Path
    validation: bool = False
    as_float: bool = True
    size: int = SIDE
    images: int = 1000
    originals: tuple[str, ...] = ()

    def transform(self) -> Any:
        """The torchvision transform."""
        head = (
            [transforms.Resize(self.size * 8 // 7), transforms.CenterCrop(self.size)]
            if self.validation
            else [transforms.RandomResizedCrop(self.size), transforms.RandomHorizontalFlip()]
        )
        tail = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)] if self.as_float else [transforms.PILToTensor()]
        return transforms.Compose([*head, *tail])

    def dataset(self) -> ConcatDataset[Any]:
        """The folder's images, repeated."""
        once = ImageFolder(self.folder, self.transform())
        return ConcatDataset([once] * -(-self.images // len(once)))

    def files(self) -> list[str]:
        """Paths of one pass."""
        once = [path for path, _ in ImageFolder(self.folder).samples]
        return once * -(-self.images // len(once))


def torch_loader(work: Work, workers: int) -> Callable[[], Iterable[Any]]:
    """Torch's DataLoader with torchvision."""
    loader = torch.utils.data.DataLoader(
        work.dataset(), BATCH, shuffle=not work.validation, num_workers=workers, persistent_workers=True
    )
    return partial(iter, loader)


def our_loader(work: Work, workers: int, **options: Any) -> Callable[[], Iterable[Any]]:
    """Fastdata's."""
    loader = DataLoader(work.dataset(), BATCH, shuffle=not work.validation, num_workers=workers, **options)
    return partial(iter, loader)


def shard_loader(work: Work, workers: int, folder: Path, *, unpacked: bool) -> Callable[[], Iterable[Any]]:
    """Fastdata's on shards of the same files, which have an index, or open coefficients."""
    shards = folder / f"{work.folder.name}-{'unpacked' if unpacked else 'index'}"
    if not shards.exists():
        convert(str(work.folder), shards, ConvertOptions(recoding=Recoding(unpacked=unpacked)))
    once = ShardDataset(shards, work.transform())
    repeated = ConcatDataset([once] * -(-work.images // len(once)))
    loader = DataLoader(repeated, BATCH, shuffle=not work.validation, num_workers=workers, backend="native")
    return partial(iter, loader)


def dali_loader(work: Work, workers: int) -> Callable[[], Iterable[Any]]:
    """DALI's CPU pipeline: fused decode and crop, antialiased resize, flip."""
    from nvidia.dali import fn, pipeline_def, types

    files = work.files()

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None, seed=1)  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(files=files, labels=[0] * len(files), random_shuffle=not work.validation)
        if work.validation:
            images = fn.resize(fn.decoders.image(encoded), resize_shorter=work.size * 8 // 7, antialias=True)
        else:
            images = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
            images = fn.resize(images, resize_x=work.size, resize_y=work.size, antialias=True)
        mirror = 0 if work.validation else fn.random.coin_flip()
        if work.as_float or work.validation:
            images = fn.crop_mirror_normalize(
                images,
                crop=(work.size, work.size),
                mirror=mirror,
                dtype=types.FLOAT if work.as_float else types.UINT8,
                mean=[255 * value for value in MEAN] if work.as_float else [0.0],
                std=[255 * value for value in STD] if work.as_float else [1.0],
            )
        else:
            images = fn.flip(images, horizontal=mirror)
        return images, labels

    running = pipeline()
    running.build()

    def epoch() -> Iterator[Any]:
        for _ in range(-(-len(files) // BATCH)):
            images, labels = running.run()
            yield torch.from_numpy(images.as_array()), torch.from_numpy(labels.as_array())

    return epoch


def turboloader_loader(work: Work, workers: int, folder: Path) -> Callable[[], Iterable[Any]]:
    """TurboLoader's array path on a tar of the same bytes."""
    import turboloader

    archive = folder / f"{work.folder.name}-{work.images}.tar"
    if not archive.exists():
        with tarfile.open(archive, "w", dereference=True) as tar:
            for number, path in enumerate(work.files()):
                tar.add(path, f"{number:06}.jpg")
    loader = turboloader.DataLoader(
        str(archive),
        batch_size=BATCH,
        num_workers=workers,
        shuffle=True,
        image_size=work.size,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
        antialias=True,
        train_aug=True,
    )
    return partial(iter, loader)


def ffcv_loader(work: Work, workers: int, folder: Path) -> Callable[[], Iterable[Any]]:
    """FFCV on records of JPEG bytes, memory-mapped."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    records = str(folder / "ffcv.beton")
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    once = [(PIL.Image.open(path).convert("RGB"), 0) for path in work.originals]
    writer = DatasetWriter(records, fields, num_workers=1)
    writer.from_indexed_dataset(once * (len(work.files()) // len(once)))
    views = [RandomResizedCropRGBImageDecoder((work.size, work.size)), RandomHorizontalFlip()]
    pipelines = {"image": [*views, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]}
    options = {"batch_size": BATCH, "num_workers": workers, "order": OrderOption.RANDOM, "os_cache": True}
    return partial(iter, Loader(records, pipelines=pipelines, **options))


def contenders(work: Work, workers: int, scratch: Path) -> list[Contender]:
    """Everybody who is installed and can do the work."""
    loaders = {TORCH: torch_loader(work, workers)}
    for backend in ("native", "turbojpeg"):
        loaders[f"fastdata, {backend}"] = our_loader(work, workers, backend=backend)
    loaders["fastdata, native, fast"] = our_loader(work, workers, backend="native", fidelity="fast")
    if work.size == SIDE:
        loaders["fastdata, native, index"] = shard_loader(work, workers, scratch, unpacked=False)
        loaders["fastdata, native, unpacked"] = shard_loader(work, workers, scratch, unpacked=True)
    if installed("nvidia.dali"):
        loaders["DALI, CPU"] = dali_loader(work, workers)
    if installed("turboloader") and work.as_float and not work.validation:
        loaders["TurboLoader"] = turboloader_loader(work, workers, scratch)
    if installed("ffcv") and work.originals:
        loaders["FFCV"] = ffcv_loader(work, workers, scratch)
    images = len(work.files())
    return [Contender(name=name, epoch=epoch, images=images) for name, epoch in loaders.items()]


def tiny_copies(folder: Path, to: Path, kind: str) -> Path:
    """The folder's images at 32 to 64 px, as JPEG or PNG."""
    for number, (path, _) in enumerate(ImageFolder(folder).samples):
        side = 32 + number % 33
        with PIL.Image.open(path) as image:
            small = image.convert("RGB").resize((side, side))
        buffer = io.BytesIO()
        small.save(buffer, kind)
        target = to / kind / "all" / f"{number:04}.{kind.lower()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(buffer.getvalue())
    return to / kind


def encoded_as_ffcv_does(folder: Path, to: Path) -> Work:
    """The folder's images as JPEGs of quality 90, with the bytes that FFCV's writer gives them."""
    import cv2

    originals = tuple(path for path, _ in ImageFolder(folder).samples)
    (to / "q90" / "all").mkdir(parents=True)
    for number, path in enumerate(originals):
        with PIL.Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        _, data = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
        (to / "q90" / "all" / f"{number:04}.jpg").write_bytes(data.tobytes())
    return Work(folder=to / "q90", as_float=False, originals=originals)


def works(imagenet: Path, camera: Path | None, scratch: Path) -> dict[str, Work]:
    """The comparisons by name."""
    found = {
        "ImageNet originals, training, float32": Work(folder=imagenet),
        "ImageNet originals, training, uint8": Work(folder=imagenet, as_float=False),
        "ImageNet originals, validation, float32": Work(folder=imagenet, validation=True),
        "tiny JPEG, training, float32": Work(folder=tiny_copies(imagenet, scratch, "JPEG"), size=32, images=4000),
        "tiny PNG, training, float32": Work(folder=tiny_copies(imagenet, scratch, "PNG"), size=32, images=4000),
    }
    if installed("ffcv"):
        found["quality 90, training, uint8"] = encoded_as_ffcv_does(imagenet, scratch)
    if camera is not None:
        found["camera originals, training, float32"] = Work(folder=camera, images=256)
    return found


def run(work: Work, workers: int, rounds: int, scratch: Path) -> list[Measurement]:
    """Measures one comparison."""
    torch.manual_seed(0)
    np.random.default_rng(0)
    return measure(contenders(work, workers, scratch), rounds=rounds)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagenet", type=Path, help="one folder of images per class")
    parser.add_argument("camera", type=Path, nargs="?", help="the same, with large camera files")
    parser.add_argument("--workers", type=int, default=2, help="threads, and worker processes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured passes of each (%(default)s)")
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    parser.add_argument("--data", default="", help="what the images are, for the record")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "rivals.json")
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, work in works(given.imagenet, given.camera, Path(scratch)).items():
            if given.only not in name:
                continue
            measured = run(work, given.workers, given.rounds, Path(scratch))
            print(f"\n{name}\n\n{table(measured, TORCH)}\n", flush=True)
            results[name] = {"loaders": [m.to_dict() for m in measured], "times_better": ratios(measured, TORCH)}
    setup = f"batches of {BATCH}; {given.workers} threads or worker processes"
    write_json(given.out, setup=setup, data=given.data or given.imagenet.name, results=results)


if __name__ == "__main__":
    main()
