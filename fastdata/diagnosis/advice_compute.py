"""Advice about computing: faults that are left on, needless work, and what the device could do faster."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fastdata.diagnosis.observation import TENSOR_CORES_WANT, Observation
from fastdata.diagnosis.speedup_model import Advice, advice, gain_of, measured_speedup, step_seconds
from fastdata.terminal.words import counted

__all__ = ["about_compute", "about_device"]

_IMBALANCE = 1.15


def about_compute(seen: Observation) -> Iterator[Advice]:
    """Yields changes that would make a step without its data faster."""
    yield from _left_on(seen)
    yield from _about_float64(seen)
    yield from _about_syncs(seen)
    yield from _needless(seen)
    yield from _choices(seen)


def _tried(seen: Observation, key: str, why: str, change: str, *, is_fault: bool = False) -> Advice:
    """Advice whose gain is known if it was tried."""
    times = measured_speedup(seen, key)
    gain = gain_of(seen, compute_speedup=times)
    return Advice(
        key=key, side="compute", why=why, change=change, gain=gain, measured=gain, reach=times, is_fault=is_fault
    )


def _left_on(seen: Observation) -> Iterator[Advice]:
    facts = seen.facts
    faults = (
        (facts.anomaly_mode, "anomaly", "autograd's anomaly mode is on", "remove autograd.set_detect_anomaly(True)"),
        (facts.profiler, "profiler", "a profiler of torch is on", "profile a few steps only"),
    )
    yield from (_tried(seen, key, why, change, is_fault=True) for is_on, key, why, change in faults if is_on)
    if facts.tracers:
        why = f"Python tells {', '.join(facts.tracers)} of each call or line"
        yield _tried(seen, "tracing", why, "run without debugger, coverage and profiler", is_fault=True)
    if facts.debug_variables:
        names = ", ".join(facts.debug_variables)
        yield _tried(seen, "debug_variables", f"{names} is set, for debugging", f"unset {names}", is_fault=True)
    if facts.deterministic or facts.cudnn_deterministic:
        change = "torch.use_deterministic_algorithms(False)" if facts.deterministic else ""
        change += " and " * (facts.deterministic and facts.cudnn_deterministic)
        change += "torch.backends.cudnn.deterministic = False" if facts.cudnn_deterministic else ""
        yield _tried(seen, "deterministic", "deterministic algorithms are on", f"{change}, if you may")


def _about_float64(seen: Observation) -> Iterator[Advice]:
    if "float64" not in seen.facts.dtypes:
        return
    slowdown = seen.facts.float64_slowdown or math.nan
    measured = "" if math.isnan(slowdown) else f", in which matrices take {slowdown:.1f} times longer here"
    why = f"the model computes in float64{measured}"
    change = "model.float(), and .float() on inputs that NumPy made float64"
    yield advice(seen, "float64", "compute", slowdown, why, change, is_fault=True)


def _needless(seen: Observation) -> Iterator[Advice]:
    facts = seen.facts
    _, compute, _ = step_seconds(seen)
    if facts.biases_before_norm:
        times = compute / (compute - min(facts.bias_cost_s, 0.9 * compute))
        names = ", ".join(facts.biases_before_norm[:3]) + (" …" if len(facts.biases_before_norm) > 3 else "")
        layers = counted(len(facts.biases_before_norm), "layer")
        why = f"{layers} with a bias that the normalisation behind removes: {names}"
        change = "bias=False in these layers"
        yield advice(seen, "bias_before_norm", "compute", times, why, change, is_fault=True)
    if facts.zeroes_gradients:
        why = "gradients are filled with zeros in every step"
        yield _tried(seen, "set_to_none", why, "optimizer.zero_grad()  # to None")
    if facts.gradients_in_eval:
        reach = math.nan
        why = f"{', '.join(facts.gradients_in_eval)} in evaluation mode records what a backward pass would need"
        if facts.eval_ms:
            why += f": a batch of validation takes {facts.eval_ms[0]:.1f} ms, {facts.eval_ms[1]:.1f} without"
            reach = facts.eval_ms[0] / facts.eval_ms[1]
        yield Advice(
            key="gradients_in_validation", side="compute", why=why, reach=reach, is_fault=True,
            change="with torch.inference_mode(): around validation",
        )  # fmt: skip


def _about_syncs(seen: Observation) -> Iterator[Advice]:
    """Lines that read values: what they cost is the loop around them, and on a device the wait for it."""
    _, compute, _ = step_seconds(seen)
    for place in seen.facts.syncs[:3]:
        on_device = seen.facts.device != "cpu"
        cost = min(place.span_s if place.per_step >= 2 else place.blocked_s, 0.95 * compute)
        if on_device:
            cost = min(place.blocked_s, compute - place.blocked_s)  # if host and device work side by side
        if not on_device and cost < 0.02 * compute:
            continue
        why = f"{place.place} calls {place.calls} {place.per_step:.0f} times per step"
        why += ", each of which waits for the device" if on_device else ""
        change = "add up tensors and read their sum once in a while, outside of the step"
        times = compute / max(1e-9, compute - cost)
        yield advice(seen, "synchronisation", "compute", times, why, change, is_fault=True)


def _choices(seen: Observation) -> Iterator[Advice]:
    facts = seen.facts
    in_float32 = facts.dtypes == ["float32"] and not facts.autocast
    if "amp" in seen.trials or (in_float32 and facts.device != "cpu" and not facts.compiled):
        yield _tried(
            seen, "amp", "the model computes in float32", f"with torch.autocast({facts.device!r}, torch.bfloat16):"
        )
    if "channels_last" in seen.trials or (facts.convolutions and facts.device != "cpu" and not facts.channels_last):
        why = f"{counted(facts.convolutions, 'convolution')} of images in NCHW"
        change = "model.to(memory_format=torch.channels_last), and DataLoader(…, memory_format=torch.channels_last)"
        yield _tried(seen, "channels_last", why, change)
    if "cudnn_benchmark" in seen.trials or (
        facts.device == "cuda" and facts.convolutions and not facts.cudnn_benchmark
    ):
        yield _tried(
            seen, "cudnn_benchmark", "cuDNN does not choose by measuring", "torch.backends.cudnn.benchmark = True"
        )
    if "compile" in seen.trials or (facts.device == "cuda" and not facts.compiled):
        yield _tried(seen, "compile", "the model is not compiled", "torch.compile(model)")
    if facts.device == "cuda" and in_float32 and not facts.tf32:
        why = "float32 matrices are multiplied without tensor cores"
        yield _tried(seen, "tf32", why, "torch.set_float32_matmul_precision('high')")
    if "larger_batches" in seen.trials:
        size = facts.batch_size
        why = f"computing takes less per image in batches of {2 * size} than of {size}"
        yield _tried(seen, "larger_batches", why, f"batch_size={2 * size}, with a learning rate to match")


# ---- device and ranks


def about_device(seen: Observation) -> Iterator[Advice]:
    """Yields advice on data-parallel training, copies to the GPU, sizes for tensor cores, and balance of the ranks."""
    facts = seen.facts
    if facts.data_parallel:
        why = "nn.DataParallel copies the model in each step, and one process feeds all GPUs"
        change = "DistributedDataParallel, started by torchrun"
        yield Advice(key="data_parallel", side="compute", why=why, change=change, is_fault=True)
    if facts.device == "cuda":
        yield from _about_copies(seen)
        if facts.autocast and facts.odd_channels:
            why = f"tensor cores want multiples of 8: {', '.join(facts.odd_channels[:3])}"
            change = "numbers of channels that are multiples of 8"
            yield Advice(key="multiples_of_8", side="compute", why=why, change=change)
        if facts.batch_size % TENSOR_CORES_WANT:
            wanted = TENSOR_CORES_WANT * math.ceil(facts.batch_size / TENSOR_CORES_WANT)
            yield _tried(seen, "batch_size", f"the batch size is {facts.batch_size}", f"a multiple of 8: {wanted}")
    if len(seen.ranks) > 1:
        slowest, mean = max(map(sum, seen.ranks)), sum(map(sum, seen.ranks)) / len(seen.ranks)
        waits = [wait for _, wait in seen.ranks]
        if slowest / mean > _IMBALANCE or max(waits) > _IMBALANCE * (min(waits) + 0.05 * mean):
            worst = max(range(len(seen.ranks)), key=lambda rank: seen.ranks[rank][1])
            yield Advice(
                key="imbalance",
                side="data",
                why=f"rank {worst} waits {1e3 * seen.ranks[worst][1]:.0f} ms per step for data, the quickest rank "
                f"{1e3 * min(waits):.0f}; all wait for the slowest",
                change="the same number of cores and workers for each rank, and images of like sizes",
                gain=slowest / mean,
                is_fault=True,
            )


def _about_copies(seen: Observation) -> Iterator[Advice]:
    """Yields advice on the time until a batch is in the GPU's memory."""
    facts, (_, compute, _) = seen.facts, step_seconds(seen)

    def without(ms: float) -> float:
        """Speedup of a step's computing if it waits this many milliseconds less; NaN if that was not measured."""
        return compute / max(0.05 * compute, compute - 1e-3 * max(0.0, ms)) if not math.isnan(ms) else math.nan

    if facts.pageable_copies:
        times = without(facts.pageable_copy_ms - facts.copy_ms)
        why = "batches are copied to the GPU from memory that is not pinned"
        change = "DataLoader(…, pin_memory=True), or device='cuda' of fastdata's loader"
        yield advice(seen, "pin_memory", "compute", times, why, change)
    if facts.blocking_copies:
        times = without(facts.pageable_copy_ms if facts.pageable_copies else facts.copy_ms)
        why = "the program waits for each copy to the GPU"
        change = ".to(device, non_blocking=True) from pinned memory, or device='cuda' of fastdata's loader"
        yield advice(seen, "non_blocking", "compute", times, why, change)
