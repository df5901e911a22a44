"""A dataset with code of its own, whose samples worker processes make, and which ends or limits them when told to."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset, get_worker_info

VIEWS = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])


class OwnCode(Dataset[Any]):
    """Opens images itself, so that worker processes make its samples."""

    def __init__(self, folder: Path, *, ends_at: int = -1, few_files: bool = False) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))
        self.ends_at, self.few_files, self.kept = ends_at, few_files, [0]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if index == self.ends_at and info is not None:
            os._exit(3)
        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        if self.few_files and info is not None and index == 8:
            os.close(limit := os.dup(0))  # the lowest that is free: now there is none
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return VIEWS(image), index
