"""Private names of torch's DataLoader iterators that fastdata overrides or reads, and a check that they are there.

torch does not promise them.  They are those of torch 2.6 to 2.14; another torch may have moved some, and then an epoch
would end in an AttributeError that nobody understands.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import collate, fetch, worker

from fastdata.errors import FastdataError
from fastdata.system.installed import install_command

__all__ = ["check_torch", "numpy_seed_of_worker"]

_ITERATOR = "_next_data", "_next_index", "_reset", "__next__"
_OF_PROCESSES = (
    *_ITERATOR,
    "_get_data",
    "_mark_worker_as_unavailable",
    "_process_data",
    "_shutdown_workers",
    "_try_get_data",
    "_try_put_index",
)
_NEEDED: dict[object, tuple[str, ...]] = {
    dataloader: ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"),
    collate: ("collate_tensor_fn", "default_collate_fn_map"),
    fetch: ("_MapDatasetFetcher", "_IterableDatasetFetcher"),
    worker: ("_IterableDatasetStopIteration",),
}
_OF_CLASSES = {"_SingleProcessDataLoaderIter": _ITERATOR, "_MultiProcessingDataLoaderIter": _OF_PROCESSES}
# Attributes of an iterator, which only its code sets: looked for among the names that its methods use.
_ATTRIBUTES = (
    "_data_queue",
    "_in_order",
    "_index_queues",
    "_persistent_workers",
    "_rcvd_idx",
    "_send_idx",
    "_shutdown",
    "_task_info",
    "_tasks_outstanding",
    "_worker_queue_idx_cycle",
    "_workers_status",
)


@cache
def check_torch() -> None:
    """Checks, once in a process, that the installed torch has the names.

    Raises:
        FastdataError: it has not; says which are missing, and what to do.
    """
    if missing := missing_names():
        raise FastdataError(
            f"torch {torch.__version__} has no {', '.join(missing)}: private names of torch's DataLoader that fastdata "
            "relies on, and that have changed. Install a torch that this fastdata knows (2.6 to 2.14), or a newer "
            f"fastdata: {install_command(options='--upgrade')}"
        )


def missing_names() -> list[str]:
    """The names that the installed torch does not have."""
    missing = [
        f"{getattr(module, '__name__', module)}.{name}"
        for module, names in _NEEDED.items()
        for name in names
        if not hasattr(module, name)
    ]
    for cls, names in _OF_CLASSES.items():
        found = getattr(dataloader, cls, None)
        missing += [f"{cls}.{name}" for name in names if found is not None and not hasattr(found, name)]
    processes = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if processes is not None:
        codes = [
            each.__code__ for base in processes.__mro__ for each in vars(base).values() if hasattr(each, "__code__")
        ]
        used = {name for code in codes for name in code.co_names}
        missing += [f"{processes.__name__}.{name}" for name in _ATTRIBUTES if name not in used]
    return missing


def numpy_seed_of_worker(base_seed: int, number: int) -> list[int]:
    """Returns the four words with which torch seeds NumPy's generator in a worker process."""
    return worker._generate_state(base_seed, number)  # type: ignore[no-any-return, no-untyped-call]
