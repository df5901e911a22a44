"""Batch operations in torch that run wherever the batch is, with parameters of its own for each sample.

Images are uint8 (N, 3, H, W) unless an operation says otherwise; parameters are tensors of N values on any device,
which are moved to the images' without waiting for it.  Results equal torchvision's v2 operators, applied to each sample
with its parameter: their arithmetic is repeated step by step in float32.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import conv2d, grid_sample, pad

from fastdata.views.plan import Normalisation

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "cutmix",
    "equalize",
    "erase",
    "gaussian_blur",
    "grayscale",
    "mixup",
    "normalise",
    "on_device_of",
    "posterize",
    "soft_labels",
    "solarize",
]

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114  # ITU-R BT.601 luma, as torchvision rounds it


def normalise(images: torch.Tensor, normalisation: Normalisation) -> torch.Tensor:
    """Turns uint8 images into float32 with the bits of torchvision's ToTensor and Normalize.

    Args:
        images: uint8, (N, 3, H, W), on any device and in any memory format.
        normalisation: the plan's arithmetic.

    Returns:
        (N, 3, H, W) of the plan's float type, same device and memory format.
    """
    result = images.to(normalisation.dtype)
    if normalisation.scaling == "divide":
        # A tensor on the device: by a Python number, CUDA multiplies with the rounded reciprocal instead.
        result.div_(torch.full((), 255.0, dtype=result.dtype, device=images.device))
    elif normalisation.scaling == "multiply":
        result.mul_(1.0 / 255)
    if normalisation.mean is not None and normalisation.std is not None:
        result.sub_(_per_channel(normalisation.mean, result))
        result.div_(_per_channel(normalisation.std, result))
    return result


def _per_channel(values: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    return on_device_of(like, torch.tensor(values, dtype=like.dtype)).view(1, -1, 1, 1)


# ---- colour


def adjust_brightness(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiplies by a factor; 0 is black, 1 changes nothing.

    Args:
        images: uint8, (N, 3, H, W).
        factors: float, (N,), not negative.
    """
    return _to_uint8(images * _each(factors, images))


