"""A fused transform, which replaces a transform of the user's dataset while the loader makes samples.

It applies the transform's compiled plan to an image, with views drawn by (seed, epoch, sample).  An image that is still
encoded stays so if the plan permits: the result is then a pending tensor, or another encoded image.  Pixels that an
image already has are transformed at once.  Attributes are read from and set on the original transform, and the plan is
compiled again as soon as a setting of the transform has changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

from fastdata.lazy.follow_trial import follows_its_own_code
from fastdata.lazy.fused_steps import Fused, runs_of
from fastdata.lazy.sample_context import context
from fastdata.transforms.compile import compile_steps, flatten
from fastdata.transforms.following import FollowedSteps
from fastdata.transforms.settings import TransformSnapshot
from fastdata.views.plan import Plan

__all__ = ["FusedTransform", "fused_transform", "plan_of"]

_OWN = ("_fastdata", "_made")  # attributes of the fused transform itself; all others are its original's
# Special methods, which Python looks for in the class: forwarded where the transform's class has them.
_SPECIAL = (
    "__add__",
    "__contains__",
    "__delitem__",
    "__dir__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__setitem__",
)


def plan_of(transform: Callable[..., Any], *, follow: bool = False) -> Plan | None:
    """Compiles the leading steps of a transform that can be fused.

    A plan that fuses none is of a transform whose first steps cannot be fused, but some behind them; None if no step
    can.
    """
    return _plan_of_steps(flatten(transform), follow)


def _plan_of_steps(steps: Sequence[Callable[[Any], Any]], follow: bool) -> Plan | None:
    plan = compile_steps(steps, ends_with_pil=True, follow=follow).plan
    if plan is None or (follow and not follows_its_own_code(steps, plan)):
        if len(steps) == 1:
            return None
        plan = Plan(unfused=tuple(steps), following=FollowedSteps() if follow else None)
    plan = replace(plan, runs=runs_of(plan.unfused, follow=follow, agrees=follows_its_own_code))
    return plan if plan.fused or plan.behind else None


def fused_transform(transform: Callable[..., Any], *, follow: bool = False) -> FusedTransform:
    """Makes the fused transform that replaces a transform.

    Args:
        transform: the user's transform.
        follow: it draws from the global generators what the transform's own code would draw.
    """
    cls: type = type(transform)
    return _class_for(cls)(transform, follow=follow)


class _StandsForTransform(type):
    """The metaclass of fused transforms: equal to the transform's class, and found where that is.

    Programs look classes up in dictionaries: ``{RandomHorizontalFlip: "flip"}[type(transform)]``.
    """

    def __eq__(cls, other: object) -> bool:
        return other is cls or (other is not None and other is vars(cls).get("_users_class"))

    def __hash__(cls) -> int:
        return hash(vars(cls).get("_users_class")) if "_users_class" in vars(cls) else super().__hash__()


class FusedTransform(metaclass=_StandsForTransform):
    """A proxy of the user's transform: attributes, repr, ==, hash, isinstance are the original's; only calling differs.

    Args:
        transform: the user's transform.
        follow: see `fused_transform`.
    """

    __slots__ = ("__weakref__", "_fastdata", "_made")

    _fastdata: tuple[Callable[..., Any], bool]  # the original transform, and follow
    _made: tuple[TransformSnapshot, Fused | None]  # compiled from the transform, with a snapshot of it at that time
    _users_class: type  # the original transform's class

    def __new__(cls, *args: Any, follow: bool | None = None, **kwargs: Any) -> Any:
        """Creates a fused transform if `follow` is given, else an object of the user's class.

        User code that calls ``type(self.transform)(...)`` comes here, since that is the fused transform's class.
        """
        return object.__new__(cls) if follow is not None else cls._users_class(*args, **kwargs)

    def __init__(self, transform: Callable[..., Any], *, follow: bool) -> None:
        object.__setattr__(self, "_fastdata", (transform, follow))
        object.__setattr__(self, "_made", _compiled(*self._fastdata))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._fastdata[0])

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return vars(self._fastdata[0])

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # asked for before __init__, as copy and pickle may: else an endless recursion
            raise AttributeError(name)
        return getattr(self._fastdata[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._fastdata[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._fastdata[0], name)

    def __repr__(self) -> str:
        return repr(self._fastdata[0])

    def __eq__(self, other: object) -> bool:
        return bool(self._fastdata[0] == (other._fastdata[0] if issubclass(type(other), FusedTransform) else other))  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._fastdata[0])

    def __bool__(self) -> bool:
        return bool(self._fastdata[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, self._fastdata

    def __copy__(self) -> FusedTransform:
        return _rebuilt(copy.copy(self._fastdata[0]), *self._fastdata[1:])

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedTransform:
        return _rebuilt(*copy.deepcopy(self._fastdata, memo))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the transform's result; a pending tensor if the image is still encoded and a tensor is wanted."""
        transform, _ = self._fastdata
        own = context.fused_transforms.get(id(transform), transform)
        if own is not self:  # it is here for the loader of another thread, or of a sample around this one
            return own(*args, **kwargs)
        snapshot, fused = self._made
        if not snapshot.is_current():
            snapshot, fused = made = _compiled(*self._fastdata)
            object.__setattr__(self, "_made", made)
        if len(args) != 1 or kwargs:
            context.notes.joint += 1
        elif fused is None:
            context.notes.plain.add("none of its steps can be fused as it is now")
        elif (draw := context.next_draw(draws=fused.draws)) is not None:
            return fused(args[0], draw)
        return transform(*args, **kwargs)


def _compiled(transform: Callable[..., Any], follow: bool) -> tuple[TransformSnapshot, Fused | None]:
    """Compiles a transform; its snapshot is taken first, so that a change meanwhile is noticed at the next call."""
    snapshot, steps = TransformSnapshot(transform), flatten(transform)
    plan = _plan_of_steps(steps, follow)
    return snapshot, None if plan is None else Fused(steps, plan, agrees=follows_its_own_code)


@cache
def _class_for(cls: type) -> type[FusedTransform]:
    """Returns the class of fused transforms that replace instances of `cls`, with `cls`'s special methods."""

    def forwarded(name: str) -> Callable[..., Any]:
        def call(self: FusedTransform, *args: Any) -> Any:
            return getattr(self._fastdata[0], name)(*args)

        call.__name__ = name
        return call

    own: dict[str, Any] = {name: forwarded(name) for name in _SPECIAL if hasattr(cls, name)}
    own.update(__slots__=(), __module__=cls.__module__, __qualname__=cls.__qualname__, __doc__=cls.__doc__)
    made = _StandsForTransform(cls.__name__, (FusedTransform,), {**own, "_users_class": cls})
    return cast("type[FusedTransform]", made)


def _rebuilt(transform: Callable[..., Any], follow: bool) -> FusedTransform:
    """Makes a copied or unpickled fused transform from its copy of the original; pickle needs a function."""
    return fused_transform(transform, follow=follow)
