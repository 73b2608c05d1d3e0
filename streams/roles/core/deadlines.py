"""Deadlines: timers that ring, and the gate that keeps a deadline from overtaking an answer (DESIGN 8, policy 2).

Theory of operation. Timers follow rows (`apply` arms and disarms them); one that rings becomes an event, and the row says whether it means
anything. Timers of executions and items ring when they are due. The deadline of an interaction has a gate: once it is due, the end of
`completions` is read, and it rings only when everything up to that end is decided. So every answer that was there at the deadline is judged
first, and our own backlog expires none. Under steady load the gate is passed by what is decided, else by what was read with nothing waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.errors import LogUnavailable
from state.keys import is_interaction
from state.tables.timers import TimerIndex
from streams.log.seam import TopicPartition
from streams.roles.context import CoreContext

GATED_POLL_MS = 20
"""Pause between two looks at a gate that is not passed."""


class Deadlines:
    """The timers of one task.

    Args:
        partition: The task's.
        is_waiting: Whether records or results wait to be decided.
    """

    def __init__(self, context: CoreContext, partition: int, is_waiting: Callable[[], bool]) -> None:
        self.timers = TimerIndex()
        self._ctx = context
        self._completions = TopicPartition(context.names.completions, partition)
        self._is_waiting = is_waiting
        self._gate: int | None = None
        """The end of `completions` as it was read at `_gate_ms`; None: no deadline is due."""
        self._gate_ms = 0

    def ring(self, room: int) -> list[bytes]:
        """Keys of at most `room` rows whose timers ring now."""
        if room <= 0:
            return []
        keys = self.timers.due(self._ctx.clock.now_ms(), room)
        if not keys:
            self._gate = None
            return []
        others = [key for key in keys if not is_interaction(key)]
        deadlines = [key for key in keys if is_interaction(key)]
        if deadlines and not self._is_gate_open():
            return others
        # The end was read after those deadlines only that were due then.
        return others + [key for key in deadlines if self.timers.is_due(key, self._gate_ms)]

    def may_ring(self) -> bool:
        """Whether `ring` would return something now."""
        due = self.timers.next_ms()
        return due is not None and due <= self._ctx.clock.now_ms() and (self._gate is None or self._has_passed_gate())

    def next_due_ms(self) -> int | None:
        """When to look again."""
        due_ms = self.timers.next_ms()
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
        if self._ctx.decided(self._completions) >= self._gate:
            return True
        return not self._is_waiting() and self._ctx.consumed(self._completions) >= self._gate
