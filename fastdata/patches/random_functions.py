"""Random functions of torch, Python and NumPy, seeded per sample and per thread.

Where the user has asked for threads (workers="threads", or a source that offers to be read by several), steps that
cannot be fused draw from global generators that these threads share.  A sample's augmentation would depend on who came
first, and the training loop's own draws would be disturbed.  Inside `SeededDraws` the draws of this thread that name no
generator come from generators seeded for the sample; so do `manual_seed`, `fork_rng`, `get_rng_state`, `random.seed`,
`numpy.random.seed` and the like act on these, as they act on a worker's own.  Other threads are not touched, and the
global generators are what they were.

torch's draws are found by a `TorchFunctionMode`, which costs some microseconds for every function of torch that is
called.  In a worker process, and in the main thread (`num_workers=0`), torch's global generator is seeded instead, and
set back afterwards; a thread of the user's own that draws from it at the same time gets other numbers.  Python's and
NumPy's global functions, and torch's functions about its global generator, are replaced from `redirect_draws` on, for
the length of an epoch, by functions that ask which thread is calling and otherwise call what they
have replaced.  What escapes: `from random import random` (or `getrandbits`) and `from numpy.random import ...` that
were executed before that, `numpy.random.default_rng()` without a seed, and torch's alpha dropout and rrelu, which take
no generator.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation does
from torch.overrides import TorchFunctionMode
from torch.utils.data import get_worker_info

from fastdata.patches.replacements import Replacements
from fastdata.system.cached_property import lazy

__all__ = ["SeededDraws", "redirect_draws"]

_RANDOM_FUNCTIONS = frozenset(
    {
        torch._sample_dirichlet,
        torch._standard_gamma,
        torch.bernoulli,
        torch.binomial,
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


class _Streams:
    """The generators of one `SeededDraws`; Python's and NumPy's are made when somebody asks for them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.torch = torch.default_generator if _uses_the_global_generator() else torch.Generator()

    @lazy
    def python(self) -> random.Random:
        """Generator that stands in for the functions of Python's `random`."""
        return random.Random(self._seed)

    @lazy
    def numpy(self) -> np.random.RandomState:
        """Generator that stands in for the functions of `numpy.random`."""
        return np.random.RandomState(self._seed % 2**32)


def _uses_the_global_generator() -> bool:
    """True where no decode thread can be in the same generator."""
    return get_worker_info() is not None or threading.current_thread() is threading.main_thread()


class _Thread(threading.local):
    streams: _Streams | None = None  # of the SeededDraws that has been entered


_this_thread = _Thread()


class SeededDraws:
    """Within this context, CPU draws of this thread come from generators seeded with `seed`."""

    def __init__(self, seed: int) -> None:
        self._own = _Streams(seed)
        self._seed = seed
        self._outer: _Streams | None = None
        self._mode = None if self._own.torch is torch.default_generator else _WithGenerator(self._own.torch)
        self._state: torch.Tensor | None = None

    def __enter__(self) -> SeededDraws:
        self._outer, _this_thread.streams = _this_thread.streams, self._own
        if self._mode is None:
            self._state = self._own.torch.get_state()
        else:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._own.torch.manual_seed(self._seed)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
        elif self._state is not None:
            self._own.torch.set_state(self._state)
        _this_thread.streams = self._outer


class _WithGenerator(TorchFunctionMode):
    """Hands a generator to functions of torch that draw and were given none."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT and _on_cpu(args, kwargs):
            return _dropout(*args, **kwargs, generator=self._generator)
        if func in _LIKE and _on_cpu(args, kwargs):
            func, args, kwargs = _without_like(func, args, kwargs)
        if func in _RANDOM_FUNCTIONS and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)


def _without_like(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Replaces a call of a `*_like` function by the same draw with a function that takes a generator."""
    kwargs = dict(kwargs)
    tensor, rest = (kwargs.pop("input"), args) if "input" in kwargs else (args[0], args[1:])
    kwargs.pop("memory_format", None)
    kwargs = {"dtype": tensor.dtype, "layout": tensor.layout, **kwargs}
    draw = _LIKE[func]
    return draw, (*rest, tuple(tensor.shape)), kwargs


