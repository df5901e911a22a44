"""Batch operations in torch that run wherever the batch is."""

from __future__ import annotations

import torch

from fastdata.plan import Normalisation

__all__ = ["normalise"]


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
    host = torch.tensor(values, dtype=like.dtype)
    if like.device.type == "cuda":  # from pageable memory the copy would wait for the device
        host = host.pin_memory()
    return host.to(like.device, non_blocking=True).view(1, -1, 1, 1)
