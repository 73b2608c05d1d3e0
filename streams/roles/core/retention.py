"""Retention: deleting what ended long ago, a slice in a batch: when there is nothing better to do, and else a few times a second (DESIGN 7).

Once an hour a pass goes over the executions in key order. Of one that `retention.executions` lets go, the interactions, items and units are
deleted first and the execution's own row last, or made a stub (DECISIONS 18): a pass that is interrupted finds it again.
"""

from __future__ import annotations

from itertools import islice

from schemas import limits
from schemas.identity import unit_id as unit_id_of
from state.keys import prefix_span, span, unit_key
from state.tables.rows import PartitionRows
from streams.engine.task import Entry, Outputs
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda
from streams.roles.core.events import RetentionContinued
from streams.roles.core.performing import Perform
from topologies.decisions.decision import DeleteRows
from topologies.decisions.retention import Fate, fate

RETENTION_EVERY_MS = 3_600_000
"""Pause between two passes over the executions."""
BUSY_SLICE_EVERY_MS = 250
"""Pause between two slices while there is other work: a busy partition forgets too."""


class RetentionPasses:
    """The retention passes of one task."""

    def __init__(self, context: CoreContext, rows: PartitionRows, agenda: Agenda) -> None:
        self._clock = context.clock
        self._retention = context.pipeline.retention
        self._step_indexes = [step.index for step in context.pipeline.await_steps]
        self._rows = rows
        self._agenda = agenda
        self._cursor = prefix_span("e")[0]
        self._due_ms = context.clock.now_ms() + RETENTION_EVERY_MS
        self._next = (self._cursor, self._due_ms)
        self._last_ms = 0

    def is_due(self, *, is_busy: bool = False) -> bool:
        """Whether a slice may be deleted now."""
        now_ms = self._clock.now_ms()
        return now_ms >= self._due_ms and not (is_busy and 0 <= now_ms - self._last_ms < BUSY_SLICE_EVERY_MS)

    def next_slice(self) -> RetentionContinued:
        """At most a slice of the rows that may be forgotten; the pass goes on behind them once they are deleted."""
        start, end = prefix_span("e")
        now_ms = self._clock.now_ms()
        self._last_ms = now_ms
        doomed: list[bytes] = []
        stubs: list[str] = []
        seen, cursor = 0, self._cursor
        for key, execution in self._rows.scan(cursor, end, limits.SLICE_ITEMS):
            becomes = fate(execution, self._retention, now_ms=now_ms)
            if becomes is not Fate.KEPT:
                room = limits.SLICE_ITEMS - len(doomed) - len(stubs)
                doomed += self._rows_below(execution.execution_id, room)
                if len(doomed) + len(stubs) >= limits.SLICE_ITEMS:
                    break
                if becomes is Fate.BECOMES_STUB:
                    stubs.append(execution.execution_id)
                else:
                    doomed.append(key)
            seen, cursor = seen + 1, key + b"\0"
        is_pass_over = seen < limits.SLICE_ITEMS and len(doomed) + len(stubs) < limits.SLICE_ITEMS
        self._next = (start if is_pass_over else cursor, now_ms + (RETENTION_EVERY_MS if is_pass_over else 0))
        return RetentionContinued(doomed, stubs)

    def performers(self) -> dict[type, Perform]:
        """The decision that deletes."""
        return {DeleteRows: self._do_delete}

    def _do_delete(self, decision: DeleteRows, _outputs: Outputs, _entry: Entry | None) -> None:
        self._rows.batch.delete(decision.keys)
        self._agenda.after_commit(self._go_on)

    def _go_on(self) -> None:
        self._cursor, self._due_ms = self._next

    def _rows_below(self, execution_id: str, limit: int) -> list[bytes]:
        """At most `limit` keys of an execution's units, interactions and items."""
        units = [unit_id_of(execution_id, index) for index in self._step_indexes]
        spans = [span(table, unit_id) for unit_id in units for table in ("interactions", "items")]
        spans += [(unit_key(unit_id), unit_key(unit_id) + b"\0") for unit_id in units]
        found = (key for start, end in spans for key in self._rows.keys(start, end, limit))
        return list(islice(found, limit))
