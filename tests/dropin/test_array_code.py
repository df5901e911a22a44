"""Datasets of one's own that keep their images in an array: what their code says is done in whole batches."""

from __future__ import annotations

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

from fastdata import DataLoader
from fastdata.sources.array_code import read_layout

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
}


def check_equal(dataset: Any) -> DataLoader[Any]:
    ours, theirs = DataLoader(dataset, 5, num_workers=0), torch.utils.data.DataLoader(dataset, 5)
    for batch, wanted in zip(ours, theirs, strict=True):
        assert type(batch) is type(wanted)
        for one, other in zip(batch, wanted, strict=True):
            assert one.dtype is other.dtype
            assert torch.equal(one, other)
    return ours


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.parametrize("dataset", READ)
def test_simple_code_is_done_in_whole_batches(dataset: str) -> None:
    loader = check_equal(READ[dataset]())
    assert loader.verdict().kind == "accelerated"
    assert from_memory(loader)


class Augments(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(255 - self.data[index])), self.targets[index]


class Three(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index], index


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


NOT_READ: dict[str, Any] = {
    "arithmetic": Augments,
    "three values": Three,
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
    assert read_layout(dataset) is not None
    read_layout.__globals__["method_body"].cache_clear()
    program.write_text(text.replace("self.data[index]), index", "self.data[index]), -index"))
    assert read_layout(dataset) is None


def test_an_index_outside_of_the_array_is_an_error() -> None:
    dataset = Short(targets=list(range(COUNT)))
    dataset.data = dataset.data[:-2]
    loader = DataLoader(dataset, 5, sampler=range(COUNT))
    with pytest.raises(IndexError, match="index 15 is out of bounds"):
        list(loader)
