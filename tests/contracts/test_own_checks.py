"""The checks of fastdata.testing pass for what is right, and each fails for a backend or a loader with a fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torch.utils.data import TensorDataset
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, OptionError
from fastdata.loaders import Encoded, register_backend
from fastdata.loaders.native import NativeBackend
from fastdata.loaders.pil import PilBackend
from fastdata.tables import Format, Recipes
from fastdata.testing import CHECKS, check_backend, check_resume, synthetic_dataset
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View


class Faulty(PilBackend):
    """Decodes as Pillow does, but for what a subclass does to it."""

    name = "faulty"


class Mirrors(Faulty):
    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        super().decode_view(image, view, out)
        out[:] = out[:, ::-1].copy() if view.flip_vertical else out


class OneFilter(Faulty):
    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        super().decode_view(image, replace(view, interpolation=Interpolation.BILINEAR), out)


class JpegOnly(Faulty):
    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        if image.jpeg is None:
            raise OSError("no JPEG")
        super().decode_view(image, view, out)


class LeavesOutside(Faulty):
    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        before = out.copy()
        super().decode_view(image, view, out)
        left, top = -min(0, view.crop_px[0]), -min(0, view.crop_px[1])
        out[:top], out[:, :left] = before[:top], before[:, :left]


class BreaksNeighbours(Faulty):
    def filler(self, *args: Any, **options: Any) -> Any:
        filler = super().filler(*args, **options)
        fill = filler.fill

        def fill_all_or_none(recipes: Recipes) -> Any:
            filled = fill(recipes)
            rows = range(len(recipes)) if filled.refused else ()
            return replace(filled, refused={row: OSError("one is bad") for row in rows})

        filler.fill = fill_all_or_none  # type: ignore[method-assign]
        return filler


class Accepts(Faulty):
    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        try:
            super().decode_view(image, view, out)
        except OSError:
            if len(image.data) <= 4000:
                raise


class SharesMemory(Faulty):
    shared = np.zeros(1 << 20, np.uint8)

    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        super().decode_view(image, view, out)
        self.shared[: out.size] = out.ravel()
        torch.rand(200, 200) @ torch.rand(200, 200)  # other threads run meanwhile
        out[:] = self.shared[: out.size].reshape(out.shape)


class CopiesWithout(Faulty):
    def __reduce__(self) -> Any:
        return Mirrored, ()


class Mirrored(Faulty):
    def decode_view(self, image: Encoded, view: View, out: np.ndarray) -> None:
        super().decode_view(image, view, out)
        out[:] = out[::-1].copy()


class FillsOtherwise(NativeBackend):
    """Changes what it is asked to fill."""

    def changed(self, recipes: Recipes) -> Recipes:
        raise NotImplementedError

    def filler(self, *args: Any, **options: Any) -> Any:
        filler = super().filler(*args, **options)
        fill = filler.fill
        filler.fill = lambda recipes: fill(self.changed(recipes))  # type: ignore[method-assign]
        return filler


class TrustsFiles(FillsOtherwise):
    """Fills from files without comparing checksums."""

    def changed(self, recipes: Recipes) -> Recipes:
        return replace(recipes, crcs=None)


class DrawsAnew(FillsOtherwise):
    """Draws views that were drawn already."""

    def changed(self, recipes: Recipes) -> Recipes:
        return replace(recipes, given=None)


class SharesViews(FillsOtherwise):
    """Shows every image of a file as the first one."""

    def changed(self, recipes: Recipes) -> Recipes:
        if recipes.windows is None:
            return recipes
        return replace(recipes, windows=recipes.windows.at(np.asarray(recipes.same_as)))


FAULTS = {
    "windows": Mirrors,
    "filters": OneFilter,
    "kinds": JpegOnly,
    "outside": LeavesOutside,
    "neighbours": BreaksNeighbours,
    "damage": Accepts,
    "threads": SharesMemory,
    "copies": CopiesWithout,
    "filler": SharesViews,
    "drawing filler": TrustsFiles,
}


def test_there_is_a_fault_for_every_check() -> None:
    assert sorted(FAULTS) == sorted(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_fails_for_its_fault(check: str) -> None:
    with pytest.raises(AssertionError, match=r"\w+ \w+"):
        CHECKS[check](FAULTS[check](), 0.0)


@pytest.mark.parametrize(
    ("rows", "expected"), [([0, 3], [0, 1]), ([2, 3, 5], [0, 0, 2]), ([0, 1, 2, 3, 4, 5], [0, 0, 2, 2, 4, 4])]
)
def test_some_rows_of_recipes_are_of_the_images_that_they_were_of(rows: list[int], expected: list[int]) -> None:
    """Also where the first row of an image is not among them."""
    recipes = Recipes(same_as=np.array([0, 0, 2, 2, 4, 4]), format=Format(), out=np.arange(6, dtype=np.uint64))
    assert recipes.at(np.array(rows)).same_as.tolist() == expected  # type: ignore[union-attr]


def test_what_counts_in_the_first_row_of_an_image_is_told_of_others() -> None:
    places = np.arange(3, dtype=np.uint64)
    recipes = Recipes(
        paths=["a", "", ""], data=[None, b"b", None], same_as=np.array([0, 1, 1]), format=Format(), out=places
    )
    (last,) = recipes.at(np.array([2])).data  # type: ignore[misc]
    assert last == b"b"


def test_a_filler_must_work_when_it_is_closed() -> None:
    class Ends(PilBackend):
        """Gives up what it works with."""

        def filler(self, *args: Any, **options: Any) -> Any:
            filler = super().filler(*args, **options)
            filler.close = lambda ended=True: vars(filler).clear()  # type: ignore[method-assign]
            return filler

    with pytest.raises((AssertionError, AttributeError)):
        CHECKS["filler"](Ends(), 0.0)


def test_a_filler_must_show_the_views_that_were_drawn() -> None:
    with pytest.raises(AssertionError, match="a view that was drawn already"):
        CHECKS["drawing filler"](DrawsAnew(), 0.0)


def test_a_backend_is_checked_by_its_class_or_its_name() -> None:
    check_backend(Faulty)
    check_backend("pil")
    with pytest.raises(AssertionError, match=r"a 4:4:4 JPEG of 97 × 61, .* grey levels from Pillow, 0.0 are allowed"):
        check_backend(Mirrors)
    check_backend(register_backend(Faulty))


def test_loaders_resume(tmp_path: Path) -> None:
    folder = synthetic_dataset(tmp_path / "made", images_per_class=3)
    views = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    check_resume(lambda: DataLoader(ImageFolder(folder, views), 2, shuffle=True))
    check_resume(lambda: DataLoader(TensorDataset(torch.arange(9)), 2, shuffle=True), seed=5)


class Forgets:
    """Saves no place, or half of what it needs."""

    def __init__(self, what: str) -> None:
        self._what, self._place, self._offset = what, 0, random.randrange(1000)

    def __iter__(self) -> Iterator[Any]:
        for place in range(self._place, 5):
            self._place = place + 1
            yield {"number": [torch.tensor(place + (self._offset if self._what == "numbers" else 0))]}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "odd": {1}} if self._what == "json" else {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place = 0 if self._what == "place" else state["place"]


@pytest.mark.parametrize(
    ("what", "error", "told"),
    [
        ("place", AssertionError, "resumed after 1 batches, epoch 0: 5 batches instead of 4"),
        ("numbers", AssertionError, "resumed before the epoch, epoch 0: batch 0 of those that were missing is another"),
        ("json", TypeError, "not JSON serializable"),
    ],
)
def test_a_loader_that_forgets_is_found(what: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        check_resume(lambda: Forgets(what))


def test_a_synthetic_dataset_is_what_it_says(tmp_path: Path) -> None:
    folder = synthetic_dataset(tmp_path / "made", classes=2, images_per_class=3, size_px=(40, 30))
    again = synthetic_dataset(tmp_path / "again", classes=2, images_per_class=3, size_px=(40, 30))
    dataset = ImageFolder(folder)
    assert (len(dataset), dataset.classes) == (6, ["class0", "class1"])
    assert all(image.width <= 40 and image.height <= 30 for image, _ in dataset)
    files = sorted(folder.rglob("*.jpg"))
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in sorted(again.rglob("*.jpg"))]
    with pytest.raises(OptionError, match="classes=0, images_per_class=8"):
        synthetic_dataset(tmp_path, classes=0)
