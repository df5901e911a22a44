"""torchvision's datasets that keep their images in memory: the batches are torch's, and none is made per sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import core_alone
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from core_alone import reference, view_of
from PIL import Image
from taken_over import from_memory, on_batches
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DatasetError, DecodeError
from fastdata import transforms as own
from fastdata.loaders.rows import put
from fastdata.native import Status, recipes_call
from fastdata.sources.protocol import location_of
from fastdata.sources.recognise import recognise
from fastdata.tables import Format, Recipes, addresses
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import _draw_with_numpy
from fastdata.views.levels import Levels, stored_format
from fastdata.views.philox import Key
from fastdata.views.plan import CenterCrop
from fastdata.views.view import views_of

COUNT = 23
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (COUNT, *shape), dtype=np.uint8)


def made(cls: type, **attributes: Any) -> Any:
    """A dataset of torchvision's with data written into it, without a file."""
    dataset = object.__new__(cls)
    for name, value in {"transform": None, "target_transform": None, **attributes}.items():
        setattr(dataset, name, value)
    return dataset


LABELS = np.random.default_rng(6).integers(0, 10, COUNT)
HWC = {"data": pixels(32, 32, 3), "targets": LABELS.tolist()}
CHW = {"data": pixels(3, 32, 32), "labels": LABELS}
GREY = {"data": torch.from_numpy(pixels(28, 28)), "targets": torch.from_numpy(LABELS)}
DATASETS: dict[str, Any] = {
    "CIFAR10": HWC,
    "CIFAR100": HWC,
    "SVHN": CHW,
    "STL10": {**CHW, "data": pixels(3, 24, 96)},
    "MNIST": GREY,
    "FashionMNIST": GREY,
    "KMNIST": GREY,
    "EMNIST": GREY,
    "USPS": {"data": pixels(16, 20), "targets": LABELS.tolist()},
}


def dataset_of(name: str, transform: Any, **attributes: Any) -> Any:
    return made(getattr(datasets, name), transform=transform, **{**DATASETS[name], **attributes})


def cifar(transform: Any, **attributes: Any) -> Any:
    return dataset_of("CIFAR10", transform, **attributes)


FLOAT = [v1.ToTensor(), v1.Normalize((0.5,), (0.25,))]
V2_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.25,))]
FIXED = {
    "as they are": v1.Compose(FLOAT),
    "as they are, v2": v2.Compose(V2_FLOAT),
    "uint8": v1.PILToTensor(),
    "to tensor": v1.ToTensor(),
    "half": v2.Compose([v2.ToImage(), v2.ToDtype(torch.float16, scale=True), v2.Normalize((0.5,), (0.25,))]),
    "bfloat16": v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.bfloat16, scale=True)]),
    "image": v2.ToImage(),
    "enlarged": v1.Compose([v1.Resize((41, 37)), *FLOAT]),
    "shorter side": v1.Compose([v1.Resize(20), *FLOAT]),
    "longer side": v2.Compose([v2.Resize(18, max_size=25), *V2_FLOAT]),
    "bicubic": v1.Compose([v1.Resize((20, 50), interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor()]),
    "nearest": v1.Compose([v1.Resize((50, 11), interpolation=v1.InterpolationMode.NEAREST), v1.ToTensor()]),
    "middle": v1.Compose([v1.CenterCrop((10, 13)), *FLOAT]),
    "padded middle": v1.Compose([v1.CenterCrop(100), v1.PILToTensor()]),
    "validation": v1.Compose([v1.Resize(40), v1.CenterCrop(36), *FLOAT]),
    "fastdata's own": own.Compose(
        [
            own.Resize((20, 24)),
            own.RandomCrop((20, 24)),
            own.CenterCrop(15),
            own.ToTensor(),
            own.Normalize((0.5,), (0.25,)),
        ]
    ),
    "fastdata's own, uint8": own.Compose([own.CenterCrop((40, 9)), own.RandomVerticalFlip(1.0), own.PILToTensor()]),
    "flipped": v1.Compose([v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0), *FLOAT]),
}


