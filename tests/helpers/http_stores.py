"""A store of shards over real HTTP, which notes what is asked of it and does wrong what it is told to."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Store = tuple[str, list[str], list[Any]]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers the first requests as `wrong` says, by a status or by a function; then as it should."""

    asked: list[str]
    wrong: list[Any]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self._answer(super().do_GET)

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def _answer(self, rightly: Callable[[], None]) -> None:
        wrong = self.wrong.pop(0) if self.wrong else None
        if isinstance(wrong, int):
            self.send_error(wrong)
        elif wrong is not None:
            wrong(self)
        else:
            rightly()

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def store_of(folder: Path) -> Iterator[Store]:
    """Serves a folder: its address, what was asked of it, and what it will do wrong."""
    asked: list[str] = []
    wrong: list[Any] = []
    kind = type("Own", (Handler,), {"asked": asked, "wrong": wrong})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(folder))) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", asked, wrong
        running.shutdown()
        thread.join()
