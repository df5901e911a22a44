"""Reads the code of a dataset's `__getitem__`, to recognise datasets that give out the rows of an array of images.

Most datasets that keep their images in memory work as torchvision's do: a row of the array becomes a PIL image, a
transform is called on it, and a label is returned with it.  This is found by following the names in the source code of
`__getitem__`; no code of it is run, but values of the dataset's attributes are looked at.  If the code holds anything
else, the reading stops, and the dataset's own code makes its samples.

The source code is used only if it compiles to exactly the code that the class has.  So it is not used if the file was
edited after the import, or the function was replaced.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

__all__ = ["ArrayLayout", "method_body", "read_layout"]


@dataclass(frozen=True, kw_only=True)
class ArrayLayout:
    """How a dataset makes a sample from its attributes: which array, which targets, which transforms.

    Attributes:
        axes: axes of the array, as letters: "NHWC", "NHW" (grey) or "NCHW".
        data: name of the array.
        targets: name of the targets; None if the target is the sample's index.
        as_int: targets are converted to Python integers; else returned unchanged.
        transform: name of the transform of images; None if none is called.
        target_transform: name of the transform of targets; None if none is called.
    """

    axes: str
    data: str = "data"
    targets: str | None
    as_int: bool = False
    transform: str | None = "transform"
    target_transform: str | None = "target_transform"


def read_layout(dataset: Any) -> ArrayLayout | None:
    """Reads the class's `__getitem__`; returns None if it does anything that is not understood."""
    cls = type(dataset)
    function = inspect.getattr_static(cls, "__getitem__", None)
    plain_attributes = inspect.getattr_static(cls, "__getattribute__", None) is object.__getattribute__
    if type(function) is not FunctionType or not plain_attributes:
        return None
    body = method_body(function)
    if body is None:
        return None
    try:
        return _Reader(dataset, function).layout(body)
    except _NotUnderstood:
        return None


class _NotUnderstood(Exception):
    """Raised to stop the reading."""


@dataclass(frozen=True)
class _Index:
    """The sample's index."""


@dataclass(frozen=True)
class _Attribute:
    """An attribute of the dataset."""

    name: str


@dataclass(frozen=True)
class _Row:
    """The row of an attribute at the sample's index."""

    name: str
    moved: bool = False  # from (C, H, W) to (H, W, C)
    as_int: bool = False


@dataclass(frozen=True)
class _Image:
    """A row as a PIL image, with the transform called on it."""

    row: _Row
    transform: str | None = None


@dataclass(frozen=True)
class _Target:
    """A row or the index, with the target transform called on it."""

    value: _Row | _Index
    transform: str | None = None


