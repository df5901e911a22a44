"""Worker processes that end, and batches that cannot be sent: an error within seconds, and nothing waits for ever.

torch learns of a worker's end by a signal, whose handler raises in the training thread wherever that is: also in the
middle of a batch of another worker, which was then lost and waited for.  So a message is read as a whole first, and
unpacked while such an error waits.  What a worker cannot send (no room in /dev/shm, no descriptors left) was dropped by
the queue's own thread; an error is sent in its place.

Life cycle of the thread that reads the rest of a message, once a worker process has ended; any deviation is a bug: it
reads one message and ends; if that never comes, it is left, as a daemon, with a queue that nobody reads any more.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, reduction
from typing import Any

from torch._utils import ExceptionWrapper

from fastdata.errors import PipelineError
from fastdata.patches.worker_process import read_sources, send_errors_of_queues, wrap_excepthook

__all__ = ["Receiver", "TakeCare"]

_SETTLE_S = 1.0  # after an error of the way here, until the process that it came from is known to have ended
_REST_S = 5.0  # for the rest of a message, once a worker has ended
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


# ---- in the training process


class Receiver:
    """The queue of batches as torch's iterator reads it.

    Args:
        inner: torch's queue.
        iterator: torch's, which knows which of its worker processes are to be alive.
    """

    def __init__(self, inner: Any, iterator: Any) -> None:
        self._inner, self._iterator = inner, weakref.ref(iterator)
        self._unpacked: list[Any] = []  # received, but an error was to be raised first
        self._broken = ""
        self._ended: list[int] = []  # process numbers of workers that were to be alive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def empty(self) -> bool:
        """True if nothing can be received at once."""
        return not self._unpacked and bool(self._inner.empty())

    def get_nowait(self) -> Any:
        """Calls `get` without waiting."""
        return self.get(timeout=0)

    def get(self, timeout: float | None = None) -> Any:
        """The next message.

        Raises:
            queue.Empty: none came in time.
            PipelineError: one came whose tensors cannot be fetched, because a limit of the system is reached.
            RuntimeError: a worker has ended in the middle of one, so that nothing more can be received.
        """
        if self._unpacked:
            return self._unpacked.pop()
        if self._broken:
            raise RuntimeError(self._broken)
        message = self._read(timeout)
        try:
            with _workers_ends_wait() as late:
                data = reduction.ForkingPickler.loads(message)
        except BaseException as error:
            self._note_lost(error)
            raise
        if late:
            self._has_lost_one()
            self._unpacked.append(data)
            late[0]()  # raises
            return self._unpacked.pop()
        return data

    def _read(self, timeout: float | None) -> bytes:
        inner = self._inner
        if not inner._rlock.acquire(timeout=timeout):
            raise queue.Empty
        try:
            patience = timeout
            if self._has_lost_one():  # which may have the queue's lock; torch would look in five seconds
                patience = _SETTLE_S if timeout is None else min(timeout, _SETTLE_S)
            if not inner._poll(patience):
                self._check_can_be_sent()
                raise queue.Empty
            try:
                message: bytes = self._rest_of_message() if self._has_lost_one() else inner._recv_bytes()
            except BaseException as error:
                self._wait_for_an_end()
                self._broken = f"a batch was received in part only ({error!r}); iterate the loader anew"
                raise
        finally:
            inner._rlock.release()
        inner._sem.release()
        return message

    def _has_lost_one(self) -> bool:
        """True if a worker process has ended that was to be alive; those that came to the end of a stream were not.

        torch may have given up one that it was told of before; such a one has another exit status than 0.
        """
        iterator = self._iterator()
        if iterator is not None:
            pairs = zip(iterator._workers, iterator._workers_status, strict=True)
            ended = [(each, lives) for each, lives in pairs if not each.is_alive()]
            self._ended += [each.pid for each, lives in ended if lives or each.exitcode]
        return bool(self._ended)

    def _note_lost(self, error: BaseException) -> None:
        """A message was taken that cannot be unpacked; whoever waited for it later would wait for ever."""
        if isinstance(error, ConnectionError | EOFError | FileNotFoundError):
            self._wait_for_an_end()
        if self._has_lost_one():  # torch leaves out the batches of a worker that has ended
            return
        self._broken = f"a batch was received that cannot be unpacked ({error!r}); iterate the loader anew"
        if isinstance(error, OSError | EOFError):
            raise PipelineError(f"a batch could not be received from a worker process: {_remedy(error)}") from error

    def _wait_for_an_end(self) -> None:
        """Lets the system tell that a process has ended with which there is no connection any more."""
        until = time.monotonic() + _SETTLE_S
        while not self._has_lost_one() and time.monotonic() < until:
            time.sleep(0.01)

    def _rest_of_message(self) -> bytes:
        """A message that a process may have begun and not ended."""
        found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=lambda: found.put(self._inner._recv_bytes()), daemon=True).start()
        try:
            return found.get(timeout=_REST_S)
        except queue.Empty:
            raise RuntimeError(self._told()) from None

    def _check_can_be_sent(self) -> None:
        """Raises if a process that has ended still has the queue's lock, so that the others wait for it."""
        lock = self._inner._wlock  # Windows has none
        if lock is None or not self._has_lost_one():
            return
        if lock.acquire(timeout=_SETTLE_S):
            lock.release()
        elif not self._inner._reader.poll(0):
            self._broken = self._told()
            raise RuntimeError(self._broken)

    def _told(self) -> str:
        pids = ", ".join(map(str, dict.fromkeys(self._ended)))
        return (
            f"DataLoader worker (pid(s) {pids}) ended while it sent a batch, so those of the others cannot be received "
            "either; iterate the loader anew"
        )


