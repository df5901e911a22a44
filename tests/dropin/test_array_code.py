"""Datasets of one's own that keep their images in an array: what their code says is done in whole batches."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image
from taken_over import from_memory
from torch.utils.data import Dataset, Subset
from torchvision.datasets import CIFAR10

from fastdata import DataLoader
from fastdata.sources import source_code
from fastdata.sources.array_code import read_sample

COUNT = 17
STEPS = v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.ToTensor()])


class Base(Dataset[Any]):
    def __init__(self, transform: Any = STEPS, **attributes: Any) -> None:
        rng = np.random.default_rng(3)
        self.data: Any = rng.integers(0, 256, (COUNT, 24, 32, 3), dtype=np.uint8)
        self.targets: Any = rng.integers(0, 10, COUNT).tolist()
        self.transform, self.target_transform = transform, None
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.data)


class Short(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


class AsTorchvision(Base):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Like CIFAR10's."""
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        if self.transform is not None:
            img = self.transform(img)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return img, target


class Named(Base):
    def __getitem__(self, i: int) -> Any:
        image: Any = PIL.Image.fromarray(self.data[i], mode="RGB").convert("RGB")
        if self.transform:
            image = self.transform(image)
        return image, int(self.targets[i])


class Indexed(Base):
    def __getitem__(self, idx: int) -> Any:
        return self.transform(Image.fromarray(self.data[idx])), idx


class Moved(Base):
    def __getitem__(self, idx: int) -> Any:
        image = Image.fromarray(np.transpose(self.data[idx], (1, 2, 0)))
        return self.transform(image), self.targets[idx]


class MovedByMethod(Base):
    def __getitem__(self, idx: int) -> Any:
        return self.transform(Image.fromarray(self.data[idx].transpose(1, 2, 0))), self.targets[idx]


class OfTensors(Base):
    def __getitem__(self, idx: int) -> Any:
        image, label = self.data[idx].numpy(), self.targets[idx]
        return self.transform(Image.fromarray(image)), label


class Three(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index], index


class Computes(Base):
    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.fromarray(self.data[index]))
        return image, index % 10, self.targets[index] * 3 - 1, int(self.targets[index]) // 2


class Names(Base):
    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.fromarray(self.data[index]))
        return {"label": self.targets[index], "image": image, "index": torch.tensor(index)}


class LabelFirst(Base):
    def __getitem__(self, index: int) -> Any:
        return [int(self.targets[index]), self.transform(Image.fromarray(self.data[index]))]


class Inherits(AsTorchvision):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target, index


class InheritsTwice(Inherits):
    def __getitem__(self, index: int) -> Any:
        sample = super(InheritsTwice, self).__getitem__(index)  # noqa: UP008 - as programs have it
        return sample[0], sample[1]


class ByName(AsTorchvision):
    def __getitem__(self, index: int) -> Any:
        image, target = AsTorchvision.__getitem__(self, index)
        return index, image, target


class OfCifar(CIFAR10):
    def __init__(self) -> None:
        vars(self).update(vars(Base()))

    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target, index


class Part(Dataset[Any]):
    """As in federated learning."""

    def __init__(self, dataset: Any, indices: Any, **attributes: Any) -> None:
        self.dataset, self.indices = dataset, indices
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[self.indices[item]]
        return torch.tensor(image), torch.tensor(label)


class Chooses(Part):
    wrap: Any = None

    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[item]
        return (torch.tensor(image), torch.tensor(label)) if self.wrap else (image, label)


class OwnTransform(Part):
    transform = None
    target_transform: Any = None

    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[int(self.indices[item])]
        if self.transform is not None:
            image = self.transform(image)
        return image, label, self.dataset[int(self.indices[item])][1]


class OtherLabels(Part):
    labels: Any = ()

    def __getitem__(self, item: int) -> Any:
        return self.dataset[item][0], self.labels[item]


class OfImages(Base):
    def __init__(self, images: Any, transform: Any = STEPS) -> None:
        super().__init__(transform, data=images)

    def __getitem__(self, index: int) -> Any:
        image = self.data[index].convert("RGB")
        return self.transform(image), self.targets[index]


class Copies(OfImages):
    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data[index].copy()), index


def pictures() -> list[Any]:
    return list(map(Image.fromarray, Base().data))


