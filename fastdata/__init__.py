"""fastdata: image input for PyTorch training, behind the DataLoader you already use.

from fastdata import DataLoader     # instead of torch.utils.data
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdata.dataloader.loader import DataLoader
    from fastdata.device.prefetch import DevicePrefetcher
    from fastdata.diagnosis.in_code import doctor
    from fastdata.errors import (
        DatasetError,
        DecodeError,
        FastdataError,
        NotAccelerated,
        OptionError,
        PipelineError,
        SamplesSkipped,
        ShardError,
        StateMismatch,
    )
    from fastdata.image_folder import ImageFolder
    from fastdata.lazy.opening import open_image
    from fastdata.order.aspect_buckets import AspectBuckets, BucketBatchSampler
    from fastdata.order.epoch_sampler import EpochSampler
    from fastdata.run.check import check
    from fastdata.run.replace import replace_dataloader
    from fastdata.shards.conversion.shard_writer import ShardWriter
    from fastdata.shards.dataset import ShardDataset
    from fastdata.shards.mixed import MixedDataset

__version__ = "0.1.0"

_HOMES = {
    "AspectBuckets": "order.aspect_buckets",
    "BucketBatchSampler": "order.aspect_buckets",
    "DataLoader": "dataloader.loader",
    "DatasetError": "errors",
    "DecodeError": "errors",
    "DevicePrefetcher": "device.prefetch",
    "EpochSampler": "order.epoch_sampler",
    "FastdataError": "errors",
    "ImageFolder": "image_folder",
    "MixedDataset": "shards.mixed",
    "NotAccelerated": "errors",
    "OptionError": "errors",
    "PipelineError": "errors",
    "SamplesSkipped": "errors",
    "ShardDataset": "shards.dataset",
    "ShardError": "errors",
    "ShardWriter": "shards.conversion.shard_writer",
    "StateMismatch": "errors",
    "check": "run.check",
    "doctor": "diagnosis.in_code",
    "open_image": "lazy.opening",
    "replace_dataloader": "run.replace",
}

__all__ = [
    "AspectBuckets",
    "BucketBatchSampler",
    "DataLoader",
    "DatasetError",
    "DecodeError",
    "DevicePrefetcher",
    "EpochSampler",
    "FastdataError",
    "ImageFolder",
    "MixedDataset",
    "NotAccelerated",
    "OptionError",
    "PipelineError",
    "SamplesSkipped",
    "ShardDataset",
    "ShardError",
    "ShardWriter",
    "StateMismatch",
    "check",
    "doctor",
    "open_image",
    "replace_dataloader",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import fastdata` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastdata' has no attribute {name!r}")
    return getattr(import_module(f"fastdata.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
