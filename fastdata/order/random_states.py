"""The states of random generators: the global ones of torch, Python and NumPy, a sampler's and a loader's own."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastdata.errors import StateMismatch
from fastdata.order.sampler_chain import generator_of, samplers_in
from fastdata.system import cuda

__all__ = [
    "CANNOT_BE_STATES",
    "GlobalStates",
    "random_state",
    "seed_anew",
    "set_generators",
    "set_random_state",
    "set_states_of",
    "states_of",
]


CANNOT_BE_STATES = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError)


# ---- of one piece of code, which draws from the global generators


@dataclass
class GlobalStates:
    """States of the three global generators; `drawing` lends them to a piece of code.

    Attributes:
        torch_state: result of torch.get_rng_state().
        python_state: result of random.getstate().
        numpy_state: result of numpy.random.get_state(legacy=False).
    """

    torch_state: torch.Tensor
    python_state: Any
    numpy_state: Any

    @classmethod
    def now(cls) -> GlobalStates:
        """Returns the present states."""
        return cls(torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False))

    @classmethod
    def of_seed(cls, seed: int) -> GlobalStates:
        """States of the three generators after seeding them with `seed`."""
        numpys = np.random.RandomState(seed % 2**32).get_state(legacy=False)
        return cls(torch.Generator().manual_seed(seed).get_state(), random.Random(seed).getstate(), numpys)

    @classmethod
    def of(cls, torchs: torch.Generator, python: random.Random, numpy: np.random.RandomState) -> GlobalStates:
        """Returns the present states of other generators than the global ones."""
        return cls(torchs.get_state(), python.getstate(), numpy.get_state(legacy=False))

    def give_to(self, torchs: torch.Generator, python: random.Random, numpy: np.random.RandomState) -> None:
        """Makes these the states of other generators."""
        torchs.set_state(self.torch_state)
        python.setstate(self.python_state)
        numpy.set_state(self.numpy_state)

    def put_back(self) -> None:
        """Makes these the states of the global generators."""
        torch.set_rng_state(self.torch_state)
        random.setstate(self.python_state)
        np.random.set_state(self.numpy_state)

    def put_back_where_unchanged(self, since: GlobalStates) -> None:
        """Makes these the states of those global generators that nobody has used or seeded since then."""
        now = GlobalStates.now()
        if torch.equal(now.torch_state, since.torch_state):
            torch.set_rng_state(self.torch_state)
        if now.python_state == since.python_state:
            random.setstate(self.python_state)
        if encoded(now.numpy_state) == encoded(since.numpy_state):
            np.random.set_state(self.numpy_state)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Lends these states to global draws inside the block, which advance them; then restores the global states."""
        outside = GlobalStates.now()
        self.put_back()
        try:
            yield
        finally:
            vars(self).update(vars(GlobalStates.now()))
            outside.put_back()

    def after_a_draw(self, generator: torch.Generator | None) -> GlobalStates:
        """The states after torch's iterator has drawn its base seed; nothing changes if it draws from `generator`."""
        if generator is not None:
            return self
        moved = torch.Generator()
        moved.set_state(self.torch_state)
        torch.empty((), dtype=torch.int64).random_(generator=moved)
        return replace(self, torch_state=moved.get_state())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GlobalStates)
            and torch.equal(self.torch_state, other.torch_state)
            and self.python_state == other.python_state
            and encoded(self.numpy_state) == encoded(other.numpy_state)
        )

    def to_json(self) -> list[Any]:
        """Returns the states as plain values."""
        return [encoded(each) for each in (self.torch_state, self.python_state, self.numpy_state)]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> GlobalStates:
        """Reads what `to_json` wrote.

        Raises:
            StateMismatch: it is something else.
        """
        generators = torch.Generator(), random.Random(), np.random.RandomState()
        try:
            set_states_of(generators, values)  # which refuses what the global ones would
        except CANNOT_BE_STATES as error:
            raise StateMismatch(f"the state's recorded generators cannot be read ({error}); was it edited?") from error
        torchs, pythons, numpys = map(decoded, values)
        return cls(torchs, pythons, numpys)


def encoded(value: Any) -> Any:
    """A generator's state as plain values; arrays and tuples are marked."""
    if isinstance(value, torch.Tensor):
        return {"tensor": base64.b64encode(value.numpy().tobytes()).decode()}
    if isinstance(value, np.ndarray):
        return {"array": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str}
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, tuple) and len(value) > 100:  # Python's: numbers of 32 bits
        return {"words": base64.b64encode(np.array(value, np.uint32).tobytes()).decode()}
    if isinstance(value, tuple):
        return {"tuple": [encoded(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": {name: encoded(each) for name, each in value.items()}}
    return value


def decoded(value: Any) -> Any:
    """Generator state from the plain values that `encoded` returned."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.frombuffer(bytearray(base64.b64decode(value["tensor"])), dtype=torch.uint8)
    if "array" in value:
        return np.frombuffer(base64.b64decode(value["array"]), np.dtype(value["dtype"])).copy()
    if "words" in value:
        return tuple(np.frombuffer(base64.b64decode(value["words"]), np.uint32).tolist())
    if "tuple" in value:
        return tuple(map(decoded, value["tuple"]))
    return {name: decoded(each) for name, each in value["dict"].items()}


# ---- of generators that somebody has


def states_of(generators: Sequence[Any]) -> list[Any]:
    """The states of torch's, Python's and NumPy's generator objects, as plain values."""
    return [encoded(_state_of(each)) for each in generators]


def set_states_of(generators: Sequence[Any], states: Sequence[Any]) -> None:
    """Puts back what `states_of` gave for as many generators of the same kinds; else one of `CANNOT_BE_STATES`."""
    for generator, state in zip(generators, map(decoded, states), strict=True):
        if isinstance(generator, torch.Generator):
            generator.set_state(state)
        elif isinstance(generator, random.Random):
            generator.setstate(state)
        else:
            _check_place(state)
            if isinstance(generator, np.random.RandomState):
                generator.set_state(state)
            else:
                generator.bit_generator.state = state


def _check_place(state: dict[str, Any]) -> None:
    """Checks the place among the words of MT19937, since NumPy takes any number and reads there."""
    inner = state["state"]
    if "pos" in inner and not 0 <= inner["pos"] <= len(inner["key"]):
        raise ValueError(f"place {inner['pos']} among {len(inner['key'])} words")


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


# ---- of a training run


def random_state(loader: Any, device: torch.device) -> dict[str, Any]:
    """The state of every generator that this process draws from: torch's, Python's, NumPy's, and the loader's own."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "loader": [generator.get_state() for generator in _generators(loader)],
    }
    if device.type == "cuda":
        state["cuda"] = cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Puts back what `random_state` gave, but for the loader's own generators."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in state and device.type == "cuda":
        cuda.set_rng_state(state["cuda"], device)


def set_generators(state: dict[str, Any], loader: Any) -> None:
    """Puts back the loader's own generators, before its iterator is made."""
    for generator, own in zip(_generators(loader), state["loader"], strict=False):
        generator.set_state(own)


def seed_anew(seed: int) -> None:
    """Seeds all that `set_random_state` would have set."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators(loader: Any) -> list[torch.Generator]:
    """Generators of the loader and its samplers, from the outside in; each once."""
    found = filter(None, map(generator_of, samplers_in(loader)))
    return list({id(generator): generator for generator in found}.values())
