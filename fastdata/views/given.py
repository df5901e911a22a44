"""Numbers that were drawn for a sample elsewhere, in place of those by (seed, epoch, sample)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastdata.views.generators import Generators
from fastdata.views.steps import Size

__all__ = ["Following", "Given"]


class Given(NamedTuple):
    """The numbers of one sample.

    Attributes:
        numbers: for each stage of the plan int64 (operations, GIVEN_NUMBERS), as `draw_views` takes them.
        parameters: for each random step after the first geometry, in order, its parameters: one row each.
    """

    numbers: tuple[npt.NDArray[np.int64], ...]
    parameters: tuple[Mapping[str, Any], ...]


class Following(Protocol):
    """Draws a sample's numbers as the transform's own code would; `fastdata.transforms.following` has one."""

    def draw(self, generators: Generators, size: Size) -> Given:
        """Draws the numbers of an image of (height, width).

        Raises:
            ValueError: a crop is larger than the image, with the library's words.
        """
        ...
