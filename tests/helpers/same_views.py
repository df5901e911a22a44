"""Views drawn by the native core and by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.views.draw import _draw_with_numpy, draw_views
from fastdata.views.philox import Key


def check_that_both_draw_alike(ops: Any, sizes: Any, indices: Any, occurrences: Any) -> None:
    """Fails where a number differs."""
    for key in (Key(seed=1, epoch=2), Key(seed=-5, epoch=0)):
        ours = draw_views(ops, sizes, indices, occurrences=occurrences, key=key)
        expected = _draw_with_numpy(ops, sizes, indices, occurrences, key=key)
        for field, column in expected._asdict().items():
            np.testing.assert_array_equal(getattr(ours, field), column, field)
