"""Bad images through every backend: each has the outcome that is written down in tests/golden/bad_images.json."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import bad_images
from places import GOLDEN
from torch.utils.data import Dataset
from torchvision import transforms

from fastdata import DataLoader, DecodeError
from fastdata.loaders import BACKENDS as KNOWN
from fastdata.loaders import mean_tolerance

IMAGES = bad_images()
BACKENDS = ["pil", *(name for name in KNOWN if name not in ("pil", "synthetic"))]
RECORD = GOLDEN / "bad_images.json"


class OneImage(Dataset[Any]):
    """A bad image, with one that is whole behind it."""

    transform = transforms.Compose([transforms.Resize((48, 64)), transforms.PILToTensor()])

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return 1

    def read_encoded(self, index: int) -> bytes:
        return self._data

    def read_target(self, index: int) -> int:
        return index


def decoded(data: bytes, backend: str) -> torch.Tensor | None:
    """The image's pixels, or None if it is refused by name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of damaged metadata and of large images
            ((pixels, _),) = DataLoader(OneImage(data), 1, backend=backend, num_workers=1)
    except DecodeError as error:
        told = error
    else:
        return pixels[0]
    assert told.index == 0
    assert "OneImage[0]" in str(told)
    return None


def outcome(name: str, backend: str) -> str:
    """ "refused", "decoded", or "decoded otherwise" where Pillow gives other pixels or refuses it."""
    found, pillows = decoded(IMAGES[name], backend), decoded(IMAGES[name], "pil")
    if found is None:
        return "refused"
    if pillows is None:
        return "decoded otherwise"
    difference = np.abs(found.numpy().astype(int) - pillows.numpy()).mean()
    return "decoded" if difference <= (mean_tolerance(backend) or 0) else "decoded otherwise"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bad_image_has_the_outcome_that_is_written_down(backend: str) -> None:
    expected = json.loads(RECORD.read_text())
    assert set(expected.values()) == {"refused", "decoded"}
    assert {name: outcome(name, backend) for name in IMAGES} == expected
