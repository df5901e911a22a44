"""Advice about computing: faults that are left on, needless work, and what the device could do faster."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import Advice, advice, step_seconds
from fastdata.terminal.words import counted

__all__ = ["about_compute"]

_MEASURED = "what it gains: python benchmarks/ablation.py FOLDER, or time your steps with and without it"


def about_compute(seen: Observation) -> Iterator[Advice]:
    """Yields changes that would make a step without its data faster."""
    yield from _left_on(seen)
    yield from _needless(seen)
    yield from _about_syncs(seen)
    yield from _choices(seen)


def _fault(key: str, why: str, change: str) -> Advice:
    return Advice(key=key, side="compute", why=why, change=change, is_fault=True)


def _choice(key: str, why: str, change: str) -> Advice:
    return Advice(key=key, side="compute", why=why, change=f"{change}; {_MEASURED}")


def _left_on(seen: Observation) -> Iterator[Advice]:
    facts = seen.facts
    if facts.anomaly_mode:
        yield _fault("anomaly", "autograd's anomaly mode is on", "remove autograd.set_detect_anomaly(True)")
    if facts.profiler:
        yield _fault("profiler", "a profiler of torch is on", "profile a few steps only")
    if facts.tracers:
        why = f"Python tells {', '.join(facts.tracers)} of each call or line"
        yield _fault("tracing", why, "run without debugger, coverage and profiler")
    if facts.debug_variables:
        names = ", ".join(facts.debug_variables)
        yield _fault("debug_variables", f"{names} is set, for debugging", f"unset {names}")
    if facts.deterministic or facts.cudnn_deterministic:
        lines = ["torch.use_deterministic_algorithms(False)"] * facts.deterministic
        lines += ["torch.backends.cudnn.deterministic = False"] * facts.cudnn_deterministic
        yield _choice("deterministic", "deterministic algorithms are on", f"{' and '.join(lines)}, if you may")


def _needless(seen: Observation) -> Iterator[Advice]:
    facts = seen.facts
    if "float64" in facts.dtypes:
        change = "model.float(), and .float() on inputs that NumPy made float64"
        yield _fault("float64", "the model computes in float64", change)
    if facts.biases_before_norm:
        names = ", ".join(facts.biases_before_norm[:3]) + (" …" if len(facts.biases_before_norm) > 3 else "")
        layers = counted(len(facts.biases_before_norm), "layer")
        why = f"{layers} with a bias that the normalisation behind removes: {names}"
        yield _fault("bias_before_norm", why, "bias=False in these layers")
    if facts.data_parallel:
        why = "nn.DataParallel copies the model in each step, and one process feeds all GPUs"
        yield _fault("data_parallel", why, "DistributedDataParallel, started by torchrun")
    if facts.zeroes_gradients:
        yield _choice(
            "set_to_none", "gradients are filled with zeros in every step", "optimizer.zero_grad()  # to None"
        )


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
    """Yields what a GPU may do faster, which depends on the model."""
    facts = seen.facts
    if facts.device != "cuda":
        return
    if facts.dtypes == ["float32"] and not facts.autocast:
        yield _choice("amp", "the model computes in float32", "with torch.autocast('cuda', torch.bfloat16):")
        if not facts.tf32:
            why = "float32 matrices are multiplied without tensor cores"
            yield _choice("tf32", why, "torch.set_float32_matmul_precision('high')")
    if facts.convolutions and not facts.channels_last:
        why = f"{counted(facts.convolutions, 'convolution')} of images in NCHW"
        change = "model.to(memory_format=torch.channels_last), and DataLoader(…, memory_format=torch.channels_last)"
        yield _choice("channels_last", why, change)
    if facts.convolutions and not facts.cudnn_benchmark:
        change = "torch.backends.cudnn.benchmark = True"
        yield _choice("cudnn_benchmark", "cuDNN does not choose by measuring", change)
    if not facts.compiled:
        yield _choice("compile", "the model is not compiled", "torch.compile(model)")
    if facts.batch_size % 8:
        yield _choice("batch_size", f"the batch size is {facts.batch_size}", "a multiple of 8, for tensor cores")
    if facts.pageable_copies:
        why = "batches are copied to the GPU from memory that is not pinned"
        yield _choice("pin_memory", why, "DataLoader(…, pin_memory=True), or device='cuda' of fastdata's loader")
    if facts.blocking_copies:
        change = ".to(device, non_blocking=True) from pinned memory, or device='cuda' of fastdata's loader"
        yield _choice("non_blocking", "the program waits for each copy to the GPU", change)
