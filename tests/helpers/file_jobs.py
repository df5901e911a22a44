"""Jobs that write files, small ones: convert, index, restore, train with checkpoints, and fill the download cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import images
from small_training import data, options, plain_model
from torchvision import transforms

from fastdata import DataLoader, ImageFolder, ShardDataset
from fastdata.shards import cache, remote_files
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.restore import restore_folder
from fastdata.shards.format import MANIFEST_NAME
from fastdata.shards.make_index import index_folder
from fastdata.train import fit, plots
from fastdata.train.best import plateau_factor
from fastdata.train.checkpoint_files import load_checkpoint

IMAGES = 12
PICTURE = bytes(40_000)
JUDGED = {"best_metric": "val_loss", "lr_scheduler": "plateau", "lr_patience": 0}


class Job:
    """Work in a folder of its own.

    Args:
        work: the folder below which calls are counted.
        name: of the job, and of its folder in `work`.
        start: a folder with what is there before; None for nothing.
        run: does the work in the job's folder, going on with what an earlier run left if told to; its result must be
            the same each time.
    """

    stops_when_asked = False  # at Ctrl-C it saves and returns
    temporary = re.compile(r"\.(partial|lock)$|^\.conversion|^fastdata-new-")

    def __init__(self, work: Path, name: str, start: Path | None, run: Callable[[Path, bool], Any]) -> None:
        self.work, self.folder, self._start, self._run = work, work / name, start, run

    def begin(self) -> None:
        """Puts the folder into the state that each run begins with."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._start is not None:
            shutil.copytree(self._start, self.folder)

    def run(self) -> Any:
        """Does the work."""
        return self._result(False)

    def again(self) -> Any:
        """Does the work after a run that was disturbed."""
        return self._result(True)

    def _result(self, again: bool) -> Any:
        """What the work returns, and the files."""
        returned = self._run(self.folder, again)
        return [returned, {name: digest for name, digest in self.files().items() if not self.is_temporary(name)}]

    def files(self) -> dict[str, str]:
        """Digests of all files, by their paths in the folder."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): _digest(path) for path in paths}

    def is_temporary(self, name: str) -> bool:
        """True for a file under a temporary name."""
        return any(self.temporary.search(part) for part in Path(name).parts)

    def half_made(self) -> dict[str, str]:
        """Files under final names that are damaged in a way that their digest does not tell."""
        return {}


class TrainingJob(Job):
    """A training that resumes; its files hold times, so they are judged by being loaded."""

    stops_when_asked = True

    def files(self) -> dict[str, str]:
        return dict.fromkeys(super().files(), "")

    def half_made(self) -> dict[str, str]:
        wrong = {str(path): "set aside" for path in self.folder.glob("*.damaged*")}
        if (plot := self.folder / "curves.png").exists() and plot.read_bytes() != PICTURE:
            wrong[str(plot)] = "cut short"
        if (result := self.folder / "result.json").exists():
            json.loads(result.read_bytes())
        kept = list(self.folder.glob("checkpoint-*.pt"))
        for path in [*kept, *self.folder.glob("best.pt")]:
            load_checkpoint(path)
        return wrong if len(kept) > 1 else {**wrong, "checkpoints": f"only {kept}"}


class RecordCacheJob(Job):
    """Epochs of a loader with a cache, whose files are named anew by each process and may be damaged."""

    def files(self) -> dict[str, str]:
        return {}


def make(work: Path) -> dict[str, Job]:
    """The jobs by name; makes what they begin with."""
    work.mkdir()
    source, shards, tars, trained = work / "source", work / "shards", work / "tars", work / "trained"
    for number in range(IMAGES):
        path = source / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.jpeg(30 + number, 20, seed=number))
    _convert(source, shards)
    tars.mkdir()
    for path in [*shards.glob("*.tar"), *shards.glob("*0.idx"), shards / MANIFEST_NAME]:
        shutil.copy(path, tars)
    store = work.parent / "store"  # whose calls are not counted
    shutil.copytree(shards, store)
    pictures = work.parent / "pictures"
    shutil.copytree(source, pictures)
    _train(trained, 1)
    return {
        "convert": Job(work, "convert", None, lambda folder, _: _convert(source, folder)),
        "index": Job(work, "index", tars, lambda folder, _: index_folder(folder).to_text()),
        "restore": Job(work, "restore", None, lambda folder, again: _restore(shards, folder, again)),
        "training": TrainingJob(work, "training", trained, lambda folder, _: _train(folder, 2)),
        "record cache": RecordCacheJob(work, "record cache", None, lambda folder, _: _epochs(pictures, folder)),
        "cache": Job(work, "cache", None, lambda folder, again: _fill(store, folder, again)),
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _convert(source: Path, folder: Path) -> Any:
    made = convert(str(source), folder, ConvertOptions(shard_bytes=16_000))
    return {name: manifest.to_text() for name, manifest in made.manifests.items()}


def _restore(shards: Path, folder: Path, again: bool) -> Any:
    return list(restore_folder(ShardDataset(shards), folder, threads=2, resume=again))


def _train(folder: Path, epochs: int) -> list[Any]:
    """The losses of all updates, the learning rate's factor, and the epoch of the best checkpoint."""
    plots._figure = _figure
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*")
        chosen = options(output_dir=str(folder), keep=2, save_every=1, epochs=epochs, resume="auto", **JUDGED)
        result = fit(plain_model(), data(16), data(8), options=chosen)
    best = load_checkpoint(folder / "best.pt")["result"]["epochs"]
    return [*map(float, result.losses), plateau_factor(result.epochs, chosen), len(best)]


def _epochs(pictures: Path, folder: Path) -> list[str]:
    """Digests of all batches of four epochs: the cache is filled in three, and read in all."""
    to_uint8 = transforms.Compose([transforms.Resize((16, 16)), transforms.PILToTensor()])
    loader = DataLoader(ImageFolder(pictures, to_uint8), 4, cache=folder / "records", cache_bytes=1 << 24)
    return [hashlib.sha256(images.numpy().tobytes()).hexdigest()[:16] for _ in range(4) for images, _ in loader]


def _fill(store: Path, folder: Path, again: bool) -> list[str]:
    remote_files._FIRST_PAUSE_S = cache._LOOK_AGAIN_S = 0.001
    if again:
        cache._ABANDONED_S = 0.0
    dataset = ShardDataset(f"file://{store}", cache_dir=folder)
    return [hashlib.sha256(dataset.read_encoded(index)).hexdigest()[:16] for index in range(len(dataset))]


def _figure(*_: Any) -> Any:
    """Stands for a figure of matplotlib, whose drawing takes longer than the training."""

    def save(to: Any, **_: Any) -> None:
        with contextlib.nullcontext(to) if hasattr(to, "write") else open(to, "wb") as file:
            file.write(PICTURE)

    figure = mock.MagicMock()
    figure.subplots.return_value = [mock.MagicMock() for _ in range(3)]
    figure.savefig = save
    return figure
