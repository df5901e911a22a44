"""Everything fastdata raises on purpose.

    FastdataError
    ├── OptionError         (ValueError)         an argument has a value that cannot work
    ├── DatasetError        (FileNotFoundError)  a folder is missing, empty, or holds no images
    ├── DecodeError         (OSError)            one sample could not be decoded
    │   ├── ReadError                            its bytes could not be read
    │   └── ViewError       (ValueError)         it is smaller than the crop that the transform takes
    ├── BackendError        (RuntimeError)       a decode backend broke its contract
    │   └── BackendUnavailable (ImportError)     its library is not installed or not usable
    ├── ShardError          (OSError)            a shard, its index or its manifest is damaged or of another version
    ├── ConversionError     (OSError)            a conversion to shards cannot begin or go on
    ├── StoreError          (ConnectionError)    a remote store does not answer, or returns wrong data
    │   └── NotInStore                           it has no such file
    ├── PipelineError       (RuntimeError)       the pipeline timed out or was used after a fork
    │   └── NoLabel         (TypeError)          a sample of a batch has no label
    ├── TrainError          (RuntimeError)       a training run cannot go on
    └── StateMismatch       (ValueError)         a saved state belongs to something else

NotAccelerated and SamplesSkipped are warnings (UserWarning).

Each class is also the builtin that PyTorch or torchvision would have raised in its place, so existing
``except OSError`` and ``except ValueError`` clauses go on working.  A DecodeError is also an instance of what the
reader or decoder raised: of FileNotFoundError where a file is missing, of PIL.UnidentifiedImageError where it is no
image.  Every message says what was wrong, what was given, what is accepted, where, and what to do next.
"""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "ConversionError",
    "DatasetError",
    "DecodeError",
    "FastdataError",
    "NoLabel",
    "NotAccelerated",
    "NotInStore",
    "OptionError",
    "PipelineError",
    "SamplesSkipped",
    "ShardError",
    "StateMismatch",
    "StoreError",
    "TrainError",
]


class FastdataError(Exception):
    """Base class of every error fastdata raises on purpose."""


class NotAccelerated(UserWarning):
    """A loader of images works no faster than torch's; the text says why, and what would help.

    Given once in a process.  To silence it: ``warnings.simplefilter("ignore", fastdata.NotAccelerated)``.
    """


