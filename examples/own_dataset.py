"""A dataset class of your own, which opens the images listed in a CSV file with Pillow.

    python examples/own_dataset.py [--data FOLDER]

The dataset and the loop (common.py) are ordinary PyTorch; only the import of DataLoader differs.  Prints the
loader's verdict, then a loss per epoch, which falls.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from common import MEAN, SCRATCH, STD, data_folder, small_model, train_model
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from fastdata import DataLoader


class CsvDataset(Dataset[Any]):
    """Images and labels from the lines `path,label` of a file."""

    def __init__(self, table: Path, transform: Any) -> None:
        with table.open() as lines:
            self.rows = [(path, int(label)) for path, label in csv.reader(lines)]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.rows[index]
        image = Image.open(path).convert("RGB")
        return self.transform(image), label


def write_table(folder: Path) -> Path:
    """Lists the images of a folder in a file."""
    table = Path(SCRATCH.name) / "train.csv"
    with table.open("w", newline="") as lines:
        for label, one in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
            csv.writer(lines).writerows([path, label] for path in sorted(one.iterdir()))
    return table


def main() -> None:
    """Trains for three epochs."""
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    dataset = CsvDataset(write_table(data_folder()), transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    model = small_model(1 + max(label for _, label in dataset.rows))
    train_model(model, loader, epochs=3)
    print(loader.verdict())  # known once there were batches


if __name__ == "__main__":
    main()
