"""The verdict on a program in one sentence, made of what was measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastdata.diagnosis.advice import NOTHING, advise
from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import Advice, cores_in_use, others_used, wait_share
from fastdata.diagnosis.text_report import as_text, in_ms
from fastdata.measuring.cpu_use import CROWDED
from fastdata.terminal.words import counted

__all__ = ["Diagnosis", "diagnose"]

_WAITS = 0.1  # share of a step from which on data is the limit
_CLEAR = 1.02  # gain from which on a fault in computing is named in the verdict before waiting

# How the verdict names what is the limit, by the key of the first advice.
_LIMITS = {
    "storage": "storage is the limit",
    "oversized": "decoding images that are much larger than shown is the limit",
    "workers": "too few workers are the limit",
    "backend": "the chosen decode backend is the limit",
    "not_accelerated": "the loader is not accelerated, which is the limit",
    "iterators": "a new iterator for each batch is the limit",
}
_FAULTS = {
    "anomaly": "autograd's anomaly mode is left on",
    "profiler": "a profiler is left on",
    "tracing": "a debugger, coverage or a profiler follows each line",
    "debug_variables": "environment variables for debugging are left set",
    "float64": "the model computes in float64",
    "synchronisation": "values are read from the device in every step",
    "bias_before_norm": "layers have a bias that the normalisation behind them removes",
    "data_parallel": "nn.DataParallel copies the model in every step",
}


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of what holds a program back.

    Attributes:
        verdict: the diagnosis in one sentence.
        cause: the key of the advice that the verdict names; "compute" if computing is the limit and nothing is wrong
            with it; "data" if loading is and no change is known to help; "unknown" if too little was seen.
        advice: changes, most effective first.
        is_reliable: False if other programs have used so much of the machine that nothing measured can be relied on.
        seen: the observation that it was made from.
    """

    verdict: str
    cause: str
    advice: list[Advice]
    seen: Observation
    is_reliable: bool = True

    def __str__(self) -> str:
        return as_text(self.verdict, self.advice, self.seen)

    def to_dict(self) -> dict[str, Any]:
        """Returns the diagnosis as values that JSON can hold; NaN and infinity become None."""
        told = {
            "verdict": self.verdict,
            "cause": self.cause,
            "is_reliable": self.is_reliable,
            "wait_share": wait_share(self.seen),
            "advice": [asdict(each) for each in self.advice],
            "seen": self.seen.to_dict(),
        }
        cleaned: dict[str, Any] = _without_nan(told)
        return cleaned


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def diagnose(seen: Observation) -> Diagnosis:
    """Judges an observation."""
    told = _judged(seen, advise(seen))
    others = others_used(seen)
    if told.cause == "unknown" or others <= CROWDED * seen.cpus:
        return told
    load = f" (load average {seen.load.average:.1f})" if seen.load.average is not None else ""
    begins = f"cannot judge: other programs use {others:.1f} of {counted(seen.cpus, 'core')}{load}; repeat on an idle "
    return replace(told, verdict=f"{begins}machine. Seen nevertheless: {told.verdict}", is_reliable=False)


def _judged(seen: Observation, advice: list[Advice]) -> Diagnosis:
    """Diagnosis that ignores other programs on the machine."""
    share = wait_share(seen)
    if math.isnan(share):
        return _without_steps(seen, advice)
    told = _with_steps(seen, advice, share)
    if not seen.trains:
        begins = f"no training was seen, so this is about {seen.dataset or 'the loader'}: "
        told = replace(told, verdict=begins + told.verdict)
    return told


