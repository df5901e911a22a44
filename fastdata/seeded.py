"""torch's random functions, seeded per sample and per thread.

Transforms that cannot be fused draw from torch's global generator.  In threads that would make a sample's
augmentation depend on who came first.  Inside `SeededDraws` every draw of this thread that names no generator comes
from one seeded for the sample; other threads and the global generator are not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["SeededDraws"]

_RANDOM_FUNCTIONS = frozenset(
    {
        torch.bernoulli,
        torch.multinomial,
        torch.normal,
        torch.poisson,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.Tensor.bernoulli,
        torch.Tensor.bernoulli_,
        torch.Tensor.cauchy_,
        torch.Tensor.exponential_,
        torch.Tensor.geometric_,
        torch.Tensor.log_normal_,
        torch.Tensor.multinomial,
        torch.Tensor.normal_,
        torch.Tensor.random_,
        torch.Tensor.uniform_,
    }
)


class SeededDraws(TorchFunctionMode):
    """Within this context, CPU draws of this thread come from a generator seeded with `seed`.

    Python's `random` and NumPy's global generator are not covered: they have no per-thread state.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RANDOM_FUNCTIONS and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
    device = kwargs.get("device") or (tensor.device if tensor is not None else "cpu")
    return torch.device(device).type == "cpu"
