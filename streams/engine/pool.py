"""The worker pool: where the author's functions run, away from the loop that polls the log (DESIGN 6).

A job is a callable that takes its `Ticket`. Its end comes back through `take`: the loop calls `done` with it, on its own thread. A job that overstays its time limit
is given up: `take` reports it as `CallTimeout`, its late result is dropped, and another thread takes the place of the one it still holds
(a Python thread cannot be stopped; a function that never returns keeps its thread until the process ends).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from schemas.errors import CallTimeout
from streams.clock import Clock

Done = Callable[[Any, BaseException | None], None]
"""Takes the result of a job, or its error, on the loop's thread."""


class Ticket:
    """One job on its way: its time limit, and whether somebody still wants it."""

    __slots__ = ("_clock", "abandoned", "deadline_s", "done", "limit_s", "owner")

    def __init__(self, owner: object, done: Done, clock: Clock, limit_s: float) -> None:
        self.owner = owner
        self.done = done
        self.limit_s = limit_s
        self.abandoned = False
        self.deadline_s: float | None = None
        self._clock = clock

    def restart_limit(self) -> None:
        """Begin a new call within the job: the limit counts from now."""
        self.deadline_s = self._clock.monotonic_s() + self.limit_s

    def is_overdue(self, now_s: float) -> bool:
        """Whether the current call has taken too long."""
        return self.deadline_s is not None and now_s > self.deadline_s


class Finished(NamedTuple):
    """The end of a job: whose it was, who takes it, and its result or the error it raised."""

    owner: object
    done: Done
    result: Any
    error: BaseException | None


Job = Callable[[Ticket], Any]
"""What runs on a thread of the pool."""


class Pool(Protocol):
    """Runs jobs; `streams.testing.driver` has one that runs them when the test says."""

    def submit(self, owner: object, job: Job, done: Done, *, limit_s: float) -> None:
        """Run `job` soon; `take` hands its end out together with `done`. `limit_s` bounds each call in it."""

    def take(self) -> list[Finished]:
        """Results since the last call, overdue jobs among them."""

    @property
    def is_busy(self) -> bool:
        """Whether a result is still to come."""

    def forget(self, owner: object) -> None:
        """Drop the results of an owner's jobs; they still run to their end."""

    def close(self) -> None:
        """Take no more jobs; running ones are given up."""


class ThreadPool:
    """A pool of daemon threads, so that a function that never returns cannot keep the process alive."""

    def __init__(self, threads: int, clock: Clock) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[tuple[Ticket, Job] | None] = SimpleQueue()
        self._done: deque[tuple[Ticket, Any, BaseException | None]] = deque()
        self._outstanding: set[Ticket] = set()
        self._threads = threads
        for _ in range(threads):
            self._start_thread()

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="kawait-pool", daemon=True).start()

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            ticket, job = work
            ticket.restart_limit()
            try:
                result, error = (None if ticket.abandoned else job(ticket)), None
            except BaseException as raised:
                result, error = None, raised
            self._done.append((ticket, result, error))
            if ticket.abandoned:  # a replacement was started for this thread
                return

    def submit(self, owner: object, job: Job, done: Done, *, limit_s: float) -> None:
        """Run `job` soon."""
        ticket = Ticket(owner, done, self._clock, limit_s)
        self._outstanding.add(ticket)
        self._jobs.put((ticket, job))

    def take(self) -> list[Finished]:
        """Results since the last call, overdue jobs among them."""
        finished: list[Finished] = []
        while self._done:
            ticket, result, error = self._done.popleft()
            if ticket in self._outstanding:
                self._outstanding.discard(ticket)
                finished.append(Finished(ticket.owner, ticket.done, result, error))
        now_s = self._clock.monotonic_s()
        for ticket in [ticket for ticket in self._outstanding if ticket.is_overdue(now_s)]:
            ticket.abandoned = True
            self._outstanding.discard(ticket)
            self._start_thread()
            late = CallTimeout(f"no result within {ticket.limit_s:g} s (callTimeout)")
            finished.append(Finished(ticket.owner, ticket.done, None, late))
        return finished

    @property
    def is_busy(self) -> bool:
        """Whether a result is still to come."""
        return bool(self._outstanding)

    def forget(self, owner: object) -> None:
        """Drop the results of an owner's jobs."""
        self._outstanding = {ticket for ticket in self._outstanding if ticket.owner is not owner}

    def close(self) -> None:
        """End the threads once they are free."""
        self._outstanding.clear()
        for _ in range(self._threads):
            self._jobs.put(None)
