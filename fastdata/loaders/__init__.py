"""Decode backends: `backend.py` is the contract, and one file each implements it.

A new backend is one file here and one line in `BACKENDS`.  Other packages add theirs by an entry point of the group
"fastdata.backends", whose name is the backend's, or by `register_backend`.
"""

from __future__ import annotations

import difflib
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, NewType, TypeAlias, cast

from fastdata.errors import BackendError, BackendUnavailable, OptionError, in_words
from fastdata.loaders.backend import FIDELITIES, Backend, Encoded, Fidelity
from fastdata.system.installed import install_command
from fastdata.system.stack_level import users_level

__all__ = [
    "AUTO_ORDER",
    "BACKENDS",
    "FIDELITIES",
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
    "mean_tolerance",
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

# backend="auto" takes the first available one.  Only backends with a tolerance of 0 under fidelity="exact".
AUTO_ORDER = ("native", "turbojpeg", "pil")


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """One line of `fastdata info`: `version` if the backend is available, else `problem` with the remedy."""

    name: str
    version: str | None
    problem: str | None


def check_backend_name(name: str) -> BackendName | RegisteredBackend:
    """Returns the name, as the type that `DataLoader(backend=...)` accepts.

    Raises:
        OptionError: the name is neither "auto" nor a known backend's.
    """
    if isinstance(name, str) and (name == "auto" or name in BACKENDS or name in _plugins()):
        return cast(BackendName | RegisteredBackend, name)
    known = ["auto", *BACKENDS, *_plugins()]
    missing = [info.name for info in describe_backends() if info.problem is not None]
    near = difflib.get_close_matches(str(name).lower(), known, n=1)
    raise OptionError(
        f"backend={name!r} is unknown; known: {', '.join(known)}"
        + (f" (of these not available here: {', '.join(missing)}; see fastdata info)" if missing else "")
        + (f"; did you mean {near[0]!r}?" if near else "")
    )


def register_backend(backend: type[Backend]) -> RegisteredBackend:
    """Registers a backend from outside of the package under its `name`, for loaders made afterwards.

    Returns:
        The name, as the type that `DataLoader(backend=...)` accepts.

    Raises:
        OptionError: the name is missing, or another backend's.
    """
    name = getattr(backend, "name", None)
    home = (backend.__module__, backend.__qualname__)
    if not isinstance(name, str) or name == "auto" or BACKENDS.get(name, home) != home:
        raise OptionError(f"{backend.__qualname__} has the name {name!r}; a new backend has one that is not taken")
    BACKENDS[name] = home
    _registered[name] = backend
    return RegisteredBackend(name)


_registered: dict[str, type[Backend]] = {}


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Backends of other installed packages, by name.  Read when a name is not known, or all are to be listed."""
    found = {each.name: each for each in entry_points(group="fastdata.backends")}
    return {name: each for name, each in found.items() if name not in BACKENDS and name != "auto"}


def _plugin_class(name: str) -> type[Backend]:
    """The class that an entry point names.

    Raises:
        BackendUnavailable: it cannot be imported, or is no backend of that name.
    """
    entry = _plugins()[name]
    package = entry.dist.name if entry.dist is not None else entry.module
    try:
        cls = entry.load()
    except (Exception, SystemExit) as error:
        reason = in_words(error) if isinstance(error, Exception) else "it ends the process"
        raise BackendUnavailable(
            f"backend {name!r} of the package {package} cannot be imported ({reason}); update or uninstall it"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend) and cls.name == name):
        raise BackendUnavailable(
            f"backend {name!r} of the package {package} is {entry.value}, which is no subclass of "
            f"fastdata.loaders.Backend whose name is {name!r}; update or uninstall it"
        )
    return cls


def backend_class(name: str) -> type[Backend]:
    """Returns the class of a backend; imports its file, but not its library.

    Raises:
        BackendUnavailable: this installation lacks its file.
    """
    if name in _registered:
        return _registered[name]
    if name not in BACKENDS:
        return _plugin_class(name)
    module, cls = BACKENDS[name]
    try:
        return getattr(import_module(module), cls)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        again = install_command(options="--force-reinstall")
        problem = f"backend {name!r} is not available ({module} is missing); install the package again: {again}"
        raise BackendUnavailable(problem) from error


def mean_tolerance(name: str, fidelity: Fidelity = "exact") -> float | None:
    """Mean absolute difference from Pillow's pixels that a backend may have; see `Backend.mean_tolerance`."""
    allowed = backend_class(name).mean_tolerance
    return None if allowed is None else allowed.get(fidelity)


def auto_backend(fidelity: Fidelity = "exact") -> Backend:
    """Makes the first backend of `AUTO_ORDER` that is available; later ones are not tried.

    Raises:
        BackendError: none is available.
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
    """Returns every known backend with its version, or with the reason why it is not available."""
    return [_describe(name) for name in dict.fromkeys((*BACKENDS, *_plugins()))]


def native_problem() -> str | None:
    """Returns why the native core cannot be used, and how to get it; None if it can be used."""
    return _describe("native").problem


@cache
def warn_without_native() -> None:
    """Warns, once in a process, if the native core is not available."""
    if (problem := native_problem()) is not None:
        warnings.warn(f"images are decoded at a fraction of the speed: {problem}", stacklevel=users_level())


def available_backends() -> list[BackendName | RegisteredBackend]:
    """Returns the names of the backends that can be used here."""
    return [check_backend_name(info.name) for info in describe_backends() if info.problem is None]


def _describe(name: str) -> BackendInfo:
    try:
        return BackendInfo(name=name, version=backend_class(name).version(), problem=None)
    except BackendUnavailable as error:
        return BackendInfo(name=name, version=None, problem=str(error))
    except Exception as error:  # noqa: BLE001 - of a backend from outside, which must not hide the others
        return BackendInfo(name=name, version=None, problem=f"backend {name!r} fails ({in_words(error)})")