@contextmanager
def _workers_ends_wait() -> Iterator[list[Callable[[], None]]]:
    """Delays errors about ended workers until the block is left; yields the list of functions that then raise them."""
    late: list[Callable[[], None]] = []
    number: int = getattr(signal, "SIGCHLD", 0)
    handler = signal.getsignal(number) if number else None
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield late  # handlers run in the main thread only
        return
    own: Any = handler
    signal.signal(number, lambda *arguments: late.append(lambda: own(*arguments)))
    try:
        yield late
    finally:
        signal.signal(number, own)


# ---- in a worker process


# Descriptors to give up once there are no others: what was sent before is fetched by connections to this process.
_SPARE = 16
_spare: list[int] = []


class TakeCare:
    """A worker_init_fn, made where worker processes are started.

    Args:
        own: the user's, or one that calls it; called behind this one.
    """

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own
        read_sources()
        in_main = threading.current_thread() is threading.main_thread()
        self._training = os.getpid()
        self._starter = self._training if in_main else 0  # Linux's signal comes with the end of the thread that forks

    def __call__(self, worker: int) -> None:
        """Has a batch that cannot be sent become an error, and this process end with the training process."""
        send_errors_of_queues(_send_the_reason)
        with suppress(OSError):
            _spare.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE))
        wrap_excepthook(_retry_with_spare)
        _end_with_the_training_process(self._training, self._starter)
        if self._own is not None:
            self._own(worker)


def _give_up_spare() -> None:
    while _spare:
        os.close(_spare.pop())


def _retry_with_spare(hook: Callable[..., Any], kind: Any, error: Any, trace: Any) -> None:
    """An excepthook: the thread from which shared tensors are fetched calls it, and tries again.

    It would do so for ever without a descriptor for the connection, and the training process would wait for it.
    """
    if _spare and isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        _give_up_spare()
    else:
        hook(kind, error, trace)


def _send_the_reason(sender: Any, error: Exception, message: Any) -> None:
    """Sends the error in place of a batch that could not be sent; called by the thread that sends."""
    if not (isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], int)):
        import traceback

        traceback.print_exception(error)  # as multiprocessing does: a queue of the user's
        return
    _give_up_spare()
    reason = PipelineError(f"a batch could not be sent to the training process: {_remedy(error)}")
    reason.__cause__ = error
    info = type(reason), reason, error.__traceback__
    wrapped = ExceptionWrapper(info, where="while a batch was sent")  # type: ignore[no-untyped-call]
    sender.put((message[0], wrapped))


def _remedy(error: Exception) -> str:
    """Describes an error and its remedy by the system limit that was reached; for any other error, only the error."""
    told = str(error).splitlines()[0] if str(error) else type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.ENOMEM) or "No space left" in told or "allocate" in told:
        return (
            f"no room in shared memory ({told}); {_shared_memory()}give it more room (docker run --shm-size=8g, or "
            "mount -o remount,size=8g /dev/shm), or keep fewer batches in it (batch_size, num_workers, prefetch_factor)"
        )
    no_connection = isinstance(error, ConnectionError | EOFError)  # the process at its other end has none left
    if no_connection or number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in told:
        return (
            f"no file descriptors are left ({told}); allow more (ulimit -n 65536), or call "
            "torch.multiprocessing.set_sharing_strategy('file_system') first"
        )
    return f"{type(error).__name__}: {told}"


def _shared_memory() -> str:
    with suppress(OSError, AttributeError):
        found = os.statvfs("/dev/shm")
        return f"/dev/shm has {found.f_blocks * found.f_frsize / 1e6:,.1f} MB; "
    return ""


def _end_with_the_training_process(training: int, starter: int) -> None:
    """Ends this process as soon as the training process ends, however that does.

    Linux kills it, where the training process is its parent; else a thread waits for the end of the training process.
    torch looks every five seconds for another parent.  A process of the start method forkserver never gets one, and one
    that began to look after the training process had ended does not either.

    Args:
        training: id of the training process.
        starter: the same, if its main thread has started this process; 0 if another thread has.
    """
    if sys.platform.startswith("linux") and os.getppid() == starter and _killed_with_its_parent():
        if os.getppid() != starter:  # it ended meanwhile
            os._exit(1)
        return
    parent = multiprocessing.parent_process()
    ends: list[Any] = [parent.sentinel] if parent is not None else []
    with suppress(OSError, AttributeError):  # a pipe has no end while a process that was forked since holds it open
        ends.append(os.pidfd_open(training))  # Linux
    if ends:
        threading.Thread(target=_end_behind, args=(ends,), name="fastdata-end", daemon=True).start()


def _killed_with_its_parent() -> bool:
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def _end_behind(ends: list[Any]) -> None:
    connection.wait(ends)
    os._exit(1)
