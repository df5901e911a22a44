"""Transforms that a dataset's code names, instead of having them in attributes: they are fused like those."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from own_tables import MEAN, STD, Table, batches, same
from PIL import Image
from torchvision.transforms import v2

from fastdata import DataLoader
from fastdata.lazy.find import find_transforms
from fastdata.lazy.sample_context import context
from fastdata.views.philox import Key


def fusible() -> Any:
    steps = [v1.RandomResizedCrop(24), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return v1.Compose(steps)


GLOBAL = fusible()
NAMED = {"train": fusible(), "other": None}
MODULE = types.ModuleType("fastdata_tests_of_transforms")
MODULE.augment = fusible()  # type: ignore[attr-defined]


def prepared(image: Image.Image) -> Any:
    return GLOBAL(image)


def given(image: Image.Image, *, transform: Callable[[Any], Any]) -> Any:
    return transform(image)


class Augmenter:
    """An object of the user's whose method is called."""

    def __init__(self) -> None:
        self.steps = fusible()

    def augment(self, image: Image.Image) -> Any:
        return self.steps(image)


class Own(Table):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, lambda image: image)
        del self.transform

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        return self.seen(Image.open(self.folder / name).convert("RGB")), int(label)

    def seen(self, image: Image.Image) -> Any:
        raise NotImplementedError


class OfAttribute(Own):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.own = fusible()

    def seen(self, image: Image.Image) -> Any:
        return self.own(image)


class OfClass(Own):
    own = fusible()

    def seen(self, image: Image.Image) -> Any:
        return self.own(image)


class OfGlobal(Own):
    def seen(self, image: Image.Image) -> Any:
        return GLOBAL(image)


class OfGlobalDictionary(Own):
    def seen(self, image: Image.Image) -> Any:
        return NAMED["train"](image)  # type: ignore[misc]


class OfModule(Own):
    def seen(self, image: Image.Image) -> Any:
        return MODULE.augment(image)


class OfFunction(Own):
    def seen(self, image: Image.Image) -> Any:
        return prepared(image)


class OfComprehension(Own):
    def seen(self, image: Image.Image) -> Any:
        return next(GLOBAL(each) for each in [image])


class OfStatic(Own):
    @staticmethod
    def seen(image: Image.Image) -> Any:  # type: ignore[override]
        return GLOBAL(image)


class OfClosure(Own):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        transform = fusible()
        self.call = lambda image: transform(image)

    def seen(self, image: Image.Image) -> Any:
        return self.call(image)


class OfPartial(OfClosure):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.call = partial(given, transform=fusible())


class OfMethod(OfClosure):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.call = Augmenter().augment


KINDS = [OfClass, OfGlobal, OfGlobalDictionary, OfModule, OfFunction, OfComprehension, OfStatic, OfClosure, OfPartial]
KINDS += [OfMethod]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_they_are_fused_as_those_in_attributes(table: Path, kind: type[Own], workers: int) -> None:
    """Fused transforms draw by (seed, epoch, sample): two kinds give the same numbers only if both are fused."""
    options: dict[str, Any] = {"batch_size": 5, "num_workers": workers, "seed": 7}
    loader = DataLoader(kind(table), **options)
    assert same(batches(loader), batches(DataLoader(OfAttribute(table), **options)))
    (plan,) = find_transforms(loader.dataset).plans.values()
    assert plan.fused == ("RandomResizedCrop", "ColorJitter", "ToTensor", "Normalize")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_their_numbers_can_be_torchs(table: Path, kind: type[Own], workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 5, "num_workers": workers}
    theirs = torch.utils.data.DataLoader(kind(table), **options)
    assert same(batches(DataLoader(kind(table), draws="torch", **options)), batches(theirs))


def places() -> list[Any]:
    return [GLOBAL, NAMED["train"], MODULE.augment, OfClass.own]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_its_iterators_are_torchs(table: Path, options: dict[str, Any]) -> None:
    """Programs look at them: workers by their processes, and one iterator for all epochs of persistent workers."""
    ours, theirs = (kind(OfGlobal(table), 5, **options) for kind in (DataLoader, torch.utils.data.DataLoader))
    first, second = iter(ours), iter(theirs)
    assert isinstance(first, torch.utils.data.dataloader._BaseDataLoaderIter)
    assert type(first).__name__ == type(second).__name__
    assert (iter(ours) is first) is (iter(theirs) is second)


def test_the_originals_are_back_between_batches_and_after_errors(table: Path) -> None:
    class Failing(OfGlobal):
        def __getitem__(self, index: int) -> Any:
            if index == 11:
                raise KeyError("no such row")
            return super().__getitem__(index)

    before = places()
    assert all(type(each) is v1.Compose for each in before)
    for dataset in (OfGlobal(table), OfGlobalDictionary(table), OfModule(table), OfClass(table)):
        for _ in DataLoader(dataset, 4):
            assert all(now is then for now, then in zip(places(), before, strict=True))
    closure = OfClosure(table)
    (cell,) = closure.call.__closure__
    kept = cell.cell_contents
    for _ in DataLoader(closure, 4):
        assert cell.cell_contents is kept
    with pytest.raises(KeyError, match="no such row"):
        list(DataLoader(Failing(table), 4))
    assert all(now is then for now, then in zip(places(), before, strict=True))


