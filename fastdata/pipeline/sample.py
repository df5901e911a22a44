"""A sample of a batch that has been read, and the error of one that could not be loaded."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.errors import DecodeError
from fastdata.loaders import Encoded

__all__ = ["Failure", "Sample"]


@dataclass(frozen=True)
class Sample:
    """A sample that has been read: where it goes in the batch, which it is, what it looks like."""

    position: int
    index: int
    occurrence: int
    image: Encoded


class Failure:
    """Error of one sample, and the sample's position in the batch; `take` returns the error and lets go of it.

    The error's cause refers to frames of ImageBatch, and they refer to the failure.  This cycle would keep the
    pipeline's threads alive.
    """

    def __init__(self, position: int, error: DecodeError) -> None:
        self.position = position
        self._error: DecodeError | None = error

    def take(self) -> DecodeError:
        """The error; may be called once."""
        error, self._error = self._error, None
        assert error is not None
        return error