def _dropout(
    input: torch.Tensor,  # noqa: A002 - torch's name
    p: float = 0.5,
    train: bool = True,
    inplace: bool = False,
    *,
    generator: torch.Generator,
    training: bool = True,
) -> torch.Tensor:
    """Dropout with torch's numbers on the CPU.  Source: aten/src/ATen/native/Dropout.cpp."""
    if p == 0 or not (train and training):
        return input
    noise = torch.empty_like(input).bernoulli_(1 - p, generator=generator)
    if p < 1:
        noise.div_(1 - p)
    return input.mul_(noise) if inplace else input * noise


_DROPOUT = frozenset({F.dropout, torch.dropout})


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
    device = kwargs.get("device") or (tensor.device if tensor is not None else "cpu")
    return torch.device(device).type == "cpu"


# ---- functions about global generators


def redirect_draws() -> Callable[[], None]:
    """Makes global random functions ask which thread calls, until the function that is returned has been called."""
    _replacements.install()
    return functools.cache(_replacements.uninstall)  # each user leaves once


def _replace_global_functions(replacements: Replacements) -> None:
    for name, draw in list(vars(random).items()):
        if getattr(draw, "__self__", None) is random._inst:
            replacements.replace(vars(random), name, functools.partial(_redirected, kind="python", name=name))
    random._inst.__class__ = _PythonDraws  # for names imported from the module before
    numpys = np.random.mtrand._rand
    for module in (np.random, np.random.mtrand):
        for name, draw in list(vars(module).items()):
            if getattr(draw, "__self__", None) is numpys or name in _NUMPYS_FUNCTIONS:
                like = functools.partial(_redirected, kind="numpy", name=_NUMPYS_FUNCTIONS.get(name, name))
                replacements.replace(vars(module), name, like)
    for name, redirected in _TORCHS.items():
        for module in (torch, torch.random):
            replacements.replace(vars(module), name, functools.partial(_bound, redirected))


def _put_back_the_class() -> None:
    if type(random._inst) is _PythonDraws:
        random._inst.__class__ = random.Random  # type: ignore[assignment]


_replacements = Replacements(_replace_global_functions, _put_back_the_class)


# Those that are no methods of the global generator, and the methods that they stand for.
_NUMPYS_FUNCTIONS = {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}


def _redirected(draw: Callable[..., Any], kind: str, name: str) -> Callable[..., Any]:
    @functools.wraps(draw)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        streams = _this_thread.streams
        return (draw if streams is None else getattr(getattr(streams, kind), name))(*args, **kwargs)

    redirected.__module__, redirected.__qualname__ = {"python": "random", "numpy": "numpy.random"}[kind], name
    return redirected  # pickled by these names


class _PythonDraws(random.Random):
    """The class of the generator behind Python's global functions: most of them call these two methods of it."""

    def random(self) -> float:
        streams = _this_thread.streams
        return super().random() if streams is None else streams.python.random()

    def getrandbits(self, k: int, /) -> int:
        streams = _this_thread.streams
        return super().getrandbits(k) if streams is None else streams.python.getrandbits(k)


def _bound(redirected: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)  # pickled by its name
    def function(*args: Any, **kwargs: Any) -> Any:
        return redirected(original, *args, **kwargs)

    return function


def _manual_seed(original: Callable[..., Any], seed: Any) -> torch.Generator:
    streams = _this_thread.streams
    return original(seed) if streams is None else streams.torch.manual_seed(int(seed))


def _seed(original: Callable[..., Any]) -> int:
    streams = _this_thread.streams
    return int(original() if streams is None else streams.torch.seed())


def _initial_seed(original: Callable[..., Any]) -> int:
    streams = _this_thread.streams
    return int(original() if streams is None else streams.torch.initial_seed())


def _get_rng_state(original: Callable[..., Any]) -> torch.Tensor:
    streams = _this_thread.streams
    return original() if streams is None else streams.torch.get_state()


def _set_rng_state(original: Callable[..., Any], new_state: torch.Tensor) -> None:
    streams = _this_thread.streams
    if streams is None:
        original(new_state)
    else:
        streams.torch.set_state(new_state)


_TORCHS: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": _initial_seed,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
}