CHW = {"data": np.ascontiguousarray(Base().data.transpose(0, 3, 1, 2))}
GREY = {"data": np.ascontiguousarray(Base().data[..., 0])}
READ: dict[str, Any] = {
    "short": Short,
    "as torchvision": AsTorchvision,
    "named": Named,
    "index": Indexed,
    "moved": lambda: Moved(**CHW),
    "moved by a method": lambda: MovedByMethod(**CHW),
    "grey": lambda: Short(**GREY),
    "tensors": lambda: OfTensors(data=torch.from_numpy(Base().data), targets=torch.arange(COUNT)),
    "array of targets": lambda: Short(targets=np.arange(COUNT, dtype=np.int16)),
    "integers of an array": lambda: Named(targets=np.arange(COUNT, dtype=np.int16)),
    "part": lambda: Subset(Short(), [3, 1, -2, 7, 16, 0]),
    "three values": Three,
    "truth of Python's": lambda: Truth(with_index=True),
    "untruth of Python's": lambda: Truth(with_index=False),
    "indices of 32 bits": lambda: Subset(Three(), np.array([3, 1, 7], np.int32)),
    "indices of a tensor": lambda: Subset(Three(), torch.arange(5, dtype=torch.int16)),
    "indices as text": lambda: OwnTransform(AsTorchvision(None), ["3", "1", "0"], transform=STEPS),
    "labels of several kinds": lambda: Part(Short(targets=[1, 2.5, 3.0, 4.5, 5.0, 6.0, 7.0]), [1, 3]),
    "arithmetic of labels": Computes,
    "arithmetic of a tensor's labels": lambda: Computes(targets=torch.arange(COUNT)),
    "arithmetic of an array's labels": lambda: Subset(Computes(targets=np.arange(COUNT, dtype=np.int8)), np.arange(9)),
    "a choice": lambda: Chooses(Indexed(), range(9), wrap=True),
    "the other choice": lambda: Chooses(Indexed(), range(9), wrap=False),
    "names": Names,
    "label first": LabelFirst,
    "subclass": Inherits,
    "subclass of a subclass": InheritsTwice,
    "base class by its name": ByName,
    "subclass of CIFAR10": OfCifar,
    "indices in an array": lambda: Part(AsTorchvision(), np.arange(COUNT)[::-2]),
    "some samples, as tensors": lambda: Part(AsTorchvision(), [3, 1, -2, 7, 16, 0]),
    "labels that are no integers": lambda: Part(Short(targets=np.linspace(0, 1, COUNT).tolist()), list(range(9))),
    "labels of an array, as tensors": lambda: Part(Short(targets=np.linspace(0, 1, COUNT, dtype=np.float32)), [5, 2]),
    "part of a part": lambda: Part(Part(Short(), torch.arange(3, 12)), (4, 2, 0)),
    "part of a Subset": lambda: Part(Subset(AsTorchvision(), range(4, COUNT)), [2, 0, 9]),
    "a transform of its own": lambda: OwnTransform(AsTorchvision(None), torch.arange(11), transform=STEPS),
    "labels of its own": lambda: OtherLabels(AsTorchvision(), range(9), labels=np.arange(20, 40)),
    "Pillow's images": lambda: OfImages(pictures()),
    "Pillow's images, copied": lambda: Copies(tuple(pictures())),
    "part of Pillow's images": lambda: Part(OfImages(pictures()), [3, 1, -2]),
}


def check_equal(dataset: Any) -> DataLoader[Any]:
    ours, theirs = DataLoader(dataset, 5, num_workers=0), torch.utils.data.DataLoader(dataset, 5)
    for batch, wanted in zip(ours, theirs, strict=True):
        assert type(batch) is type(wanted)
        if isinstance(batch, dict):
            assert list(batch) == list(wanted)
            batch, wanted = batch.values(), wanted.values()
        for one, other in zip(batch, wanted, strict=True):
            assert one.dtype is other.dtype
            assert torch.equal(one, other)
    return ours


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")  # torch's own loader runs the code
@pytest.mark.parametrize("dataset", READ)
def test_simple_code_is_done_in_whole_batches(dataset: str) -> None:
    loader = check_equal(READ[dataset]())
    assert loader.verdict().kind == "accelerated"
    assert from_memory(loader)


class Transposed(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), np.transpose(self.data[index], (1, 2, 0))


class Truth(Base):
    with_index: Any = None

    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.fromarray(self.data[index]))
        if self.with_index:
            return image, self.targets[index], index
        return image, self.targets[index]


