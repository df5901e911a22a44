"""Tensors that stand for images to be decoded: for whoever uses them they are what torch would have made."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image
from torch.utils.dlpack import from_dlpack, to_dlpack
from torchvision.transforms import functional as F  # noqa: N812 - as everybody calls it

from fastdata.lazy.opening import opening_encoded
from fastdata.lazy.pending_tensor import PendingBatch, PendingImage, is_pending

DATA = images.jpeg(40, 30, seed=1)


def plain(convert: str = "to_tensor", data: bytes = DATA) -> torch.Tensor:
    result: torch.Tensor = getattr(F, convert)(Image.open(io.BytesIO(data)).convert("RGB"))
    return result


def pending(convert: str = "to_tensor", data: bytes = DATA) -> Any:
    with opening_encoded():
        image = getattr(F, convert)(Image.open(io.BytesIO(data)).convert("RGB"))
    assert type(image) is PendingImage
    return image


STAYING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normalised": lambda image: F.normalize(image, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    "one mean": lambda image: F.normalize(image, [0.5], [0.2]),
    "in place": lambda image: F.normalize(image, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], inplace=True),
    "scaled": lambda image: image * 2 - 1,
    "half": lambda image: image.half(),
    "bfloat16": lambda image: image.to(torch.bfloat16).mul(3),
    "copied": lambda image: image.clone().add_(1),
    "divided by tensors": lambda image: (image + torch.ones(3, 1, 1)) / torch.full((1, 1, 1), 3.0),
    "flipped": lambda image: torch.flip(image, [2]),
    "upside down": lambda image: image.flip(-2, -1),
    "a window": lambda image: image[..., 2:20, 3:-4],
    "another window": lambda image: image[:, :9, 5:][..., 1:, 1:],
    "another class": lambda image: image.as_subclass(torch.Tensor),
    "detached": lambda image: image.detach().requires_grad_(False),
    "the same dtype": lambda image: image.float().contiguous(),
}


@pytest.mark.parametrize("name", STAYING)
def test_arithmetic_by_channel_is_remembered(name: str) -> None:
    result = STAYING[name](pending())
    assert type(result) is PendingImage
    assert result.undecoded.known() is None
    expected = STAYING[name](plain())
    assert (result.shape, result.dtype, result.ndim, len(result)) == (expected.shape, expected.dtype, 3, 3)
    assert torch.equal(result.clone() * 1, expected)
    assert result.stride() == expected.stride()


USING: dict[str, Callable[[Any], Any]] = {
    "another shape": lambda image: image.view(3, -1),
    "a part": lambda image: image[:, 2:5],
    "a sum": lambda image: image.sum(),
    "another image": lambda image: image + image,
    "a comparison": lambda image: image > 0.5,
    "an array": np.asarray,
    "NumPy": lambda image: image.numpy(),
    "a list": lambda image: image[0, 0].tolist(),
    "concatenated": lambda image: torch.cat([image, torch.zeros(3, 30, 1)], dim=2),
    "float64": lambda image: image.double(),
    "a 0-dimensional tensor": lambda image: image * torch.tensor(2.0, dtype=torch.float64),
    "by row": lambda image: image - torch.arange(30.0).view(30, 1),
    "stacked elsewhere": lambda image: torch.stack([image, image], dim=1),
    "stacked with others": lambda image: torch.stack([image, torch.zeros(3, 30, 40)]),
    "written to": lambda image: image.index_fill_(0, torch.tensor([1]), 0) + 0,
    "text": repr,
    "a deep copy": copy.deepcopy,
    "a set item": lambda image: image.__setitem__(0, 0.0) or image + 0,
}


@pytest.mark.parametrize("name", USING)
def test_whatever_else_is_done_to_it_is_done_to_the_image(name: str) -> None:
    ours, theirs = USING[name](pending()), USING[name](plain())
    assert type(ours) is type(theirs)
    same = torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else np.array_equal(ours, theirs)
    assert same


def test_an_in_place_change_is_seen_by_all_who_hold_the_image() -> None:
    for change in (lambda image: image.sub_(0.5), lambda image: image.clamp_(0.2, 0.4)):
        image = pending()
        same, copied = image.contiguous(), image.clone()
        change(image)
        expected = plain()
        change(expected)
        assert torch.equal(same + 0, expected)
        assert torch.equal(copied + 0, plain())


def test_integers_are_torchvisions() -> None:
    image = pending("pil_to_tensor")
    assert (image.dtype, image.shape) == (torch.uint8, (3, 30, 40))
    assert torch.equal(image.float() / 255 + 0, plain("pil_to_tensor").float() / 255)
    assert torch.equal(image + 200, plain("pil_to_tensor") + 200)  # which wraps around
    assert torch.equal(torch.stack([image, image]) + 0, torch.stack([plain("pil_to_tensor")] * 2))


def test_batches_are_stacked_and_sent_as_descriptions() -> None:
    files = [images.jpeg(40, 30, seed=seed) for seed in range(3)]
    batch = torch.stack([pending(data=data) for data in files])
    expected = torch.stack([plain(data=data) for data in files])
    assert type(batch) is PendingBatch
    assert (batch.shape, batch.dtype, batch.device.type, len(batch)) == (expected.shape, torch.float32, "cpu", 3)
    single = pending()
    single.undecoded.is_sent = batch.undecoded.is_sent = True
    sent = pickle.loads(pickle.dumps((batch, single)))
    assert [type(each) for each in sent] == [PendingBatch, PendingImage]
    assert torch.equal(sent[0] * 1, expected)
    assert torch.equal(sent[1] * 1, plain())
    assert torch.equal(batch.flatten(1), expected.flatten(1))
    assert type(pickle.loads(pickle.dumps(batch))) is torch.Tensor  # it has been decoded meanwhile


def test_batches_of_views_are_stacked_again() -> None:
    files = [images.jpeg(40, 30, seed=seed) for seed in range(3)]
    views = [torch.stack([pending(data=data), pending(data=data)]) for data in files]
    expected = torch.stack([torch.stack([plain(data=data)] * 2) for data in files])
    with opening_encoded():
        collated = torch.utils.data.default_collate(views)
    for batch in (torch.stack(views), collated):
        assert type(batch) is PendingBatch
        assert (batch.shape, batch.dtype, len(batch)) == (expected.shape, torch.float32, 3)
        batch.undecoded.is_sent = True
        assert torch.equal(pickle.loads(pickle.dumps(batch)) * 1, expected)
    deeper = torch.stack([torch.stack(views), torch.stack(views)])
    assert type(deeper) is PendingBatch
    assert torch.equal(deeper + 0, torch.stack([expected, expected]))
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([views[0], torch.stack([pending()] * 3)])
    assert torch.equal(torch.stack([views[0], views[1] * 2]), torch.stack([expected[0], expected[1] * 2]))


WRITING: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor, Any], Any]]] = {
    "copied": (lambda: torch.zeros(3, 30, 40), lambda to, image: to.copy_(image)),
    "copied to a corner": (lambda: torch.zeros(2, 3, 37, 45), lambda to, image: to[1][:3, :30, :40].copy_(image)),
    "an item": (lambda: torch.full((2, 3, 30, 40), 7.0), lambda to, image: to.__setitem__(1, image)),
    "a corner": (
        lambda: torch.ones(2, 3, 37, 45),
        lambda to, image: to.__setitem__((0, ..., slice(7, 37), slice(5, 45)), image),
    ),
    "a part of rows": (
        lambda: torch.ones(3, 60, 40),
        lambda to, image: to.__setitem__((slice(None), slice(0, 60, 2)), image),
    ),
    "as it is": (lambda: torch.ones(3, 33, 40), lambda to, image: to[:, 3:].copy_(image, non_blocking=True)),
    "other values": (lambda: torch.zeros(3, 31, 40).double(), lambda to, image: to[:, 1:].copy_(image)),
    "each second": (lambda: torch.zeros(3, 30, 80), lambda to, image: to[..., ::2].copy_(image)),
    "channels last": (
        lambda: torch.zeros(1, 3, 30, 40).to(memory_format=torch.channels_last),
        lambda to, image: to[0].copy_(image),
    ),
    "to several": (lambda: torch.zeros(2, 3, 30, 40), lambda to, image: to.copy_(image)),
    "by a mask": (
        lambda: torch.zeros(2, 3, 30, 40),
        lambda to, image: to.__setitem__(torch.tensor([True, False]), image),
    ),
    "by numbers": (lambda: torch.zeros(2, 3, 30, 40), lambda to, image: to.__setitem__([1], image)),
    "by True": (lambda: torch.zeros(3, 30, 40), lambda to, image: to.__setitem__(True, image)),
    "to a batch of one": (
        lambda: torch.zeros(1, 3, 30, 41),
        lambda to, image: to[..., :40].copy_(image.unsqueeze(0) * 1),
    ),
}
IN_PLACE = {"copied", "copied to a corner", "an item", "a corner", "a part of rows", "to a batch of one"}


@pytest.mark.parametrize("name", WRITING)
def test_writing_an_image_to_memory_gives_the_values_that_torch_gives(name: str) -> None:
    memory, write = WRITING[name]
    ours, theirs = memory(), memory()
    image, version = F.normalize(pending(), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), ours._version
    expected = F.normalize(plain(), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    answer, torchs = write(ours, image), write(theirs, expected)
    assert torch.equal(ours, theirs)
    assert type(answer) is type(torchs)
    assert answer is None or (answer.data_ptr() - ours.data_ptr() == torchs.data_ptr() - theirs.data_ptr())
    assert ours._version > version
    assert is_pending(image) == (name in IN_PLACE)  # decoded where it was wanted, and not kept
    assert torch.equal(image + 0, expected)


def test_writing_is_torchs_where_something_depends_on_the_memory() -> None:
    for to in (torch.zeros(3, 1, 40).expand(3, 30, 40), torch.zeros(3, 30, 40, requires_grad=True)):
        ours, theirs = (pytest.raises(RuntimeError) for _ in range(2))
        with ours as mine:
            to.copy_(pending())
        with theirs as torchs:
            to.copy_(plain())
        assert str(mine.value) == str(torchs.value)
    for wrong in (torch.zeros(3, 30, 41), torch.zeros(2, 30, 40)):
        with pytest.raises(RuntimeError, match="size"):
            wrong.copy_(pending())
    with torch.inference_mode():
        inferred = torch.zeros(3, 30, 40)
    with pytest.raises(RuntimeError, match="inference tensor"):
        inferred.copy_(pending())
    weight = torch.ones(3, 30, 40, requires_grad=True)
    grown = weight * 2
    grown[:] = pending()
    grown.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
    result = torch.zeros(3, 30, 40)
    squared = (weight * result).sum()
    result.copy_(pending())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_a_damaged_image_leaves_memory_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (700, 600, 3), np.uint8)).save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with opening_encoded():
        image = F.to_tensor(Image.open(path).convert("RGB"))
    assert type(image) is PendingImage
    memory = torch.full((3, 720, 600), 7.0)
    with pytest.raises(OSError, match="broken"):
        memory[:, :700].copy_(image)
    assert (memory == 7).all()


def test_images_that_differ_are_stacked_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([pending(), pending(data=images.jpeg(20, 30))])
    mixed = torch.stack([pending(), pending() * 2])
    assert torch.equal(mixed, torch.stack([plain(), plain() * 2]))


def test_what_only_the_decoder_notices_is_raised_where_pixels_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(DATA[:300] + DATA[-2:])
    with opening_encoded():
        try:
            image = F.to_tensor(Image.open(path).convert("RGB"))
        except OSError:
            return  # Pillow saw it at once
    with pytest.raises(OSError, match="image") as raised:
        image.sum()
    assert "image.jpg" in "".join(getattr(raised.value, "__notes__", ["image.jpg"]))


def test_elsewhere_torchvisions_functions_are_what_they_were() -> None:
    original = F.to_tensor
    with opening_encoded():
        assert F.to_tensor is not original
        assert torch.equal(F.to_tensor(Image.new("RGB", (4, 4))), torch.zeros(3, 4, 4))
        image = Image.open(io.BytesIO(DATA)).convert("RGB")
    assert F.to_tensor is original
    assert type(F.to_tensor(image)) is torch.Tensor
    assert torch.equal(F.to_tensor(image), plain())


def test_what_works_in_place_returns_the_tensor_itself() -> None:
    image = pending()
    assert image.sub_(0.5) is image
    assert image.clamp_(0, 1) is image
    assert torch.add(image, 1, out=image) is image


def test_whole_numbers_and_fractions_are_told_apart() -> None:
    for first, second in ((1.0, 1), (-128.0, -128), (0.0, -0.0)):
        for factor in (first, second):
            ours, theirs = pending("pil_to_tensor") * factor, plain("pil_to_tensor") * factor
            assert ours.dtype == theirs.dtype
            assert torch.equal(torch.signbit(ours + 0), torch.signbit(theirs + 0))


def test_saved_tensors_are_plain(tmp_path: Path) -> None:
    torch.save([pending()], tmp_path / "saved.pt")
    (loaded,) = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert torch.equal(loaded, plain())


def test_those_who_pass_by_torchs_functions_get_no_other_pixels() -> None:
    for use in (torch.nn.Parameter, torch.tensor, lambda image: torch.nested.nested_tensor([image])[0]):
        try:
            ours = use(pending())
        except Exception:  # noqa: BLE001 - an error is right, too
            continue
        assert torch.equal(ours.detach() + 0, use(plain()).detach())


def test_memory_is_refused_before_decoding_and_the_images_afterwards() -> None:
    for made in (pending, lambda: torch.stack([pending()])):
        image = made()
        for reach in (to_dlpack, torch._C._to_dlpack, lambda tensor: torch._C._from_dlpack(to_dlpack(tensor))):
            with pytest.raises(RuntimeError, match=r"Call tensor\.data_ptr\(\) first"):
                reach(image)
        assert np.array_equal(np.from_dlpack(made()), plain().numpy().reshape(image.shape))
        address = image.data_ptr()
        assert type(image) is torch.Tensor
        assert torch.equal(from_dlpack(to_dlpack(image)), plain().reshape(image.shape))
        assert from_dlpack(to_dlpack(image)).data_ptr() == address


def test_memory_is_the_images_where_torchs_functions_are_passed_by() -> None:
    image = pending()
    with torch._C.DisableTorchFunctionSubclass():
        summed = image + 1
        assert torch.equal(summed, plain() + 1)
    assert torch.equal(from_dlpack(to_dlpack(image)), plain())


def test_a_decoded_tensor_becomes_the_one_that_torch_would_have_made() -> None:
    image = pending()
    image.label = 3
    part, turned = image[..., 2:9, 3:7], image.as_subclass(torch.Tensor)
    assert image.__class__ is torch.stack([image]).__class__ is torch.Tensor
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'other'"):
        _ = image.other
    image.mul_(2).requires_grad_()
    assert [type(each) for each in (image, part, turned)] == [torch.Tensor] * 3
    assert image.label == copy.deepcopy(image).label == copy.copy(image).label == 3
    assert torch.equal(part, 2 * plain()[..., 2:9, 3:7])
    assert (image.requires_grad, part.requires_grad, turned.requires_grad) == (True, False, False)
    (image * 3).sum().backward()
    assert torch.equal(image.grad, torch.full((3, 30, 40), 3.0))


def test_parameters_and_inference_mode_are_torchs() -> None:
    for requires_grad in (True, False):
        image = pending()
        parameter = torch.nn.Parameter(image, requires_grad)
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.requires_grad is requires_grad
        assert torch.equal(parameter.detach() + 0, plain())
        assert parameter.data_ptr() == image.data_ptr()
    with torch.inference_mode():
        inferred = pending()
        batch = torch.stack([pending()])
        copied = pending().clone()
    assert all(each.is_inference() for each in (inferred, batch, copied))
    image = pending()
    with torch.inference_mode():
        assert not image.is_inference()
        assert float(image.sum()) == float(plain().sum())
    image.requires_grad_()


STACKS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "axis": lambda images: torch.stack(images, axis=0),  # type: ignore[call-overload]
    "tensors": lambda images: torch.stack(tensors=images),  # type: ignore[call-overload]
    "all names": lambda images: torch.stack(tensors=tuple(images), dim=0, out=None),  # type: ignore[call-overload]
    "last": lambda images: torch.stack(images, axis=-1),  # type: ignore[call-overload]
    "positions": lambda images: torch.stack(images, 1),
    "twice": lambda images: torch.stack(images, 0, axis=0),  # type: ignore[call-overload]
    "unknown": lambda images: torch.stack(images, lend=None),  # type: ignore[call-overload]
    "nothing": lambda images: torch.stack(dim=0),  # type: ignore[call-overload]
}


def test_torch_stack_takes_all_its_spellings() -> None:
    for name, stack in STACKS.items():
        outcomes = []
        for images_ in ([pending(), pending()], [plain(), plain()]):
            try:
                outcomes.append(stack(images_) + 0)
            except TypeError as error:
                outcomes.append(torch.tensor(len(str(error))))
        assert torch.equal(*outcomes), name


def test_a_batch_of_one_image_is_a_view_of_it() -> None:
    for convert in ("to_tensor", "pil_to_tensor"):
        image, wanted = pending(convert), plain(convert)
        batch = image.unsqueeze(0)
        assert type(batch) is PendingImage
        assert batch.shape == (1, 3, 30, 40)
        assert batch.stride() == wanted.unsqueeze(0).stride()
        assert torch.equal(batch[..., 2:9, 3:7], wanted.unsqueeze(0)[..., 2:9, 3:7])
        for one, other in ((image, batch), (wanted, wanted.unsqueeze(0))):
            other[0].add_(1)
            one.sub_(3)
        assert torch.equal(image, wanted)
        assert torch.equal(batch, wanted.unsqueeze(0))
        assert torch.equal(torch.stack([batch, batch]), torch.stack([wanted.unsqueeze(0)] * 2))
        assert torch.equal(batch.flip(-1), wanted.unsqueeze(0).flip(-1))
