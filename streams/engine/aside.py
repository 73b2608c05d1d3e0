"""Questions to the broker that nobody waits for: asked beside the loop, so that a slow answer never stops its polling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from schemas.errors import LogUnavailable

_T = TypeVar("_T")


class Asked(Generic[_T]):
    """A question on its way, and its answer or error once it is over."""

    def __init__(self, question: Callable[[], _T]) -> None:
        self._question = question
        self._answer: _T | None = None
        self._error: BaseException | None = None
        self.is_over = False

    def find_out(self) -> None:
        """For whoever asks."""
        try:
            self._answer = self._question()
        except BaseException as error:
            self._error = error
        self.is_over = True

    def answer(self) -> _T:
        """The answer; what asking raised is raised."""
        assert self.is_over
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value] # None only where it is the answer

    def answer_or(self, unknown: _T) -> _T:
        """The answer; `unknown` where the log did not answer."""
        return unknown if isinstance(self._error, LogUnavailable) else self.answer()


class Aside(Protocol):
    """Asks."""

    def ask(self, question: Callable[[], _T]) -> Asked[_T]:
        """Ask soon; look at `is_over` now and then."""

    def wait(self, seconds: float) -> bool:
        """For a question: wait before the next part of it. False: there is no waiting here."""

    def close(self) -> None:
        """Ask nothing more."""


class AsideThread:
    """Asks one question after another on a thread of its own; it starts with the first, and never keeps the process."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def ask(self, question: Callable[[], _T]) -> Asked[_T]:
        """Ask as soon as those before it are over."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kawait-aside", daemon=True)
            self._thread.start()
        asked = Asked(question)
        self._todo.put(asked.find_out)
        return asked

    def _work(self) -> None:
        while (find_out := self._todo.get()) is not None:
            find_out()

    def wait(self, seconds: float) -> bool:
        """Wait, unless nothing more is asked."""
        return not self._closing.wait(seconds)

    def close(self) -> None:
        """End the thread once it is free."""
        self._closing.set()
        self._todo.put(None)


class AtOnce:
    """Asks on the caller's thread: on the log in memory nothing is slow, and a test has one thread."""

    def ask(self, question: Callable[[], _T]) -> Asked[_T]:
        """Ask now."""
        asked = Asked(question)
        asked.find_out()
        return asked

    def wait(self, seconds: float) -> bool:
        """Nobody waits on the caller's thread."""
        del seconds
        return False

    def close(self) -> None:
        """Nothing to end."""
