"""Measurements of a training program: every figure that verdict and advice are made of."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from fastdata.dataloader.verdict import Verdict
from fastdata.measuring.cpu_use import Load

__all__ = ["Facts", "Loading", "Observation", "SampleTimes", "Step", "Stretch", "SyncPlace"]

_PARTS = ("wait_s", "forward_s", "backward_s", "update_s", "rest_s")


@dataclass(slots=True)
class Step:
    """One step of the program's loop, in seconds: from the request for a batch to the next one.

    Attributes:
        wait_s: time until the batch was there.
        forward_s: time from then to the beginning of the backward pass; all of the step if there is none.
        backward_s: time in `backward()`.
        update_s: time in the optimiser's `step()`.
        rest_s: time of everything else.
        events: CUDA events, recorded when the batch was delivered and when the next one was asked for; () without a
            GPU.
    """

    wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    rest_s: float = 0.0
    events: tuple[Any, ...] = ()


@dataclass
class Stretch:
    """Means of some steps in a row, in seconds.

    Attributes:
        steps: number of steps.
        step_s: time of one step, including its wait.
        wait_s, forward_s, backward_s, update_s, rest_s: see `Step`.
        device_s: time that the GPU took for what a step gave it; NaN without one.
        cores: CPU seconds of the process and its children per second; None if not measured.
        others: CPU seconds of other programs per second, on the cores that this one may use; None if not known.
        quartiles_s: a quarter of the steps took less than the first, a quarter more than the second.
    """

    steps: int
    step_s: float
    wait_s: float
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    rest_s: float = 0.0
    device_s: float = math.nan
    cores: float | None = None
    others: float | None = None
    quartiles_s: tuple[float, float] | None = None

    @property
    def compute_s(self) -> float:
        """Seconds of a step that computing takes: on the GPU, or else those in which the loop does not wait."""
        return self.step_s - self.wait_s if math.isnan(self.device_s) else self.device_s

    @classmethod
    def of(cls, steps: list[Step], *, extra_s: float = 0.0, cores: float | None = None) -> Stretch:
        """Means of these, whose events have been reached; extra_s: what the device still did after the last one."""
        count = max(1, len(steps))
        means = {part: sum(getattr(step, part) for step in steps) / count for part in _PARTS}
        stretch = cls(len(steps), sum(means.values()) + extra_s / count, **means, cores=cores)
        if len(steps) > 1:
            first, _, third = statistics.quantiles(sum(getattr(step, part) for part in _PARTS) for step in steps)
            stretch.quartiles_s = first, third
        if timed := [step.events for step in steps if step.events]:
            stretch.device_s = statistics.mean(1e-3 * began.elapsed_time(ended) for began, ended in timed)
        return stretch


@dataclass
class Loading:
    """The loader alone, with nobody computing.

    Attributes:
        what: description of what was changed; "" for nothing.
        batches: number of batches loaded.
        batch_s: seconds per batch.
        images_per_s: samples per second; NaN if a batch's size is not known.
        cores: CPU seconds of the process and its children per second.
        verdict: the loader's own verdict, if it is fastdata's.
        stage_s: thread-seconds per stage and batch, if it is fastdata's and knows them.
        first_s: seconds from the beginning of an epoch to its first batch; NaN if not measured.
        others: CPU seconds of other programs per second, on the cores that this one may use; None if not known.
    """

    what: str
    batches: int
    batch_s: float
    images_per_s: float
    cores: float
    verdict: Verdict | None = None
    stage_s: dict[str, float] = field(default_factory=dict)
    first_s: float = math.nan
    others: float | None = None


@dataclass
class SampleTimes:
    """Samples of the dataset, made one by one in one thread by the dataset's own code; means in milliseconds.

    Attributes:
        samples: number of samples.
        total_ms: time of one sample.
        idle_ms: part of `total_ms` in which the thread did not compute: it waited for storage, the network or a lock.
        decode_ms: time in the decoders of Pillow and OpenCV, which read the file.
        resize_ms: time in the resizing of Pillow and OpenCV.
        rest_ms: the rest of `__getitem__`, mostly transforms.
        collate_ms: time in the collate function, per sample.
        file_bytes: file size of the images that were opened by their paths; 0 if there was none.
        width, height: medians of the opened images, in pixels; 0 if there was none.
        shown_px: pixels of what the sample contains; 0 if that is no image.
        progressive: share of the opened images that are progressive JPEGs.
        own_step: name of the user's transform or function that takes most of a sample, decoding and resizing by
            Pillow and OpenCV apart; "" if none takes much.
        own_step_ms: time of `own_step`.
    """

    samples: int
    total_ms: float
    idle_ms: float
    decode_ms: float = 0.0
    resize_ms: float = 0.0
    rest_ms: float = 0.0
    collate_ms: float = 0.0
    file_bytes: float = 0.0
    width: int = 0
    height: int = 0
    shown_px: int = 0
    progressive: float = 0.0
    own_step: str = ""
    own_step_ms: float = 0.0


@dataclass
class SyncPlace:
    """A line that reads a value from the device.

    Attributes:
        place: FILE:LINE.
        calls: `.item()`, `bool(tensor)`, ….
        per_step: number of calls in a step.
        blocked_s: seconds per step inside of these calls.
        span_s: seconds per step from the first of them to the end of the last, if there are several.
    """

    place: str
    calls: str
    per_step: float
    blocked_s: float
    span_s: float


@dataclass
class Facts:
    """Facts about the models, the settings and the copies of a program's training steps.

    Attributes:
        device: type of the device of the model.
        batch_size: length of the first tensor of a batch.
        models: classes of the modules that the program calls.
        parameters: number of their parameters.
        dtypes: dtypes of the parameters and floating inputs, as text.
        biases_before_norm: convolutions and linear layers with a bias in front of a normalisation that removes it.
        data_parallel: nn.DataParallel is used.
        syncs: lines that read values from the device.
        zeroes_gradients: gradients are set to zero, not to None.
        anomaly_mode, profiler, deterministic, cudnn_deterministic, autocast, channels_last, compiled,
            cudnn_benchmark, tf32: the setting is switched on.
        tracers: tools that Python calls for each line or function: a debugger, coverage, a profiler.
        debug_variables: environment variables for debugging that make a program slower.
        pageable_copies: batches are copied to the device from memory that is not pinned.
        blocking_copies: batches are copied without non_blocking=True.
        convolutions: number of nn.Conv2d layers.
        torch_threads: number of torch's own threads within operations.
    """

    device: str = "cpu"
    batch_size: int = 0
    models: list[str] = field(default_factory=list)
    parameters: int = 0
    dtypes: list[str] = field(default_factory=list)
    biases_before_norm: list[str] = field(default_factory=list)
    data_parallel: bool = False
    syncs: list[SyncPlace] = field(default_factory=list)
    zeroes_gradients: bool = False
    anomaly_mode: bool = False
    profiler: bool = False
    deterministic: bool = False
    cudnn_deterministic: bool = False
    autocast: bool = False
    channels_last: bool = False
    compiled: bool = False
    cudnn_benchmark: bool = False
    tf32: bool = False
    tracers: list[str] = field(default_factory=list)
    debug_variables: list[str] = field(default_factory=list)
    pageable_copies: bool = False
    blocking_copies: bool = False
    convolutions: int = 0
    torch_threads: int = 0


@dataclass
class Observation:
    """Everything that was seen and measured of one program.

    Attributes:
        program: name of the program that was run.
        cpus: cores that it may use.
        loaders: each loader that was iterated: its dataset, batches delivered, and whether it was trained on.
        dataset: class of the dataset of the loader that is judged; "" if none was iterated.
        loader: the loader's arguments that matter, as text.
        is_ours: the loader is fastdata's.
        has_index: the loader decodes by an index of its JPEGs.
        num_workers: the loader's number of workers.
        epoch_batches: number of batches in the loader's epoch; 0 if that is not known.
        may_not_start_workers: worker processes would run the program anew, so none were tried.
        restarts_in_each_step: the program makes an iterator of it for each batch.
        restarts_workers: the loader's worker processes end with each epoch.
        first_batch_s: seconds until its first batch.
        trains: there was a backward pass between its batches; True without a program.
        facts: facts about the training steps.
        real: steps of the program.
        alone: the loader alone: data only.
        changed: the loader alone after changes, by their key in `advice`.
        sample: costs of single samples; None if the dataset has no `__getitem__`, or it failed.
        decode_ms: milliseconds for a random crop of some of the dataset's JPEGs by the native core: from the file
            ("file"), by an index ("index"), from a record of open coefficients ("unpacked").
        children: other processes that the program started and that this could not look into.
        load: load of the machine, once all was measured.
        slow_storage: description of the folder's storage if it is slow; "" for none.
        limitations: measurements that could not be made, each with the reason.
        is_interrupted: the user did not wait for all of it.
    """

    program: str = ""
    cpus: int = 1
    loaders: list[dict[str, Any]] = field(default_factory=list)
    dataset: str = ""
    loader: str = ""
    is_ours: bool = False
    has_index: bool = False
    num_workers: int = 0
    epoch_batches: int = 0
    may_not_start_workers: bool = False
    restarts_in_each_step: bool = False
    restarts_workers: bool = False
    first_batch_s: float = math.nan
    trains: bool = True
    facts: Facts = field(default_factory=Facts)
    real: Stretch | None = None
    alone: Loading | None = None
    changed: dict[str, Loading] = field(default_factory=dict)
    sample: SampleTimes | None = None
    decode_ms: dict[str, float] = field(default_factory=dict)
    children: int = 0
    load: Load = field(default_factory=Load)
    slow_storage: str = ""
    limitations: list[str] = field(default_factory=list)
    is_interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Returns the observation as values that JSON can hold."""
        return asdict(self)
