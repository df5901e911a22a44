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
from collections.abc import Iterator
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


# By module and class: the functions at their names that were found to be the library's.
_known: dict[tuple[str, ...], list[Any]] = {}


def replaced_function() -> str | None:
    """Name of a function that has been replaced, and of what is in its place, in words; None if there is none."""
    if builtins.open is not io.open:
        return _in_words("builtins.open", builtins.open)
    for name in _imported(len(sys.modules)):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and not getattr(module.__spec__, "_initializing", False):
            for place, codes in _compiled(name).items():
                if (found := _replaced_in(module, (name, *place), codes)) is not None:
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


def _replaced_in(module: ModuleType, place: tuple[str, ...], codes: dict[str, list[CodeType]]) -> str | None:
    """The first replaced function of a module or of a class in it, in words; None if there is none."""
    owner = _at(module, place[1:])
    if not isinstance(owner, ModuleType | type):
        return None
    found = [*map(vars(owner).get, codes)]
    if found == _known.get(place):
        return None
    for name, each in zip(codes, found, strict=True):
        if each is not None and not _is_own(each, codes[name]):
            return _in_words(".".join((*place, name)), each)
    _known[place] = found
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