@lru_cache(maxsize=64)
def method_body(function: FunctionType) -> list[ast.stmt] | None:
    """Returns the statements of a method with one argument besides `self`; None if they cannot be known.

    That is so if it has other parameters, defaults or a closure, or if its source code is missing or is not what runs.
    """
    code = function.__code__
    plain = code.co_argcount == 2 and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if not plain or code.co_kwonlyargcount or function.__defaults__ or function.__closure__:
        return None
    try:
        module = ast.parse("".join(inspect.findsource(function)[0]))
        if code not in _codes(compile(module, code.co_filename, "exec", dont_inherit=True)):
            return None
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    definitions = (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef))
    return next(
        (node.body for node in definitions if (node.name, node.lineno) == (code.co_name, code.co_firstlineno)), None
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a module's code object, and all code objects nested in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


class _Reader:
    """Reads one `__getitem__` and tracks the symbolic value of each name.

    Symbolic values are `_Index`, `_Attribute`, `_Row`, `_Image`, `_Target` and tuples of them; nothing is called.
    """

    def __init__(self, dataset: Any, function: FunctionType) -> None:
        self._dataset, self._globals = dataset, function.__globals__
        self._self_name, index = function.__code__.co_varnames[:2]
        self._known: dict[str, Any] = {index: _Index()}

    def layout(self, body: Sequence[ast.stmt]) -> ArrayLayout:
        """Returns the layout that follows from the returned value."""
        match self._run(body):
            case (_Image(row, transform), _Target() as target):
                pass
            case (_Image(row, transform), (_Row() | _Index()) as value):
                target = _Target(value)
            case _:
                raise _NotUnderstood
        targets, as_int = self._targets(target.value)
        return ArrayLayout(
            axes="NCHW" if row.moved else "NHW" if self._is_grey(row) else "NHWC",
            data=row.name,
            targets=targets,
            as_int=as_int,
            transform=transform,
            target_transform=target.transform,
        )

    def _targets(self, label: _Row | _Index) -> tuple[str | None, bool]:
        """Returns (name, as_int): the attribute of the targets, None for the index; and if values become integers."""
        if isinstance(label, _Index):
            return None, False
        kind = type(self._value(label.name))
        if label.moved or (kind not in (list, tuple, np.ndarray, torch.Tensor)):
            raise _NotUnderstood
        return label.name, label.as_int

    # ---- statements

    def _run(self, body: Sequence[ast.stmt]) -> Any:
        """Returns the symbolic value that some statements return; None if they do not return."""
        for statement in body:
            match statement:
                case ast.Expr(ast.Constant(str())):  # a docstring
                    continue
                case ast.Assign([target], value):
                    self._assign(target, self._read(value))
                case ast.AnnAssign(target, _, value, _) if value is not None:
                    self._assign(target, self._read(value))
                case ast.Return(value) if value is not None:
                    return self._read(value)
                case ast.If(test, then, otherwise):
                    returned = self._run(then if self._holds(test) else otherwise)
                    if returned is not None:
                        return returned
                case _:
                    raise _NotUnderstood
        return None

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name) if name != self._self_name:
                self._known[name] = value
            case ast.Tuple(targets) if isinstance(value, tuple) and len(targets) == len(value):
                for each, part in zip(targets, value, strict=True):
                    self._assign(each, part)
            case _:
                raise _NotUnderstood

    def _holds(self, test: ast.expr) -> bool:
        """Evaluates `self.x is None`, `self.x is not None` or `self.x` with the attribute's current value.

        Other tests are not understood, nor is `self.x` alone if its truth value may depend on its content.
        """
        match test:
            case ast.Compare(value, [ast.IsNot() | ast.Is() as how], [ast.Constant(None)]):
                is_none = self._value(self._attribute(value)) is None
                return is_none if isinstance(how, ast.Is) else not is_none
            case ast.Attribute():
                value = self._value(self._attribute(test))
                if value is not None and (type(value).__module__ == "builtins" or hasattr(value, "__len__")):
                    raise _NotUnderstood
                return value is not None
        raise _NotUnderstood

    # ---- expressions

    def _read(self, node: ast.expr) -> Any:
        """Returns the symbolic value of an expression."""
        match node:
            case ast.Name(name) if name in self._known:
                return self._known[name]
            case ast.Attribute(ast.Name(), name):
                return _Attribute(self._attribute(node))
            case ast.Tuple(parts):
                return tuple(map(self._read, parts))
            case ast.Subscript(value, place):
                match (self._read(value), self._read(place)):
                    case (_Attribute(name), _Index()):
                        return _Row(name)
            case ast.Call(function, arguments, keywords):
                return self._called(function, arguments, keywords)
        raise _NotUnderstood

    def _called(self, function: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        """Returns the symbolic value of a call's result."""
        known = self._function(function)
        if known is not None:
            value = self._read(arguments[0]) if arguments else None
            more = [_constant(each) for each in arguments[1:]] + [_constant(each.value) for each in keywords]
            named = [each.arg for each in keywords]
            match (known, value, more, named):
                case ("int", _Row(name, moved=False), [], []):
                    return _Row(name, as_int=True)
                case ("transpose", _Row(name, moved=False, as_int=False), [(1, 2, 0)], [] | ["axes"]) if self._is_array(
                    name
                ):
                    return _Row(name, moved=True)
                case ("fromarray", _Row(as_int=False), [], []):
                    return _Image(value)
                case ("fromarray", _Row(as_int=False), [str() as mode], [] | ["mode"]) if self._is_mode(value, mode):
                    return _Image(value)
            raise _NotUnderstood
        if not isinstance(function, ast.Attribute) or keywords:
            raise _NotUnderstood
        if isinstance(function.value, ast.Name) and function.value.id == self._self_name:
            return self._transformed(self._attribute(function), [self._read(each) for each in arguments])
        match (self._read(function.value), function.attr, [_constant(each) for each in arguments]):
            case (_Row(name, moved=False, as_int=False), "transpose", [(1, 2, 0)] | [1, 2, 0]) if self._is_array(name):
                return _Row(name, moved=True)
            case (_Row() as row, "numpy", []) if not self._is_array(row.name):
                return row
            case (_Image(row, None) as image, "convert", [str() as mode]) if self._is_mode(row, mode):
                return image
        raise _NotUnderstood

    def _transformed(self, name: str, arguments: list[Any]) -> Any:
        """Returns the symbolic result of calling attribute `name`, as a transform of an image or of a target."""
        match arguments:
            case [_Image(row, None)]:
                return _Image(row, name)
            case [(_Row(moved=False) | _Index()) as target]:
                return _Target(target, name)
        raise _NotUnderstood

    def _function(self, node: ast.expr) -> str | None:
        """Returns "fromarray", "transpose" or "int" for a name that means this function; None for others."""
        match node:
            case ast.Name(name) if name not in self._known:
                value = self._globals.get(name, getattr(builtins, name, None))
            case ast.Attribute(ast.Name(module), name) if module not in self._known and module != self._self_name:
                value = getattr(self._globals.get(module), name, None)
            case ast.Attribute(ast.Attribute(ast.Name(package), module), name) if package not in self._known:
                value = getattr(getattr(self._globals.get(package), module, None), name, None)
            case _:
                return None
        if value is int:
            return "int"
        if value is np.transpose:
            return "transpose"
        pillow = sys.modules.get("PIL.Image")
        if pillow is not None and value is pillow.fromarray:
            return "fromarray"
        return None

    def _is_array(self, name: str) -> bool:
        return isinstance(self._value(name), np.ndarray)

    def _is_mode(self, row: _Row, mode: str) -> bool:
        """True for the mode that `Image.fromarray` gives an image of such a row: "L" for grey rows, else "RGB"."""
        return mode == ("L" if self._is_grey(row) else "RGB")

    def _is_grey(self, row: _Row) -> bool:
        return getattr(self._value(row.name), "ndim", 0) == 3

    def _attribute(self, node: ast.expr) -> str:
        """Returns the name of an attribute that is stored in the dataset itself."""
        match node:
            case ast.Attribute(ast.Name(owner), name) if owner == self._self_name and name in vars(self._dataset):
                if not hasattr(getattr(type(self._dataset), name, None), "__get__"):
                    return name
        raise _NotUnderstood

    def _value(self, name: str) -> Any:
        return vars(self._dataset)[name]


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _NotUnderstood from None
