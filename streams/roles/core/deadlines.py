"""Deadlines: timers that ring, and which of them wait at a gate (DESIGN 8, policy 2).

Theory of operation. Timers follow rows: `commit` arms and disarms them for the rows that a batch changed. One that rings becomes an event,
and the row says whether it means anything. One that rang and changed no row waits until its row changes. Timers that only try something
again ring when they are due. Those that may fail something pass a gate first (`streams.roles.core.gates`): the deadline of an interaction
waits until the answers on its step's response topic are judged, and the last wait for a continuation until the agents have taken over what
lies on `continuations`, as long as one may still be starting, and their answers are judged. So no outage and no backlog of ours expires what
was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from schemas import limits
from state.execution import ExecutionRecord, ExecutionStatus
from state.item import ItemRecord
from state.keys import INTERACTIONS, step_of_key
from state.tables.overlay import RowView
from state.tables.timers import TimerIndex, due_of
from streams.engine.looks import Before
from streams.engine.task import Positions
from streams.log.seam import TopicPartition
from streams.roles.context import CoreContext
from streams.roles.core.gates import Gates, Lane
from topologies.pipeline.transports import KafkaTransport

_INTERACTION = INTERACTIONS[0]
LOOK_AGAIN_MS = limits.CALL_TIMEOUT_DEFAULT_MS


def last_wait(row: ItemRecord) -> bool:
    """Whether the item fails when its timer rings: its continuation record was emitted as often as it may be."""
    return row.emissions >= limits.CONTINUATION_ATTEMPTS_MAX


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
        """Those without a gate."""
        self._rows = rows
        self._rung: list[bytes] = []
        """Keys that the open batch decides."""
        self._ctx = context
        self._positions = positions
        self._completions = TopicPartition(context.names.completions, partition)
        self._is_waiting = is_waiting
        names = context.names
        self._other = Lane(None)
        agents = Before(names.continuations, names.group("continuation"))
        self._last_waits = Lane(agents, patience_s=limits.CONTINUATION_TIMEOUT_MS / 1000)
        self._lanes = _lanes_of(context, self._other)
        """By the number of the step."""
        shared = set(self._lanes.values())
        self._only = shared.pop().timers if len(shared) == 1 else None
        lanes = dict.fromkeys((*self._lanes.values(), self._other, self._last_waits))
        self._gates = Gates(list(lanes), context.looks, context.clock, self._completions, self, pace_s=context.pace_s)

    def arm(self, key: bytes, record: object) -> None:
        """Arm the timer of a row that is taken up."""
        self._arm(key, record, due_of(record))

    def _arm(self, key: bytes, record: Any, due_ms: int | None) -> None:
        """Set, move or remove the timer of a row, in its lane."""
        if key[0] == _INTERACTION:
            timers = self._only if self._only is not None else self._lanes.get(step_of_key(key), self._other).timers
            timers.arm(key, due_ms)
            return
        if due_ms is not None and type(record) is ItemRecord and last_wait(record):
            self._timers.arm(key, None)
            self._last_waits.timers.arm(key, due_ms)
            return
        self._timers.arm(key, due_ms)
        if self._last_waits.timers:
            self._last_waits.timers.arm(key, None)

    def rang(self, key: bytes) -> None:
        """The open batch decides the timer of this row."""
        self._rung.append(key)

    def commit(self, changes: Iterable[tuple[bytes, object]]) -> None:
        """The batch is committed: timers follow the rows that it changed; those that rang and changed no row come to rest."""
        arm, only = self._arm, self._only
        rested = dict.fromkeys(self._rung)
        for key, record in changes:
            if only is not None and key[0] == _INTERACTION:  # of each row that passes: the short way
                only.arm(key, due_of(record))
            else:
                arm(key, record, due_of(record))
            rested.pop(key, None)
        for key in rested:
            row = self._rows.get(key)
            arm(key, row, self._due_again(row))
        self._rung.clear()

    def _due_again(self, row: object) -> int | None:
        """When the timer of an unchanged row rings again; None: not before its row changes."""
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
        lanes = dict.fromkeys((*self._lanes.values(), self._other))
        return [armed for lane in lanes for armed in lane.timers.armed(INTERACTIONS)]

    def armed(self) -> list[tuple[bytes, int]]:
        """Every row that rings by itself, and when."""
        return [*self._timers.armed(b""), *(armed for lane in self._gates.lanes for armed in lane.timers.armed(b""))]

    def held(self) -> int:
        """How many are held back by a gate that has been shut for long."""
        return self._gates.held()

    def ring(self, room: int) -> list[bytes]:
        """Keys of at most `room` rows whose timers ring now."""
        self._gates.go_on()
        if room <= 0:
            return []
        keys: list[bytes] = []
        if self._are_due():
            keys = self._timers.due(self._ctx.clock.now_ms(), room)
        return keys + self._gates.ring(room - len(keys))

    def may_ring(self) -> bool:
        """Whether `ring` would return something now. Here as there gates are moved on first, as far as they go: whatever else waits."""
        self._gates.go_on()
        return self._are_due() or self._gates.may_ring()

    def _are_due(self) -> bool:
        due_ms = self._timers.next_ms()
        return due_ms is not None and due_ms <= self._ctx.clock.now_ms()

    def next_due_ms(self) -> int | None:
        """When to look again."""
        due = (self._timers.next_ms(), self._gates.next_due_ms())
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def has_passed(self, end: int) -> bool:
        """Whether everything on `completions` below `end` is decided; under steady load later ones may be waiting."""
        if self._positions.decided(self._completions) >= end:
            return True
        return not self._is_waiting() and self._positions.consumed(self._completions) >= end


def _lanes_of(context: CoreContext, other: Lane) -> dict[int, Lane]:
    """The lane of each await step: steps that share a response topic share it; those without one wait for `completions` alone."""
    group = context.names.group("ingress")
    lanes: dict[str, Lane] = {}
    found: dict[int, Lane] = {}
    for step in context.pipeline.await_steps:
        if isinstance(step.transport, KafkaTransport):
            topic = step.transport.response_topic
            found[step.index] = lanes.setdefault(topic, Lane(Before(topic, group)))
        else:
            found[step.index] = other
    return found
