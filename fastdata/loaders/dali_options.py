"""Options for the DALI backend; apart from dali.py, so that the package works without that file."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.errors import OptionError

__all__ = ["DaliOptions"]


@dataclass(frozen=True, kw_only=True)
class DaliOptions:
    """Options for the DALI backend.

    Attributes:
        threads: DALI's own threads; None takes `num_workers`, at least one.
        prefetch: batches in flight inside DALI, at least one.
        hw_decoder_load: share of a batch, 0 to 1, for the hardware JPEG decoder of GPUs that have one.
    """

    threads: int | None = None
    prefetch: int = 2
    hw_decoder_load: float = 0.65

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads={self.threads}; DALI needs at least one, or None for num_workers")
        if self.prefetch < 1:
            raise OptionError(f"prefetch={self.prefetch}; at least one batch must be in flight")
        if not 0 <= self.hw_decoder_load <= 1:
            raise OptionError(f"hw_decoder_load={self.hw_decoder_load} is not a share between 0 and 1")
