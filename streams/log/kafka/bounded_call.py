"""A call into a client that takes a while and may never return, made on a thread of its own so that its caller can go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class NeverReturned(Exception):
    """The call has not returned in time; it may be waiting for ever."""


class Call:
    """One call under way, and what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._running = threading.Lock()  # cheaper than an event
        self._running.acquire()
        self.error: BaseException | None = None

    def make(self) -> None:
        """For the thread."""
        try:
            self._call()
        except BaseException as error:
            self.error = error
        finally:
            self._running.release()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, once; what it raised is raised.

        Raises:
            NeverReturned: not within `timeout_s`; its thread must not be used again.
        """
        if not self._running.acquire(timeout=timeout_s):
            raise NeverReturned(f"no return within {timeout_s:g} s")
        if self.error is not None:
            raise self.error


class CallThread:
    """Makes calls one after another. The thread starts with the first call; one that is stuck is left behind, and never keeps the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, call: Callable[[], object]) -> Call:
        """Make a call; `join` what is returned."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        made = Call(call)
        self._todo.put(made)
        return made

    def _work(self) -> None:
        while (call := self._todo.get()) is not None:
            call.make()

    def close(self) -> None:
        """End the thread once it is free."""
        self._todo.put(None)
