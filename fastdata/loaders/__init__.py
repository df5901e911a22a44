"""Decode backends: `backend.py` is the contract, and one file each implements it.

A new backend is one file here and one line in `BACKENDS`, or a class anywhere that is given to `register_backend`.
"""

from __future__ import annotations

import difflib
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal, NewType, TypeAlias, cast

from fastdata.errors import BackendError, BackendUnavailable, OptionError
from fastdata.loaders.backend import FIDELITIES, MEAN_TOLERANCE, Backend, Encoded, Fidelity
from fastdata.system.installed import install_command
from fastdata.system.stack_level import users_level

__all__ = [
    "AUTO_ORDER",
    "BACKENDS",
    "FIDELITIES",
    "MEAN_TOLERANCE",
    "Backend",
    "BackendInfo",
    "BackendName",
    "Encoded",
    "Fidelity",
    "RegisteredBackend",
    "auto_backend",
    "available_backends",
    "backend_class",
    "check_backend_name",
    "create_backend",
    "describe_backends",
    "native_problem",
    "register_backend",
    "warn_without_native",
]

BackendName: TypeAlias = Literal["auto", "pil", "native", "turbojpeg", "opencv", "dali", "synthetic"]

RegisteredBackend = NewType("RegisteredBackend", str)
"""Name of a backend from outside of the package, so that type checkers accept it and still refuse misspelt names."""

BACKENDS: dict[str, tuple[str, str]] = {
    "pil": ("fastdata.loaders.pil", "PilBackend"),
    "native": ("fastdata.loaders.native", "NativeBackend"),
    "turbojpeg": ("fastdata.loaders.turbojpeg", "TurboJpegBackend"),
    "opencv": ("fastdata.loaders.opencv", "OpenCvBackend"),
    "dali": ("fastdata.loaders.dali", "DaliBackend"),
    "synthetic": ("fastdata.loaders.synthetic", "SyntheticBackend"),
}

# What backend="auto" takes: the first that is available.  Only backends with a tolerance of 0 under fidelity="exact".
AUTO_ORDER = ("native", "turbojpeg", "pil")


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """One line of `fastdata info`: `version` where the backend is available, else `problem` with the remedy."""

    name: str
    version: str | None
    problem: str | None


def check_backend_name(name: str) -> BackendName | RegisteredBackend:
    """The same name, of the type that `DataLoader(backend=...)` accepts.

    Raises:
        OptionError: it is neither "auto" nor that of a known backend.
    """
    if isinstance(name, str) and (name == "auto" or name in BACKENDS):
        return cast(BackendName | RegisteredBackend, name)
    known, missing = ["auto", *BACKENDS], [info.name for info in describe_backends() if info.problem is not None]
    near = difflib.get_close_matches(str(name).lower(), known, n=1)
    raise OptionError(
        f"backend={name!r} is unknown; known: {', '.join(known)}"
        + (f" (of these not available here: {', '.join(missing)}; see fastdata info)" if missing else "")
        + (f"; did you mean {near[0]!r}?" if near else "")
    )


def register_backend(backend: type[Backend]) -> RegisteredBackend:
    """Makes a backend from outside of the package known by its `name`, to every loader made afterwards.

    Returns:
        The name, of the type that `DataLoader(backend=...)` accepts.

    Raises:
        OptionError: the name is another backend's, or none.
    """
    name = getattr(backend, "name", None)
    home = (backend.__module__, backend.__qualname__)
    if not isinstance(name, str) or name == "auto" or BACKENDS.get(name, home) != home:
        raise OptionError(f"{backend.__qualname__} has the name {name!r}; a new backend has one that is not taken")
    BACKENDS[name] = home
    _registered[name] = backend
    return RegisteredBackend(name)


_registered: dict[str, type[Backend]] = {}


def backend_class(name: str) -> type[Backend]:
    """The class behind a backend's name; imports its file, not yet its library.

    Raises:
        BackendUnavailable: this installation has no such file.
    """
    if name in _registered:
        return _registered[name]
    module, cls = BACKENDS[name]
    try:
        return getattr(import_module(module), cls)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        again = install_command(options="--force-reinstall")
        problem = f"backend {name!r} is not available ({module} is missing); install the package again: {again}"
        raise BackendUnavailable(problem) from error


def auto_backend(fidelity: Fidelity = "exact") -> Backend:
    """Makes the first backend of `AUTO_ORDER` that is available; those behind it are not looked at.

    Raises:
        BackendError: none is.
    """
    for name in AUTO_ORDER:
        with suppress(BackendUnavailable):
            return create_backend(name, fidelity=fidelity)
    raise BackendError("no decode backend is available; install Pillow")


def create_backend(name: str, *, fidelity: Fidelity = "exact") -> Backend:
    """Makes a backend ready to decode.

    Raises:
        OptionError: no such backend, or no such fidelity.
        BackendUnavailable: its library is missing.
    """
    check_backend_name(name)
    if fidelity not in FIDELITIES:
        raise OptionError(f"fidelity={fidelity!r} is unknown; accepted: {', '.join(FIDELITIES)}")
    cls = backend_class(name)
    cls.version()
    return cls(fidelity=fidelity)


def describe_backends() -> list[BackendInfo]:
    """Every known backend with its version, or with what to install."""
    return [_describe(name) for name in BACKENDS]


def native_problem() -> str | None:
    """Why the native core cannot be used, and how to get it; None where it can."""
    return _describe("native").problem


@cache
def warn_without_native() -> None:
    """Says, once in a process, that an installation has lost its native core."""
    if (problem := native_problem()) is not None:
        warnings.warn(f"images are decoded at a fraction of the speed: {problem}", stacklevel=users_level())


def available_backends() -> list[BackendName | RegisteredBackend]:
    """Names of the backends that can be used here."""
    return [check_backend_name(info.name) for info in describe_backends() if info.problem is None]


def _describe(name: str) -> BackendInfo:
    try:
        return BackendInfo(name=name, version=backend_class(name).version(), problem=None)
    except BackendUnavailable as error:
        return BackendInfo(name=name, version=None, problem=str(error))
