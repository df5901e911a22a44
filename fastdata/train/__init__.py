"""A training loop short enough to read: `fit` and the training step in loop.py, every option in options.py.

    from fastdata.train import TrainOptions, fit

    result = fit(model, train_loader, val_loader, TrainOptions(epochs=10, lr=0.1, amp="bf16"))

`python -m fastdata.train` trains on an image folder or on shards; `torchrun` runs it on several devices and machines.
"""

from fastdata.train.loop import Result, evaluate, fit, train_epoch
from fastdata.train.options import TrainOptions
from fastdata.train.training import Training

__all__ = ["Result", "TrainOptions", "Training", "evaluate", "fit", "train_epoch"]