class SamplesSkipped(UserWarning):
    """Samples of an epoch could not be decoded and were left out (on_error="skip"); the text says how many, and why.

    Given at the end of each such epoch.  ``loader.stats()["quarantine"]`` has the samples.
    """


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
        reason: message of the reader or decoder.
    """

    problem = "could not be decoded by backend '{backend}'"
    remedy = "Repair or remove the file"

    def __init__(self, *, index: int, location: str, backend: str, reason: str) -> None:
        self.index, self.location, self.backend, self.reason = index, location, backend, reason
        super().__init__(
            f"sample {index} ({location}) {self.problem.format(backend=backend)}: {reason.rstrip('.')}. "
            f"{self.remedy}, or pass on_error='skip' or on_error='replace' to fastdata's DataLoader."
        )

    @classmethod
    def because(cls, reason: Exception, *, index: int, location: str, backend: str) -> DecodeError:
        """An error that is also caught as its reason, which it is raised from.

        Args:
            reason: error that the reader or decoder raised.
            index: position of the sample in the dataset.
            location: source of the sample's bytes.
            backend: backend that refused it.
        """
        made: type[DecodeError] = _also(cls, type(reason))  # type: ignore[arg-type]
        error = made(index=index, location=location, backend=backend, reason=in_words(reason))
        if isinstance(reason, OSError):
            error.errno, error.filename = reason.errno, reason.filename
        error.__cause__ = reason
        return error

    def __str__(self) -> str:
        return str(self.args[0])  # with an errno, OSError would say something of its own

    def __reduce__(self) -> tuple[object, ...]:
        kinds: Any = getattr(self, "_kinds", (type(self), type(self)))
        state = {"errno": self.errno, "filename": self.filename}
        return _rebuild_decode_error, (*kinds, self.index, self.location, self.backend, self.reason), state


class ReadError(DecodeError):
    """The bytes of one sample could not be read, or their checksum is wrong."""

    problem = "could not be read"
    remedy = (
        "Check that the file exists and is readable (a damaged shard must be copied again; "
        "fastdata verify lists the damage)"
    )


class DamagedOnDevice(DecodeError):
    """A record or an index is not what it says, as the GPU has found, of a sample in a batch that was delivered."""

    problem = "was decoded wrongly on the GPU, in a batch that was delivered already"

    def __init__(self, *, index: int, location: str, backend: str = "native", reason: str = "") -> None:
        super().__init__(index=index, location=location, backend=backend, reason=reason)
        self.args = (
            f"sample {index} ({location}) {self.problem}: its record, or its index, has the right checksum, and is not "
            "what it says. Convert the dataset, or make its index, anew; decode_device='cpu' reads such images safely",
        )


class ViewError(DecodeError, ValueError):
    """The transform cannot be applied to one sample: a random crop is larger than the image."""

    problem = "does not fit the transform"
    remedy = "Pad or resize before the step that needs more pixels, or take a smaller size there"


class FieldError(DecodeError, ValueError):
    """A sample in a shard does not have a field, or the field is not what its extension says."""

    problem = "has not every field that was asked for"
    remedy = "Ask for other fields or convert the samples again"


@cache  # so that the same two make the same class
def _also(cls: type[DecodeError], reason: type[Exception]) -> type[DecodeError]:
    """The class, as one that is caught as `reason`, too; itself where Python cannot combine the two."""
    if issubclass(cls, reason):
        return cls
    try:
        made = type(cls.__name__, (cls, reason), {"_kinds": (cls, reason), "__doc__": cls.__doc__})
        made(index=0, location="", backend="", reason="")
    except TypeError:  # both keep data of their own, as SyntaxError and OSError do
        return cls
    made.__module__ = cls.__module__
    return made


def _rebuild_decode_error(
    cls: type[DecodeError], kind: type[Exception], index: int, location: str, backend: str, reason: str
) -> DecodeError:
    made: type[DecodeError] = _also(cls, kind)  # type: ignore[arg-type]
    return made(index=index, location=location, backend=backend, reason=reason)


class BackendError(FastdataError, RuntimeError):
    """A decode backend broke its contract, or none could be chosen."""


class BackendUnavailable(BackendError, ImportError):
    """A decode backend's library is missing or unusable; the message says what to install."""


class ShardError(FastdataError, OSError):
    """A shard, its index or its manifest is damaged, cut short, or of another version.

    Attributes:
        shard: the file.
        problem: description of the problem.
        offset: position in the shard in bytes, if that is known.
    """

    def __init__(
        self, shard: str, problem: str, *, offset: int | None = None, expected: object = None, found: object = None
    ) -> None:
        self.shard, self.problem, self.offset = shard, problem, offset
        self._comparison = (expected, found)
        place = f" at byte {offset}" if offset is not None else ""
        details = [f"expected {expected}"] if expected is not None else []
        details += [f"found {found}"] if found is not None else []
        super().__init__(f"{shard}: {problem}{place}{': ' if details else ''}{', '.join(details)}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_shard_error, (self.shard, self.problem, self.offset, *self._comparison)


def _rebuild_shard_error(shard: str, problem: str, offset: int | None, expected: object, found: object) -> ShardError:
    return ShardError(shard, problem, offset=offset, expected=expected, found=found)


class ConversionError(FastdataError, OSError):
    """A conversion to shards cannot begin or go on; what has been written stays, and running it again continues."""


class StoreError(FastdataError, ConnectionError):
    """A remote store does not answer, or returns other data than was stored."""


class NotInStore(StoreError):
    """A remote store has no such file."""


class PipelineError(FastdataError, RuntimeError):
    """The pipeline timed out, or an iterator was used in a process that does not own it."""


class NoLabel(PipelineError, TypeError):
    """A sample of a batch has no label, so that the batch's labels cannot be one tensor."""


class TrainError(FastdataError, RuntimeError):
    """A training run cannot go on: another process has died, or the loss is NaN."""


class StateMismatch(FastdataError, ValueError):
    """A saved loader state belongs to another dataset, seed or format version."""


def in_words(reason: Exception) -> str:
    """Message of a library's error, without the Python object that only the library's caller has seen."""
    text = str(reason) or type(reason).__name__
    return "not an image that Pillow can identify" if text.startswith("cannot identify image file <") else text
