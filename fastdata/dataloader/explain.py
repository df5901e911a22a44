"""`DataLoader.explain()`: the pipeline in words, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from fastdata.dataloader.arguments import LoaderArguments
from fastdata.dataloader.routes import Route
from fastdata.dataloader.verdict import Findings, counts_threads, verdict
from fastdata.device.packed_batch import problem
from fastdata.jpeg_index.find import Uses, open_indexes
from fastdata.loaders import native_problem
from fastdata.loaders.dali_options import DaliOptions
from fastdata.loaders.unpacked import is_unpacked
from fastdata.pipeline.choose_backend import IN_MEMORY, BackendChoice, choose_backend
from fastdata.pipeline.collate import stacks_images
from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.record_cache import RecordCache
from fastdata.pipeline.resources import WholeBatchDecoding
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import file_ranges, some_indices
from fastdata.sources.recognise import has_file_ranges
from fastdata.system.files import read_at
from fastdata.terminal.wrap import wrapped
from fastdata.transforms.known import name_of
from fastdata.views.header import UNPACKED_MAGIC
from fastdata.views.philox import Key
from fastdata.views.plan import Plan

__all__ = ["explain", "index_of", "without_effect"]

# Arguments of fastdata's own that do nothing on torch's path, with their defaults.
_OF_THE_PIPELINE: dict[str, Any] = {
    "backend": "auto",
    "fidelity": "exact",
    "on_error": "raise",
    "memory_format": torch.contiguous_format,
    "augment_on": "host",
    "decode_device": "auto",
    "dali": DaliOptions(),
    "cache": None,
}


_LABEL = 12  # columns

_FOR_GPU = (
    "unpacked JPEGs (shards converted with --unpacked, the cache) and JPEGs with an index (fastdata index), "
    "without bicubic moves, mixes and augmentations of tensors"
)

_ONE_BY_ONE = "samples are built one by one"

_WITH_FUSED = ("backend", "fidelity", "memory_format")


def without_effect(loader: LoaderArguments, route: Route) -> list[str]:
    """Arguments that were given and do nothing where the dataset's own code runs, as they were given."""
    at_work: tuple[str, ...] = _WITH_FUSED if route.fused else ()
    is_stream = isinstance(loader.dataset, IterableDataset)
    if loader.batch_sampler is not None and not is_stream and route.left_to_torch is None and native_problem() is None:
        at_work += ("on_error", "cache")
    if loader.decode_on == "cuda" and "cache" in at_work:
        at_work += ("decode_device",)
    given = (
        (name, getattr(loader, name), default) for name, default in _OF_THE_PIPELINE.items() if name not in at_work
    )
    return [f"{name}={value!r}" for name, value, default in given if value != default]


def explain(loader: LoaderArguments, route: Route, findings: Findings) -> str:
    """Describes a loader: the verdict, its path and the reasons, one fact a line, then changes that make it faster."""
    said = verdict(loader, route, findings)
    is_told = findings.happened.batches > 0 or said.kind == "accelerated"  # why, and what to change, by the verdict
    if route.plan is not None:
        lines = _in_the_pipeline(loader, route, findings)
    else:
        lines = _by_the_datasets_code(loader, route, findings)
        lines["why"] = None if is_told else lines["why"]
        if findings.happened.batches and said.kind == "not accelerated":
            lines["decoding"] = None
    change = said.change if is_told else said.change or route.advice
    advice = [f"to change:  {each}" for each in _advice(loader, route, change)]
    facts = [f"{name + ':':<{_LABEL}}{value}" for name, value in lines.items() if value is not None]
    told = [wrapped(line, hanging=_LABEL) for line in (*facts, *advice)]
    return "\n".join([wrapped(str(said)), *told])


