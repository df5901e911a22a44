"""Batch operations in torch that run wherever the batch is, with numbers of its own for each sample.

Images are uint8 (N, 3, H, W) unless an operation says otherwise, and are not changed; numbers are tensors of N rows on
the images' device (`BatchProgram` brings them there; mixing takes them from the host, too).  Results equal
torchvision's v2 operators, applied to each sample with its numbers: their arithmetic is repeated step by step, in
float32.
"""

from __future__ import annotations

import torch
from torch.nn.functional import conv2d, grid_sample, pad

from fastdata.views.plan import Normalisation

__all__ = [
    "HUE_LEVELS",
    "adjust_hue",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "blend_with_grey",
    "blur",
    "cutmix",
    "equalize",
    "erase",
    "map_levels",
    "mixup",
    "normalise",
    "on_device_of",
    "permute_channels",
    "perspective",
    "soft_labels",
]

_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114  # ITU-R BT.601 luma, as torchvision rounds it


def normalise(images: torch.Tensor, *mean_and_std: torch.Tensor, normalisation: Normalisation) -> torch.Tensor:
    """Turns uint8 images into float32 with the bits of torchvision's ToTensor and Normalize.

    Args:
        images: uint8, (N, 3, H, W), on any device and in any memory format.
        mean_and_std: two of the plan's float type, (3,) or (1,), on the images' device, if the plan has them.
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
    if mean_and_std:
        mean, std = (each.view(1, -1, 1, 1) for each in mean_and_std)
        result.sub_(mean).div_(std)
    return result


# ---- colour


def map_levels(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Replaces each level by that of a table.

    Args:
        images: uint8, (N, 3, H, W).
        tables: uint8, (N, 256).
    """
    return tables.gather(1, images.flatten(1).to(torch.int64)).view(images.shape)


def blend_with_grey(images: torch.Tensor, own: torch.Tensor, rest: torch.Tensor, by_mean: torch.Tensor) -> torch.Tensor:
    """Moves levels away from a grey (`own` above 1) or towards it: contrast, saturation, and conversion to grey.

    Args:
        images: uint8, (N, 3, H, W).
        own: float32, (N,): factor of the images.
        rest: float32, (N,): factor of the grey, 1 - `own`.
        by_mean: bool, (N,): True for the mean grey of the image, as contrast needs it; else the grey of each pixel.
    """
    grey = _luma(images).floor_()
    grey = torch.where(_column(by_mean), grey.mean(dim=(1, 2, 3), keepdim=True), grey)
    return _to_uint8(torch.addcmul(images * _column(own), _column(rest), grey))


