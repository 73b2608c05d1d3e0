"""A pool that runs its jobs on the thread of the test, when the test says."""

from __future__ import annotations

from collections import deque

from streams.clock import ManualClock
from streams.engine.pool import Done, Finished, Job, Ticket


class InlinePool:
    """A pool that runs jobs on the calling thread, when asked: as submitted, or held back until `run_one`."""

    def __init__(self, clock: ManualClock, *, held: bool = False) -> None:
        self._clock = clock
        self.held = held
        self.jobs: deque[tuple[Ticket, Job]] = deque()
        self._done: list[Finished] = []

    def submit(self, owner: object, job: Job, done: Done, *, limit_s: float) -> None:
        """Queue a job."""
        self.jobs.append((Ticket(owner, done, self._clock, limit_s), job))

    def run_one(self, index: int = 0) -> None:
        """Run one waiting job."""
        ticket, job = self.jobs[index]
        del self.jobs[index]
        try:
            result, error = job(ticket), None
        except Exception as raised:
            result, error = None, raised
        self._done.append(Finished(ticket.owner, ticket.done, result, error))

    def take(self) -> list[Finished]:
        """Results since the last call."""
        while self.jobs and not self.held:
            self.run_one()
        done, self._done = self._done, []
        return done

    @property
    def is_busy(self) -> bool:
        """Whether a result is still to come."""
        return bool(self.jobs or self._done)

    def forget(self, owner: object) -> None:
        """Drop an owner's jobs and results."""
        self.jobs = deque((ticket, job) for ticket, job in self.jobs if ticket.owner is not owner)
        self._done = [finished for finished in self._done if finished.owner is not owner]

    def close(self) -> None:
        """Drop everything."""
        self.jobs.clear()
        self._done.clear()