def check_equal(ours: Any, torchs: Any) -> None:
    """Same structure, types and bits."""
    assert len(ours) == len(torchs)
    for our, their in zip(ours, torchs, strict=True):
        assert type(our) is type(their)
        assert [type(part) for part in our] == [type(part) for part in their]
        for part, expected in zip(our, their, strict=True):
            assert (part.dtype, part.shape, part.stride()) == (expected.dtype, expected.shape, expected.stride())
            assert torch.equal(part, expected)


def samples_of(loader: DataLoader[Any]) -> int:
    """The number of images that the image pipeline sees."""
    source = loader._route().source
    assert source is not None
    return len(source)


def check_same_batches(dataset: Any, **options: Any) -> DataLoader[Any]:
    torch.manual_seed(5)
    torchs = list(torch.utils.data.DataLoader(dataset, **options))
    torch.manual_seed(5)
    loader = DataLoader(dataset, **options)
    if getattr(dataset, "target_transform", None) is None:  # which is the user's code
        assert loader.verdict().kind == "accelerated", loader.verdict()
        assert from_memory(loader)
    check_equal(list(loader), torchs)
    return loader


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("transform", FIXED)
def test_batches_equal_torchs(name: str, transform: str) -> None:
    check_same_batches(dataset_of(name, FIXED[transform]), batch_size=10, shuffle=True)


@pytest.mark.parametrize("name", ["CIFAR10", "SVHN"])
def test_normalize_has_a_value_for_each_channel(name: str) -> None:
    check_same_batches(dataset_of(name, v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])), batch_size=5)
    check_same_batches(dataset_of(name, v1.Compose([v1.ToTensor(), v1.Normalize((0.4,), STD)])), batch_size=5)


@pytest.mark.parametrize("options", [{"drop_last": True, "shuffle": True}, {"sampler": [3, 1, 20, 3, -1]}], ids=str)
@pytest.mark.parametrize("name", ["CIFAR10", "STL10", "MNIST"])
def test_order_is_torchs_in_threads_too(name: str, options: dict[str, Any]) -> None:
    dataset = dataset_of(name, FIXED["validation"])
    torch.manual_seed(5)
    torchs = list(torch.utils.data.DataLoader(dataset, 4, **options))
    for workers in (0, 2):
        torch.manual_seed(5)
        check_equal(list(DataLoader(dataset, 4, num_workers=workers, **options)), torchs)


TARGETS = {
    "labels as an array": {"targets": LABELS},
    "labels as a tensor": {"targets": torch.from_numpy(LABELS)},
    "a target_transform": {"target_transform": lambda label: float(label) / 2},
    "labels that are rows": {"targets": np.eye(10, dtype=np.float32)[LABELS]},
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_the_datasets_own(name: str) -> None:
    check_same_batches(cifar(FIXED["to tensor"], **TARGETS[name]), batch_size=6)


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
@pytest.mark.parametrize("name", ["MNIST", "SVHN", "USPS"])
def test_target_transforms_get_integers(name: str) -> None:
    def transform(label: Any) -> int:
        assert type(label) is int
        return label + 1

    check_same_batches(dataset_of(name, FIXED["to tensor"], target_transform=transform), batch_size=6)


def test_images_without_labels_fail_as_in_torch_unless_a_transform_makes_some() -> None:
    unlabelled = dataset_of("STL10", FIXED["to tensor"], labels=None)
    for loader in (DataLoader(unlabelled, 4), torch.utils.data.DataLoader(unlabelled, 4)):
        with pytest.raises(TypeError, match=r"NoneType|has no label \(None\)"):
            next(iter(loader))
    check_same_batches(dataset_of("STL10", FIXED["to tensor"], labels=None, target_transform=lambda _: 0), batch_size=4)


@pytest.mark.parametrize("view", ["every second", "backwards", "mirrored", "cut out", "one image many times"])
def test_any_view_of_an_array_is_read_by_its_strides(view: str) -> None:
    data = HWC["data"]
    views = {
        "every second": data[::2],
        "backwards": data[::-1],
        "mirrored": data[:, :, ::-1],
        "cut out": data[2:9, 3:20, 5:30],
        "one image many times": np.broadcast_to(data[:1], data.shape),
    }
    array = views[view]
    dataset = cifar(FIXED["validation"], data=array)
    expected = torch.stack([FIXED["validation"](Image.fromarray(np.ascontiguousarray(image))) for image in array])
    assert torch.equal(next(iter(DataLoader(dataset, len(array))))[0], expected)


PADDED = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip()]


