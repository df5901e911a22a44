"""Everything fastdata raises on purpose.

    FastdataError
    ├── OptionError         (ValueError)         an argument has a value that cannot work
    ├── DatasetError        (FileNotFoundError)  a folder is missing, empty, or holds no images
    ├── DecodeError         (OSError)            one sample could not be decoded
    │   ├── ReadError                            its bytes could not be read
    │   └── ViewError       (ValueError)         it is smaller than the crop that the transform takes
    ├── BackendError        (RuntimeError)       a decode backend broke its contract
    │   └── BackendUnavailable (ImportError)     its library is not installed or not usable
    ├── PipelineError       (RuntimeError)       the pipeline timed out or was used after a fork
    └── StateMismatch       (ValueError)         a saved state belongs to something else

Each class is also the builtin that PyTorch or torchvision would have raised in its place, so existing
``except OSError`` and ``except ValueError`` clauses go on working.  Every message says what was wrong, what was
given, what is accepted, where, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "DatasetError",
    "DecodeError",
    "FastdataError",
    "OptionError",
    "PipelineError",
    "StateMismatch",
]


class FastdataError(Exception):
    """Base class of every error fastdata raises on purpose."""


class OptionError(FastdataError, ValueError):
    """An argument has a value that cannot work; the message names the accepted ones."""


class DatasetError(FastdataError, FileNotFoundError):
    """A dataset folder is missing, empty, or holds no file with an accepted extension."""


class DecodeError(FastdataError, OSError):
    """One sample could not be read or decoded.

    Attributes:
        index: position of the sample in the dataset.
        location: file (and offset, where there is one) the bytes came from.
        backend: name of the decode backend that refused it.
        reason: what the reader or decoder said.
    """

    problem = "could not be decoded by backend '{backend}'"

    def __init__(self, *, index: int, location: str, backend: str, reason: str) -> None:
        self.index, self.location, self.backend, self.reason = index, location, backend, reason
        super().__init__(
            f"sample {index} ({location}) {self.problem.format(backend=backend)}: {reason}. "
            "Repair or remove the file, or pass on_error='skip' or on_error='replace' to DataLoader."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_decode_error, (type(self), self.index, self.location, self.backend, self.reason)


class ReadError(DecodeError):
    """The bytes of one sample could not be read."""

    problem = "could not be read"


class ViewError(DecodeError, ValueError):
    """The transform cannot be applied to one sample: a random crop is larger than the image."""

    problem = "does not fit the transform"


def _rebuild_decode_error(cls: type[DecodeError], index: int, location: str, backend: str, reason: str) -> DecodeError:
    return cls(index=index, location=location, backend=backend, reason=reason)


class BackendError(FastdataError, RuntimeError):
    """A decode backend broke its contract, or none could be chosen."""


class BackendUnavailable(BackendError, ImportError):
    """A decode backend's library is missing or unusable; the message says what to install."""


class PipelineError(FastdataError, RuntimeError):
    """The pipeline timed out, or an iterator was used in a process that does not own it."""


class StateMismatch(FastdataError, ValueError):
    """A saved loader state belongs to another dataset, seed or format version."""
