"""Deadlines: timers that ring, and the gate that keeps a deadline from overtaking an answer (DESIGN 8, policy 2).

Theory of operation. Timers follow rows: `commit` arms and disarms them for the rows that a batch changed. One that rings becomes an event,
and the row says whether it means anything. One that rang and changed no row waits until its row changes. Timers of executions and items ring when they are due. The deadline of an interaction has a gate: once it is due, the end of
`completions` is read, and it rings only when everything up to that end is decided. So every answer that was there at the deadline is judged
first, and our own backlog expires none. Under steady load the gate is passed by what is decided, else by what was read with nothing waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas import limits
from schemas.errors import LogUnavailable
from state.execution import ExecutionRecord, ExecutionStatus
from state.keys import INTERACTIONS, is_interaction
from state.tables.overlay import RowView
from state.tables.timers import TimerIndex, due_of
from streams.engine.task import Positions
from streams.log.seam import TopicPartition
from streams.roles.context import CoreContext

LOOK_AGAIN_MS = limits.CALL_TIMEOUT_DEFAULT_MS

GATED_POLL_MS = 20
"""Pause between two looks at a gate that is not passed."""


class Deadlines:
    """The timers of one task.

    Args:
        rows: The committed rows.
        partition: The task's.
        positions: How far its inputs are read and decided.
        is_waiting: Whether records or results wait to be decided.
    """

    def __init__(
        self,
        context: CoreContext,
        rows: RowView,
        partition: int,
        positions: Positions,
        is_waiting: Callable[[], bool],
    ) -> None:
        self._timers = TimerIndex()
        self._rows = rows
        self._rung: list[bytes] = []
        """Keys that the open batch decides."""
        self._ctx = context
        self._positions = positions
        self._completions = TopicPartition(context.names.completions, partition)
        self._is_waiting = is_waiting
        self._gate: int | None = None
        """The end of `completions` as it was read at `_gate_ms`; None: no deadline is due."""
        self._gate_ms = 0

    def arm(self, key: bytes, record: object) -> None:
        """Arm the timer of a row that is taken up."""
        self._timers.arm(key, due_of(record))

    def rang(self, key: bytes) -> None:
        """The open batch decides the timer of this row."""
        self._rung.append(key)

    def commit(self, changes: Iterable[tuple[bytes, object]]) -> None:
        """The batch is committed: timers follow the rows that it changed; those that rang and changed no row come to rest."""
        arm = self._timers.arm
        rested = dict.fromkeys(self._rung)
        for key, record in changes:
            arm(key, due_of(record))
            rested.pop(key, None)
        for key in rested:
            arm(key, self._due_again(key))
        self._rung.clear()

    def _due_again(self, key: bytes) -> int | None:
        """When the timer of an unchanged row rings again; None: not before its row changes."""
        row = self._rows.get(key)
        due_ms = due_of(row)
        if due_ms is None or due_ms > self._ctx.clock.now_ms():
            return due_ms
        if not isinstance(
            row, ExecutionRecord
        ):  # offered to its session, held until gates open, closed with its unit, or to be judged
            return None
        # The job of a publication is still out: look again later.
        return due_ms if row.status is not ExecutionStatus.RUNNING else self._ctx.clock.now_ms() + LOOK_AGAIN_MS

    def drop(self) -> None:
        """The batch did not happen."""
        self._rung.clear()

    def open_requests(self) -> list[tuple[bytes, int]]:
        """Keys and deadlines of the interactions that wait for an answer."""
        return self._timers.armed(INTERACTIONS)

    def armed(self) -> list[tuple[bytes, int]]:
        """Every row that rings by itself, and when."""
        return self._timers.armed(b"")

    def ring(self, room: int) -> list[bytes]:
        """Keys of at most `room` rows whose timers ring now."""
        if room <= 0:
            return []
        keys = self._timers.due(self._ctx.clock.now_ms(), room)
        if not keys:
            self._gate = None
            return []
        others = [key for key in keys if not is_interaction(key)]
        deadlines = [key for key in keys if is_interaction(key)]
        if deadlines and not self._is_gate_open():
            return others
        # The end was read after those deadlines only that were due then.
        return others + [key for key in deadlines if self._timers.is_due(key, self._gate_ms)]

    def may_ring(self) -> bool:
        """Whether `ring` would return something now."""
        due = self._timers.next_ms()
        return due is not None and due <= self._ctx.clock.now_ms() and (self._gate is None or self._has_passed_gate())

    def next_due_ms(self) -> int | None:
        """When to look again."""
        due_ms = self._timers.next_ms()
        if due_ms is None or self._gate is None:
            return due_ms
        return max(due_ms, self._ctx.clock.now_ms() + GATED_POLL_MS)

    def _is_gate_open(self) -> bool:
        """Whether the consumed position has passed the end of `completions`, read after the deadline."""
        if self._gate is None:
            self._gate_ms = self._ctx.clock.now_ms()
            try:
                end = self._ctx.log.end_offsets([self._completions], "uncommitted", 1.0)
            except LogUnavailable:
                return False
            self._gate = end[self._completions]
        if not self._has_passed_gate():
            return False
        self._gate = None
        return True

    def _has_passed_gate(self) -> bool:
        """Every answer that was there when the gate was set is decided; under steady load later ones may be waiting."""
        assert self._gate is not None
        if self._positions.decided(self._completions) >= self._gate:
            return True
        return not self._is_waiting() and self._positions.consumed(self._completions) >= self._gate