@pytest.mark.parametrize("name", ["CIFAR10", "SVHN", "MNIST"])
def test_random_views_are_those_drawn_with_numpy_and_done_by_pillow(name: str) -> None:
    dataset = dataset_of(name, v1.Compose([*PADDED, v1.PILToTensor()]))
    (images, _) = next(iter(DataLoader(dataset, COUNT, seed=3)))
    source, ops = recognise(dataset), compile_transform(v1.Compose(PADDED)).plan.ops
    height, width = source.image_size
    sizes, indices = np.array([[width, height]] * COUNT), np.arange(COUNT)
    drawn = _draw_with_numpy(ops, sizes, indices, np.zeros(COUNT, np.int64), key=Key(seed=3, epoch=0))
    for row, view in enumerate(views_of(drawn)):
        array = source.images[row]
        image = Image.fromarray(np.ascontiguousarray(array[..., 0] if source.channels == 1 else array))
        # Padding more than is needed, so that the drawn crop lies in the padded image.
        padded = v1.functional.pad(image, 40)
        left, top = (view.window_px[side] + view.crop_px[side] + 40 for side in (0, 1))
        expected = padded.crop((left, top, left + 32, top + 32))
        if view.flip_horizontal:
            expected = v1.functional.hflip(expected)
        assert torch.equal(images[row], v1.functional.pil_to_tensor(expected))
    assert 0 < sum(view.flip_horizontal for view in views_of(drawn)) < COUNT


def test_every_place_of_a_padded_crop_is_drawn_equally_often() -> None:
    """Each pixel's value is its place, and 255 is left to none, so a crop's corner tells where it was taken."""
    image = np.zeros((1, 8, 8, 3), np.uint8)
    image[0, :, :, 0], image[0, :, :, 1] = np.mgrid[10:18, 10:18]
    count = 9000
    dataset = cifar(v1.Compose([v1.RandomCrop(8, padding=1), v1.PILToTensor()]))
    dataset.data, dataset.targets = np.repeat(image, count, 0), [0] * count
    (batch, _) = next(iter(DataLoader(dataset, count, seed=1)))
    places, found = np.unique(batch[:, :2, 4, 4].numpy(), axis=0, return_counts=True)
    assert len(places) == 9
    assert abs(found - count / 9).max() < 5 * np.sqrt(count / 9)


def random_loader(name: str = "CIFAR10", **options: Any) -> DataLoader[Any]:
    steps = [v1.RandomResizedCrop(20), v1.RandomHorizontalFlip(), *FLOAT]
    return DataLoader(dataset_of(name, v1.Compose(steps)), 4, shuffle=True, seed=9, **options)


@pytest.mark.parametrize("name", ["CIFAR10", "STL10", "MNIST"])
def test_random_batches_are_the_same_for_any_number_of_threads(name: str) -> None:
    check_equal(list(random_loader(name, num_workers=2)), list(random_loader(name)))


@pytest.mark.parametrize("name", ["CIFAR10", "MNIST"])
def test_large_results_are_shared_among_the_cores_threads(name: str) -> None:
    dataset = dataset_of(name, v1.Compose([v1.Resize((224, 224)), *FLOAT]))
    check_same_batches(dataset, batch_size=COUNT, num_workers=2)


