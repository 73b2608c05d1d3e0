"""The agenda of one core task: what it decides next, and what waits for the commit of its open batch.

    ready      events, in order                          |  taken by the next batch
    commands   commands, in order                        |  taken by the next batch, where there is room beside what is ready
    sweeping   parked units whose items are gone through |  a slice of each in every batch
    touched    executions that the open batch touched    |  advanced before the batch ends
    after      acts that the open batch decided          |  done once it is committed, forgotten when it did not happen

The parts of a task (intake, deciders, sessions, local work) speak to it through this, and to each other where they must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from schemas import limits
from streams.engine.pool import Done, Job, Pool
from streams.engine.task import Entry, Task
from streams.log.seam import Record


class Agenda:
    """What one task does next."""

    def __init__(self, task: Task, pool: Pool) -> None:
        self.ready: deque[Entry] = deque()
        self.commands: deque[Entry] = deque()
        """They start work: a backlog of them must not hold up the answers that end it, nor the deadlines that wait for those."""
        self._turn = 0
        self._sweeping: dict[str, None] = {}
        self._touched: dict[str, None] = {}
        self._after: list[Callable[[], None]] = []
        self._task = task
        self._pool = pool

    def wake(self, event: object, record: Record | None = None) -> None:
        """Let the task decide `event` next; a `streams.roles.core.events.CoreEvent`."""
        self.ready.append(Entry(self._task, event, record))

    def wake_command(self, event: object, record: Record) -> None:
        """Let the task decide what came on `commands`, in its turn."""
        self.commands.append(Entry(self._task, event, record))

    def is_waiting(self) -> bool:
        """Whether events wait."""
        return bool(self.ready or self.commands)

    def take(self, room: int) -> Iterator[Entry]:
        """The next events, at most `room`: what ends work comes first, and commands, which begin it, have a share of the room all the same."""
        self._turn = (
            self._turn + 1
        ) % limits.COMMANDS_SHARE  # a room without a whole part gives them a place now and then
        commands = min(len(self.commands), max((room + self._turn) // limits.COMMANDS_SHARE, room - len(self.ready)))
        for events, count in ((self.commands, commands), (self.ready, room - commands)):
            for _ in range(min(count, len(events))):
                yield events.popleft()

    def touch(self, execution_id: str) -> None:
        """Ask what the execution does next, before the open batch ends."""
        self._touched[execution_id] = None

    def next_touched(self) -> str | None:
        """An execution that is not asked yet, or None."""
        return self._touched.popitem()[0] if self._touched else None

    def was_asked(self, execution_id: str) -> None:
        """The execution has nothing more to do in this batch, whatever touched it meanwhile."""
        self._touched.pop(execution_id, None)

    def sweep(self, unit_id: str) -> None:
        """Go through the items of a parked unit, from the next batch on."""
        self._sweeping[unit_id] = None

    def swept(self, unit_id: str) -> None:
        """The sweep of a unit is over."""
        self._sweeping.pop(unit_id, None)

    @property
    def sweeps(self) -> Iterable[str]:
        """Units that are gone through."""
        return self._sweeping

    def after_commit(self, act: Callable[[], None]) -> None:
        """Do it once the open batch is committed."""
        self._after.append(act)

    def submit(self, job: Job, done: Done, *, limit_s: float) -> None:
        """Run `job` on the pool; `done` gets its end."""
        self._pool.submit(self._task, job, done, limit_s=limit_s)

    def act(self) -> None:
        """The batch is committed: do what waited for it."""
        after, self._after = self._after, []
        for act in after:
            act()

    def drop(self) -> None:
        """The batch did not happen."""
        self._after.clear()
        self._touched.clear()
