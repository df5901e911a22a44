"""The training input of public programs, made with their own datasets and transforms.

Each pipeline is a function that returns a dataset and the arguments of its DataLoader, besides num_workers and
shuffle=True.  It imports from a checkout of the program, so each wants a process of its own: programs share names such
as `utils`.
"""

from __future__ import annotations

import classification
import pairs_and_text
import self_supervised
import small_images
import torchvision_references
import with_targets
from sources import PIPELINES

__all__ = [
    "PIPELINES",
    "classification",
    "pairs_and_text",
    "self_supervised",
    "small_images",
    "torchvision_references",
    "with_targets",
]
