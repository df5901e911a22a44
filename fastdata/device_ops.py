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
        float32, (N, 3, H, W), same device and memory format.
    """
    result = images.to(torch.float32)
    if normalisation.scaling == "divide":
        # A tensor on the device: by a Python number, CUDA multiplies with the rounded reciprocal instead.
        result.div_(torch.full((), 255.0, device=images.device))
    elif normalisation.scaling == "multiply":
        result.mul_(1.0 / 255)
    if normalisation.mean is not None and normalisation.std is not None:
        result.sub_(_per_channel(normalisation.mean, images.device))
        result.div_(_per_channel(normalisation.std, images.device))
    return result


def _per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    host = torch.tensor(values, dtype=torch.float32)
    if device.type == "cuda":  # from pageable memory the copy would wait for the device
        host = host.pin_memory()
    return host.to(device, non_blocking=True).view(1, -1, 1, 1)
