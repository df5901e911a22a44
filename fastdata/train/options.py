"""Every option of training, checked together.  The command line is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fastdata.errors import OptionError

__all__ = ["TrainOptions", "flag"]

AMP = ("none", "bf16", "fp16", "fp8")
OPTIMIZERS = ("sgd", "adamw", "lars", "lamb")
SCHEDULES = ("cosine", "onecycle", "cyclic", "step", "constant")
COMPILE = ("none", "default", "reduce-overhead", "max-autotune")
PROFILES = ("none", "steps", "trace", "cprofile")
LR_SCALING = ("none", "linear", "sqrt")


def flag(default: Any, help: str, **more: Any) -> Any:  # noqa: A002
    """A field that is a flag of the command line, too."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `fit` does; each field is a flag of `python -m fastdata.train`, too.

    Raises:
        OptionError: values that cannot work, alone or together.
    """

    # ---- length and size
    epochs: int = flag(10, "passes over the data")
    batch_size: int = flag(64, "images per process and step", short="-b")
    accumulate: int = flag(1, "batches whose gradients make one update")
    device: str = flag("auto", "cpu, cuda, cuda:1; auto takes CUDA where there is one")
    seed: int = flag(0, "of weights, order, crops and augmentations")

    # ---- optimiser
    opt: str = flag("sgd", "sgd (with Nesterov momentum), adamw, lars, lamb", choices=OPTIMIZERS)
    lr: float = flag(0.1, "learning rate, at its peak")
    momentum: float = flag(0.9, "of sgd and lars")
    betas: tuple[float, float] | None = flag(None, "of adamw and lamb: two numbers")
    weight_decay: float = flag(1e-4, "of all weights but those of norms and biases", short="--wd")
    norm_weight_decay: float = flag(0.0, "of norms and biases")
    label_smoothing: float = flag(0.0, "share of each label spread over all classes")
    clip_grad_norm: float | None = flag(None, "largest norm of an update's gradient")
    clip_grad_value: float | None = flag(None, "largest entry of an update's gradient")
    model_ema: float | None = flag(None, "keep an average of the weights with this decay, and validate that")

    # ---- schedule, by update
    lr_scheduler: str = flag("cosine", "cosine, onecycle, cyclic, step, constant", choices=SCHEDULES)
    lr_warmup_epochs: float = flag(0.0, "epochs in which the rate grows from a hundredth (not for onecycle, cyclic)")
    lr_step_size: float = flag(30.0, "epochs between the drops of step; half a cycle of cyclic")
    lr_gamma: float = flag(0.1, "factor of a drop of step")
    lr_scaling: str = flag("none", "grow the rate with the joint batch: none, linear, sqrt", choices=LR_SCALING)
    base_batch: int = flag(256, "joint batch for which lr is meant when it is scaled")

    # ---- precision and kernels
    amp: str = flag("none", "autocast: none, bf16, fp16 (with a GradScaler), fp8", choices=AMP)
    tf32: bool = flag(True, "TF32 for float32 products on GPUs that have it")
    cudnn_benchmark: bool = flag(True, "let cuDNN try its kernels for the sizes at hand")
    channels_last: bool = flag(True, "NHWC memory for images and weights")
    compile: str = flag("none", "torch.compile: default, reduce-overhead (CUDA graphs), max-autotune", choices=COMPILE)
    checkpoint_every_k: int = flag(0, "recompute activations, every k blocks; 0 keeps them all")
    checkpoint_modules: str | None = flag(None, "recompute those of the modules named, separated by commas")

    # ---- mixing
    mixup_alpha: float = flag(0.0, "mixup with shares from Beta(alpha, alpha); 0 leaves it out")
    cutmix_alpha: float = flag(0.0, "cutmix likewise; with both, updates take turns")

    # ---- several processes
    sync_bn: bool = flag(False, "batch statistics of all processes")
    static_graph: bool = flag(False, "tell DDP that every step uses the same parameters")
    bf16_gradients: bool = flag(False, "send gradients as bfloat16 (CUDA)")
    timeout_s: float = flag(300.0, "how long a process waits for the others before it gives up")

    # ---- seeing
    print_freq: int = flag(20, "updates between two looks at the loss; each look waits for the device")
    profile: str = flag("none", "steps (a table), trace (torch.profiler), cprofile", choices=PROFILES)
    detect_syncs: bool = flag(False, "name the lines that wait for the device")
    detect_anomaly: bool = flag(False, "autograd's search for what made a NaN; slow")
    tensorboard: bool = flag(False, "write a TensorBoard log")

    # ---- keeping
    output_dir: str | None = flag(None, "where checkpoints, logs and plots go")
    resume: str | None = flag(None, "a checkpoint, or 'auto' for the latest in output_dir")
    keep: int = flag(2, "checkpoints kept")
    save_every: int = flag(0, "updates between two checkpoints; 0 saves after each epoch")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "print_freq", "keep", "base_batch"):
            _check(getattr(self, name) >= 1, f"{name}={getattr(self, name)}; at least 1 is needed")
        for name in (
            "momentum",
            "weight_decay",
            "norm_weight_decay",
            "lr_warmup_epochs",
            "save_every",
            "checkpoint_every_k",
        ):
            _check(getattr(self, name) >= 0, f"{name}={getattr(self, name)}; it is not negative")
        _check(self.momentum < 1, f"momentum={self.momentum}; it is below 1, or the steps only grow")
        _check(self.lr_step_size > 0, f"lr_step_size={self.lr_step_size}; it is above 0")
        _check(
            self.betas is None or all(0 <= beta < 1 for beta in self.betas),
            f"betas={self.betas}; both lie between 0 and 1, like (0.9, 0.999)",
        )
        for name, known in (
            *(("opt", OPTIMIZERS), ("lr_scheduler", SCHEDULES), ("amp", AMP), ("compile", COMPILE)),
            *(("profile", PROFILES), ("lr_scaling", LR_SCALING)),
        ):
            value = getattr(self, name)
            _check(value in known, f"{name}={value!r} is unknown; known: {', '.join(known)}")
        _check(0 < self.lr < float("inf"), f"lr={self.lr}; the learning rate is a number above 0")
        _check(0 <= self.label_smoothing < 1, f"label_smoothing={self.label_smoothing} is not in [0, 1)")
        _check(
            self.model_ema is None or 0 < self.model_ema < 1,
            f"model_ema={self.model_ema}; the decay lies between 0 and 1, 0.9999 for long runs",
        )
        for name in ("clip_grad_norm", "clip_grad_value"):
            value = getattr(self, name)
            _check(value is None or value > 0, f"{name}={value}; leave it out to clip nothing")
        _check(min(self.mixup_alpha, self.cutmix_alpha) >= 0, "mixup_alpha and cutmix_alpha are not negative")
        self._check_together()

    def _check_together(self) -> None:
        _check(
            self.betas is None or self.opt in ("adamw", "lamb"),
            f"betas={self.betas} are adamw's and lamb's; opt={self.opt!r} has momentum={self.momentum}",
        )
        _check(
            self.lr_warmup_epochs == 0 or self.lr_scheduler not in ("onecycle", "cyclic"),
            f"lr_scheduler={self.lr_scheduler!r} warms up by itself; leave out lr_warmup_epochs",
        )
        _check(
            self.lr_warmup_epochs < self.epochs,
            f"lr_warmup_epochs={self.lr_warmup_epochs} leaves nothing of epochs={self.epochs}",
        )
        on_cuda = self.torch_device().type == "cuda"
        _check(
            self.amp != "fp16" or on_cuda,
            "amp='fp16' needs a CUDA device: float16 overflows without its scaled kernels; amp='bf16' works anywhere",
        )
        _check(
            self.amp != "fp8" or (on_cuda and torch.cuda.get_device_capability() >= (8, 9)),
            "amp='fp8' needs a CUDA device of compute capability 8.9 or more (Ada, Hopper); amp='bf16' works anywhere",
        )
        _check(not self.sync_bn or on_cuda, "sync_bn=True needs CUDA: torch's SyncBatchNorm runs nowhere else")
        _check(not self.bf16_gradients or on_cuda, "bf16_gradients=True needs CUDA: gloo sums no bfloat16")
        _check(
            self.resume != "auto" or self.output_dir is not None, "resume='auto' looks in output_dir, which is not set"
        )

    def torch_device(self) -> torch.device:
        """The device meant.

        Raises:
            OptionError: it is not here.
        """
        from fastdata.prefetch import check_device

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return check_device(self.device)


def _check(good: bool, message: str) -> None:
    if not good:
        raise OptionError(message)
