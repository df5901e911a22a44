"""A window of a JPEG, decoded from its file, by its index, from its unpacked record or from a shard, is the crop of
Pillow's full decode; where the file is damaged, so is every window that the native core does not hand to Pillow.

If Pillow refuses a damaged file, the core may still decode windows before the damage, and all if it is behind the
file's end, as README.md says.  Then all four ways give the same pixels: those of Pillow where it accepts files that
are cut short.  A record or an index that is damaged itself is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random

import core_alone
import make_corpus
import numpy as np
import PIL.Image
import PIL.ImageFile
from mutations import damaged, mutated

from fastdata import ShardDataset, native
from fastdata.jpeg_index.find import open_indexes
from fastdata.loaders import pillow, resample
from fastdata.native import IndexUse, Status
from fastdata.shards.writer import TarWriter
from fastdata.views.draw import draw_view
from fastdata.views.philox import Key
from fastdata.views.plan import RandomCrop
from fastdata.views.view import View

ROUNDS = (1_500, 30_000, 200_000)
HANDED_BACK = ("cmyk", "no-quantisation-tables")
WITHOUT_RECORD = (*HANDED_BACK, "arithmetic", "arithmetic-progressive")
WITHOUT_INDEX = (*WITHOUT_RECORD, "progressive", "multi-scan")
CROPS = [RandomCrop(size=size) for size in ((1, 1), (7, 9), (16, 16), (40, 24))]
Ways = dict[str, np.ndarray | None]


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with a whole JPEG or a damaged one."""
    PIL.Image.MAX_IMAGE_PIXELS = 100_000  # sizes that damage has made up are refused before they take time
    seeds = {name: data for name, data in make_corpus.seeds().items() if data[:2] == b"\xff\xd8"}
    files, core, numbers = list(seeds.values()), _Core(), itertools.count()

    def one(rng: Random) -> str:
        name, place = rng.choice(sorted(seeds)), folder / str(next(numbers))
        if rng.random() < 0.5:
            return f"damaged, {core.check(mutated(seeds[name], rng, files), rng, place)[1]}"
        ways, _ = core.check(seeds[name], rng, place)
        assert ("the file" in ways) == (name not in HANDED_BACK)
        assert ("its record" in ways) == (name not in WITHOUT_RECORD)
        assert ("its index" in ways) == (name not in WITHOUT_INDEX)
        return "whole"

    return one


class _Core:
    """The native core, and what it makes of one file in every way."""

    def __init__(self) -> None:
        self._core, order = resample.exact_core()
        self._options = resample.options_for(order, "exact")

    def check(self, data: bytes, rng: Random, place: Path) -> tuple[list[str], str]:
        """Compares the windows of a file; returns by which ways the core decoded it, and whether Pillow did, too."""
        whole = _by_pillow(data)
        size = _size(data) if whole is None else (whole.shape[1], whole.shape[0])
        view = core_alone.view_of(_window(*size, rng))
        left, top, right, bottom = view.window_px
        ways = {"the file": core_alone.decoded(data, view)}
        ways |= self._by_index(data, view, rng)
        ways |= self._from_record(data, view, rng)
        if rng.random() < 0.2:
            self._compare_shard(data, whole, size, rng, place)
        decoded = {way: pixels for way, pixels in ways.items() if pixels is not None}
        if whole is not None:
            expected = whole[top:bottom, left:right]
        elif decoded:
            cut = _by_pillow(data, accept_cut=True)
            expected = next(iter(decoded.values())) if cut is None else cut[top:bottom, left:right]
        for way, pixels in decoded.items():
            assert (pixels == expected).all(), f"{way}: other pixels in {view.window_px}"
        by_core = "decoded" if decoded else "handed back"
        return list(decoded), f"{'decoded' if whole is not None else 'refused'} by Pillow, {by_core} by the core"

    def _by_index(self, data: bytes, view: View, rng: Random) -> Ways:
        index = self._core.index_jpeg(data, step=rng.randrange(6), options=self._options)
        if index is None:
            return {}
        broken = native.JpegIndexes.of([damaged(index, rng)])
        ways = {"its index": core_alone.decoded(data, view, indexes=native.JpegIndexes.of([index]))}
        ways["a damaged index"] = core_alone.decoded(data, view, indexes=broken)
        assert broken.uses[0] != IndexUse.USED
        return ways

    def _from_record(self, data: bytes, view: View, rng: Random) -> Ways:
        record = self._core.unpack(data, options=self._options)
        if record is None:
            return {}
        assert self._core.restore(record, options=self._options) == data
        assert core_alone.decoded(damaged(record, rng), view) is None
        return {"its record": core_alone.decoded(record, view)}

    def _compare_shard(
        self, data: bytes, whole: np.ndarray | None, size: tuple[int, int], rng: Random, folder: Path
    ) -> None:
        """The file and its record in a shard, with their indexes, loaded as by a loader."""
        folder.mkdir()
        record = self._core.unpack(data, options=self._options)
        with TarWriter(folder, "a.tar") as writer:
            for key, extension, stored in (("a", "jpg", data), ("b", "fdc", record)):
                if stored is not None:
                    writer.add(key, extension, stored, 0, *size)
            writer.finish()
        dataset, number = ShardDataset(str(folder / "a.tar")), rng.randrange(len(CROPS))
        height, width = CROPS[number].size
        ranges = dataset.file_ranges(range(len(dataset)))
        out = np.zeros((len(dataset), height, width, 3), np.uint8)
        indexes = open_indexes().of(ranges.paths, ranges.offsets)
        index = rng.randrange(1000)
        recipes = core_alone.of_files(
            ranges.paths,
            out,
            offsets=ranges.offsets,
            lengths=ranges.lengths,
            crcs=ranges.crcs,
            indices=[index] * len(dataset),
        )
        results = core_alone.fill(recipes, CROPS[number], indexes=indexes)
        found = [pixels for pixels, status in zip(out, results.statuses, strict=True) if status == Status.OK]
        if whole is not None and size[0] >= width and size[1] >= height:
            view = draw_view((CROPS[number],), size, index, 0, key=Key(seed=1, epoch=1))
            found.append(core_alone.reference(data, view))
        assert all((pixels == found[0]).all() for pixels in found), f"a shard: other pixels, sample {index}"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def _by_pillow(data: bytes, *, accept_cut: bool = False) -> np.ndarray | None:
    """The whole image; None if Pillow refuses it."""
    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = accept_cut
    try:
        return np.asarray(pillow.open_rgb(data))
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many kinds
        return None
    finally:
        PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False


def _size(data: bytes) -> tuple[int, int]:
    """The size in the header; that of most seeds if there is none."""
    try:
        return pillow.size_of(data)
    except Exception:  # noqa: BLE001 - as above
        return 60, 50


def _window(width: int, height: int, rng: Random) -> tuple[int, int, int, int]:
    if rng.random() < 0.2:
        return 0, 0, width, height
    left, top = rng.randrange(width), rng.randrange(height)
    return left, top, rng.randint(left + 1, width), rng.randint(top + 1, height)
