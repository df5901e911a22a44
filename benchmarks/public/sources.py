"""Checkouts of public programs: importing from them, and the list of their pipelines."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torchvision import transforms
from torchvision.datasets import ImageFolder

Made = tuple[Any, dict[str, Any]]
Maker = Callable[[Path, Path, Path], Made]

PIPELINES: list[tuple[str, str, Maker]] = []
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALVES = (0.5, 0.5, 0.5)


def pipeline(repository: str, file: str) -> Callable[[Maker], Maker]:
    """Records a function as what `file` of `repository` feeds its training with."""

    def record(maker: Maker) -> Maker:
        PIPELINES.append((repository, file, maker))
        return maker

    return record


def checkout(sources: Path, repository: str) -> Path:
    """The folder of a repository's files."""
    return sources / repository.replace("/", "+")


def load(sources: Path, repository: str, module: str, folder: str = "") -> ModuleType:
    """Imports a module of a repository, or of a folder in it, before any other module of its name."""
    path = str(checkout(sources, repository) / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
    site = sources.parent / "site"
    if site.is_dir() and str(site) not in sys.path:
        sys.path.append(str(site))
    top = sys.modules.get(module.split(".")[0])
    if top is not None and not _lies_in(top, path):
        for name in [name for name in sys.modules if name.split(".")[0] == module.split(".")[0]]:
            del sys.modules[name]
    return importlib.import_module(module)


def _lies_in(module: ModuleType, path: str) -> bool:
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return any(place.startswith(path) for place in places)


class _Absent:
    """Stands for whatever a module that is not installed would hold."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _AbsentModule(ModuleType):
    """A module that holds something under every name."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


def stub(*modules: str) -> None:
    """Lets modules be imported that are not installed and that loading data does not use."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = _AbsentModule(name)


def bare_package(sources: Path, repository: str, *packages: str) -> None:
    """Lets modules of packages be imported without what the packages themselves import."""
    for name in packages:
        module = ModuleType(name)
        module.__path__ = [str(checkout(sources, repository) / name.replace(".", "/"))]
        sys.modules[name] = module


def normalized(mean: Any = MEAN, std: Any = STD) -> list[Any]:
    """The two last steps of most pipelines."""
    return [transforms.ToTensor(), transforms.Normalize(mean, std)]


def train_folder(data: Path, transform: Any) -> ImageFolder:
    """ImageNet's layout with a transform."""
    return ImageFolder(str(data / "imagenet/train"), transform)


# ---- classification
