"""fastdata: image input for PyTorch training, behind the DataLoader you already use.

from fastdata import DataLoader     # instead of torch.utils.data
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdata.dataloader import DataLoader
    from fastdata.datasets import ImageFolder
    from fastdata.errors import (
        BackendError,
        BackendUnavailable,
        DatasetError,
        DecodeError,
        FastdataError,
        OptionError,
        PipelineError,
        StateMismatch,
    )
    from fastdata.prefetch import DevicePrefetcher

__version__ = "0.1.0"

_HOMES = {
    "BackendError": "errors",
    "BackendUnavailable": "errors",
    "DataLoader": "dataloader",
    "DatasetError": "errors",
    "DecodeError": "errors",
    "DevicePrefetcher": "prefetch",
    "FastdataError": "errors",
    "ImageFolder": "datasets",
    "OptionError": "errors",
    "PipelineError": "errors",
    "StateMismatch": "errors",
}

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "DataLoader",
    "DatasetError",
    "DecodeError",
    "DevicePrefetcher",
    "FastdataError",
    "ImageFolder",
    "OptionError",
    "PipelineError",
    "StateMismatch",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import fastdata` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastdata' has no attribute {name!r}")
    return getattr(import_module(f"fastdata.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