def _with_steps(seen: Observation, advice: list[Advice], share: float) -> Diagnosis:
    fault = next((each for each in advice if each.key in _FAULTS and _costs(each)), None)
    without_waiting = 1 / max(1e-9, 1 - share)
    if share >= _WAITS and not (fault is not None and fault.gain > without_waiting):
        cause = next((each for each in advice if each.side == "data"), None)
        limit = _LIMITS.get(cause.key, "") if cause is not None else ""
        verdict = f"{share:.0%} of each step waits for data; {limit or _stage(seen)}{_own_step(seen)}{_idle(seen)}"
        return Diagnosis(verdict, cause.key if cause is not None else "data", advice, seen)
    waits = f"{share:.0%} of each step waits for data" if share >= 0.005 else "the loader keeps up"
    verdict = f"computing is the limit ({waits}): {_parts(seen)}"
    if fault is None:
        small = next((each for each in advice if each.key in _FAULTS and NOTHING < each.gain < _CLEAR), None)
        if small is None:
            return Diagnosis(verdict, "compute", advice, seen)
        costs = f"which costs {1 - 1 / small.gain:.1%} of a step"
        return Diagnosis(f"{verdict}; {_FAULTS[small.key]}, {costs}", small.key, advice, seen)
    return Diagnosis(f"{verdict}; {_FAULTS[fault.key]}", fault.key, advice, seen)


def _costs(advice: Advice) -> bool:
    return advice.gain >= _CLEAR or math.isnan(advice.gain)


def _without_steps(seen: Observation, advice: list[Advice]) -> Diagnosis:
    if seen.alone is None:
        told = next(iter(seen.limitations), "no DataLoader of torch's or fastdata's was iterated in this process")
        if seen.children and not seen.loaders:
            told += (
                f"; it started {counted(seen.children, 'other process')}, into which this does not look: start each "
                "rank by torchrun --nproc-per-node N -m fastdata doctor SCRIPT"
            )
        elif not seen.loaders and not seen.limitations:
            told += "; is it the right script, and does it train with these arguments?"
        return Diagnosis(f"nothing could be measured: {told}", "unknown", advice, seen)
    rate = seen.alone.images_per_s
    verdict = f"the loader alone gives {rate:.0f} images/s; {_stage(seen)}{_own_step(seen)}{_idle(seen)}"
    cause = advice[0].key if advice else "data"
    return Diagnosis(verdict, cause, advice, seen)


def _stage(seen: Observation) -> str:
    """Names the part of loading that takes longest, in words."""
    if seen.alone is not None and seen.alone.stage_s:
        name = max(seen.alone.stage_s, key=lambda stage: seen.alone.stage_s[stage] if seen.alone is not None else 0.0)
        names = {"read": "reading files", "decode": "decoding", "transform": "the transform", "collate": "collating"}
        return f"{names.get(name, name)} is the limit"
    sample = seen.sample
    if sample is None:
        return "loading is the limit"
    parts = {
        "waiting for storage or network": sample.idle_ms if sample.total_ms > 1 else 0.0,
        "decoding": sample.decode_ms,
        "resizing": sample.resize_ms,
        "the transform": max(0.0, sample.rest_ms - sample.idle_ms),
        "collating": sample.collate_ms,
    }
    return f"{max(parts, key=lambda part: parts[part])} is the limit"


def _own_step(seen: Observation) -> str:
    """The user's step that takes most of a sample, unless the loader does without the dataset's own code."""
    sample = seen.sample
    if sample is None or not sample.own_step:
        return ""
    stages = seen.alone.stage_s if seen.alone is not None else {}
    if stages and max(stages, key=lambda stage: stages[stage]) != "transform":
        return ""
    return f"; your step {sample.own_step} takes {in_ms(sample.own_step_ms, sample.total_ms)} per sample"


def _idle(seen: Observation) -> str:
    """Cores of the machine that nobody used, neither this program nor another one."""
    used = cores_in_use(seen.real if seen.real is not None else seen.alone)
    idle = round(seen.cpus - used) if used is not None else 0
    return f"; {idle} of {seen.cpus} cores {'is' if idle == 1 else 'are'} idle" if idle > 0 else ""


def _parts(seen: Observation) -> str:
    stretch = seen.real
    assert stretch is not None
    if seen.facts.device != "cpu":  # whose work is not done when it has been given to it
        return f"{1e3 * stretch.compute_s:.1f} ms for each batch"
    total = max(1e-9, stretch.compute_s)
    parts = {
        "forward": stretch.forward_s,
        "backward": stretch.backward_s,
        "update": stretch.update_s,
        "the rest": max(0.0, total - stretch.forward_s - stretch.backward_s - stretch.update_s),
    }
    return ", ".join(f"{name} {value / total:.0%}" for name, value in parts.items() if value / total >= 0.01)
