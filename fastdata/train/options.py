"""All training options and their checks.  The command line flags are made from these fields."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from fastdata.device.prefetch import check_device
from fastdata.system import cuda
from fastdata.terminal.flags import check, check_flags, flag

__all__ = ["TrainOptions"]

_BELOW_1, _FROM_0, _ABOVE_0, _FROM_1 = "[0, 1)", "[0, inf)", "(0, inf)", "[1, inf)"
Optimizer: TypeAlias = Literal["sgd", "adamw", "lars", "lamb"]
Schedule: TypeAlias = Literal["cosine", "onecycle", "cyclic", "step", "constant", "plateau"]
BestIs: TypeAlias = Literal["auto", "smallest", "largest"]
LrScaling: TypeAlias = Literal["none", "linear", "sqrt"]
Amp: TypeAlias = Literal["none", "bf16", "fp16"]
CompileMode: TypeAlias = Literal["none", "default", "reduce-overhead", "max-autotune"]
Profile: TypeAlias = Literal["none", "steps", "trace", "cprofile"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `fit`; each field is also a flag of `python -m fastdata.train`.

    Raises:
        OptionError: a value, or a combination of values, cannot work.
    """

    # ---- length and size
    epochs: int = flag(10, "number of passes over the training data", lies_in=_FROM_1)
    batch_size: int = flag(64, "images per process and training step", short="-b", lies_in=_FROM_1)
    accumulate: int = flag(1, "gradient accumulation: batches per update", lies_in=_FROM_1)
    device: str = flag("auto", "cpu, cuda, cuda:1, xpu or mps; auto uses an accelerator if there is one")
    seed: int = flag(0, "random seed for weights, sample order, crops and augmentations", lies_in="[0, 9e18)")

    # ---- optimiser
    opt: Optimizer = flag("sgd", "optimiser; sgd uses Nesterov momentum, lars and lamb need timm")
    lr: float = flag(0.1, "peak learning rate", lies_in=_ABOVE_0)
    momentum: float = flag(0.9, "for sgd and lars; onecycle and cyclic schedule it, too", lies_in=_BELOW_1)
    betas: tuple[float, float] | None = flag(None, "two numbers, for adamw and lamb", lies_in=_BELOW_1)
    weight_decay: float = flag(
        1e-4, "weight decay, except for normalisation layers and biases", short="--wd", lies_in=_FROM_0
    )
    norm_weight_decay: float = flag(
        0.0, "weight decay of normalisation layers, biases and parameters that timm's models exempt", lies_in=_FROM_0
    )
    bias_weight_decay: float | None = flag(None, "weight decay of biases; default: norm_weight_decay", lies_in=_FROM_0)
    transformer_embedding_decay: float | None = flag(
        None, "weight decay of class tokens and position embeddings; default: as of other weights", lies_in=_FROM_0
    )
    label_smoothing: float = flag(
        0.0, "label smoothing: share of each label that is spread over all classes", lies_in=_BELOW_1
    )
    clip_grad_norm: float | None = flag(
        None, "clip gradients to this total norm; default: no clipping", lies_in=_ABOVE_0
    )
    clip_grad_value: float | None = flag(
        None, "clip each gradient entry to this absolute value; default: no clipping", lies_in=_ABOVE_0
    )
    model_ema: float | None = flag(
        None,
        "decay of an exponential moving average (EMA) of the weights, which is then validated",
        lies_in="(0, 1)",
        bare=0.9999,
    )

    model_ema_steps: int = flag(1, "updates between two steps of that average", lies_in=_FROM_1)

    # ---- schedule, by update
    lr_scheduler: Schedule = flag("cosine", "learning rate schedule")
    lr_warmup_epochs: float = flag(0.0, "epochs of learning rate warm-up; not with onecycle or cyclic", lies_in=_FROM_0)
    lr_step_size: float = flag(30.0, "step: epochs between two drops; cyclic: epochs in half a cycle", lies_in=_ABOVE_0)
    lr_gamma: float = flag(0.1, "step and plateau: factor of each drop")
    lr_min: float = flag(0.0, "cosine: learning rate at the end", lies_in=_FROM_0)
    lr_warmup_decay: float = flag(
        0.01, "learning rate at the beginning of the warm-up, as a share of lr", lies_in="[0, 1]"
    )
    lr_patience: int = flag(10, "plateau: epochs without a better best_metric before a drop", lies_in=_FROM_0)
    lr_scaling: LrScaling = flag("none", "how to scale lr with the total batch size")
    base_batch: int = flag(256, "total batch size that lr is meant for, if lr_scaling is used", lies_in=_FROM_1)

    # ---- precision and kernels
    amp: Amp = flag("none", "automatic mixed precision; fp16 uses a GradScaler", bare="bf16")
    tf32: bool = flag(True, "use TF32 for float32 matrix products and convolutions on GPUs that have it")
    cudnn_benchmark: bool = flag(True, "let cuDNN benchmark its kernels for each input size")
    channels_last: bool = flag(True, "channels_last (NHWC) memory format for images and weights")
    compile: CompileMode = flag("none", "torch.compile mode; reduce-overhead uses CUDA graphs", bare="default")
    checkpoint_every_k: int = flag(0, "activation checkpointing of every k-th block; 0 turns it off", lies_in=_FROM_0)
    checkpoint_modules: str | None = flag(None, "activation checkpointing of these modules, comma-separated names")

    # ---- mixing
    mixup_alpha: float = flag(0.0, "mixup, with weights from Beta(alpha, alpha); 0 turns it off", lies_in=_FROM_0)
    cutmix_alpha: float = flag(
        0.0,
        "cutmix, with weights from Beta(alpha, alpha); 0 turns it off; with both, batches alternate",
        lies_in=_FROM_0,
    )

    # ---- several processes
    sync_bn: bool = flag(False, "SyncBatchNorm: compute batch statistics over all processes (CUDA)")
    static_graph: bool = flag(False, "DDP's static_graph: every step uses the same parameters")
    find_unused_parameters: bool = flag(False, "DDP's find_unused_parameters: a step may leave some parameters unused")
    timeout_s: float = flag(300.0, "seconds that a process waits for the others before it fails", lies_in=_ABOVE_0)

    # ---- seeing
    print_freq: int = flag(
        20, "read and log the losses every this many updates, which waits for the device", lies_in=_FROM_1
    )
    profile: Profile = flag(
        "none",
        "steps: table of times per phase; trace: torch.profiler trace; cprofile: Python's cProfile",
        bare="steps",
    )
    detect_syncs: bool = flag(False, "report lines of code that wait for the device")
    detect_anomaly: bool = flag(
        False, "torch.autograd anomaly detection, which finds the operation that made a NaN; slow"
    )
    tensorboard: bool = flag(False, "write a TensorBoard log")

    # ---- results
    best_metric: str | None = flag(
        None, "result of an epoch, such as val_accuracy, whose best checkpoint is kept as best.pt"
    )
    best_is: BestIs = flag(
        "auto", "whether the best value is the smallest (auto: of losses, errors, mse, mae, perplexity) or the largest"
    )
    patience: int = flag(0, "stop after so many epochs without a better best_metric; 0: never", lies_in=_FROM_0)

    # ---- keeping
    output_dir: str | None = flag(None, "folder for checkpoints, logs and plots")
    resume: str | None = flag(None, "checkpoint to resume from, or 'auto' for the latest intact one in output_dir")
    keep: int = flag(2, "how many checkpoints to keep", lies_in=_FROM_1)
    save_every: int = flag(
        0, "updates between two checkpoints, besides one after each epoch; 0: only after each epoch", lies_in=_FROM_0
    )

    def __post_init__(self) -> None:
        check_flags(self)
        self._check_optimisation()
        self._check_device()
        self._check_processes()
        check(
            self.patience == 0 or self.best_metric is not None,
            f"patience={self.patience} needs best_metric, by which an epoch is better than another",
        )
        check(
            self.resume != "auto" or self.output_dir is not None,
            "resume='auto' needs output_dir, where it looks for the latest checkpoint",
        )

    def _check_optimisation(self) -> None:
        check(
            self.betas is None or self.opt in ("adamw", "lamb"),
            f"betas={self.betas} needs opt='adamw' or 'lamb'; opt={self.opt!r} uses momentum={self.momentum}",
        )
        check(
            self.lr_warmup_epochs == 0 or self.lr_scheduler not in ("onecycle", "cyclic"),
            f"lr_warmup_epochs={self.lr_warmup_epochs}: lr_scheduler={self.lr_scheduler!r} has its own warm-up; leave "
            "out lr_warmup_epochs",
        )
        check(
            self.lr_warmup_epochs < self.epochs,
            f"lr_warmup_epochs={self.lr_warmup_epochs} must be less than epochs={self.epochs}",
        )
        check(
            self.lr_scheduler != "plateau" or self.lr_gamma < 1,
            f"lr_scheduler='plateau' needs lr_gamma below 1, by which the rates fall; it is {self.lr_gamma}",
        )

    def _check_device(self) -> None:
        on_cuda = self.torch_device().type == "cuda"
        check(
            self.amp != "fp16" or on_cuda,
            "amp='fp16' needs a CUDA device, since float16 overflows easily on others; amp='bf16' works anywhere",
        )
        check(
            not self.sync_bn or on_cuda,
            "sync_bn=True needs a CUDA device: torch's SyncBatchNorm does not support others; leave it out",
        )

    def _check_processes(self) -> None:
        check(
            not self.static_graph or self.accumulate == 1,
            f"static_graph=True does not work with accumulate={self.accumulate}: with a static graph DDP sums "
            "gradients after every batch; leave one of them out",
        )

    def torch_device(self) -> torch.device:
        """The device as a torch.device, with "auto" resolved.

        Raises:
            OptionError: the device is not available.
        """
        if self.device == "auto":
            if cuda.is_available():
                return torch.device("cuda")
            alone = int(os.environ.get("WORLD_SIZE", "1")) == 1  # torch's groups of processes know the CPU and CUDA
            found = torch.accelerator.current_accelerator() if alone and torch.accelerator.is_available() else None
            return found if found is not None else torch.device("cpu")
        return check_device(self.device)
