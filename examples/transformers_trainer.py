"""Hugging Face: a dataset with `set_transform`, and transformers' Trainer.

    python examples/transformers_trainer.py [--data FOLDER]

Trainer makes its DataLoader itself, and accelerate makes it again, both with torch's class; `replace_dataloader` puts
ours in its place (as `fastdata run` does for an unchanged program).  Prints the loss, a line that says which path the
loader takes, and at the end the throughput.
"""

from __future__ import annotations

from typing import Any

import torch
from common import MEAN, SCRATCH, STD, data_folder, small_model
from datasets import Dataset, Features, Image, Value
from torch.nn.functional import cross_entropy
from torchvision import transforms
from transformers import Trainer, TrainingArguments

from fastdata import replace_dataloader


class Classifier(torch.nn.Module):
    """A small model that returns its loss, as Trainer expects."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = small_model(classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the scores of a batch."""
        scores = self.model(images)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


def main() -> None:
    """Trains for two epochs."""
    replace_dataloader()
    files = sorted(data_folder().glob("*/*"))
    classes = sorted({path.parent.name for path in files})
    columns = {"image": [str(path) for path in files], "label": [classes.index(path.parent.name) for path in files]}
    dataset = Dataset.from_dict(columns, features=Features(image=Image(), label=Value("int64")))
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    def transform_images(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = [transform(image.convert("RGB")) for image in rows["image"]]
        return {"images": images, "labels": rows["label"]}

    dataset.set_transform(transform_images)
    quiet: dict[str, Any] = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(
        output_dir=f"{SCRATCH.name}/run",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        dataloader_num_workers=2,
        remove_unused_columns=False,  # columns are made by the transform
        use_cpu=True,
        **quiet,
    )
    result = Trainer(Classifier(len(classes)), arguments, train_dataset=dataset).train()
    print(f"loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
