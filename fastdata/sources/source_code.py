"""The statements of a method, from its source code.

The source code is used only if it compiles to exactly the code that the class has.  So it is not used if the file was
edited after the import, or the function was replaced.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

__all__ = ["method_body", "name_of_function"]


def name_of_function(function: FunctionType) -> tuple[str, str]:
    """The module in which a function was written, and its qualified name; decorators may copy others' to it."""
    return str(function.__globals__.get("__name__")), function.__qualname__


def method_body(function: FunctionType) -> list[ast.stmt] | None:
    """Returns the statements of a method with one argument besides `self`; None if they cannot be known.

    That is so if it has other parameters, defaults or a closure (but for `super`), or if its source code is missing or
    is not what runs.
    """
    code = function.__code__
    flags = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
    if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & (flags | inspect.CO_ASYNC_GENERATOR):
        return None
    if function.__defaults__ or set(code.co_freevars) - {"__class__"}:
        return None
    return _body_of(code)


@lru_cache(maxsize=64)
def _body_of(code: CodeType) -> list[ast.stmt] | None:
    """The statements of a function's code, which is compared with its source code once."""
    try:
        module = ast.parse("".join(inspect.findsource(code)[0]))
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
