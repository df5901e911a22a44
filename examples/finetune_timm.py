"""Fine-tuning a model of timm with its own transforms, an optimiser of one's own and a metric of one's own.

    python examples/finetune_timm.py [--data FOLDER]

The head learns ten times as fast as the rest.  The checkpoint of the most confident epoch is kept, and the run ends
when two epochs have not been better.  Prints the metrics per epoch, and the loader's verdict.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
from common import SCRATCH, data_folder
from timm.data import create_transform, resolve_data_config
from torch import nn

from fastdata import DataLoader, ImageFolder
from fastdata.train import Task, TrainOptions, fit


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with two learning rates."""
    head = list(model.get_classifier().parameters())  # type: ignore[operator]
    known = {id(parameter) for parameter in head}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return torch.optim.AdamW([{"params": head, "lr": 2e-2}, {"params": rest, "lr": 2e-3}])


def scheduler(made: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Falls in a line to a tenth."""
    return torch.optim.lr_scheduler.LinearLR(made, 1.0, 0.1, total_iters=updates)


def metrics(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Accuracy, and the probability that the model gives to the right class, per image."""
    images, labels = batch
    shares = model(images).softmax(1)
    return {"accuracy": shares.argmax(1) == labels, "confidence": shares.gather(1, labels[:, None])[:, 0]}


def main() -> None:
    """Trains for at most six epochs."""
    torch.manual_seed(0)  # of the first weights
    folder = str(data_folder())
    model = timm.create_model("test_resnet", num_classes=len(ImageFolder(folder).classes))
    config = {**resolve_data_config(model=model), "input_size": (3, 96, 96)}
    made = [
        DataLoader(
            ImageFolder(folder, create_transform(**config, is_training=training)), 8, shuffle=training, num_workers=2
        )
        for training in (True, False)
    ]
    options = TrainOptions(
        epochs=6, batch_size=8, best_metric="val_confidence", patience=2, output_dir=f"{SCRATCH.name}/run", device="cpu"
    )
    task = Task(optimizer=optimizer, scheduler=scheduler, metrics=metrics)
    result = fit(model, made[0], made[1], options, task=task)
    print(f"best confidence {max(entry['val_confidence'] for entry in result.epochs):.2f}")
    print(made[0].verdict())  # known once there were batches


if __name__ == "__main__":
    main()