def adjust_contrast(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Moves levels away from the image's mean grey (factors above 1) or towards it; arguments as for brightness."""
    return _blend(images, _luma(images).floor_().mean(dim=(1, 2, 3), keepdim=True), factors)


def adjust_saturation(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Moves colours away from their grey (factors above 1) or towards it; arguments as for brightness."""
    return _blend(images, _luma(images).floor_(), factors)


def adjust_hue(images: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Turns the hue by a share of the circle.

    Args:
        images: uint8, (N, 3, H, W).
        shifts: float, (N,), -0.5 to 0.5.

    Source: the hexcone model (Smith, "Color gamut transform pairs", SIGGRAPH 1978), with Pillow's branches.
    """
    rgb = images.to(torch.float32).mul_(1.0 / 255)  # as v2 does, which differs from dividing in the last bit
    low, value = torch.aminmax(rgb, dim=1)
    grey = value == low
    spread = (value - low).masked_fill_(grey, 1.0)
    saturation = (value - low) / value.masked_fill(grey, 1.0)
    red, green, blue = ((value.unsqueeze(1) - rgb) / spread.unsqueeze(1)).unbind(1)
    is_red = value == rgb[:, 0]
    is_green = (value == rgb[:, 1]) & ~is_red
    sector = torch.where(is_red, blue - green, torch.where(is_green, red + 2.0 - blue, green + 4.0 - red))
    hue = sector.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0)
    hue = hue.add_(_each(shifts, images)[:, 0]).remainder_(1.0)
    turned = _from_hsv(hue, saturation, value)
    return turned.mul_(255 + 1.0 - 1e-3).to(torch.uint8)


def _from_hsv(hue: torch.Tensor, saturation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    sextant = torch.floor(hue * 6)
    rest = hue * 6 - sextant
    lowest = ((1.0 - saturation) * value).clamp_(0.0, 1.0)
    falling = ((1.0 - saturation * rest) * value).clamp_(0.0, 1.0)
    rising = ((saturation * rest + (1.0 - saturation)) * value).clamp_(0.0, 1.0)
    levels = torch.stack((value, lowest, falling, rising), dim=1)
    # Which of the four levels each channel has in each sextant.
    order = ((0, 2, 1, 1, 3, 0), (3, 0, 0, 2, 1, 1), (1, 1, 3, 0, 0, 2))
    number = sextant.to(torch.int64).remainder_(6)
    channels = [_constant(channel, hue, torch.int64)[number] for channel in order]
    return levels.gather(1, torch.stack(channels, dim=1))


def grayscale(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Makes some images grey.

    Args:
        images: uint8, (N, 3, H, W).
        chosen: bool, (N,).
    """
    return torch.where(_each(chosen, images, torch.bool), _luma(images).to(torch.uint8), images)


def posterize(images: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Keeps the highest bits of each level: int (N,), 0 to 8."""
    masks = (255 << (8 - bits)) & 255
    return images & _each(masks, images, torch.uint8)


def solarize(images: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """Inverts levels from a threshold on: float (N,), 0 to 255; higher ones change nothing."""
    return torch.where(images >= _each(thresholds, images), 255 - images, images)


def autocontrast(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Stretches each channel of some images to all levels; arguments as for `grayscale`."""
    levels = images.to(torch.float32)
    low, high = levels.amin(dim=(2, 3), keepdim=True), levels.amax(dim=(2, 3), keepdim=True)
    flat = high == low
    scale = ((high - low) * (1.0 / 255)).masked_fill_(flat, 1.0)
    stretched = levels.sub_(low.masked_fill(flat, 0.0)).div_(scale)
    return torch.where(_each(chosen, images, torch.bool), _to_uint8(stretched), images)


def equalize(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Equalises the histogram of each channel of some images, as Pillow does; arguments as for `grayscale`."""
    flat = images.flatten(2).to(torch.int64)
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    below = counts.cumsum(2)
    highest = counts.gather(2, below.argmax(2, keepdim=True))  # how often the highest level in use occurs
    step = (flat.shape[2] - highest).div_(255, rounding_mode="floor")
    table = below.add_(step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(0, 255).roll(1, 2)
    table[..., 0] = 0
    equal = table.gather(2, flat).view_as(images).to(torch.uint8)
    useful = (step != 0).unsqueeze(-1) & _each(chosen, images, torch.bool)
    return torch.where(useful, equal, images)


# ---- neighbourhoods


def adjust_sharpness(images: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Moves levels away from a smoothed image (factors above 1) or towards it; the outermost pixels stay.

    Args:
        images: uint8, (N, 3, H, W).
        factors: float, (N,), not negative.
    """
    if min(images.shape[2:]) <= 2:
        return images
    kernel = _constant((1.0 / 13,) * 4 + (5.0 / 13,) + (1.0 / 13,) * 4, images, torch.float32)
    result = images.to(torch.float32)
    smooth = conv2d(result, kernel.view(1, 1, 3, 3).expand(3, 1, 3, 3), groups=3).round_()
    inside = result[..., 1:-1, 1:-1]
    inside.copy_(torch.addcmul(inside, 1.0 - _each(factors.double(), images, torch.float64).float(), smooth - inside))
    return _to_uint8(result)


def gaussian_blur(images: torch.Tensor, kernel_size: int, sigmas: torch.Tensor) -> torch.Tensor:
    """Blurs by a Gaussian, with edges reflected.

    Args:
        images: uint8, (N, 3, H, W).
        kernel_size: odd; half of it is less than the images' height and width.
        sigmas: float, (N,), above 0.
    """
    limit = (kernel_size - 1) / (2.0 * math.sqrt(2.0))
    places = torch.linspace(-limit, limit, kernel_size, device=images.device)
    weights = torch.softmax((places / _each(sigmas, images)[:, 0, 0]).square_().neg_(), dim=1)
    kernels = (weights.unsqueeze(2) * weights.unsqueeze(1)).repeat_interleave(3, dim=0).unsqueeze(1)
    padded = pad(images.to(torch.float32), [kernel_size // 2] * 4, mode="reflect")
    count, _, height, width = padded.shape
    blurred = conv2d(padded.reshape(1, 3 * count, height, width), kernels, groups=3 * count)
    return blurred.view(images.shape).round_().to(torch.uint8)


def affine(
    images: torch.Tensor, matrices: torch.Tensor, *, mode: str = "nearest", fill: tuple[float, ...] | None = None
) -> torch.Tensor:
    """Moves pixels by a linear map of each image's own.

    Args:
        images: uint8, (N, 3, H, W).
        matrices: float, (N, 6): a, b, c, d, e, f; the pixel at (x, y), counted from the middle of the image, comes from
            (a x + b y + c, d x + e y + f).
        mode: "nearest" or "bilinear".
        fill: one level, or three, for what comes from outside; None is black.
    """
    count, _, height, width = images.shape
    base = torch.ones((height, width, 3), device=images.device)
    base[..., 0] = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, width, device=images.device)
    base[..., 1] = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, height, device=images.device).unsqueeze(1)
    maps = _like(matrices, images, torch.float32).view(count, 2, 3).transpose(1, 2)
    maps = maps.div(_constant((0.5 * width, 0.5 * height), images, torch.float32))
    base = base.view(1, -1, 3).expand(count, -1, -1)
    if images.is_cuda:  # in TF32, which a training may have switched on, pixels would move
        grid = base.double().bmm(maps.double()).float()
    else:
        grid = base.bmm(maps)
    grid = grid.view(count, height, width, 2)
    levels = images.to(torch.float32)
    if fill is None:
        moved = grid_sample(levels, grid, mode=mode, padding_mode="zeros", align_corners=False)
        return moved.round_().to(torch.uint8)
    known = torch.ones((count, 1, height, width), device=images.device)
    moved = grid_sample(torch.cat((levels, known), dim=1), grid, mode=mode, padding_mode="zeros", align_corners=False)
    moved, known = moved[:, :3], moved[:, 3:]
    outside = _constant(fill, images, torch.float32).view(1, -1, 1, 1)
    if mode == "nearest":
        moved = torch.where(known < 0.5, outside, moved)
    else:
        moved = (moved - outside).mul_(known).add_(outside)
    return moved.round_().to(torch.uint8)


# ---- parts of images, and pairs of them


def erase(images: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor | float) -> torch.Tensor:
    """Fills a rectangle of each image.

    Args:
        images: (N, C, H, W), of any dtype.
        boxes: int, (N, 4): left, top, right, bottom, half-open; an empty one erases nothing.
        values: fill values: a number, or a tensor that broadcasts to the images (noise is one of their size).
    """
    return torch.where(_inside(images, boxes), _like(values, images), images)


def mixup(images: torch.Tensor, partners: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mixes each image with another of the batch.

    Args:
        images: float, (N, C, H, W).
        partners: int64, (N,): numbers of the others.
        shares: float, (N,): how much of an image comes from itself.

    Source: Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
    """
    own = _each(shares, images, images.dtype)
    return images[_like(partners, images, torch.int64)].mul_(1.0 - own).add_(images.mul(own))


def cutmix(images: torch.Tensor, partners: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Pastes a rectangle of another image of the batch into each.

    Args:
        images: (N, C, H, W), of any dtype.
        partners: int64, (N,): numbers of the others.
        boxes: int, (N, 4): left, top, right, bottom, half-open.

    Source: Yun et al., "CutMix: Regularization strategy to train strong classifiers", ICCV 2019.
    """
    return torch.where(_inside(images, boxes), images[_like(partners, images, torch.int64)], images)


def soft_labels(labels: torch.Tensor, partners: torch.Tensor, shares: torch.Tensor, classes: int) -> torch.Tensor:
    """Targets of mixed images: float32, (N, classes), each row with `shares` at its own label, the rest at the other's.

    Args:
        labels: int64, (N,).
        partners: int64, (N,).
        shares: float, (N,).
        classes: number of classes.
    """
    # Not one_hot, which asks the device whether all labels are in range.
    own = torch.zeros((len(labels), classes), device=labels.device).scatter_(1, labels.view(-1, 1), 1.0)
    weight = _like(shares, own).view(-1, 1).to(torch.float32)
    return own[_like(partners, own, torch.int64)].mul_(1.0 - weight).add_(own.mul(weight))


# ---- helpers


def _each(values: torch.Tensor, images: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """N parameters as (N, 1, 1, 1) beside the images."""
    return _like(values, images, dtype).view(-1, 1, 1, 1)


def _like(values: torch.Tensor | float, images: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return on_device_of(images, torch.as_tensor(values, dtype=dtype if dtype is not None else images.dtype))


def on_device_of(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values beside the images, without waiting for their device."""
    if images.device.type == "cuda" and values.device.type == "cpu":  # from pageable memory the copy would wait
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def _constant(values: tuple[float, ...], images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _like(torch.tensor(values, dtype=dtype), images, dtype)


def _inside(images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Mask of the pixels in each box: bool, (N, 1, H, W)."""
    left, top, right, bottom = _like(boxes, images, torch.int64).view(-1, 4, 1, 1).unbind(1)
    rows = torch.arange(images.shape[2], device=images.device).view(1, -1, 1)
    columns = torch.arange(images.shape[3], device=images.device).view(1, 1, -1)
    return ((left <= columns) & (columns < right) & (top <= rows) & (rows < bottom)).unsqueeze(1)


def _luma(images: torch.Tensor) -> torch.Tensor:
    """float32, (N, 1, H, W)."""
    red, green, blue = images.unbind(1)
    return red.mul(_RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE).unsqueeze(1)


def _blend(images: torch.Tensor, others: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """`shares` of the images and the rest of the others, in torchvision's order of operations."""
    own = _each(shares.double(), images, torch.float64)
    return _to_uint8(torch.addcmul(images * own.float(), (1.0 - own).float(), others))


def _to_uint8(levels: torch.Tensor) -> torch.Tensor:
    return levels.clamp_(0, 255).to(torch.uint8)