def test_a_transform_that_the_code_sets_anew_stays(table: Path) -> None:
    module = sys.modules[__name__]
    other = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])

    class Changing(OfGlobal):
        def __getitem__(self, index: int) -> Any:
            if index == 6:
                module.GLOBAL = other  # type: ignore[attr-defined]
            return super().__getitem__(index)

    first = GLOBAL
    found = []
    for kind in (DataLoader, torch.utils.data.DataLoader):
        module.GLOBAL = first  # type: ignore[attr-defined]
        found.append(batches(kind(Changing(table), 5, **({"draws": "torch"} if kind is DataLoader else {}))))
        assert repr(GLOBAL) == repr(other)
    module.GLOBAL = first  # type: ignore[attr-defined]
    assert same(*found)


def test_threads_with_a_transform_in_common_do_not_disturb_each_other(table: Path) -> None:
    """Each loader has fused transforms of its own, with other seeds, wherever the common place is installed."""

    class Slow(OfGlobal):
        """Each sample waits until the other thread is within a batch, too, so that both need the place at once."""

        def __init__(self, folder: Path, together: threading.Barrier | None) -> None:
            super().__init__(folder)
            self.together = together

        def __getitem__(self, index: int) -> Any:
            if self.together is not None:
                self.together.wait(20)
            return super().__getitem__(index)

    options: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2}]
    expected = [list(DataLoader(Slow(table, None), 5, **each)) for each in options]
    together, found = threading.Barrier(2), {}

    def read(number: int) -> None:
        found[number] = list(DataLoader(Slow(table, together), 5, **options[number]))

    before = GLOBAL
    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same([found[0], found[1]], expected)
    assert GLOBAL is before


def test_a_loader_inside_of_a_sample_has_its_own(table: Path) -> None:
    class Nesting(OfGlobal):
        def __getitem__(self, index: int) -> Any:
            first = super().__getitem__(index)
            (inner, _), *_ = DataLoader(OfGlobal(table), 2, seed=5)
            return first, inner, super().__getitem__(index)

    found = next(iter(DataLoader(Nesting(table), 3, seed=4)))
    (inner, _), *_ = DataLoader(OfGlobal(table), 2, seed=5)
    assert all(torch.equal(each, inner) for each in found[1])
    images, _ = next(iter(DataLoader(OfAttribute(table), 3, seed=4)))
    assert torch.equal(found[0][0], images)
    assert not torch.equal(found[2][0], images)  # the second view of the same sample


def test_hugging_faces_set_transform(table: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = [str(table / name) for name, _ in OfGlobal(table).rows]
    transform = v2.Compose(
        [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)]
    )

    def preprocess(rows: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": [transform(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}

    rows = datasets.Dataset.from_dict({"image": files, "label": list(range(len(files)))})
    rows = rows.cast_column("image", datasets.Image())
    rows.set_transform(preprocess)
    loader = DataLoader(rows, 5, draws="torch")
    assert same(batches(loader), batches(torch.utils.data.DataLoader(rows, 5)))
    assert list(find_transforms(rows).plans) == ["preprocess.transform"]


@pytest.fixture(autouse=True)
def _global_transforms_stay() -> Iterator[None]:
    before = GLOBAL
    yield
    assert GLOBAL is before


class Unbound:
    """A proxy of a web framework or a lazily loaded object, which may not be looked at now."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} was asked for")


class Constants(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError("constants cannot be changed")


class Config(metaclass=Constants):
    augment = fusible()


PROXY, CONFIG = Unbound(), Config()


def test_proxies_are_not_looked_at_and_constants_are_not_changed(table: Path) -> None:
    class Careful(OfGlobal):
        def seen(self, image: Image.Image) -> Any:
            return PROXY if image.width > 1_000 else (GLOBAL(image), CONFIG.augment(image))

    loaders = DataLoader(Careful(table), 5, draws="torch"), torch.utils.data.DataLoader(Careful(table), 5)
    assert same(*map(batches, loaders))
    assert type(GLOBAL) is v1.Compose


@pytest.mark.filterwarnings("ignore:Bags is loaded at torch's speed")  # the loaders inside of it are not
@pytest.mark.parametrize("several", [1, 3])
def test_tuples_are_put_back_after_nested_loaders_and_threads(table: Path, several: int) -> None:
    class OfTuple(Own):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.views = (fusible(), v1.ToTensor())

        def seen(self, image: Image.Image) -> Any:
            return self.views[0](image)

    class Bags(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return next(iter(DataLoader(dataset, 4)))[0]

    dataset = OfTuple(table)
    before = dataset.views
    threads = [threading.Thread(target=lambda: list(DataLoader(Bags()))) for _ in range(several)]
    for thread in threads:
        thread.start()
    list(DataLoader(dataset, 2))
    for thread in threads:
        thread.join()
    assert dataset.views is before
    assert all(type(each) in (v1.Compose, v1.ToTensor) for each in before)


def test_classes_of_transforms_are_found_in_dictionaries(table: Path) -> None:
    class Looking(OfGlobal):
        def seen(self, image: Image.Image) -> Any:
            return GLOBAL(image), {v1.Compose: "a chain"}[type(GLOBAL)]

    for (_, found), _ in DataLoader(Looking(table), 5):
        assert set(found) == {"a chain"}


def test_what_stands_there_for_another_loader_does_what_its_transform_does(table: Path) -> None:
    """This loader has not found the transform, or cannot fuse it."""
    (fused,) = find_transforms(OfGlobal(table)).by_original.values()
    image = Image.open(next(table.rglob("*.jpg"))).convert("RGB")
    with context.having(key=Key(seed=1, epoch=0), index=0, fused_transforms={}):
        torch.manual_seed(2)
        found = fused(image)
    torch.manual_seed(2)
    assert torch.equal(found, GLOBAL(image))
