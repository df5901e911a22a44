"""accelerate: a loop whose loader goes through `accelerator.prepare`.

    python examples/accelerate_training.py [--data FOLDER]
    accelerate launch examples/accelerate_training.py
    torchrun --nproc-per-node 2 examples/accelerate_training.py

`prepare` makes a new loader from the given one; from a loader of fastdata's it makes another of fastdata's.  Prints the
loader's verdict and the losses.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from common import MEAN, STD, data_folder, small_model
from torch.nn.functional import cross_entropy
from torchvision import datasets, transforms

from fastdata import DataLoader


def main() -> None:
    """Trains for two epochs, on one process or several."""
    accelerator = Accelerator(cpu=True)
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    dataset = datasets.ImageFolder(data_folder(), transform)
    model = small_model(len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.print(loader.verdict())
    for epoch in range(2):
        samples = 0
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            samples += len(images)
        total = accelerator.reduce(torch.tensor(samples)).item()
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f} samples {total}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