def _by_the_datasets_code(loader: LoaderArguments, route: Route, findings: Findings) -> dict[str, str | None]:
    seed = None
    if loader.seed is not None:
        seed = f"{loader.seed}: decides the order and what worker processes draw"
        seed += "" if loader.num_workers else ", not what the dataset draws in this process"
    return {
        "path": "torch's own DataLoader code" + (", with fused transforms" if route.fused else ""),
        "why": f"it is not for the image pipeline: {route.reason}" if route.fused else route.reason,
        "fused": "; ".join(f"{place} ({_names_of_fused(plan)})" for place, plan in route.fused.items()) or None,
        "per sample": "; ".join(" → ".join(map(name_of, plan.left)) for plan in route.fused.values() if plan.left)
        or None,
        "workers": _workers(loader, route),
        "decoding": _decoding(loader, route),
        "decodes on": _of_own_code_on_gpu(loader, route),
        "cache": _cache_of_own_code(loader, route),
        "seed": seed,
        "no effect": ", ".join(without_effect(loader, route)) or None,
    }


def _names_of_fused(plan: Plan) -> str:
    return ", ".join((*plan.fused, *map(name_of, plan.behind)))


def _workers(loader: LoaderArguments, route: Route) -> str:
    """Describes the threads or worker processes that make samples, and those that decode."""
    count = loader.num_workers
    if count == 0:
        return "none: samples are made and decoded in the calling thread (num_workers=0)"
    made = f"{_count(count, 'worker process', 'es')} run the dataset's code"
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None or native_problem() is not None:
        return made
    return f"{made}; {_count(count, 'thread', 's')} of this process decode what it leaves encoded"


def _decoding(loader: LoaderArguments, route: Route) -> str | None:
    """Describes how images with several views, or those of datasets without a known transform, are decoded."""
    if len(route.fused) > 1:
        return "where several views of one image are taken, its file is read once, and what they show decoded once"
    if route.fused or native_problem() is not None:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return "JPEGs and PNGs that it opens with PIL.Image.open are decoded by the native core where it makes tensors"
    if loader.batch_sampler is None:
        return None
    return "JPEGs and PNGs that it opens with PIL.Image.open are decoded by the native core when their pixels are used"


def _in_the_pipeline(loader: LoaderArguments, route: Route, findings: Findings) -> dict[str, str | None]:
    plan = route.plan
    assert plan is not None
    assert route.source is not None
    choice = findings.choice or choose_backend(route.source, fidelity=loader.fidelity)
    config = _config(loader, route, choice)
    decoding, decodes_on = WholeBatchDecoding.of(config), None
    if loader.decode_on == "cuda":
        decodes_on = _on_gpu(loader, route, config)
    elif not _in_memory(route) and len(choice.backend.decode_devices) > 1:
        decodes_on = "the GPU (mixed)" if decoding.on_gpu else "the CPU"
        if plan.all_effects or plan.later:
            own = choice.backend.name
            decodes_on = f"the CPU, as backend='auto' does; with augment_on='device' {own} decodes whole batches"
    return {
        "path": "fastdata's image pipeline",
        "source": _source(loader, route),
        "fused": " → ".join(([] if _in_memory(route) else ["decode"]) + _fused(plan)),
        "on batches": _on_batches(decoding, plan, choice),
        "why": route.reason,
        "output": _output(loader, route, plan),
        "backend": f"none: {IN_MEMORY}" if _in_memory(route) else f"{choice.backend.name}: {choice.reason}",
        "fidelity": "identical to Pillow's pixels" if _in_memory(route) else _fidelity(loader, plan, choice),
        "threads": _threads(loader, route, findings),
        "on error": _on_error(loader),
        "device": str(loader.device) if loader.device is not None else "host memory",
        "decodes on": decodes_on,
        "index": _index(route, choice),
        "cache": _cache(loader, route, choice),
    }


def _on_gpu(loader: LoaderArguments, route: Route, config: PipelineConfig) -> str:
    """Describes what decode_device="cuda" does for a plan of the image pipeline."""
    if _in_memory(route):
        return f"nothing: {IN_MEMORY}"
    if config.backend.name != "native":
        return f"the CPU, since backend '{config.backend.name}' decodes there"
    if not config.decodes_packed:
        why = "augmentations change sizes, or are followed by crops" if config.plan.later else _ONE_BY_ONE
        return f"the CPU, since {why}"
    assert config.device is not None
    if (problem_there := problem(config.device)) is not None:
        return f"the CPU: {problem_there}"
    return f"{loader.device}: {_FOR_GPU}; all others are decoded by the CPU"


