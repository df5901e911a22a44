"""Reads the code of a dataset's `__getitem__`, to recognise datasets that give out the rows of an array of images.

Most datasets that keep their images in memory work as torchvision's do: a row of the array becomes a PIL image, a
transform is called on it, and a label is returned with it.  Others are made of such: a subclass that returns the index
as well, some samples of another dataset, a copy with a transform of its own.  This is found by following the names in
the source code of `__getitem__`, and of those that it calls; no code of it is run, but values of the dataset's
attributes are looked at.  If the code holds anything else, the reading stops, and the dataset's own code makes its
samples.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from fastdata.sources.array_sample import (
    LISTS,
    PILLOWS,
    ArrayImage,
    Attribute,
    Form,
    Label,
    Place,
    Row,
    SampleCode,
    Trace,
    is_list_of_images,
    is_plain_tensor,
    may_be_indices,
)
from fastdata.sources.source_code import method_body, name_of_function

__all__ = ["read_sample"]

_DEEPEST = 8  # calls of one `__getitem__` by another

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, int], Any]] = {
    ast.Add: operator.add,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
}
# Names of torchvision's attributes, by the module and the qualified name of __getitem__: axes, data, targets, and if
# targets become integers.
_TORCHVISIONS = {
    ("torchvision.datasets.cifar", "CIFAR10.__getitem__"): ("NHWC", "data", "targets", False),
    ("torchvision.datasets.mnist", "MNIST.__getitem__"): ("NHW", "data", "targets", True),
    ("torchvision.datasets.stl10", "STL10.__getitem__"): ("NCHW", "data", "labels", True),
    ("torchvision.datasets.svhn", "SVHN.__getitem__"): ("NCHW", "data", "labels", True),
    ("torchvision.datasets.usps", "USPS.__getitem__"): ("NHW", "data", "targets", True),
}


def read_sample(dataset: Any) -> SampleCode | None:
    """Reads how a dataset makes its samples; returns None if it does anything that is not understood.

    torchvision's classes are known by the names of their functions, so torchvision is not imported.
    """
    trace = Trace()
    try:
        returned = _sample_of(dataset, Place(), trace)
        parts = list(returned.values()) if isinstance(returned, dict) else returned
        if not isinstance(parts, tuple | list) or len(parts) < 2:
            raise _NotUnderstood
        images = [at for at, part in enumerate(parts) if isinstance(part, ArrayImage)]
        if len(images) != 1:
            raise _NotUnderstood
        labels = tuple(_as_label(part) for part in parts if not isinstance(part, ArrayImage))
    except _NotUnderstood:
        return None
    (at,) = images
    is_pair = at == 0 and len(parts) == 2 and not isinstance(returned, dict)
    form = None if is_pair else Form(at, tuple(returned) if isinstance(returned, dict) else None)
    code = SampleCode(parts[at], labels, form)
    return code if trace.is_all_in(code) else None


class _NotUnderstood(Exception):
    """Raised to stop the reading."""


def _as_label(value: Any) -> Label:
    if isinstance(value, Label):
        return value
    if not isinstance(value, Place) and not (isinstance(value, Row) and not (value.moved or value.as_array)):
        raise _NotUnderstood
    return Label(value)


def _sample_of(dataset: Any, at: Place, trace: Trace) -> Any:
    """Returns the symbolic value of the sample at a place, without calling anything.

    Symbolic values are `Place`, `Attribute`, `Row`, `ArrayImage`, `Label`, and tuples, lists and dictionaries of them.
    """
    if type(dataset) is Subset and "__getitems__" not in vars(dataset):
        if not may_be_indices(dataset.indices):
            raise _NotUnderstood
        return _sample_of(dataset.dataset, at.through(dataset.indices), trace)
    if hasattr(dataset, "__getitems__"):  # as torch asks
        raise _NotUnderstood
    return _returned(dataset, inspect.getattr_static(type(dataset), "__getitem__", None), at, trace)


def _returned(dataset: Any, function: Any, at: Place, trace: Trace) -> Any:
    """The symbolic value of one function `__getitem__`, of a dataset's class or of one that it inherits from."""
    if type(function) is not FunctionType:
        raise _NotUnderstood
    known = None if hasattr(function, "__wrapped__") else _TORCHVISIONS.get(name_of_function(function))
    if known is not None:
        axes, data, targets, as_int = known
        image = ArrayImage(Row(Attribute(dataset, data), at), axes, Attribute(dataset, "transform"))
        target = Row(Attribute(dataset, targets), at, as_int)
        called = getattr(dataset, "transform", None), getattr(dataset, "target_transform", None)
        for row, transform in zip((image.row, target), called, strict=True):
            trace.note_row(row.of, row.at)
            if transform is not None:
                trace.note_call()
        return image, Label(target, transform=called[1])
    plain_attributes = inspect.getattr_static(type(dataset), "__getattribute__", None) is object.__getattribute__
    trace.depth += 1
    body = method_body(function) if plain_attributes and trace.depth <= _DEEPEST else None
    if body is None:
        raise _NotUnderstood
    return _Reader(dataset, function, at, trace).run(body)


