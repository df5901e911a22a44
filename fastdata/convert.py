"""From decoded pixels to what the plan asks for: uint8 or float, channels first or last."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata import native
from fastdata.plan import Normalisation, Output, Plan

__all__ = ["Converter"]


class Converter:
    """Stores decoded images in a batch.

    Args:
        plan: its output and normalisation count.
        leave_uint8: stop before the float arithmetic.
        channels_last: how the batch lies in memory.

    Attributes:
        dtype: of the batch.
        in_place: decoded pixels are what the batch holds, so images can be decoded straight into it.
    """

    def __init__(self, plan: Plan, *, leave_uint8: bool = False, channels_last: bool = False) -> None:
        self._normalisation = plan.normalisation if plan.output is Output.FLOAT32 and not leave_uint8 else None
        self.dtype = torch.uint8 if self._normalisation is None else torch.float32
        self.channels_last = channels_last
        self.in_place = channels_last and self.dtype is torch.uint8

    @cached_property
    def format(self) -> native.Format:
        """The same for the native core."""
        table = None if self._normalisation is None else self._normalisation.table().numpy()
        return native.Format(channels_first=not self.channels_last, table=table)

    def store(self, pixels: npt.NDArray[np.uint8], image: torch.Tensor) -> None:
        """Stores contiguous RGB pixels (H, W, 3) in one image (3, H, W) of the batch.

        The float values have the bits of ToTensor and Normalize.
        """
        try:
            core = native.load()
        except native.NativeMissing:
            _store_with_numpy(pixels, image.numpy(), self._normalisation)
        else:
            core.convert(pixels, image.data_ptr(), self.format)


def _store_with_numpy(
    pixels: npt.NDArray[np.uint8], out_chw: npt.NDArray[Any], normalisation: Normalisation | None
) -> None:
    """NumPy's float32 operations round as torch's do."""
    for channel in range(3):
        plane, levels = out_chw[channel], pixels[..., channel]
        if normalisation is None:
            plane[...] = levels
            continue
        if normalisation.scaling == "divide":
            np.divide(levels, np.float32(255), out=plane, dtype=np.float32)
        elif normalisation.scaling == "multiply":
            np.multiply(levels, np.float32(1 / 255), out=plane, dtype=np.float32)
        else:
            plane[...] = levels
        if normalisation.mean is not None and normalisation.std is not None:
            np.subtract(plane, np.float32(normalisation.mean[channel]), out=plane)
            np.divide(plane, np.float32(normalisation.std[channel]), out=plane)