class Delegates(Part):
    """Torch asks the object for `__getitems__`, which is that of the dataset inside."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["dataset"], name)

    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[self.indices[item]]
        return image, label, item


class Draws(Base):
    """A transform is called for nothing."""

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.data[index])
        one, _ = self.transform(image), self.transform(image)
        return one, self.targets[index]


class Forgets(Base):
    """Looks up what it does not return."""

    def __getitem__(self, index: int) -> Any:
        image, _ = self.data[index], self.targets[index]
        return self.transform(Image.fromarray(image)), index


class AnothersSuper(AsTorchvision):
    other: Any = None

    def __getitem__(self, index: int) -> Any:
        return super(AnothersSuper, self.other).__getitem__(index)  # type: ignore[misc]


class Wraps(AsTorchvision):
    @functools.wraps(CIFAR10.__getitem__)
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target, index


class OfTensorRows(Base):
    def __getitem__(self, index: int) -> Any:
        yield self.transform(Image.fromarray(self.data[index]))
        return self.targets[index]


class Slots:
    __slots__ = ("data", "targets", "transform")

    def __init__(self) -> None:
        base = Base()
        self.data, self.targets, self.transform = base.data, base.targets, base.transform

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


class Augments(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(255 - self.data[index])), self.targets[index]


class Counts(Base):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


class Other(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index - 1])), self.targets[index]


class Computed(Base):
    @property
    def pictures(self) -> Any:
        return self.data[::-1]

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.pictures[index])), self.targets[index]


class Converted(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index]).convert("L")), self.targets[index]


class Twice(Base):
    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.fromarray(self.data[index]))
        return self.again(image), self.targets[index]

    def again(self, image: Any) -> Any:
        return image.flip(-1)


def fromarray(array: Any) -> Any:
    return Image.fromarray(array).transpose(Image.Transpose.ROTATE_180)


class OwnFunction(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(fromarray(self.data[index])), self.targets[index]


class Negative(np.ndarray):
    def __getitem__(self, place: Any) -> Any:
        return 255 - np.asarray(self)[place]


class Watched(Short):
    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return value[::-1] if name == "data" else value


class TwoImages(Base):
    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.data[index])
        return self.transform(image), self.transform(image), self.targets[index]


class TransformsAgain(OwnTransform):
    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[item]
        return self.transform(image), label  # type: ignore[misc]


NOT_READ: dict[str, Any] = {
    "transposed labels": Transposed,
    "truth of NumPy's": lambda: Truth(with_index=np.bool_(False)),
    "items of the dataset inside": lambda: Delegates(Subset(AsTorchvision(), range(9)), range(9)),
    "calls for nothing": Draws,
    "another object's super": lambda: AnothersSuper(other=AnothersSuper(targets=list(range(100, 100 + COUNT)))),
    "a wrapper with torchvision's name": Wraps,
    "slots": Slots,
    "two images": TwoImages,
    "two transforms": lambda: TransformsAgain(AsTorchvision(), range(COUNT), transform=lambda image: image.flip(-1)),
    "part of what is not read": lambda: Part(Augments(), range(9)),
    "grey images of Pillow's": lambda: OfImages([image.convert("L") for image in pictures()]),
    "a grey one among them": lambda: OfImages([*pictures()[:-1], Image.new("L", (32, 24))]),
    "images of many sizes": lambda: OfImages([image.resize((30 + at, 24)) for at, image in enumerate(pictures())]),
    "arithmetic": Augments,
    "side effect": Counts,
    "another row": Other,
    "property": Computed,
    "conversion": Converted,
    "method": Twice,
    "function": OwnFunction,
    "attribute access": Watched,
    "rows of their own": lambda: Short(data=Base().data.view(Negative)),
    "floats": lambda: Short(data=Base().data.astype(np.float32)[..., 0]),
    "ragged": lambda: Short(data=[np.zeros((9 + n, 30, 3), np.uint8) for n in range(COUNT)]),
    "changed class": lambda: changed(),
}


def changed() -> Any:
    """A class whose function is not the one in its source code."""
    cls = type(
        "Changed",
        (Short,),
        {"__getitem__": eval("lambda self, index: (self.transform(Image.fromarray(self.data[-1])), 1)")},
    )
    return cls()


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
@pytest.mark.parametrize("dataset", NOT_READ)
def test_other_code_is_run(dataset: str) -> None:
    made = NOT_READ[dataset]()
    assert not from_memory(check_equal(made))
    if isinstance(made, Counts):
        assert made.calls == 2 * COUNT


def test_code_that_was_edited_after_its_import(tmp_path: Path) -> None:
    program = tmp_path / "edited.py"
    text = (
        "from PIL import Image\n"
        "class Own:\n"
        "    def __init__(self, data): self.data = data\n"
        "    def __getitem__(self, index):\n"
        "        return Image.fromarray(self.data[index]), index\n"
    )
    program.write_text(text)
    spec = importlib.util.spec_from_file_location("edited", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dataset = module.Own(Base().data)
    assert read_sample(dataset) is not None
    source_code._body_of.cache_clear()
    program.write_text(text.replace("self.data[index]), index", "self.data[index]), -index"))
    assert read_sample(dataset) is None


def test_code_that_is_exchanged_between_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Short()
    check_equal(dataset)
    monkeypatch.setattr(Short.__getitem__, "__code__", Indexed.__getitem__.__code__)
    check_equal(dataset)


def test_what_is_looked_up_for_nothing_may_be_missing() -> None:
    assert read_sample(Forgets()) is not None
    assert read_sample(Forgets(targets=[1, 2])) is None


def test_a_generator_is_not_read() -> None:
    assert read_sample(OfTensorRows()) is None


def test_indices_that_a_sampler_gives_keep_their_type() -> None:
    sampler: Any = [np.int32(3), np.int32(1)]
    ours, theirs = (
        next(iter(cls(Three(), 2, sampler=sampler)))[2] for cls in (DataLoader, torch.utils.data.DataLoader)
    )
    assert ours.dtype == theirs.dtype == torch.int32


def test_an_index_outside_of_the_array_is_an_error() -> None:
    dataset = Short(targets=list(range(COUNT)))
    dataset.data = dataset.data[:-2]
    loader = DataLoader(dataset, 5, sampler=range(COUNT))
    with pytest.raises(IndexError, match="index 15 is out of bounds"):
        list(loader)


def test_what_the_loop_changes_in_a_wrapped_dataset_counts() -> None:
    dataset = Part(AsTorchvision(v1.Compose([v1.CenterCrop(16), v1.ToTensor()])), [4, 2, 0, 9])
    loader = DataLoader(dataset, 2, num_workers=0)
    first, _ = next(iter(loader))
    dataset.indices = [1, 1, 0, 9]
    dataset.dataset.transform = v1.Compose([v1.CenterCrop(12), v1.ToTensor()])
    second, labels = next(iter(loader))
    assert (first.shape[-1], second.shape[-1]) == (16, 12)
    assert labels.tolist() == [dataset.dataset.targets[1]] * 2
    assert torch.equal(second[0], second[1])


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_an_image_that_is_exchanged_while_the_epoch_runs_is_shown(mode: str) -> None:
    dataset = OfImages(pictures())
    batches = iter(DataLoader(dataset, 1, num_workers=0))
    next(batches)
    dataset.data[-1] = Image.new("RGB", (50, 60), (10, 250, 7)).convert(mode)
    *_, (last, _) = batches
    assert torch.equal(last[0], STEPS(dataset.data[-1].convert("RGB")))


def test_an_image_that_is_exchanged_between_epochs_of_workers() -> None:
    dataset = OfImages(pictures())
    dataset.__dict__["transform"] = v1.ToTensor()
    loader = DataLoader(dataset, 1, num_workers=2)
    list(loader)
    dataset.data[-1] = Image.new("L", (32, 24), 7)
    *_, (last, _) = loader
    assert torch.equal(last[0], v1.ToTensor()(dataset.data[-1].convert("RGB")))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_do_not_see_what_the_loop_changes(persistent: bool) -> None:
    made = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        dataset = OwnTransform(AsTorchvision(None), list(range(11)), transform=STEPS)
        loader = cls(dataset, 3, num_workers=2, persistent_workers=persistent)
        epochs = []
        for _ in range(1 + persistent):
            batches = iter(loader)
            epochs.append(next(batches))
            dataset.dataset.targets[-1] = dataset.dataset.targets[5] = 77
            dataset.dataset.data = dataset.dataset.data[:4].astype(np.float32)
            dataset.indices[7] = 0
            epochs += batches
        made.append(epochs)
    assert len(made[0]) == len(made[1])
    for theirs, ours in zip(*made, strict=True):
        assert all(map(torch.equal, theirs, ours))


def test_workers_do_not_see_an_image_that_the_loop_exchanges() -> None:
    made = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        dataset = OfImages(pictures())
        batches = iter(cls(dataset, 1, num_workers=2, prefetch_factor=1))
        first = next(batches)
        dataset.data[-1] = dataset.data[0]
        made.append([first, *batches])
    for theirs, ours in zip(*made, strict=True):
        assert all(map(torch.equal, theirs, ours))


@pytest.mark.parametrize("draws", ["fast", "torch"])
def test_wrapped_datasets_draw_as_the_dataset_inside(draws: Any) -> None:
    steps = v1.Compose([v1.RandomCrop(20, 4), v1.RandomHorizontalFlip(), v1.ToTensor()])
    made = []
    for dataset in (AsTorchvision(steps), Inherits(steps)):
        torch.manual_seed(1)
        options = {"draws": "torch"} if draws == "torch" else {"seed": 5}
        made.append(torch.cat([batch[0] for batch in DataLoader(dataset, 5, num_workers=2, **options)]))
    assert torch.equal(*made)


def test_steps_on_batches_are_done_before_a_wrapped_sample_is_put_together() -> None:
    steps = v1.Compose([v1.ColorJitter(0.4), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
    plain, wrapped = (
        list(DataLoader(cls(steps), 5, seed=1, augment_on="device", num_workers=0)) for cls in (AsTorchvision, Three)
    )
    for (images, labels), (own_images, own_labels, _) in zip(plain, wrapped, strict=True):
        assert torch.equal(images, own_images)
        assert torch.equal(labels, own_labels)
