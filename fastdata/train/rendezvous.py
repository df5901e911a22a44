"""The rendezvous: all ranks meet at the store of rank 0 within a time limit, or each says for whom it waited.

torch retries its connection, so that it waits twice the limit or longer, and does not say which ranks are missing.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from fastdata.errors import OptionError, TrainError

__all__ = ["meet"]

_RETRY_S = 0.1
_FAREWELL_S = 0.5  # in which the other ranks see that rank 0's time is over
_CONNECT_S = 2.0  # for one attempt, so that a host that drops packets at first is tried again


def meet(rank: int, world_size: int, timeout_s: float) -> Store:
    """A store that all ranks have joined; its address is MASTER_ADDR and MASTER_PORT, as torchrun sets them.

    Raises:
        OptionError: the address is missing or is not one.
        TrainError: a rank did not come within the time.
    """
    until = time.monotonic() + timeout_s
    host, port = _address()
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's own process has the store
    where = f"rank {rank} of {world_size} waited {timeout_s:g} s"
    advice = (
        "see whether it was killed or failed, and whether WORLD_SIZE, MASTER_ADDR and MASTER_PORT are the same "
        "everywhere; then start all ranks again (--timeout-s sets how long they wait)"
    )
    serves = rank == 0 and not agent_serves
    if not serves and (problem := _unreachable(host, port, until)) is not None:
        owner = "torchrun" if agent_serves else "rank 0"
        raise TrainError(f"{where} for {owner} at {host}:{port}, which did not answer ({problem}); {advice}")
    try:
        # Attempts of torchrun may share a store, and would find each other's keys.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"fastdata/{attempt}", _store(host, port, world_size, serves, until))
        missing = _missing(store, rank, world_size, until)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise TrainError(
            f"rank {rank} of {world_size} could not join the others at {host}:{port}: {first}; {advice}"
        ) from error
    if missing:
        named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise TrainError(f"{where} at {host}:{port} for {named}, which did not come; {advice}")
    return store


def _address() -> tuple[str, int]:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise OptionError(
            f"WORLD_SIZE={os.environ.get('WORLD_SIZE')} is set, but {' and '.join(missing)} not; start with "
            "torchrun, or set MASTER_ADDR and MASTER_PORT to an address of rank 0 that is free"
        )
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"MASTER_PORT={port!r} is not a port; set a number from 1 to 65535")
    return host, int(port)


def _unreachable(host: str, port: int, until: float) -> str | None:
    """Connects until it succeeds or the time is over; the last problem then."""
    while True:
        left = until - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(_RETRY_S, min(left, _CONNECT_S))).close()
        except OSError as error:
            if time.monotonic() + _RETRY_S >= until:
                return str(error)
            time.sleep(_RETRY_S)
        else:
            return None


def _store(host: str, port: int, world_size: int, serves: bool, until: float) -> TCPStore:
    return TCPStore(
        host,
        port,
        world_size,
        is_master=serves,
        timeout=_left(until),
        wait_for_workers=False,
        multi_tenant=serves,
        use_libuv=os.environ.get("USE_LIBUV", "0" if sys.platform == "win32" else "1") == "1",
    )


def _missing(store: Store, rank: int, world_size: int, until: float) -> list[int]:
    """Ranks that have not come when the time is over, here or on rank 0, with which the store ends."""
    store.set(f"joined/{rank}", "")
    keys = [f"joined/{each}" for each in range(world_size)]
    while missing := [each for each, key in enumerate(keys) if not store.check([key])]:
        if rank == 0 and time.monotonic() >= until:
            store.set("over", "")
            time.sleep(_FAREWELL_S)
            return missing
        if time.monotonic() >= until or store.check(["over"]):
            return missing
        time.sleep(_RETRY_S)
    return []


def _left(until: float) -> timedelta:
    return timedelta(seconds=max(1.0, until - time.monotonic()))