def adjust_hue(images: torch.Tensor, shifts: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Turns the hue by a share of the circle.

    Args:
        images: uint8, (N, 3, H, W).
        shifts: float32, (N,), -0.5 to 0.5.
        levels: int64, (3, 6), `HUE_LEVELS`.

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
    hue = hue.add_(_column(shifts)[:, 0]).remainder_(1.0)
    turned = _from_hsv(hue, saturation, value, levels)
    return turned.mul_(255 + 1.0 - 1e-3).to(torch.uint8)


# Which of (value, lowest, falling, rising) red, green and blue have in each sextant of the hue.
HUE_LEVELS = ((0, 2, 1, 1, 3, 0), (3, 0, 0, 2, 1, 1), (1, 1, 3, 0, 0, 2))


def _from_hsv(hue: torch.Tensor, saturation: torch.Tensor, value: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    sextant = torch.floor(hue * 6)
    rest = hue * 6 - sextant
    lowest = ((1.0 - saturation) * value).clamp_(0.0, 1.0)
    falling = ((1.0 - saturation * rest) * value).clamp_(0.0, 1.0)
    rising = ((saturation * rest + (1.0 - saturation)) * value).clamp_(0.0, 1.0)
    number = sextant.to(torch.int64).remainder_(6)
    return torch.stack((value, lowest, falling, rising), dim=1).gather(1, levels[:, number].transpose(0, 1))


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Stretches each channel of uint8 images (N, 3, H, W) to all levels."""
    levels = images.to(torch.float32)
    low, high = levels.amin(dim=(2, 3), keepdim=True), levels.amax(dim=(2, 3), keepdim=True)
    flat = high == low
    scale = ((high - low) * (1.0 / 255)).masked_fill_(flat, 1.0)
    return _to_uint8(levels.sub_(low.masked_fill(flat, 0.0)).div_(scale))


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Equalises the histogram of each channel of uint8 images (N, 3, H, W), as Pillow does."""
    flat = images.flatten(2).to(torch.int64)
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    below = counts.cumsum(2)
    highest = counts.gather(2, below.argmax(2, keepdim=True))  # how often the highest level in use occurs
    step = (flat.shape[2] - highest).div_(255, rounding_mode="floor")
    table = below.add_(step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(0, 255).roll(1, 2)
    table[..., 0] = 0
    equal = table.gather(2, flat).view(images.shape).to(torch.uint8)
    return torch.where((step != 0).unsqueeze(-1), equal, images)


def permute_channels(images: torch.Tensor, permutations: torch.Tensor) -> torch.Tensor:
    """Reorders the channels of images (N, 3, H, W): int64 (N, 3), the old channel that each new one is."""
    return images.gather(1, permutations.view(-1, 3, 1, 1).expand_as(images))


# ---- neighbourhoods


def adjust_sharpness(images: torch.Tensor, rest: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Moves levels away from a smoothed image (factors above 1) or towards it; the outermost pixels stay.

    Args:
        images: uint8, (N, 3, H, W).
        rest: float32, (N,): share of the smoothed image, 1 - factor.
        kernel: float32, (3, 3), that smooths.
    """
    if min(images.shape[2:]) <= 2:
        return images
    # Contiguous: cuDNN, which CUDA takes for channels_last, would compute in TF32.
    result = images.to(torch.float32, memory_format=torch.contiguous_format)
    smooth = conv2d(result, kernel.expand(3, 1, 3, 3), groups=3).round_()
    inside = result[..., 1:-1, 1:-1]
    inside.copy_(torch.addcmul(inside, _column(rest), smooth - inside))
    return _to_uint8(result)


def blur(images: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
    """Blurs with edges reflected.

    Args:
        images: uint8, (N, 3, H, W).
        kernels: float32, (N, odd, odd); half of them is less than the images' height and width.
    """
    down, across = kernels.shape[1] // 2, kernels.shape[2] // 2
    padded = pad(images.to(torch.float32), [across, across, down, down], mode="reflect")
    count, _, height, width = padded.shape
    weights = kernels.repeat_interleave(3, dim=0).unsqueeze(1)
    blurred = conv2d(padded.reshape(1, 3 * count, height, width), weights, groups=3 * count)
    return blurred.view(images.shape).round_().to(torch.uint8)


# ---- pixels that move


def affine(images: torch.Tensor, maps: torch.Tensor, fill: torch.Tensor | None = None, *, mode: str) -> torch.Tensor:
    """Moves pixels by an affine map of each image's own.

    Args:
        images: uint8, (N, 3, H, W).
        maps: float32, (N, 3, 2): (x, y, 1) of the result, in pixels from the middle, times the map is where it comes
            from, in halves of the width and height from the middle.
        fill: float32, (N, 3): levels for what comes from outside; None is black.
        mode: "nearest" or "bilinear".
    """
    places = _places(images, first=tuple((1.0 - length) * 0.5 for length in images.shape[2:]))
    return _sampled(images, _times(places, maps), fill, mode)


def perspective(
    images: torch.Tensor, maps: torch.Tensor, divisors: torch.Tensor, fill: torch.Tensor | None = None, *, mode: str
) -> torch.Tensor:
    """Moves pixels by a perspective of each image's own.

    Args:
        images: uint8, (N, 3, H, W).
        maps: float32, (N, 3, 2): (x, y, 1) of the result, in pixels from the corner, times the map is the place that
            it comes from, in halves of the width and height from the corner, times a divisor.
        divisors: float32, (N, 3, 2): (x, y, 1) times these are the divisors.
        fill: float32, (N, 3): levels for what comes from outside; None is black.
        mode: "nearest" or "bilinear".
    """
    places = _places(images, first=(0.5, 0.5))
    return _sampled(images, _times(places, maps).div_(_times(places, divisors)).sub_(1.0), fill, mode)


def _places(images: torch.Tensor, first: tuple[float, ...]) -> torch.Tensor:
    """(x, y, 1) of each pixel of images (N, 3, H, W), of which the first has `first` (y, x): float32, (N, H * W, 3)."""
    count, _, height, width = images.shape
    places = torch.ones((height, width, 3), device=images.device)
    for at, length, start in ((0, width, first[1]), (1, height, first[0])):
        line = torch.linspace(start, start + length - 1.0, length, device=images.device)
        places[..., at] = line if at == 0 else line.unsqueeze(1)
    return places.view(1, -1, 3).expand(count, -1, -1)


def _times(places: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    if places.is_cuda:  # in TF32, which a training may have switched on, pixels would move
        return places.double().bmm(maps.double()).float()
    return places.bmm(maps)


def _sampled(images: torch.Tensor, grid: torch.Tensor, fill: torch.Tensor | None, mode: str) -> torch.Tensor:
    """Pixels from the places of a grid (N, H * W, 2), as grid_sample takes it."""
    count, _, height, width = images.shape
    grid, levels = grid.view(count, height, width, 2), images.to(torch.float32)
    if fill is None:
        return grid_sample(levels, grid, mode=mode, padding_mode="zeros", align_corners=False).round_().to(torch.uint8)
    known = torch.ones((count, 1, height, width), device=images.device)
    moved = grid_sample(torch.cat((levels, known), dim=1), grid, mode=mode, padding_mode="zeros", align_corners=False)
    moved, known, outside = moved[:, :3], moved[:, 3:], fill.view(-1, 3, 1, 1)
    if mode == "nearest":
        moved = torch.where(known < 0.5, outside, moved)
    else:
        moved = (moved - outside).mul_(known).add_(outside)
    return moved.round_().to(torch.uint8)


# ---- parts of images, and pairs of them


def erase(images: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Fills a rectangle of each image.

    Args:
        images: (N, C, H, W), of any dtype.
        boxes: int, (N, 4): left, top, right, bottom, half-open; an empty one erases nothing.
        values: (N, C) or (N, 1): fill values.
    """
    return torch.where(_inside(images, boxes), values.to(images.dtype)[..., None, None], images)


def mixup(images: torch.Tensor, partners: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Mixes each image with another of the batch.

    Args:
        images: float, (N, C, H, W).
        partners: int64, (N,): numbers of the others.
        shares: float, (N,): how much of an image comes from itself.

    Source: Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
    """
    own = _column(_like(shares, images))
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


def _like(values: torch.Tensor | float, images: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return on_device_of(images, torch.as_tensor(values, dtype=dtype if dtype is not None else images.dtype))


def on_device_of(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values beside the images, without waiting for their device."""
    if images.device.type == "cuda" and values.device.type == "cpu":  # from pageable memory the copy would wait
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def _column(values: torch.Tensor) -> torch.Tensor:
    """N values as (N, 1, 1, 1), beside images."""
    return values.view(-1, 1, 1, 1)


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


def _to_uint8(levels: torch.Tensor) -> torch.Tensor:
    return levels.clamp_(0, 255).to(torch.uint8)
