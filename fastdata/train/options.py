"""Every option of training, checked together.  The command line is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastdata.device.prefetch import check_device
from fastdata.terminal.flags import check, check_flags, flag

__all__ = ["TrainOptions"]

_BELOW_1, _FROM_0, _ABOVE_0, _FROM_1 = "[0, 1)", "[0, inf)", "(0, inf)", "[1, inf)"
_OPTIMIZERS = ("sgd", "adamw", "lars", "lamb")
_SCHEDULES = ("cosine", "onecycle", "cyclic", "step", "constant")
_SCALINGS = ("none", "linear", "sqrt")
_AMP = ("none", "bf16", "fp16", "fp8")
_COMPILE = ("none", "default", "reduce-overhead", "max-autotune")
_PROFILES = ("none", "steps", "trace", "cprofile")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `fit` does; each field is a flag of `python -m fastdata.train`, too.

    Raises:
        OptionError: values that cannot work, alone or together.
    """

    # ---- length and size
    epochs: int = flag(10, "passes over the data", lies_in=_FROM_1)
    batch_size: int = flag(64, "images per process and step", short="-b", lies_in=_FROM_1)
    accumulate: int = flag(1, "batches whose gradients make one update", lies_in=_FROM_1)
    device: str = flag("auto", "cpu, cuda, cuda:1; auto takes CUDA where there is one")
    seed: int = flag(0, "of weights, order, crops and augmentations", lies_in="[0, 9e18)")

    # ---- optimiser
    opt: str = flag("sgd", "optimiser; sgd has Nesterov momentum, lars and lamb are timm's", choices=_OPTIMIZERS)
    lr: float = flag(0.1, "learning rate, at its peak", lies_in=_ABOVE_0)
    momentum: float = flag(0.9, "of sgd and lars; onecycle and cyclic move it, too", lies_in=_BELOW_1)
    betas: tuple[float, float] | None = flag(None, "of adamw and lamb: two numbers", lies_in=_BELOW_1)
    weight_decay: float = flag(1e-4, "of all weights but those of norms and biases", short="--wd", lies_in=_FROM_0)
    norm_weight_decay: float = flag(0.0, "of norms, biases, and what timm's models exempt", lies_in=_FROM_0)
    label_smoothing: float = flag(0.0, "share of each label spread over all classes", lies_in=_BELOW_1)
    clip_grad_norm: float | None = flag(None, "largest norm of a gradient; left out, none is clipped", lies_in=_ABOVE_0)
    clip_grad_value: float | None = flag(
        None, "largest entry of a gradient; left out, none is clipped", lies_in=_ABOVE_0
    )
    model_ema: float | None = flag(None, "validate an average of the weights", lies_in="(0, 1)", bare=0.9999)

    # ---- schedule, by update
    lr_scheduler: str = flag("cosine", "how the rate changes", choices=_SCHEDULES)
    lr_warmup_epochs: float = flag(0.0, "epochs in which the rate grows; not for onecycle, cyclic", lies_in=_FROM_0)
    lr_step_size: float = flag(30.0, "epochs between the drops of step; half a cycle of cyclic", lies_in=_ABOVE_0)
    lr_gamma: float = flag(0.1, "factor of a drop of step")
    lr_scaling: str = flag("none", "how the rate grows with the joint batch", choices=_SCALINGS)
    base_batch: int = flag(256, "joint batch for which lr is meant when it is scaled", lies_in=_FROM_1)

    # ---- precision and kernels
    amp: str = flag("none", "autocast; fp16 with a GradScaler, fp8 with torchao", choices=_AMP, bare="bf16")
    tf32: bool = flag(True, "TF32 for float32 products on GPUs that have it")
    cudnn_benchmark: bool = flag(True, "let cuDNN try its kernels for the sizes at hand")
    channels_last: bool = flag(True, "NHWC memory for images and weights")
    compile: str = flag("none", "torch.compile; reduce-overhead means CUDA graphs", choices=_COMPILE, bare="default")
    checkpoint_every_k: int = flag(0, "recompute activations, every k blocks; 0 keeps them all", lies_in=_FROM_0)
    checkpoint_modules: str | None = flag(None, "recompute those of the modules named, separated by commas")

    # ---- mixing
    mixup_alpha: float = flag(0.0, "mixup with shares from Beta(alpha, alpha); 0 leaves it out", lies_in=_FROM_0)
    cutmix_alpha: float = flag(0.0, "cutmix likewise; with both, updates take turns", lies_in=_FROM_0)

    # ---- several processes
    sync_bn: bool = flag(False, "batch statistics of all processes")
    static_graph: bool = flag(False, "tell DDP that every step uses the same parameters")
    find_unused_parameters: bool = flag(False, "for models of which a step may leave parts out")
    bf16_gradients: bool = flag(False, "send gradients as bfloat16 (CUDA)")
    timeout_s: float = flag(300.0, "how long a process waits for the others before it gives up", lies_in=_ABOVE_0)

    # ---- seeing
    print_freq: int = flag(20, "updates between two looks at the loss; each look waits for the device", lies_in=_FROM_1)
    profile: str = flag("none", "steps prints a table, trace is torch.profiler's", choices=_PROFILES, bare="steps")
    detect_syncs: bool = flag(False, "name the lines that wait for the device")
    detect_anomaly: bool = flag(False, "autograd's search for what made a NaN; slow")
    tensorboard: bool = flag(False, "write a TensorBoard log")

    # ---- keeping
    output_dir: str | None = flag(None, "where checkpoints, logs and plots go")
    resume: str | None = flag(None, "a checkpoint, or 'auto' for the latest in output_dir")
    keep: int = flag(2, "checkpoints kept", lies_in=_FROM_1)
    save_every: int = flag(0, "updates between two checkpoints; 0 saves after each epoch", lies_in=_FROM_0)

    def __post_init__(self) -> None:
        check_flags(self)
        check(
            self.betas is None or self.opt in ("adamw", "lamb"),
            f"betas={self.betas} are adamw's and lamb's; opt={self.opt!r} has momentum={self.momentum}",
        )
        check(
            not self.static_graph or self.accumulate == 1,
            f"static_graph=True with accumulate={self.accumulate}: a static graph sums every gradient; leave one out",
        )
        check(
            self.lr_warmup_epochs == 0 or self.lr_scheduler not in ("onecycle", "cyclic"),
            f"lr_scheduler={self.lr_scheduler!r} warms up by itself; leave out lr_warmup_epochs",
        )
        check(
            self.lr_warmup_epochs < self.epochs,
            f"lr_warmup_epochs={self.lr_warmup_epochs} leaves nothing of epochs={self.epochs}",
        )
        on_cuda = self.torch_device().type == "cuda"
        check(
            self.amp != "fp16" or on_cuda,
            "amp='fp16' needs a CUDA device: float16 overflows without its scaled kernels; amp='bf16' works anywhere",
        )
        check(
            self.amp != "fp8" or (on_cuda and torch.cuda.get_device_capability() >= (8, 9)),
            "amp='fp8' needs a CUDA device of compute capability 8.9 or more (Ada, Hopper); amp='bf16' works anywhere",
        )
        check(not self.sync_bn or on_cuda, "sync_bn=True needs CUDA: torch's SyncBatchNorm runs nowhere else")
        check(not self.bf16_gradients or on_cuda, "bf16_gradients=True needs CUDA: gloo sums no bfloat16")
        check(
            self.resume != "auto" or self.output_dir is not None, "resume='auto' looks in output_dir, which is not set"
        )

    def torch_device(self) -> torch.device:
        """The device meant.

        Raises:
            OptionError: it is not here.
        """
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return check_device(self.device)
