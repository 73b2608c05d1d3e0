"""A call into a client that may never return, made on a thread of its own so that its caller can go on without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class NeverReturned(Exception):
    """The call has not returned in time; it may be waiting for ever."""


class _Call:
    """One call and what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._running = threading.Lock()  # cheaper than an event
        self._running.acquire()
        self.error: BaseException | None = None

    def make(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error
        finally:
            self._running.release()

    def wait(self, timeout_s: float) -> bool:
        return self._running.acquire(timeout=timeout_s)


class CallThread:
    """Makes calls one after another. The thread starts with the first call; one that is stuck is left behind, and never keeps the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], object], timeout_s: float) -> None:
        """Make a call and wait for its end; what it raises is raised.

        Raises:
            NeverReturned: not within `timeout_s`; this object must not be used again.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        made = _Call(call)
        self._todo.put(made)
        if not made.wait(timeout_s):
            raise NeverReturned(f"{self._name}: no return within {timeout_s:g} s")
        if made.error is not None:
            raise made.error

    def _work(self) -> None:
        while (call := self._todo.get()) is not None:
            call.make()

    def close(self) -> None:
        """End the thread once it is free."""
        self._todo.put(None)
