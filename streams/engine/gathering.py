"""Gathering: which events the next batch has, and how long it waits for them (DESIGN 6 'Batch')."""

from __future__ import annotations

from schemas import limits
from streams.clock import Clock
from streams.engine.owned_tasks import OwnedTasks
from streams.engine.pace import Pace
from streams.engine.pool import Pool
from streams.engine.task import Entry

POLL_S_MAX = 0.1
BUSY_POLL_S = 0.001
"""Poll wait while the worker pool has results to come: they cannot interrupt a poll."""
BUSY_POLL_S_MAX = 0.008
"""The same once the results take their time: each turn costs the pool its interpreter lock."""
SOON_MS = 1_000
"""A timer that is due so soon would wait for the next batches."""


class Gathering:
    """What the tasks of a loop have for its next batch. They take turns at being first, so that the backlog of one starves no other."""

    def __init__(self, owned: OwnedTasks, pool: Pool | None, clock: Clock) -> None:
        self._owned = owned
        self._pool = pool
        self._clock = clock
        self._pace = Pace(clock)
        self._turn = 0
        self._idle_turns = 0
        self._room: int | None = None
        """Events of a batch, where the last ones took too long; None: as many as there may be."""

    def wrote(self, records: int) -> None:
        """A transaction with so many records was committed."""
        self._pace.wrote(records)

    def took(self, events: int, seconds: float) -> None:
        """A batch of so many events took so long: the next ones are smaller where timers would wait for them, and grow again."""
        is_due = seconds > limits.BATCH_S_MAX / 2 and self._is_timer_due()
        if is_due and seconds > limits.BATCH_S_MAX:
            self._room = max(int(events * limits.BATCH_S_MAX / seconds), limits.BATCH_RECORDS_MIN)
        elif self._room is not None:
            grown = int(self._room * (limits.BATCH_S_MAX / seconds if is_due else 2))
            self._room = grown if grown < limits.BATCH_RECORDS_MAX else None

    def _is_timer_due(self) -> bool:
        now_ms = self._clock.now_ms()
        due = (task.next_due_ms() for task in self._owned.all_running)
        return any(at_ms is not None and at_ms <= now_ms + SOON_MS for at_ms in due)

    def batch(self) -> list[Entry]:
        """Events for the next batch, of each task that has some its part."""
        batch: list[Entry] = []
        room = limits.BATCH_RECORDS_MAX if self._room is None else min(self._room, limits.BATCH_RECORDS_MAX)
        tasks = self._owned.all_running
        if len(tasks) > 1:
            self._turn = (self._turn + 1) % len(tasks)
            tasks = tasks[self._turn :] + tasks[: self._turn]
        working = [task for task in tasks if task.has_work()]
        for others, task in zip(range(len(working), 0, -1), working, strict=True):
            left = room - len(batch)
            if left > 0:
                batch += task.events(max(left // others, 1))
        self._idle_turns = 0 if batch else self._idle_turns + 1
        return batch

    def poll_wait_s(self, *, pending: bool) -> float:
        """How long a poll may wait for a record: not at all while there is something to decide, else until a timer is due."""
        running = self._owned.all_running
        if pending or not self._owned.are_restored or any(task.has_work() for task in running):
            return 0.0
        if self._pool is not None and self._pool.is_busy:
            return min(BUSY_POLL_S * (1, 2, 4, 8)[min(self._idle_turns, 3)], BUSY_POLL_S_MAX)
        due = [due for task in running if (due := task.next_due_ms()) is not None]
        return min([POLL_S_MAX, *(max(0.0, (at_ms - self._clock.now_ms()) / 1000) for at_ms in due)])

    def grow_s(self) -> float:
        """How long a batch may grow while records come fast: a transaction costs the same for one record as for a thousand.

        One in flight never waits; the wait grows with the rate, and nothing is polled meanwhile, so it is short.
        """
        wait_s = self._pace.gather_s()
        return wait_s if wait_s and any(task.has_work() for task in self._owned.all_running) else 0.0