@pytest.mark.parametrize("name", ["CIFAR10", "MNIST"])
def test_an_epoch_continues_where_it_was_left(name: str) -> None:
    whole, begun = list(random_loader(name, num_workers=2)), random_loader(name)
    batches = iter(begun)
    head = [next(batches) for _ in range(2)]
    other = random_loader(name)
    other.load_state_dict(begun.state_dict())
    check_equal(head + list(other), whole)


@pytest.mark.parametrize("name", ["CIFAR10", "MNIST"])
def test_channels_last_batches_hold_the_same(name: str) -> None:
    for transform in (FIXED["validation"], FIXED["uint8"]):
        dataset = dataset_of(name, transform)
        options: dict[str, Any] = {"memory_format": torch.channels_last}
        for (ours, _), (torchs, _) in zip(DataLoader(dataset, 5, **options), DataLoader(dataset, 5), strict=True):
            assert ours.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(ours, torchs)


def test_a_subset_is_a_part_of_the_array() -> None:
    dataset = cifar(FIXED["as they are"])
    for part in (Subset(dataset, [3, 1, -2]), Subset(Subset(dataset, range(5, 20)), np.array([2, 0, 14]))):
        loader = check_same_batches(part, batch_size=2)
        assert samples_of(loader) == len(part)
    assert location_of(recognise(Subset(dataset, [3, 17])), 1) == "CIFAR10[17]"


def test_no_samples_give_no_batches() -> None:
    loader = DataLoader(Subset(cifar(FIXED["to tensor"]), []), 4)
    assert from_memory(loader)
    assert samples_of(loader) == 0
    assert list(loader) == []


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
def test_a_concatenation_is_torchs() -> None:
    loader = DataLoader(ConcatDataset([cifar(FIXED["to tensor"])] * 2), 4)
    assert loader._route().by_torchs_code
    assert "has parts whose images are in memory" in loader._route().reason
    assert len(list(loader)) == 12


def test_later_changes_of_a_dataset_count() -> None:
    dataset = cifar(FIXED["to tensor"])
    loader = DataLoader(dataset, 4)
    list(loader)
    dataset.data, dataset.targets = dataset.data[5:9], dataset.targets[5:9]
    dataset.transform = FIXED["uint8"]
    check_equal(list(loader), list(torch.utils.data.DataLoader(dataset, 4)))


class Halved(datasets.CIFAR10):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image / 2, label


class AtOnce(datasets.CIFAR10):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices][::-1]


class Named(datasets.MNIST):
    """Inherits what counts."""


@pytest.mark.parametrize("cls", [Halved, AtOnce])
def test_a_class_with_code_of_its_own_keeps_it(cls: type) -> None:
    dataset = made(cls, transform=FIXED["to tensor"], **HWC)
    loader = DataLoader(dataset, 5)
    assert loader._route().by_torchs_code
    check_equal(list(loader), list(torch.utils.data.DataLoader(dataset, 5)))


def test_a_class_that_inherits_is_its_parent() -> None:
    loader = check_same_batches(made(Named, transform=FIXED["to tensor"], **GREY), batch_size=5)
    assert samples_of(loader) == 23


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HWC["data"].astype(np.float32), "data has dtype float32, not uint8"),
        (CHW["data"], "data has shape (23, 3, 32, 32), not that of images (N, H, W, C)"),
        (HWC["data"][..., 0], "data has shape (23, 32, 32)"),
        (HWC["data"][:0], "data has shape (0, 32, 32, 3)"),
        (HWC["data"].tolist(), "data is no array but of type list"),
    ],
)
def test_other_data_is_left_to_torch(data: Any, reason: str) -> None:
    route = DataLoader(cifar(FIXED["to tensor"], data=data), sampler=[0])._route()
    assert route.by_torchs_code
    assert reason in route.reason


