"""ImageFolder: the same as torchvision's ImageFolder, without needing torchvision."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from fastdata.errors import DatasetError
from fastdata.loaders import pillow
from fastdata.pipeline.batched_getitem import FetchesMany
from fastdata.sources.protocol import FileRanges, NotASource
from fastdata.system.files import read_file

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["IMG_EXTENSIONS", "ImageFolder", "leave_out"]

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def pil_loader(path: str) -> Image:
    """Opens an image file in RGB with Pillow."""
    return pillow.open_rgb(read_file(path))


class ImageFolder(FetchesMany, Dataset[tuple[Any, Any]]):
    """A dataset of ``root/class/name.ext`` files, with the constructor and attributes of torchvision's ImageFolder.

    Args:
        root: a folder that contains one folder of images per class.
        transform: called on each PIL image, or compiled by DataLoader.
        target_transform: called on each class index.
        loader: opens one file; keep the default to get fastdata's image pipeline.
        is_valid_file: selects files by path, instead of by `IMG_EXTENSIONS`.
        allow_empty: accept class folders without images.

    Attributes:
        classes: class names, sorted.
        class_to_idx: index of each class.
        samples: (path, class index) of each image, in torchvision's order; also called `imgs`.
        targets: class index of each image.

    Raises:
        DatasetError: the folder is missing, has no class folders, or a class folder has no images.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] = pil_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        self.transform, self.target_transform = transform, target_transform
        self.loader = loader
        self.extensions = IMG_EXTENSIONS if is_valid_file is None else None
        self.classes, self.class_to_idx = self.find_classes(self.root)
        self.samples = _list_samples(self.root, self.class_to_idx, is_valid_file or _has_image_extension)
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        if not allow_empty:
            _check_not_empty(self.root, self.classes, self.targets, self.extensions)

    def find_classes(self, directory: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
        """Class names in `directory`, sorted, and their indices; override this for another folder structure."""
        if os.path.isfile(directory):
            raise DatasetError(
                f"{Path(directory).absolute()} is a file; name the folder that contains one folder of images per class"
            )
        if not os.path.isdir(directory):
            raise DatasetError(f"no such folder: {Path(directory).absolute()}")
        with os.scandir(directory) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir())
        if not classes:
            raise DatasetError(
                f"no class folders in {Path(directory).absolute()}; expected {directory}/CLASS/NAME with an extension "
                f"of {' '.join(IMG_EXTENSIONS)}"
            )
        return classes, {name: index for index, name in enumerate(classes)}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """The image at `index` after `transform`, and its target."""
        image = self.loader(self.samples[index][0])
        return (self.transform(image) if self.transform is not None else image), self.read_target(index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(root={self.root!r}, samples={len(self)}, classes={len(self.classes)})"

    # The source protocol; see sources/protocol.py.

    def check_source(self) -> None:
        """Raises NotASource if a subclass or another loader changes how samples are read."""
        for method in ("__getitem__", "__getitems__"):
            if getattr(type(self), method) is not getattr(ImageFolder, method):
                raise NotASource(f"{type(self).__name__} has a {method} of its own")
        if self.loader is not pil_loader:
            raise NotASource(
                f"its loader {getattr(self.loader, '__name__', self.loader)!r} is not the default one",
                "use the dataset's default loader",
            )

    def read_encoded(self, index: int) -> bytes:
        """The bytes of the file at `index`."""
        return read_file(self.samples[index][0])

    def read_target(self, index: int) -> Any:
        """The class index at `index` after `target_transform`."""
        target = self.samples[index][1]
        return target if self.target_transform is None else self.target_transform(target)

    def location(self, index: int) -> str:
        """The path of the file at `index`."""
        return self.samples[index][0]

    def file_range(self, index: int) -> tuple[str, int, int]:
        """The path of the file at `index`, with the offset and length of the whole file."""
        return self.samples[index][0], 0, -1

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        """`file_range` for many indices."""
        return FileRanges([self.samples[index][0] for index in indices])

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        """`read_target` for many indices."""
        if self.target_transform is not None:
            return [self.read_target(index) for index in indices]
        return [self.samples[index][1] for index in indices]


def leave_out(dataset: Any, paths: Collection[str]) -> None:
    """Removes images from an image folder, ours or torchvision's, by their paths."""
    if not paths:
        return
    dataset.samples = dataset.imgs = [sample for sample in dataset.samples if sample[0] not in paths]
    dataset.targets = [target for _, target in dataset.samples]


def _has_image_extension(path: str) -> bool:
    return path.lower().endswith(IMG_EXTENSIONS)


def _list_samples(
    root: str | os.PathLike[str], class_to_idx: dict[str, int], is_valid: Callable[[str], bool]
) -> list[tuple[str, int]]:
    """Every file below each class folder, links followed, folders and names in sorted order."""
    samples = []
    for name in sorted(class_to_idx):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            paths = (os.path.join(folder, file) for file in sorted(files))
            samples += [(path, class_to_idx[name]) for path in paths if is_valid(path)]
    return samples


def _check_not_empty(
    root: str | os.PathLike[str], classes: list[str], targets: list[int], extensions: tuple[str, ...] | None
) -> None:
    found = set(targets)
    empty = [name for index, name in enumerate(classes) if index not in found]
    if empty:
        accepted = " ".join(extensions) if extensions is not None else "files that is_valid_file accepts"
        raise DatasetError(
            f"no images for {len(empty)} of {len(classes)} classes in {Path(root).absolute()}: "
            f"{', '.join(empty[:5])}{' …' if len(empty) > 5 else ''}; accepted: {accepted}; or pass allow_empty=True"
        )
