"""Functions of other libraries, on which equal results rest: finds one that is no longer the library's own.

What fastdata does in the place of Pillow, torchvision, timm and torch's datasets is equal to what their functions do as
they are installed.  A program or another library may have replaced one, before fastdata was imported or after.  So the
functions are compared with the code that each module was compiled to, which its loader still has.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["replaced_function"]

_MODULES = frozenset(
    {
        "PIL.Image",
        "PIL.ImageFile",
        "PIL.ImageOps",
        "PIL.ImageEnhance",
        "PIL.ImageFilter",
        "PIL.ImageMode",
        "PIL.ImageStat",
        "PIL.JpegImagePlugin",
        "PIL.PngImagePlugin",
        "timm.data.auto_augment",
        "timm.data.transforms",
        "torch.utils.data.dataset",
        "torchvision.datasets.cifar",
        "torchvision.datasets.folder",
        "torchvision.datasets.mnist",
        "torchvision.io.image",
    }
)
_PACKAGES = ("torchvision.transforms.", "torchvision.tv_tensors")
_WRAPPING = ("torch", "torchvision", "typing_extensions")
_PLUGINS = {"JPEG": "PIL.JpegImagePlugin", "PNG": "PIL.PngImagePlugin"}


# By module: the module, and of it and its classes the attributes, names, and what was found there and is the library's.
_known: dict[str, tuple[ModuleType, list[tuple[Mapping[str, Any], list[str], list[Any]]]]] = {}


def replaced_function() -> str | None:
    """Name of a function that has been replaced, and of what is in its place, in words; None if there is none."""
    if builtins.open is not io.open:
        return _in_words("builtins.open", builtins.open)
    for name in _imported(len(sys.modules)):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and not _is_as_before(name, module):
            if getattr(module.__spec__, "_initializing", False):
                continue
            if (found := _replaced_in(name, module)) is not None:
                return found
    opened: dict[str, Any] = getattr(sys.modules.get("PIL.Image"), "OPEN", {})
    for kind, plugin in _PLUGINS.items():
        if kind in opened and getattr(opened[kind][0], "__module__", plugin) != plugin:
            return _in_words(f"what Pillow opens a {kind} with", opened[kind][0])
    return None


@lru_cache(maxsize=1)
def _imported(count: int) -> list[str]:
    """The modules that are compared, of so many that are imported."""
    return [name for name in list(sys.modules) if name in _MODULES or name.startswith(_PACKAGES)]


def _is_as_before(name: str, module: ModuleType) -> bool:
    """True if all that a module has was found to be the library's in an earlier call."""
    before, places = _known.get(name, (None, []))
    return before is module and all([*map(values.get, names)] == found for values, names, found in places)


def _replaced_in(name: str, module: ModuleType) -> str | None:
    """The first replaced function of a module or of a class in it, in words; None if there is none."""
    places: list[tuple[Mapping[str, Any], list[str], list[Any]]] = []
    for place, codes in _compiled(name).items():
        owner = _at(module, place)
        if not isinstance(owner, ModuleType | type):
            continue
        values = vars(owner)
        for each, own in codes.items():
            there = values.get(each)
            if there is not None and not _is_own(there, own):
                return _in_words(".".join((name, *place, each)), there)
        names = [*codes, *(inner[-1] for inner in _compiled(name) if inner and inner[:-1] == place)]
        places.append((values, names, [*map(values.get, names)]))
    _known[name] = module, places
    return None


def _in_words(name: str, found: Any) -> str:
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    module, own = getattr(found, "__module__", None), getattr(found, "__qualname__", type(found).__name__)
    return f"{name} has been replaced by {own} of {module}"


@cache
def _compiled(name: str) -> dict[tuple[str, ...], dict[str, list[CodeType]]]:
    """Codes of a module's functions, by class (() for its own) and name; {} if they are not known."""
    module = sys.modules[name]
    found: dict[tuple[str, ...], dict[str, list[CodeType]]] = {}
    try:
        code = module.__spec__.loader.get_code(name)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return found
    for place, each in _functions_in(module, code, ()):
        found.setdefault(place, {}).setdefault(each.co_name, []).append(each)
    return found


def _functions_in(
    module: ModuleType, code: CodeType, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    for each in code.co_consts:
        if not isinstance(each, CodeType) or each.co_name.startswith("<"):
            continue
        if isinstance(_at(module, (*place, each.co_name)), type):
            yield from _functions_in(module, each, (*place, each.co_name))
        else:
            yield place, each


def _at(module: ModuleType, place: tuple[str, ...]) -> Any:
    """Attribute of a module, or of a class in it, as it is now; None if there is none."""
    found: Any = module
    for name in place:
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(name)
    return found


def _is_own(found: Any, codes: list[CodeType]) -> bool:
    """True for a function of one of these codes, also where the library, torch or fastdata has wrapped it."""
    for _ in range(10):
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, cached_property):
            found = found.func
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        elif isinstance(found, FunctionType) and found.__code__ in codes:
            return True
        elif isinstance(found, FunctionType) and not _may_wrap(found.__code__.co_filename):
            return False
        else:
            found = getattr(found, "__wrapped__", None)
    return False


@cache
def _may_wrap(file: str) -> bool:
    """True for code of Python, torch, torchvision and ours: what wraps a function there calls it all the same."""
    homes = [
        os.path.dirname(os.__file__),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        *(f"{path}/{name}" for path in sys.path for name in _WRAPPING),
    ]
    inside = next((file[len(home) :] for home in homes if file.startswith((home + os.sep, home + ".py"))), None)
    return inside is not None and not inside.startswith((f"{os.sep}site-packages", f"{os.sep}dist-packages"))
