"""Lightning: a LightningModule and a LightningDataModule.

    python examples/lightning_training.py [--data FOLDER]
    fastdata run examples/lightning_training.py [--data FOLDER]

Only the import of DataLoader differs from a program without fastdata; started with `fastdata run`, torch's import could
stay, too.  Where Lightning makes a loader again, to give each rank its share, it makes one of the same class.  Prints
the losses and the loader's verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from common import MEAN, STD, data_folder, small_model
from torch.nn.functional import cross_entropy
from torchvision import datasets, transforms

from fastdata import DataLoader


class Images(lightning.LightningDataModule):
    """The training images."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip()]
        transform = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
        self.dataset = datasets.ImageFolder(folder, transform)

    def train_dataloader(self) -> DataLoader[Any]:
        """Called by Lightning."""
        return DataLoader(self.dataset, batch_size=8, shuffle=True, num_workers=2)


class Classifier(lightning.LightningModule):
    """A small model with its loss."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = small_model(classes)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Called by Lightning for each batch."""
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def on_train_batch_end(self, outputs: Any, _batch: Any, number: int) -> None:
        """Called by Lightning after each batch."""
        if number == self.trainer.num_training_batches - 1:
            print(f"epoch {self.current_epoch} loss {outputs['loss'].item():.3f}")

    def configure_optimizers(self) -> Any:
        """Called by Lightning."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Trains for two epochs."""
    images = Images(data_folder())
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, enable_model_summary=False, **quiet)
    trainer.fit(Classifier(len(images.dataset.classes)), images)
    print(trainer.train_dataloader.verdict())


if __name__ == "__main__":
    main()
