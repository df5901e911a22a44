"""Recognises user callables that only call known transforms, as classes that make several views do.

    class TwoViews:
        def __call__(self, image):
            return [self.transform(image) for _ in range(2)]

The source code shows this: it only builds lists and tuples of the results of known transforms, so nobody could see
where, or in which process, it runs.  If the source holds anything else, the reading stops, and the callable runs where
torch would run it.  The code is only read, never run, for this.
"""

from __future__ import annotations

import ast
import inspect
from types import FunctionType
from typing import Any

import torch

from fastdata.sources.array_code import method_body
from fastdata.transforms.known import holds_only_known

__all__ = ["only_calls_known_transforms"]


def only_calls_known_transforms(step: object) -> bool:
    """True if calling an object of the user's class with an image only calls known transforms with it."""
    function = inspect.getattr_static(type(step), "__call__", None)
    plain_attributes = inspect.getattr_static(type(step), "__getattribute__", None) is object.__getattribute__
    if type(function) is not FunctionType or not plain_attributes or isinstance(step, torch.nn.Module):
        return False
    if hasattr(type(step), "__getattr__") or (body := method_body(function)) is None:
        return False
    own, image = function.__code__.co_varnames[:2]
    try:
        _Reader(step, function, own, image).block(body)
    except _NotUnderstood:
        return False
    return True


class _NotUnderstood(Exception):
    """Raised to stop the reading."""


_TRANSFORM, _VALUE, _LIST = "a known transform", "an image, or what a transform made of it", "a list that is built here"


class _Reader:
    """Reads the statements of a `__call__` and tracks the kind of value that each name holds.

    Args:
        step: the object.
        function: its `__call__`.
        own: name of the object there, usually "self".
        image: name of its argument.
    """

    def __init__(self, step: object, function: FunctionType, own: str, image: str) -> None:
        self._step, self._own = step, own
        self._builtins = {name: name not in function.__globals__ for name in ("range", "list", "tuple")}
        self._has_torch = function.__globals__.get("torch") is torch
        self._names = {image: _VALUE}

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Return) and node.value is not None:
            self._value(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            is_list = isinstance(node.value, ast.List)
            self._value(node.value)
            self._bind(node.targets[0], _LIST if is_list else _VALUE)
        elif isinstance(node, ast.For) and not node.orelse:
            self._loop(node.target, node.iter)
            self.block(node.body)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._append(node.value)
        else:
            raise _NotUnderstood

    def _append(self, call: ast.Call) -> None:
        """Accepts ``crops.append(self.transform(image))`` on a list that is built here."""
        func = call.func
        is_append = isinstance(func, ast.Attribute) and func.attr == "append" and isinstance(func.value, ast.Name)
        if not is_append or self._names.get(func.value.id) != _LIST:  # type: ignore[attr-defined]
            raise _NotUnderstood
        self._value(self._only_argument(call))

    def _bind(self, target: ast.expr, kind: str) -> None:
        if not isinstance(target, ast.Name) or target.id == self._own:
            raise _NotUnderstood
        self._names[target.id] = kind

    def _loop(self, target: ast.expr, over: ast.expr) -> None:
        """Accepts loops over ``range(n)``, or over an attribute that is a list of known transforms."""
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range":
            count = self._only_argument(over)
            number = count.value if isinstance(count, ast.Constant) else self._attribute(count)
            if not self._builtins["range"] or type(number) is not int:
                raise _NotUnderstood
            self._bind(target, "a number")
            return
        each = self._attribute(over)
        if type(each) not in (list, tuple) or not all(map(holds_only_known, each)):
            raise _NotUnderstood
        self._bind(target, _TRANSFORM)

    def _value(self, node: ast.expr) -> None:
        """Accepts images, lists and tuples of images, and calls of known transforms."""
        if isinstance(node, ast.Name):
            if self._names.get(node.id) not in (_VALUE, _LIST):
                raise _NotUnderstood
        elif isinstance(node, ast.List | ast.Tuple):
            for each in node.elts:
                self._value(each)
        elif isinstance(node, ast.ListComp) and len(node.generators) == 1:
            (generator,) = node.generators
            if generator.ifs or generator.is_async:
                raise _NotUnderstood
            self._loop(generator.target, generator.iter)
            self._value(node.elt)
        elif isinstance(node, ast.Call):
            self._call(node)
        else:
            raise _NotUnderstood

    def _call(self, call: ast.Call) -> None:
        func, argument = call.func, self._only_argument(call)
        if isinstance(func, ast.Name):
            if self._names.get(func.id) != _TRANSFORM and not (func.id != "range" and self._builtins.get(func.id)):
                raise _NotUnderstood
        elif not self._is_stack(func) and not holds_only_known(self._attribute(func)):
            raise _NotUnderstood
        self._value(argument)

    def _is_stack(self, func: ast.expr) -> bool:
        is_torchs = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "torch"
        return is_torchs and self._has_torch and func.attr == "stack"  # type: ignore[attr-defined]

    def _only_argument(self, call: ast.Call) -> ast.expr:
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            raise _NotUnderstood
        return call.args[0]

    def _attribute(self, node: ast.expr) -> Any:
        """Returns the current value of ``self.name``."""
        is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self._own
        if not is_own or node.attr not in vars(self._step):  # type: ignore[attr-defined]
            raise _NotUnderstood
        return vars(self._step)[node.attr]  # type: ignore[attr-defined]
