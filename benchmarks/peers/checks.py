"""Is what a loader gives what was asked for?  Shapes, labels, and pixels near torchvision's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from workloads import Workload

__all__ = ["difference", "problem"]

# Mean difference of pixels, in levels of 255.  Decoders, resizing filters and encoding anew differ by up to six.
MOST_LEVELS = 8.0
# The same for means and deviations of random views of `_IMAGES`; policies of the same name differ between packages.
_IMAGES = 512
MOST_IN_MOMENTS = {
    "train": 6.0,
    "cifar": 6.0,
    "randaugment": 20.0,
    "simclr": 20.0,
    "segmentation": 6.0,
    "detection": 6.0,
}
MOST_IN_SHARES = 0.04  # the same for the share of the images that masks or boxes cover


def difference(found: Path, reference: Path) -> float:
    """Mean absolute difference of the first images' pixels, in levels of 255."""
    ours, theirs = (np.load(path).astype(np.int16) for path in (found, reference))
    return float(np.abs(ours - theirs).mean()) if ours.shape == theirs.shape else float("inf")


def problem(work: Workload, found: dict[str, Any], reference: dict[str, Any], levels: float) -> str | None:
    """What is wrong with a loader's output, or None.

    Args:
        work: the workload.
        found: what the worker's `check` says.
        reference: the same of torch's DataLoader with torchvision.
        levels: the difference of the pixels, where they must be the same.
    """
    if found["shapes"] != reference["shapes"]:
        return f"gives {found['shapes']} instead of {reference['shapes']}"
    if found["labels"] != reference["labels"]:
        missed = sum(abs(found["labels"].get(key, 0) - count) for key, count in reference["labels"].items())
        return f"the labels of a pass differ: {missed} of {sum(reference['labels'].values())}"
    if not work.is_random:
        return f"pixels differ by {levels:.1f} levels on average" if levels > MOST_LEVELS else None
    wider = max(1.0, (_IMAGES / work.count) ** 0.5)
    for moment in ("mean", "std"):
        apart = max(abs(a - b) for a, b in zip(found[moment], reference[moment], strict=True))
        if apart > MOST_IN_MOMENTS[work.view] * wider:
            return f"the pixels' {moment} differs by {apart:.1f} levels"
    if work.has_targets and abs(found["covered"] - reference["covered"]) > MOST_IN_SHARES * wider:
        return f"masks or boxes cover {found['covered']:.0%} of the images instead of {reference['covered']:.0%}"
    return None
