"""A cache of unpacked JPEGs: the same batches and errors as without it, whatever becomes of its files."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import bad_images
from folders import flip
from images import jpeg, odd_files, saved
from mutations import damaged
from torch.utils.data import DistributedSampler
from torchvision import transforms as tv

from fastdata import DataLoader, ImageFolder, ShardDataset
from fastdata.errors import OptionError, SamplesSkipped
from fastdata.loaders import create_backend
from fastdata.loaders.backend import Filled
from fastdata.loaders.per_image import PerImageFiller
from fastdata.loaders.pil import PilBackend
from fastdata.pipeline.cached_filler import CachedFiller
from fastdata.pipeline.record_cache import RecordCache, open_cache
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.tables import Format, Recipes, addresses
from fastdata.views.view import View, windows_of

CROP = tv.Compose([tv.RandomResizedCrop(24), tv.RandomHorizontalFlip(), tv.ToTensor()])
COUNT = 30
CHUNK = 16 << 20


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for number in range(COUNT):
        path = folder / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(90 + number, 70, seed=number))
        before = path.stat().st_mtime_ns - 10**9  # not written just now
        os.utime(path, ns=(before, before))
    return folder


@pytest.fixture(params=["ram", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "ram" if request.param == "ram" else str(tmp_path / "cache")


def loader(images: Path | Any, **options: Any) -> DataLoader[Any]:
    dataset = ImageFolder(images, CROP) if isinstance(images, Path) else images
    return DataLoader(dataset, **{"batch_size": 8, "shuffle": True, "num_workers": 2, "seed": 5, **options})


def check_same(ours: DataLoader[Any], plain: DataLoader[Any]) -> None:
    """One epoch of each gives the same batches."""
    for batch, expected in zip(ours, plain, strict=True):
        for mine, other in zip(batch, expected, strict=True):
            assert torch.equal(mine, other)


def filled(images: Path, cache: Path | str, **options: Any) -> DataLoader[Any]:
    """A loader whose cache is complete."""
    made = loader(images, cache=cache, **options)
    for _ in range(3):
        list(made)
    return made


def cached_in_next_epoch(ours: DataLoader[Any]) -> int:
    before = ours.stats()["cached"]
    list(ours)
    return ours.stats()["cached"] - before


# ---- what it is for


@pytest.mark.parametrize("fidelity", ["exact", "fast"])
def test_epochs_are_the_same_and_all_images_are_there_after_three(images: Path, place: str, fidelity: str) -> None:
    options: Any = {"fidelity": fidelity}
    ours, plain = loader(images, cache=place, **options), loader(images, **options)
    cached = []
    for _ in range(5):
        before = ours.stats()["cached"]
        check_same(ours, plain)
        cached.append(ours.stats()["cached"] - before)
    assert cached[0] == 0
    assert 0 < cached[1] < cached[2] < COUNT
    assert cached[3:] == [COUNT, COUNT]
    assert f"{COUNT} images so far" in ours.explain().replace("\n", " ")


def test_another_run_reads_what_one_has_kept(images: Path, tmp_path: Path) -> None:
    filled(images, tmp_path / "cache")
    again = loader(images, cache=tmp_path / "cache")
    assert f"{COUNT} images so far" in again.explain().replace("\n", " ")
    check_same(again, loader(images))
    assert again.stats()["cached"] == COUNT


def test_shards_are_kept_too(images: Path, tmp_path: Path) -> None:
    convert(str(images), tmp_path / "shards", ConvertOptions())
    dataset = ShardDataset(tmp_path / "shards", CROP)
    ours, plain = loader(dataset, cache=tmp_path / "cache"), loader(dataset)
    for _ in range(4):
        check_same(ours, plain)
    assert cached_in_next_epoch(ours) == COUNT


def test_an_image_that_has_changed_is_kept_anew(images: Path, place: str) -> None:
    ours = filled(images, place)
    changed = images / "0" / "0.jpg"
    changed.write_bytes(jpeg(90, 70, seed=77))
    before = changed.stat().st_mtime_ns - 2 * 10**9  # one that was written just now is not kept
    os.utime(changed, ns=(before, before))
    plain = loader(images)
    plain.load_state_dict(ours.state_dict())
    for _ in range(4):
        check_same(ours, plain)
    assert cached_in_next_epoch(ours) == COUNT


def test_an_image_that_has_changed_but_for_its_time_and_size_is_kept_anew(images: Path, place: str) -> None:
    changed, pictures = images / "0" / "0.jpg", [jpeg(90, 70, seed=seed) for seed in (0, 77)]
    first, second = (each.ljust(max(map(len, pictures)), b"\0") for each in pictures)
    times = changed.stat()
    for content in (first, second):
        changed.write_bytes(content)
        os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
        if content is first:
            ours = filled(images, place)
    plain = loader(images)
    plain.load_state_dict(ours.state_dict())
    check_same(ours, plain)


def test_runs_of_one_epoch_fill_it_too(images: Path, tmp_path: Path) -> None:
    cached = [cached_in_next_epoch(loader(images, cache=tmp_path / "cache")) for _ in range(40)]
    assert cached[-1] == COUNT


def test_every_third_epoch_fills_it_too(images: Path, place: str) -> None:
    sampler: Any = DistributedSampler(range(COUNT), num_replicas=1, rank=0)  # type: ignore[arg-type]
    ours = loader(images, cache=place, shuffle=False, sampler=sampler)
    for epoch in range(0, 12, 3):
        sampler.set_epoch(epoch)
        list(ours)
    assert cached_in_next_epoch(ours) == COUNT


def test_images_without_a_record_are_tried_once(images: Path, tmp_path: Path) -> None:
    for name, data in {**odd_files(), "picture.png": saved(kind="PNG")}.items():
        (images / "1" / f"odd-{''.join(filter(str.isalnum, name))}.jpg").write_bytes(data)
    ours, plain = (loader(images, on_error="skip", **more) for more in ({"cache": tmp_path / "cache"}, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplesSkipped)
        for _ in range(4):
            check_same(ours, plain)
        assert ours.stats()["quarantine"] == plain.stats()["quarantine"]
        size = sum(each.stat().st_size for each in (tmp_path / "cache").glob("*.index"))
        list(ours)
    assert sum(each.stat().st_size for each in (tmp_path / "cache").glob("*.index")) == size


def test_damaged_images_give_what_they_give_without_it(images: Path, place: str) -> None:
    rng = Random(3)
    for number, data in enumerate(bad_images().values()):
        (images / "2" / f"bad-{number}.jpg").write_bytes(data)
    for number in range(60):
        (images / "2" / f"damaged-{number}.jpg").write_bytes(damaged(jpeg(80, 64, seed=number), rng))
    ours, plain = (loader(images, on_error="skip", **more) for more in ({"cache": place}, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(5):
            check_same(ours, plain)
    assert ours.stats()["quarantine"] == plain.stats()["quarantine"]
    assert ours.stats()["cached"] > 0


# ---- what may become of the files


def records_of(cache: Path) -> Path:
    return next(cache.glob("*.records"))


def flip_records(cache: Path) -> None:
    path = records_of(cache)
    for at in range(50, path.stat().st_size, 400):
        flip(path, at)


def flip_index(cache: Path) -> None:
    path = next(cache.glob("*.index"))
    for at in range(8, path.stat().st_size, 29):
        flip(path, at)


def cut_records(cache: Path) -> None:
    os.truncate(records_of(cache), records_of(cache).stat().st_size // 2)


def cut_index(cache: Path) -> None:
    path = next(cache.glob("*.index"))
    os.truncate(path, path.stat().st_size // 2 + 7)


def of_another_version(cache: Path) -> None:
    path = next(cache.glob("*.index"))
    path.write_bytes(b"FDCACHE9" + path.read_bytes()[8:])


def remove_records(cache: Path) -> None:
    records_of(cache).unlink()


DAMAGES = [flip_records, flip_index, cut_records, cut_index, of_another_version, remove_records]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_the_cache_changes_no_pixel(images: Path, tmp_path: Path, damage: Any) -> None:
    filled(images, tmp_path / "cache")
    damage(tmp_path / "cache")
    ours, plain = loader(images, cache=tmp_path / "cache"), loader(images)
    for _ in range(4):  # the first finds out
        check_same(ours, plain)
    assert ours.stats()["failures"] == 0
    assert cached_in_next_epoch(ours) == COUNT
    assert cached_in_next_epoch(loader(images, cache=tmp_path / "cache")) == COUNT  # another run does not meet it


def test_damage_to_its_own_files_keeps_none_of_them_open(images: Path, tmp_path: Path) -> None:
    ours = filled(images, tmp_path / "cache")
    flip_index(tmp_path / "cache")
    del ours
    gc.collect()
    assert str(tmp_path / "cache") not in " ".join(map(os.readlink, own_descriptors()))
    assert records_of(tmp_path / "cache").stat().st_size < 1 << 20  # of the 16 MiB that were reserved


def own_descriptors() -> list[str]:
    return [place for each in os.listdir("/proc/self/fd") if os.path.lexists(place := f"/proc/self/fd/{each}")]


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_folder_that_is_removed_is_filled_anew(images: Path, tmp_path: Path, epochs: int) -> None:
    cache = tmp_path / "cache"
    ours, plain = loader(images, cache=cache), loader(images)
    for _ in range(epochs):
        check_same(ours, plain)
    shutil.rmtree(cache)
    for _ in range(4):
        check_same(ours, plain)
    assert cached_in_next_epoch(ours) == COUNT


def test_it_stays_within_its_bounds(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"{number}.jpg").write_bytes(jpeg(2400, 2000, seed=number, sampling="4:4:4", quality=97))
    cache = tmp_path / "cache"
    ours, plain = loader(folder.parent, cache=cache, cache_bytes=CHUNK), loader(folder.parent)
    for _ in range(4):
        check_same(ours, plain)
    assert sum(each.stat().st_size for each in cache.glob("*.records")) <= CHUNK
    assert 0 < cached_in_next_epoch(ours) < 8
    assert "it is full" in ours.explain()


def test_a_folder_that_cannot_be_used_any_more_is_told_once(images: Path, tmp_path: Path) -> None:
    ours, plain = loader(images, cache=tmp_path / "cache"), loader(images)
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_bytes(b"")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            check_same(ours, plain)
    assert [each for each in told if "keeps no more" in str(each.message)]


def test_a_folder_removed_between_finding_and_reading_costs_no_batch(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    filled(images, cache)
    ours, find, done = loader(images, cache=cache), RecordCache.find, []

    def find_then_remove(self: RecordCache, keys: Any) -> Any:
        found = find(self, keys)
        if not done:
            done.append(True)
            shutil.rmtree(cache)
            next(iter(ours))
        return found

    monkeypatch.setattr(RecordCache, "find", find_then_remove)
    assert sum(len(labels) for _, labels in ours) == COUNT


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As a full disk or a quota would, in this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_told_once_and_is_in_nobodys_way(images: Path, tmp_path: Path) -> None:
    ours, plain = loader(images, cache=tmp_path / "cache"), loader(images)
    with no_file_larger_than(1 << 20), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            check_same(ours, plain)
    assert len([each for each in told if "keeps no more" in str(each.message)]) == 1


# ---- several processes


def read_epochs(images: Path, cache: Path, seed: int, epochs: int) -> None:
    made = loader(images, cache=cache, seed=seed)
    for _ in range(epochs):
        list(made)


@pytest.mark.parametrize("seed", range(2))
def test_four_processes_share_it_and_are_killed_at_random(images: Path, tmp_path: Path, seed: int) -> None:
    cache, rng = tmp_path / "cache", Random(seed)
    fork = multiprocessing.get_context("fork")
    for _ in range(2):
        processes = [fork.Process(target=read_epochs, args=(images, cache, number, 50)) for number in range(4)]
        for each in processes:
            each.start()
        time.sleep(0.2 + rng.random())
        for each in processes:
            each.kill()
        for each in processes:
            each.join()
    ours, plain = loader(images, cache=cache), loader(images)
    for _ in range(4):
        check_same(ours, plain)
    assert cached_in_next_epoch(ours) == COUNT


def test_a_forked_child_writes_files_of_its_own(images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ours = loader(images, cache=cache)
    list(ours)

    def child() -> None:
        for _ in range(3):
            list(ours)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    plain = loader(images)
    plain.load_state_dict(ours.state_dict())
    for _ in range(3):
        check_same(ours, plain)
    assert len(list(cache.glob("*.records"))) == 2
    assert cached_in_next_epoch(ours) == COUNT


def test_what_a_killed_process_reserved_counts_but_is_no_record(images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = multiprocessing.get_context("fork").Process(target=_one_epoch_then_die, args=(images, cache))
    process.start()
    process.join()
    assert records_of(cache).stat().st_size == CHUNK
    check_same(loader(images, cache=cache), loader(images))
    fork = multiprocessing.get_context("fork").Process(target=_one_epoch_then_die, args=(images, cache))
    fork.start()
    fork.join()
    ours = loader(images, cache=cache, cache_bytes=2 * CHUNK)
    for _ in range(3):
        list(ours)
    assert cached_in_next_epoch(ours) == COUNT


def _one_epoch_then_die(images: Path, cache: Path) -> None:
    made = loader(images, cache=cache)
    list(made)
    os._exit(3)


def test_a_copy_has_the_folder_in_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = open_cache("ram/cache", CHUNK)
    assert cache is not None
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.folder, copy.most_bytes) == (tmp_path / "ram" / "cache", CHUNK)
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(cache)).folder == copy.folder


def test_a_path_is_a_folder_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = open_cache(Path("ram"), None)
    assert cache is not None
    assert cache.folder == tmp_path / "ram"


# ---- arguments


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cache_bytes": CHUNK}, "pass cache='ram' or cache=FOLDER, too"),
        ({"cache": "ram", "cache_bytes": 5}, "use a number of bytes from 16777216 on"),
        ({"cache": "ram", "cache_bytes": True}, "use a number of bytes"),
        ({"cache": ""}, "use 'ram' or a folder"),
        ({"cache": 3}, "use 'ram' or a folder"),
        ({"cache": "/dev/null/cache"}, "the folder cannot be made"),
    ],
)
def test_arguments_that_cannot_work_are_refused(images: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        loader(images, **options)


def test_explain_says_where_it_is_not_used(images: Path, tmp_path: Path) -> None:
    told = loader(images, cache=tmp_path / "cache", backend="pil").explain().replace("\n", " ")
    assert "cache:      not used" in told
    own = loader([(torch.zeros(3), 0)] * 8, cache="ram", num_workers=0, defer=False)
    with pytest.warns(UserWarning, match="cache='ram'.* has no effect"):
        list(own)


class RefusesSecondRows(PerImageFiller):
    """Decodes records as files, but refuses the second row of an image the first time."""

    reads_records = True

    def fill(self, recipes: Recipes) -> Filled:
        filled, self.is_first = super().fill(recipes), not hasattr(self, "is_first")
        seconds = np.flatnonzero(recipes.same_as != np.arange(len(recipes))).tolist() if self.is_first else []
        return replace(filled, refused={**filled.refused, **{row: OSError("refused") for row in seconds}})


def test_rows_that_are_filled_again_show_their_own_image(images: Path) -> None:
    files, cache = [str(path) for path in sorted(images.glob("*/*.jpg"))[:4]], RecordCache(None, None)
    windows = windows_of([View.whole(90, 70).cropped((0, 0, 24, 20)), View.whole(90, 70).cropped((9, 9, 33, 29))] * 4)
    out = np.zeros((8, 20, 24, 3), np.uint8)
    recipes = Recipes(
        paths=[path for path in files for _ in range(2)],
        same_as=np.repeat(np.arange(0, 8, 2), 2),
        windows=windows,
        format=Format(),
        out=addresses(out.ctypes.data, out.strides[0], 8),
    )
    native = create_backend("native").filler(threads=0)
    for _ in range(3):
        assert not CachedFiller(native, cache).fill(recipes).refused
    expected = out.copy()
    out[:] = 0
    decode_view = PilBackend().decode_view
    filled = CachedFiller(RefusesSecondRows(decode_view, None, None), cache).fill(recipes)
    assert not filled.refused
    assert filled.cached == 4
    assert np.array_equal(out, expected)
