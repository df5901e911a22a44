"""From decoded pixels to what the plan asks for: uint8 or float, channels first or last."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fastdata.loaders.rows import put
from fastdata.system.cached_property import lazy
from fastdata.tables import Format
from fastdata.views.levels import Levels, stored_format
from fastdata.views.plan import Output, Plan

__all__ = ["PixelFormat"]


class PixelFormat:
    """Stores decoded images in a batch.

    Args:
        plan: the plan; only its output and normalisation are used.
        leave_uint8: stop before the float arithmetic.
        channels_last: the batch is channels_last in memory, not contiguous.
        channels: number of channels of the batch: 3, or 1 to store only the first.

    Attributes:
        dtype: dtype of the batch.
        is_decoded_form: decoded pixels are what the batch holds, so images are decoded straight into it, unconverted.
    """

    def __init__(
        self, plan: Plan, *, leave_uint8: bool = False, channels_last: bool = False, channels: int = 3
    ) -> None:
        self._normalisation = plan.normalisation if plan.output is Output.FLOAT and not leave_uint8 else None
        self.dtype = torch.uint8 if self._normalisation is None else self._normalisation.dtype
        self.channels_last, self.channels = channels_last, channels
        self.is_decoded_form = channels_last and channels == 3 and self.dtype is torch.uint8

    @lazy
    def native(self) -> Format:
        """Format in which the native core stores the pixels."""
        levels = Levels.of(self._normalisation)
        return stored_format(levels, channels_first=not self.channels_last, channels=self.channels)

    def store(self, pixels: npt.NDArray[np.uint8], image: torch.Tensor) -> None:
        """Stores contiguous RGB pixels (H, W, 3) in one image (C, H, W) of the batch.

        The float values have the bits of ToTensor and Normalize.
        """
        put(pixels, image.data_ptr(), self.native)
