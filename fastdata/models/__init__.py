"""Models by name, and checks and changes before training; independent of the training loop."""

from fastdata.models.checks import PaddedClasses, advice, odd_sizes, remove_useless_biases, useless_biases
from fastdata.models.create import create_model, small_resnet
from fastdata.models.recompute import checkpoint_activations, checkpoint_modules
from fastdata.models.sizes import check_sizes

__all__ = [
    "PaddedClasses",
    "advice",
    "check_sizes",
    "checkpoint_activations",
    "checkpoint_modules",
    "create_model",
    "odd_sizes",
    "remove_useless_biases",
    "small_resnet",
    "useless_biases",
]
