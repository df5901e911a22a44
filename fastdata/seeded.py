"""torch's random functions, seeded per sample and per thread.

Transforms that cannot be fused draw from torch's global generator.  In threads that would make a sample's
augmentation depend on who came first.  Inside `SeededDraws` the draws of this thread that name no generator come
from one seeded for the sample; other threads and the global generator are not touched.  The exceptions are functions
that take no generator at all: dropout, rrelu, and the Gamma, Beta and Dirichlet distributions.
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


# Functions that take no generator, and what draws the same numbers with one.
_LIKE: dict[Any, Callable[..., Any]] = {
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
    torch.randint_like: torch.randint,
}


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
        if func in _LIKE and _on_cpu(args, kwargs):
            func, args, kwargs = _without_like(func, args, kwargs)
        if func in _RANDOM_FUNCTIONS and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)


def _without_like(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The same draw by a function that takes a generator."""
    kwargs = dict(kwargs)
    tensor, rest = (kwargs.pop("input"), args) if "input" in kwargs else (args[0], args[1:])
    kwargs.pop("memory_format", None)
    kwargs = {"dtype": tensor.dtype, "layout": tensor.layout, **kwargs}
    draw = _LIKE[func]
    return draw, (*rest, tuple(tensor.shape)), kwargs


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
    device = kwargs.get("device") or (tensor.device if tensor is not None else "cpu")
    return torch.device(device).type == "cpu"