def _of_own_code_on_gpu(loader: LoaderArguments, route: Route) -> str | None:
    if loader.decode_on != "cuda" or "decode_device='cuda'" in without_effect(loader, route):
        return None
    assert loader.device is not None
    if (why := problem(torch.device(loader.device))) is not None:
        return f"the CPU: {why}"
    return f"{loader.device}: {_FOR_GPU}, in stacked batches without erased rectangles; all others by the CPU"


def _cache(loader: LoaderArguments, route: Route, choice: BackendChoice) -> str | None:
    """Describes the cache of unpacked JPEGs; None if none was asked for."""
    cache, plan = loader.record_cache, route.plan
    if cache is None:
        return None
    first = _first_file(route, choice)
    if first is None or plan is None or not (plan.batchable and plan.in_one_pass):
        return "not used: it is for JPEGs in files that the native backend decodes straight into the batch"
    if is_unpacked(read_at(*first, len(UNPACKED_MAGIC))):
        return "not needed: JPEGs are unpacked (fastdata convert --unpacked)"
    return _filled(cache)


def _cache_of_own_code(loader: LoaderArguments, route: Route) -> str | None:
    if loader.record_cache is None or any(each.startswith("cache=") for each in without_effect(loader, route)):
        return None
    return f"{_filled(loader.record_cache)}; of JPEGs that the dataset opens in files, and that stay encoded"


def _filled(cache: RecordCache) -> str:
    place = "in memory" if cache.folder is None else f"in {cache.folder}"
    rest = "a third of the others follows in each epoch" if cache.takes_more else "it is full"
    return f"{place}, {cache.count()} images so far; {rest}"


def _index(route: Route, choice: BackendChoice) -> str | None:
    """Describes whether JPEGs are decoded with an index; None if the backend does not use one."""
    if (first := _first_file(route, choice)) is None:
        return None
    if (path := index_of(route, choice)) is not None:
        uses = open_indexes().uses
        told = f"; so far used for {uses.used} images, {uses.wrong} had changed" if uses != Uses() else ""
        return f"windows of JPEGs are decoded without what lies around them, by {path}{told}"
    begin = read_at(*first, len(UNPACKED_MAGIC))
    if is_unpacked(begin):
        return "not needed: JPEGs are unpacked (fastdata convert --unpacked)"
    if begin.startswith(b"\xff\xd8"):
        return "none: `fastdata index FOLDER` makes one, by which random crops of JPEGs take a fifth less CPU time"
    return None


def index_of(route: Route, choice: BackendChoice) -> Path | None:
    """Returns the file with the index by which the first image is decoded; None if there is none, or no use for it."""
    first = _first_file(route, choice)
    return open_indexes().file_of(*first) if first is not None else None


def _first_file(route: Route, choice: BackendChoice) -> tuple[str | bytes, int] | None:
    """File of the first image and offset in it, in bytes; None where the backend would not use an index for it."""
    source = route.source
    if choice.backend.name != "native" or source is None or _in_memory(route):
        return None
    if not (len(source) and has_file_ranges(source)):
        return None
    files = file_ranges(source, some_indices(source, 1))
    return files.paths[0], int(files.offsets[0]) if files.offsets is not None else 0


def _advice(loader: LoaderArguments, route: Route, change: str | None) -> list[str]:
    """Changes that would help, most effective first; `change` is that for a dataset's own code."""
    plan = route.plan
    if plan is None:
        return [change] if change else []
    changes = []
    if loader.num_workers == 0:
        changes.append("num_workers='auto' decodes with all CPUs, ahead of the training loop")
    return changes


def _in_memory(route: Route) -> bool:
    """True when nothing has to be decoded."""
    return isinstance(route.source, ArraySource)


def _source(loader: LoaderArguments, route: Route) -> str:
    name, count = type(loader.dataset).__name__, len(loader.dataset)
    return f"{name}, {count} images in memory" if _in_memory(route) else f"{name}, {count} samples"