class _Reader:
    """Reads one `__getitem__` and tracks the symbolic value of each name."""

    def __init__(self, dataset: Any, function: FunctionType, at: Place, trace: Trace) -> None:
        self._dataset, self._function, self._trace = dataset, function, trace
        self._locals = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        self._self_name, index = function.__code__.co_varnames[:2]
        self._known: dict[str, Any] = {index: at}

    # ---- statements

    def run(self, body: Sequence[ast.stmt]) -> Any:
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
                    returned = self.run(then if self._holds(test) else otherwise)
                    if returned is not None:
                        return returned
                case _:
                    raise _NotUnderstood
        return None

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name) if name != self._self_name:
                self._known[name] = value
            case ast.Tuple(targets) if isinstance(value, tuple | list) and len(targets) == len(value):
                for each, part in zip(targets, value, strict=True):
                    self._assign(each, part)
            case _:
                raise _NotUnderstood

    def _holds(self, test: ast.expr) -> bool:
        """Evaluates `self.x is None`, `self.x is not None` or `self.x` with the attribute's current value.

        Other tests are not understood, nor is `self.x` alone if a class of its own says whether it is true.
        """
        match test:
            case ast.Compare(value, [ast.IsNot() | ast.Is() as how], [ast.Constant(None)]):
                is_none = self._attribute(value).value is None
                return is_none if isinstance(how, ast.Is) else not is_none
            case ast.Attribute():
                value = self._attribute(test).value
                if value is None or type(value) is bool:
                    return bool(value)
                if hasattr(type(value), "__bool__") or hasattr(type(value), "__len__"):
                    raise _NotUnderstood
                return True
        raise _NotUnderstood

    # ---- expressions

    def _read(self, node: ast.expr) -> Any:
        """Returns the symbolic value of an expression."""
        match node:
            case ast.Name(name) if name in self._known:
                return self._known[name]
            case ast.Attribute(ast.Name(), _):
                return self._attribute(node)
            case ast.Tuple(parts):
                return tuple(map(self._read, parts))
            case ast.List(parts):
                return list(map(self._read, parts))
            case ast.Dict(keys, parts) if all(isinstance(key, ast.Constant) for key in keys):
                return {_constant(key): self._read(part) for key, part in zip(keys, parts, strict=True)}  # type: ignore[arg-type]
            case ast.Subscript(value, place):
                return self._subscript(self._read(value), place)
            case ast.Call(function, arguments, keywords):
                return self._called(function, arguments, keywords)
            case ast.IfExp(test, then, otherwise):
                return self._read(then if self._holds(test) else otherwise)
            case ast.BinOp(left, operation, ast.Constant(int(number))) if type(operation) in _ARITHMETIC:
                return self._computed(self._read(left), _ARITHMETIC[type(operation)], number)
        raise _NotUnderstood

    def _computed(self, value: Any, operation: Callable[[Any, int], Any], number: int) -> Label:
        """Returns the symbolic result of arithmetic with an integer, such as `index % 10`."""
        label = _as_label(value)
        if label.transform is not None or label.is_tensor:
            raise _NotUnderstood
        return replace(label, arithmetic=(*label.arithmetic, (operation, number)))

    def _subscript(self, value: Any, place: ast.expr) -> Any:
        match (value, place):
            case (tuple() | list(), ast.Constant(int(part))) if part < len(value):
                return value[part]
            case (dict(), ast.Constant(part)) if part in value:
                return value[part]
            case (Attribute(), _):
                return self._looked_up(value, self._read(place))
        raise _NotUnderstood

    def _looked_up(self, attribute: Attribute, at: Any) -> Any:
        """Returns the symbolic value of an attribute's row, or of its sample if it is a dataset."""
        if isinstance(at, Row) and not (at.moved or at.as_array) and may_be_indices(at.of.value):
            at = at.at.through(at.of.value, as_int=at.as_int)
        if not isinstance(at, Place):
            raise _NotUnderstood
        value = attribute.value
        if type(value) not in (*LISTS, np.memmap):
            return _sample_of(value, at, self._trace)
        self._trace.note_row(attribute, at)
        return ArrayImage(Row(attribute, at), PILLOWS) if is_list_of_images(value) else Row(attribute, at)

    def _called(self, function: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        """Returns the symbolic value of a call's result."""
        if (inherited := self._inherited(function, arguments)) is not None and not keywords:
            at = self._read(arguments[-1])
            if not isinstance(at, Place):
                raise _NotUnderstood
            return _returned(self._dataset, inherited, at, self._trace)
        known = self._known_function(function)
        if known is not None:
            value = self._read(arguments[0]) if arguments else None
            more = [_constant(each) for each in arguments[1:]] + [_constant(each.value) for each in keywords]
            return self._result(known, value, more, [each.arg for each in keywords])
        if not isinstance(function, ast.Attribute) or keywords:
            raise _NotUnderstood
        if isinstance(function.value, ast.Name) and function.value.id == self._self_name:
            return self._transformed(self._attribute(function), [self._read(each) for each in arguments])
        match (self._read(function.value), function.attr, [_constant(each) for each in arguments]):
            case (Row() as row, "transpose", [(1, 2, 0)] | [1, 2, 0]) if _is_plain(row) and _is_array(row):
                return replace(row, moved=True)
            case (Row() as row, "numpy", []) if _is_plain(row) and is_plain_tensor(row.of.value):
                return replace(row, as_array=True)
            case (ArrayImage(transform=None) as image, "convert", [str() as mode]) if mode == _mode(image.row):
                return image
            case (ArrayImage(transform=None) as image, "copy", []):
                return image
        raise _NotUnderstood

    def _result(self, known: str, value: Any, more: list[Any], named: list[str | None]) -> Any:
        """Returns the symbolic result of a known function: its first argument, the others, and names among these."""
        match (known, value, more, named):
            case ("int", Row(moved=False, as_array=False) as row, [], []):
                return replace(row, as_int=True)
            case ("transpose", Row() as row, [(1, 2, 0)], [] | ["axes"]) if _is_plain(row) and _is_array(row):
                return replace(row, moved=True)
            case ("fromarray", Row(as_int=False) as row, [], []) if row.as_array or _is_array(row):
                return ArrayImage(row, _axes(row))
            case ("fromarray", Row(as_int=False) as row, [str() as mode], [] | ["mode"]) if mode == _mode(row):
                return self._result(known, row, [], [])
            case ("tensor", ArrayImage(transform=Attribute()), [], []):
                return value  # a copy, of the tensor that the transform has made
            case ("tensor", Label() | Row() | Place(), [], []):
                return replace(_as_label(value), is_tensor=True)
        raise _NotUnderstood

    def _inherited(self, function: ast.expr, arguments: list[ast.expr]) -> Any:
        """The function of `super().__getitem__` or of another class by its name; None for other functions."""
        classes = type(self._dataset).__mro__
        own = next((cls for cls in classes if vars(cls).get("__getitem__") is self._function), None)
        match (function, arguments):
            case (ast.Attribute(ast.Call(ast.Name("super"), given, []), "__getitem__"), [_]):
                is_own = not given or (self._global(given[0]) is own and _is_name(given[1:], self._self_name))
                if own is None or not is_own or self._globals.get("super", super) is not super:
                    raise _NotUnderstood
                later = classes[classes.index(own) + 1 :]
            case (ast.Attribute(cls, "__getitem__"), [ast.Name(name), _]) if name == self._self_name:
                other = self._global(cls)
                later = other.__mro__ if isinstance(other, type) and issubclass(type(self._dataset), other) else ()
            case _:
                return None
        return next((vars(cls)["__getitem__"] for cls in later if "__getitem__" in vars(cls)), None)

    def _transformed(self, function: Attribute, arguments: list[Any]) -> Any:
        """Returns the symbolic result of calling an attribute, as a transform of an image or of a target."""
        match arguments:
            case [ArrayImage(transform=None) as image]:
                self._trace.note_call()
                return replace(image, transform=function)
            case [(Row() | Place() | Label(transform=None, is_tensor=False)) as target]:
                self._trace.note_call()
                return replace(_as_label(target), transform=function.value)
        raise _NotUnderstood

    @property
    def _globals(self) -> dict[str, Any]:
        return self._function.__globals__

    def _global(self, node: ast.expr) -> Any:
        """Returns the value of a global name, or of an attribute of a module; None for others."""
        match node:
            case ast.Name(name) if name not in self._locals:
                return self._globals.get(name, getattr(builtins, name, None))
            case ast.Attribute(owner, name):
                module = self._global(owner)
                return getattr(module, name, None) if inspect.ismodule(module) else None
        return None

    def _known_function(self, node: ast.expr) -> str | None:
        """Returns "fromarray", "transpose", "tensor" or "int" for what means this function; None for others."""
        value = self._global(node)
        if value is int:
            return "int"
        if value is np.transpose:
            return "transpose"
        if value is torch.tensor:
            return "tensor"
        pillow = sys.modules.get("PIL.Image")
        if pillow is not None and value is pillow.fromarray:
            return "fromarray"
        return None

    def _attribute(self, node: ast.expr) -> Attribute:
        """Returns an attribute that is stored in the dataset itself."""
        match node:
            case ast.Attribute(ast.Name(owner), name) if owner == self._self_name and name in getattr(
                self._dataset, "__dict__", ()
            ):
                if not hasattr(getattr(type(self._dataset), name, None), "__get__"):
                    return Attribute(self._dataset, name)
        raise _NotUnderstood


def _is_name(nodes: Sequence[ast.expr], name: str) -> bool:
    """True for one node, that is a name."""
    return len(nodes) == 1 and isinstance(nodes[0], ast.Name) and nodes[0].id == name


def _is_plain(row: Row) -> bool:
    return not (row.moved or row.as_int or row.as_array)


def _is_array(row: Row) -> bool:
    return isinstance(row.of.value, np.ndarray)


def _is_grey(row: Row) -> bool:
    return getattr(row.of.value, "ndim", 0) == 3


def _axes(row: Row) -> str:
    return "NCHW" if row.moved else "NHW" if _is_grey(row) else "NHWC"


def _mode(row: Row) -> str:
    """The mode that `Image.fromarray` gives an image of such a row: "L" for grey rows, else "RGB"."""
    return "L" if _is_grey(row) else "RGB"


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _NotUnderstood from None
