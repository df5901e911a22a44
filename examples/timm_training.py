"""timm's transforms for training and evaluation, and the arguments that timm gives its loaders.

    python examples/timm_training.py [--data FOLDER]

timm's create_loader always uses torch's class.  Here the loaders are made as it makes them, with its collate_fn and
worker_init_fn, but with fastdata's class.  (timm's scripts can be started unchanged with `fastdata run train.py`.)
Prints the verdict of both loaders, then the loss and the accuracy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from common import MEAN, STD, accuracy, data_folder, small_model, train_model
from timm.data import ImageDataset, create_transform
from timm.data.loader import _worker_init
from torch.utils.data import default_collate

from fastdata import DataLoader


def make_loader(dataset: Any, *, train: bool) -> DataLoader[Any]:
    """A loader with the arguments of timm's create_loader."""
    dataset.transform = create_transform(64, is_training=train, mean=MEAN, std=STD, color_jitter=0.0)
    return DataLoader(
        dataset,
        batch_size=8,
        shuffle=train,
        num_workers=2,
        sampler=None,
        collate_fn=default_collate,
        pin_memory=False,
        drop_last=train,
        worker_init_fn=partial(_worker_init, worker_seeding="all"),
        persistent_workers=True,
    )


def main() -> None:
    """Trains for two epochs, then evaluates."""
    folder = data_folder()
    train, val = (make_loader(ImageDataset(str(folder)), train=each) for each in (True, False))
    model = small_model(classes=len(train.dataset.reader.class_to_idx))
    train_model(model, train, epochs=2)
    print(f"accuracy {accuracy(model, val):.2f}")
    print("train:", train.verdict())  # known once there were batches
    print("val:", val.verdict())


if __name__ == "__main__":
    main()