def _config(loader: LoaderArguments, route: Route, choice: BackendChoice) -> PipelineConfig:
    """The part of an epoch's configuration that decides who does what."""
    assert route.plan is not None
    assert route.source is not None
    return PipelineConfig(
        source=route.source,
        plan=route.plan,
        backend=choice.backend,
        key=Key(seed=0, epoch=0),
        collate_fn=loader.collate_fn if loader.collate_fn is not None else default_collate,
        device=None if loader.device is None else torch.device(loader.device),
        decode_device=loader.decode_on,
    )


def _on_batches(decoding: WholeBatchDecoding, plan: Plan, choice: BackendChoice) -> str:
    """Describes the augmentations of whole batches, and who does them."""
    if decoding.effects is None:
        return " → ".join(_augmentations(plan)) or "nothing"
    by_backend = [f"{step.label} (by {choice.backend.name}'s operators)" for step in plan.augmentations]
    return " → ".join([*by_backend, *(step.label for step in plan.float_augmentations)])


def _augmentations(plan: Plan) -> list[str]:
    return [step.label for step in (*plan.augmentations, *plan.float_augmentations)]


def _fused(plan: Plan) -> list[str]:
    """The steps that are done while decoding: those of the prefix that are not done on batches."""
    on_batches = _augmentations(plan)
    return [name for name in plan.fused if name not in on_batches]


def _output(loader: LoaderArguments, route: Route, plan: Plan) -> str:
    """Describes the images that the loop receives: dtype, shape and layout, or the result of the collate function."""
    if not (plan.batchable and stacks_images(loader.collate_fn, plan.output_dtype)):
        collate = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        return f"the result of {collate}; samples are built one by one"
    assert plan.size is not None
    layout = "channels_last" if loader.memory_format is torch.channels_last else "contiguous"
    channels = route.source.channels if isinstance(route.source, ArraySource) else 3
    shape = ", ".join(map(str, ("N", channels, *plan.size)))
    written = "written" if _in_memory(route) else "decoded"
    how = f"{written} straight into the batch" if plan.in_one_pass else "done in stages, image by image"
    return f"{str(plan.output_dtype).removeprefix('torch.')} ({shape}), {layout}; {how}"


def _fidelity(loader: LoaderArguments, plan: Plan, choice: BackendChoice) -> str:
    """Describes how near pixels are to Pillow's, with the backend that decodes and the augmentations on the host."""
    told = _fidelity_of_decoding(loader, choice)
    return f"{told}; GaussianBlur within one grey level" if "GaussianBlur" in repr(plan.all_effects) else told


def _fidelity_of_decoding(loader: LoaderArguments, choice: BackendChoice) -> str:
    tolerance = (choice.backend.mean_tolerance or {}).get(loader.fidelity)
    if tolerance is None:
        return str(loader.fidelity)
    if tolerance == 0:
        return f"{loader.fidelity}: identical to Pillow's pixels"
    if loader.fidelity == "exact":
        return (
            f"as near as {choice.backend.name} comes: mean difference from Pillow's pixels at most {tolerance} of 255"
        )
    return f"{loader.fidelity}: mean difference from Pillow's pixels at most {tolerance} of 255 grey levels"


def _on_error(loader: LoaderArguments) -> str:
    default = " (the default)" if loader.on_error == "raise" else ""
    return f"{loader.on_error}{default}"


def _threads(loader: LoaderArguments, route: Route, findings: Findings) -> str:
    if loader.num_workers == 0:
        return "none; decodes in the calling thread (num_workers=0)"
    number, why = loader.num_workers, ""
    if counts_threads(loader, findings) and not _in_memory(route):
        why = "; num_workers='auto' is measured when the first epoch begins"
        if findings.threads is not None:
            number, why = findings.threads.threads, f"; {findings.threads.reason}"
    return f"{_count(number, 'thread', 's')}, {loader.prefetch_factor} batches ahead{why}"


def _count(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun if number == 1 else noun + plural}"