def test_a_float_tensor_is_left_to_torch() -> None:
    loader = DataLoader(dataset_of("MNIST", FIXED["to tensor"], data=GREY["data"].float()), 4)
    assert loader._route().by_torchs_code
    assert "MNIST.data has dtype torch.float32, not uint8" in loader._route().reason


@pytest.mark.parametrize(
    ("name", "transform", "options", "reason"),
    [
        ("CIFAR10", v1.Compose([v1.CenterCrop(20), v1.PILToTensor(), v1.ColorJitter(0.4)]), {}, "augment_on='device'"),
        ("CIFAR10", v1.CenterCrop(20), {"collate_fn": list}, "ends with a PIL image"),
        ("CIFAR10", v1.ToTensor(), {"collate_fn": list}, "list collates samples"),
        ("MNIST", v2.Compose([*V2_FLOAT[:2], v2.Normalize(MEAN, STD)]), {}, "Normalize has three values"),
        ("CIFAR10", None, {"collate_fn": list}, "no transform"),
        (
            "MNIST",
            v1.Compose([v1.CenterCrop(20), v1.ColorJitter(0.4), v1.ToTensor()]),
            {"augment_on": "device"},
            "need three channels",
        ),
    ],
)
def test_what_is_done_per_sample_is_left_to_torch(name: str, transform: Any, options: Any, reason: str) -> None:
    loader = DataLoader(dataset_of(name, transform), 4, **options)
    route = loader._route()
    assert route.by_torchs_code
    assert reason in f"{route.reason}; {route.advice}"


def test_augmentations_are_done_on_batches() -> None:
    steps = v1.Compose([*PADDED, v1.RandAugment(), v1.ToTensor(), v1.RandomErasing(1.0)])
    options: dict[str, Any] = {"batch_size": 6, "augment_on": "device", "seed": 2}
    loaders = [DataLoader(cifar(steps), num_workers=workers, **options) for workers in (0, 2)]
    assert on_batches(loaders[0]) == ["RandAugment", "RandomErasing"]
    check_equal(*map(list, loaders))


def test_one_value_normalises_what_was_augmented() -> None:
    steps = [v1.ColorJitter(0.0), *FLOAT]
    dataset = cifar(v1.Compose([v1.CenterCrop(30), *steps]))
    plain = cifar(v1.Compose([v1.CenterCrop(30), *FLOAT]))
    check_equal(list(DataLoader(dataset, 5, augment_on="device")), list(DataLoader(plain, 5)))


def test_a_crop_larger_than_the_image_is_an_error_with_its_place() -> None:
    dataset = cifar(v1.Compose([v1.RandomCrop(40), v1.ToTensor()]))
    with pytest.raises(DecodeError, match=r"CIFAR10\[0\].*crop size \(40, 40\) is larger than.*\(32, 32\)"):
        list(DataLoader(dataset, 4))
    loader = DataLoader(dataset, 4, on_error="skip")
    with pytest.raises(DatasetError, match="all 23 samples"):
        list(loader)


def test_an_index_outside_of_the_array_is_an_error_as_in_torch() -> None:
    with pytest.raises(IndexError):
        list(DataLoader(cifar(FIXED["to tensor"]), sampler=[1, COUNT]))


@pytest.mark.parametrize("backend", ["pil", "native"])
def test_a_named_backend_has_nothing_to_decode(backend: str) -> None:
    loader = DataLoader(cifar(FIXED["validation"]), 5, backend=backend)
    assert from_memory(loader)
    check_equal(list(loader), list(torch.utils.data.DataLoader(loader.dataset, 5)))


def test_synthetic_batches_have_the_true_shape() -> None:
    dataset = dataset_of("MNIST", FIXED["validation"])
    ((images, labels), *_) = DataLoader(dataset, COUNT, backend="synthetic")
    assert (images.shape, images.dtype) == ((COUNT, 1, 36, 36), torch.float32)
    assert labels.tolist() == LABELS.tolist()


