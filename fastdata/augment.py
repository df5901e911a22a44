"""Random augmentations of whole batches: what is drawn for each sample, and the operations of device_ops that do it.

The classes carry torchvision's names, arguments and distributions.  Their arithmetic is that of torchvision's v2
operators on uint8 tensors.  What is drawn for a sample is a function of (seed, epoch, sample, copy) and the step's
place in the transform, so it depends neither on the device nor on the backend nor on the place in the batch.

Parameters are drawn on the host and stay there as NumPy arrays; which samples an operation concerns is therefore known
without asking the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastdata import device_ops as ops
from fastdata.draws import Floats, Key, philox4x32, uniform
from fastdata.errors import OptionError

__all__ = [
    "Augmentation",
    "ColorJitter",
    "Draws",
    "GaussianBlur",
    "Parameters",
    "RandAugment",
    "RandomErasing",
    "RandomGrayscale",
    "TrivialAugmentWide",
]

Ints: TypeAlias = npt.NDArray[np.int64]
Parameters: TypeAlias = Mapping[str, npt.NDArray[Any]]  # each of N rows

_STREAM_FIRST_STEP = 4000  # steps of the transform are numbered from here; image_batch, samplers and mix have others
_TRIES = 10  # torchvision's RandomErasing gives up after ten boxes that do not fit


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of one step for N samples.

    Attributes:
        key: seed and epoch.
        indices: int64, (N,): the samples.
        copies: int64, (N,): how often each has come before in the epoch.
        step: place of the augmentation in the transform.
    """

    key: Key
    indices: Ints
    copies: Ints
    step: int = 0

    def four(self, number: int) -> list[Floats]:
        """The step's draw of some number: four arrays (N,) of [0, 1)."""
        counter = (self.indices, self.copies, number, _STREAM_FIRST_STEP + self.step)
        return [uniform(words) for words in philox4x32(counter, self.key.words())]


