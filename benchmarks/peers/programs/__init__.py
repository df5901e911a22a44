"""One module per peer: `prepare(job)` writes its own format, `loader(job)` opens it as its documentation recommends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workloads import Workload

__all__ = ["Job", "Loader", "samples"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a program is to do.

    Attributes:
        work: the workload.
        option: of the variant.
        images: folder of the workload's images, as `make_images` writes them.
        stored: the program's own folder, for what `prepare` writes.
        threads: worker threads or processes.
    """

    work: Workload
    option: str
    images: Path
    stored: Path
    threads: int


class Loader(NamedTuple):
    """An open loader.

    Attributes:
        epoch: the batches of one pass: (images, labels), images float32 [N, 3, H, W] or a list of two; in
            segmentation with masks instead of labels, int64 [N, H, W]; in detection N images [3, H, W] and N dicts of
            "boxes" and "labels".
        close: ends its threads and processes.
    """

    epoch: Callable[[], Iterable[tuple[Any, Any]]]
    close: Callable[[], None] = lambda: None


def samples(folder: Path) -> list[tuple[str, int]]:
    """Paths and class numbers of a folder, in torchvision's order."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return [(str(path), number) for number, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