def test_without_the_core_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.dataloader.routes.native_problem", lambda: "build it")
    route = DataLoader(cifar(FIXED["to tensor"]), 5)._route()
    assert route.by_torchs_code
    assert (route.reason, route.advice) == ("images in memory need the native core", "build it")


def test_stats_count_samples_and_pixels() -> None:
    loader = DataLoader(cifar(FIXED["to tensor"]), 5, num_workers=2)
    list(loader)
    stats = loader.stats()
    assert (stats["samples"], stats["encoded_bytes"], stats["backend"]) == (COUNT, COUNT * 3072, "native")
    assert stats["stage_s"]["decode"] > 0


def test_code_that_knows_only_encoded_images_reads_the_same_pixels() -> None:
    for name in ("CIFAR10", "STL10", "MNIST"):
        source = recognise(dataset_of(name, None))
        height, width = source.image_size
        seen = reference(source.read_encoded(4), view_of((0, 0, width, height)))
        assert np.array_equal(seen, np.broadcast_to(source.images[4], seen.shape))


@pytest.mark.parametrize("has_core", [True, False])
def test_one_channel_is_stored_alone(has_core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the core, and without it."""
    if not has_core:
        monkeypatch.setattr("fastdata.loaders.rows.available", lambda: None)
    grey = GREY["data"][0]
    rgb = np.repeat(grey.numpy()[..., None], 3, 2)
    for transform in ("as they are", "half", "bfloat16", "uint8"):
        levels = Levels.of(compile_transform(FIXED[transform]).plan.normalisation)  # type: ignore[union-attr]
        image = torch.empty((1, 28, 28), dtype=levels.dtype)
        put(rgb, image.data_ptr(), stored_format(levels, channels=1))
        assert torch.equal(image, FIXED[transform](Image.fromarray(grey.numpy())))


def fill(images: Any, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Crops the centre of some rows of an array by the core alone; says which it has done."""
    zeros, places = [0] * len(rows), addresses(out.ctypes.data, out.strides[0], len(out))
    recipes = Recipes(array=images, rows=rows, indices=zeros, occurrences=zeros, format=Format(), out=places)
    return core_alone.fill(recipes, CenterCrop(size=(4, 4))).statuses == Status.OK


@pytest.mark.parametrize("change", [{"strides_bytes": (1 << 62, 96, 3, 1)}, {"first_byte": -1}, {"height": 33}])
def test_the_core_refuses_pixels_outside_of_the_array(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(recipes_call.CArray):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            for name, value in change.items():
                setattr(self, name, value)

    monkeypatch.setattr(recipes_call, "CArray", Wrong)
    out = np.zeros((1, 4, 4, 3), np.uint8)
    assert not fill(HWC["data"][:2], np.array([0]), out).any()
    assert not out.any()


def test_the_core_refuses_rows_that_the_array_does_not_have() -> None:
    out = np.zeros((3, 4, 4, 3), np.uint8)
    rows = np.array([-1, 22, 23])
    assert fill(HWC["data"], rows, out).tolist() == [False, True, False]
    assert np.array_equal(out[1], HWC["data"][22, 14:18, 14:18])
    with pytest.raises(ValueError, match="float32"):
        fill(np.zeros((1, 4, 4, 3), np.float32), rows, out)


def test_a_grey_image_resized_is_its_only_channel_as_colour(folder: Path) -> None:
    """Pillow resizes grey images with the arithmetic of each colour channel."""
    grey = Image.open(ImageFolder(folder).samples[0][0]).convert("L").resize((90, 70))
    data = torch.from_numpy(np.asarray(grey).copy())[None]
    for interpolation in v1.InterpolationMode:
        if interpolation in (v1.InterpolationMode.NEAREST_EXACT,):
            continue
        for size in ((31, 40), (140, 33), (200, 300)):
            transform = v1.Compose([v1.Resize(size, interpolation=interpolation), v1.PILToTensor()])
            dataset = made(datasets.MNIST, transform=transform, data=data, targets=torch.zeros(1))
            check_same_batches(dataset)
