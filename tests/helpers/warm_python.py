"""Python programs in processes that need not import torch: they are forked from one that has.

To import torch, its compiler (which every optimiser imports) and torchvision takes longer than most of the programs
that tests run.  `run_python` does what `subprocess.run([sys.executable, *arguments])` does, but for what
happens before a program's first line: it is no test of an interpreter's start, of imports, or of a terminal.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

__all__ = ["run_python"]

_IMPORTED = ("torch", "torch._dynamo", "torchvision", "numpy", "PIL.Image")
_LONGEST_REQUEST = 1 << 20
_servers: dict[int, socket.socket] = {}  # by process: one that was forked starts a server of its own


def run_python(
    arguments: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 150,
) -> subprocess.CompletedProcess[str]:
    """Runs a program, given as Python's command line takes it: a path, "-c" and code, or "-m" and a module.

    Returns:
        Exit status (negative: the signal that ended it), standard output and standard error.

    Raises:
        TimeoutExpired: the program took longer than `timeout` seconds, and was killed.
    """
    command = [str(each) for each in arguments]
    if sys.platform != "linux":
        return subprocess.run(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout, check=False,
        )  # fmt: skip
    channel = _server()
    request = {"command": command, "cwd": os.fspath(cwd or Path.cwd()), "env": dict(os.environ if env is None else env)}
    with TemporaryFile() as out, TemporaryFile() as errors:
        try:
            channel.settimeout(None)
            socket.send_fds(channel, [json.dumps(request).encode()], [out.fileno(), errors.fileno()])
            pid = int(channel.recv(100))
            channel.settimeout(timeout)
            status = int(channel.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            channel.settimeout(None)
            channel.recv(100)
            raise subprocess.TimeoutExpired(command, timeout, _text(out), _text(errors)) from None
        except BaseException:  # interrupted: the next answer would be of this request
            _servers.pop(os.getpid()).close()
            raise
        return subprocess.CompletedProcess(command, status, _text(out), _without_leaks(_text(errors)))


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _without_leaks(errors: str) -> str:
    """Leaves out what a library says in the end about objects that the server has kept from collection."""
    theirs = ("nanobind: ", " - leaked ", " - ... skipped remainder", "See https://nanobind.")
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith(theirs))


def _server() -> socket.socket:
    """The connection to this process's server, which ends when the connection does."""
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # NumPy's import starts none then
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=one_thread)
        theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_REQUEST)
        _servers[os.getpid()] = ours
        atexit.register(lambda: (ours.close(), process.wait()))
    return _servers[os.getpid()]


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Forks for each request, and returns the request in the forked process."""
    for name in _IMPORTED:
        with suppress(ModuleNotFoundError):  # of packages that tests can do without
            importlib.import_module(name)
    gc.freeze()  # forks copy no page because of what is collected
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    while True:
        message, files, _, _ = socket.recv_fds(channel, _LONGEST_REQUEST, 2)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            channel.close()
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            return dict(json.loads(message))
        for file in files:
            os.close(file)
        channel.send(str(child).encode())
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _become(request: dict[str, Any]) -> None:
    """Takes over what Python's start would have set."""
    import numpy as np
    import torch

    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    more = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place not in before]
    sys.path[:] = [*more, *sys.path[1:]]  # without the folder of this file
    sys.orig_argv = [sys.executable, *request["command"]]
    np.random.seed()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))


def _run(command: list[str]) -> None:
    """Runs the program as the main module of this process."""
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    if command[0] == "-c":
        sys.argv, name, source = ["-c", *command[2:]], "<string>", command[1]
        sys.path.insert(0, "")
    else:
        sys.argv, name, source = command, command[0], Path(command[0]).read_text()
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        main.__file__ = name
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec"), main.__dict__)


if __name__ == "__main__":
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(asked)
    _run(asked["command"])