class Augmentation(ABC):
    """Draws parameters for samples, and applies them to a batch.

    Called on one uint8 image (3, H, W) or a PIL image, it augments that, drawn from torch's generator.
    """

    @abstractmethod
    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """Parameters of N samples whose images are (height, width)."""

    @abstractmethod
    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """The augmented batch (N, 3, H, W), on the images' device; the images themselves are not changed."""

    def __call__(self, image: Any) -> Any:
        """One image, augmented; see the class."""
        if not isinstance(image, torch.Tensor):
            from fastdata.loaders import pillow

            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
            return pillow.from_pixels(self(pixels).permute(1, 2, 0).contiguous().numpy())
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        zero = np.zeros(1, np.int64)
        draws = Draws(key=Key(seed=seed, epoch=0), indices=zero, copies=zero)
        height, width = image.shape[-2:]
        return self.apply(image.unsqueeze(0), self.draw(draws, (height, width)))[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


Range: TypeAlias = tuple[float, float] | None
Levels: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _adjust(operation: Levels, amounts: Floats, images: torch.Tensor, rows: Ints) -> torch.Tensor:
    return operation(images, _tensor(amounts[rows]))


class ColorJitter(Augmentation):
    """Brightness, contrast, saturation and hue changed by random amounts in random order.

    Args:
        brightness: largest change, or the smallest and largest factor.
        contrast: likewise.
        saturation: likewise.
        hue: largest turn, at most 0.5, or smallest and largest.
    """

    _OPERATIONS = (ops.adjust_brightness, ops.adjust_contrast, ops.adjust_saturation, ops.adjust_hue)

    def __init__(
        self,
        brightness: float | Sequence[float] | None = 0,
        contrast: float | Sequence[float] | None = 0,
        saturation: float | Sequence[float] | None = 0,
        hue: float | Sequence[float] | None = 0,
    ) -> None:
        self.brightness = _range("brightness", brightness, middle=1.0, least=0.0)
        self.contrast = _range("contrast", contrast, middle=1.0, least=0.0)
        self.saturation = _range("saturation", saturation, middle=1.0, least=0.0)
        self.hue = _range("hue", hue, middle=0.0, least=-0.5, most=0.5)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        shares, order = draws.four(0), np.argsort(np.stack(draws.four(1)), axis=0, kind="stable")
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        amounts = [
            share * 0 if range_ is None else range_[0] + share * (range_[1] - range_[0])
            for share, range_ in zip(shares, ranges, strict=True)
        ]
        return {"amounts": np.stack(amounts, axis=1), "order": order.T}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        amounts, order = parameters["amounts"], parameters["order"]
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        operations = [
            None if range_ is None else partial(_adjust, operation, amounts[:, number])
            for number, (range_, operation) in enumerate(zip(ranges, self._OPERATIONS, strict=True))
        ]
        for turn in range(4):
            images = _by_choice(images, order[:, turn], operations)
        return images


class RandomGrayscale(Augmentation):
    """Grey with probability `p`."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = _probability(p)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return {"chosen": draws.four(0)[0] < self.p}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.grayscale(images, _tensor(parameters["chosen"]))


class GaussianBlur(Augmentation):
    """Blurred by a Gaussian of random width.

    Args:
        kernel_size: pixels, odd.
        sigma: standard deviation in pixels, or the smallest and largest.
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        sizes = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(set(sizes)) != 1 or sizes[0] < 1 or sizes[0] % 2 == 0:
            raise OptionError(f"kernel_size={kernel_size!r}; accepted: one odd number of pixels for both axes")
        self.kernel_size = int(sizes[0])
        low, high = (sigma, sigma) if isinstance(sigma, int | float) else (sigma[0], sigma[1])
        if not 0 < low <= high:
            raise OptionError(f"sigma={sigma!r}; accepted: a number above 0, or two in order")
        self.sigma = float(low), float(high)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return {"sigmas": self.sigma[0] + draws.four(0)[0] * (self.sigma[1] - self.sigma[0])}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.gaussian_blur(images, self.kernel_size, _tensor(parameters["sigmas"]))


class RandomErasing(Augmentation):
    """A random rectangle filled with `value`, with probability `p`; also for float images, after Normalize.

    Args:
        p: probability.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest height divided by width.
        value: a number, or one for each channel.

    Source: Zhong et al., "Random erasing data augmentation", AAAI 2020.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] = 0,
    ) -> None:
        self.p = _probability(p)
        self.scale, self.ratio = tuple(map(float, scale)), tuple(map(float, ratio))
        if not isinstance(value, int | float | list | tuple):
            raise OptionError(f"value={value!r}; accepted: a number, or one for each channel (noise is not)")
        self.value = tuple(map(float, (value,) * 3 if isinstance(value, int | float) else value))

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        height, width = size
        boxes = np.zeros((len(draws.indices), 4), np.int64)
        open_ = draws.four(0)[0] < self.p
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for number in range(1, 1 + _TRIES):
            share, shape, across, down = draws.four(number)
            area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
            aspect = np.exp(low + shape * (high - low))
            tall, wide = (np.rint(np.sqrt(each)).astype(np.int64) for each in (area * aspect, area / aspect))
            left = (across * (width - wide + 1)).astype(np.int64)
            top = (down * (height - tall + 1)).astype(np.int64)
            fits = open_ & (tall < height) & (wide < width)
            boxes[fits] = np.stack((left, top, left + wide, top + tall), axis=1)[fits]
            open_ &= ~fits
        return {"boxes": boxes}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.erase(images, _tensor(parameters["boxes"]), torch.tensor(self.value).view(1, -1, 1, 1))


class _Policy(Augmentation):
    """Operations picked at random from the fourteen of RandAugment."""

    num_ops: int
    num_magnitude_bins: int
    _symmetric = frozenset(range(1, 10))  # those whose magnitude may be negative

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None) -> None:
        self.interpolation = str(getattr(interpolation, "value", interpolation)).lower()
        if self.interpolation not in ("nearest", "bilinear"):
            raise OptionError(f"interpolation={interpolation!r}; accepted: nearest, bilinear")
        self.fill = None if fill is None else tuple(map(float, (fill,) if isinstance(fill, int | float) else fill))

    @abstractmethod
    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """Of every operation and bin: (14, bins)."""

    @abstractmethod
    def _bins(self, share: Floats) -> Ints:
        """Which bin each sample takes."""

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        table = self.magnitudes(size)
        choices, amounts = [], []
        for number in range(self.num_ops):
            which, sign, bin_, _ = draws.four(number)
            choice = (which * len(_NAMES)).astype(np.int64)
            amount = table[choice, self._bins(bin_)]
            negative = np.isin(choice, list(self._symmetric)) & (sign < 0.5)
            choices.append(choice)
            amounts.append(np.where(negative, -amount, amount))
        return {"choices": np.stack(choices, axis=1), "amounts": np.stack(amounts, axis=1)}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        for turn in range(self.num_ops):
            amounts = parameters["amounts"][:, turn]
            operations = [None if name == "Identity" else partial(self._do, name, amounts) for name in _NAMES]
            images = _by_choice(images, parameters["choices"][:, turn], operations)
        return images

    def _do(self, name: str, amounts: Floats, images: torch.Tensor, rows: Ints) -> torch.Tensor:
        amounts = amounts[rows]
        if name in _MAPS:
            height, width = images.shape[-2:]
            matrices = torch.tensor([_MAPS[name](amount, height, width) for amount in amounts.tolist()])
            return ops.affine(images, matrices, mode=self.interpolation, fill=self.fill)
        return _LEVELS[name](images, _tensor(amounts))


class RandAugment(_Policy):
    """`num_ops` operations per sample, all of one magnitude; torchvision's operations and magnitudes.

    Args:
        num_ops: operations one after the other.
        magnitude: bin, from 0.
        num_magnitude_bins: how many there are.
        interpolation: "nearest" or "bilinear".
        fill: level, or three, for what comes from outside of the image; None is black.

    Source: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2019.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        if not 0 <= magnitude < num_magnitude_bins:
            raise OptionError(f"magnitude={magnitude}; accepted: 0 to {num_magnitude_bins - 1}, as there are bins")
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins

    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """See `_Policy.magnitudes`."""
        height, width = size
        tops = (0, 0.3, 0.3, 150.0 / 331.0 * width, 150.0 / 331.0 * height, 30.0, 0.9, 0.9, 0.9, 0.9)
        return _table(tops, self.num_magnitude_bins, fewest_bits=4)

    def _bins(self, share: Floats) -> Ints:
        return np.full(len(share), self.magnitude, np.int64)


class TrivialAugmentWide(_Policy):
    """One operation per sample, of a random magnitude from a wide range; torchvision's operations and magnitudes.

    Args:
        num_magnitude_bins: how many magnitudes there are.
        interpolation: "nearest" or "bilinear".
        fill: level, or three, for what comes from outside of the image; None is black.

    Source: Müller and Hutter, "TrivialAugment: Tuning-free yet state-of-the-art data augmentation", ICCV 2021.
    """

    num_ops = 1

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = num_magnitude_bins

    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """See `_Policy.magnitudes`."""
        tops = (0, 0.99, 0.99, 32.0, 32.0, 135.0, 0.99, 0.99, 0.99, 0.99)
        return _table(tops, self.num_magnitude_bins, fewest_bits=2)

    def _bins(self, share: Floats) -> Ints:
        return (share * self.num_magnitude_bins).astype(np.int64)


_NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def _table(tops: Sequence[float], bins: int, *, fewest_bits: int) -> Floats:
    """Magnitudes (14, bins): from 0 to each top, then bits kept, thresholds, and two operations without any."""
    rows = [torch.linspace(0.0, top, bins) for top in tops]
    bits = (8 - torch.arange(bins) / ((bins - 1) / (8 - fewest_bits))).round()
    rows += [bits, torch.linspace(1.0, 0.0, bins), torch.zeros(bins), torch.zeros(bins)]
    return torch.stack(rows).double().numpy()


Matrix: TypeAlias = tuple[float, float, float, float, float, float]


def _shear_x(amount: float, height: int, width: int) -> Matrix:
    slope = math.tan(math.radians(math.degrees(math.atan(amount))))
    return 1.0, slope, slope * height * 0.5, 0.0, 1.0, 0.0  # the upper edge stays


def _shear_y(amount: float, height: int, width: int) -> Matrix:
    slope = math.tan(math.radians(math.degrees(math.atan(amount))))
    return 1.0, 0.0, 0.0, slope, 1.0, slope * width * 0.5


def _translate_x(amount: float, height: int, width: int) -> Matrix:
    return 1.0, 0.0, -float(int(amount)), 0.0, 1.0, 0.0


def _translate_y(amount: float, height: int, width: int) -> Matrix:
    return 1.0, 0.0, 0.0, 0.0, 1.0, -float(int(amount))


def _rotate(amount: float, height: int, width: int) -> Matrix:
    angle = math.radians(-(amount % 360))
    return math.cos(angle), math.sin(angle), 0.0, -math.sin(angle), math.cos(angle), 0.0


_MAPS: dict[str, Callable[[float, int, int], Matrix]] = {
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
}
_LEVELS: dict[str, Levels] = {
    "Brightness": lambda images, amounts: ops.adjust_brightness(images, 1.0 + amounts),
    "Color": lambda images, amounts: ops.adjust_saturation(images, 1.0 + amounts),
    "Contrast": lambda images, amounts: ops.adjust_contrast(images, 1.0 + amounts),
    "Sharpness": lambda images, amounts: ops.adjust_sharpness(images, 1.0 + amounts),
    "Posterize": lambda images, amounts: ops.posterize(images, amounts.to(torch.int64)),
    "Solarize": lambda images, amounts: ops.solarize(images, 255.0 * amounts),
    "AutoContrast": lambda images, amounts: ops.autocontrast(images, torch.ones_like(amounts, dtype=torch.bool)),
    "Equalize": lambda images, amounts: ops.equalize(images, torch.ones_like(amounts, dtype=torch.bool)),
}

_Operation: TypeAlias = Callable[[torch.Tensor, Ints], torch.Tensor]


def _by_choice(images: torch.Tensor, choices: Ints, operations: Sequence[_Operation | None]) -> torch.Tensor:
    """Applies to each sample the operation it chose; None leaves it as it is."""
    result = images
    for number, operation in enumerate(operations):
        rows = np.flatnonzero(choices == number)
        if operation is None or len(rows) == 0:
            continue
        if len(rows) == len(choices):
            return operation(images, rows)
        at = ops.on_device_of(images, _tensor(rows))
        result = images.clone() if result is images else result
        result.index_copy_(0, at, operation(images.index_select(0, at), rows))
    return result


def _tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _range(
    name: str, given: float | Sequence[float] | None, *, middle: float, least: float, most: float = math.inf
) -> Range:
    """Smallest and largest from one number or two; None when nothing would change."""
    if given is None:
        return None
    if isinstance(given, int | float):
        low, high = max(middle - given, least) if least == 0 else middle - given, middle + given
        given_ok = given >= 0
    else:
        (low, high), given_ok = map(float, given), True
    if not given_ok or not least <= low <= high <= most:
        raise OptionError(f"{name}={given!r}; accepted: one number not below 0, or two in order from {least} to {most}")
    return None if low == high == middle else (float(low), float(high))


def _probability(p: float) -> float:
    if not 0 <= p <= 1:
        raise OptionError(f"p={p} is not a probability between 0 and 1")
    return float(p)
