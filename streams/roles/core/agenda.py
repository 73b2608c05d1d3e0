"""The agenda of one core task: what it decides next, and what waits for the commit of its open batch.

    ready      events, in order                          |  taken by the next batch
    sweeping   parked units whose items are gone through |  a slice of each in every batch
    touched    executions that the open batch touched    |  advanced before the batch ends
    after      acts that the open batch decided          |  done once it is committed, forgotten when it did not happen

The parts of a task (intake, deciding, sessions, local work) speak to it through this, and to each other where they must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from streams.engine.pool import Job, Pool
from streams.engine.task import Event, Outputs, Task
from streams.log.seam import Record

Done = Callable[[Any, BaseException | None], None]
"""Takes a job's result or its error, on the loop's thread."""


class Agenda:
    """What one task does next."""

    def __init__(self, task: Task, pool: Pool) -> None:
        self.ready: deque[Event] = deque()
        self.sweeping: dict[str, None] = {}
        self.touched: dict[str, None] = {}
        self.after: list[Callable[[], None]] = []
        self._task = task
        self._pool = pool

    def wake(self, what: Any, record: Record | None = None) -> None:
        """Let the task decide `what` next."""
        self.ready.append(Event(self._task, what, record))

    def touch(self, execution_id: str) -> None:
        """Ask what the execution does next, before the open batch ends."""
        self.touched[execution_id] = None

    def after_commit(self, act: Callable[[], None]) -> None:
        """Do it once the open batch is committed."""
        self.after.append(act)

    def submit(self, job: Job, done: Done, *, limit_s: float) -> None:
        """Run `job` on the pool; `done` gets its end."""
        self._pool.submit(self._task, done, job, limit_s=limit_s)

    def act(self) -> None:
        """The batch is committed: do what waited for it."""
        after, self.after = self.after, []
        for act in after:
            act()

    def drop(self) -> None:
        """The batch did not happen."""
        self.after.clear()
        self.touched.clear()


Perform = Callable[[Any, Outputs, Event | None], None]
"""Performs one kind of decision; `event` is what it was decided for, None when it follows from a row."""
