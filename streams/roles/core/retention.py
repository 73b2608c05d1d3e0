"""Retention: deleting what ended long ago, a slice in a batch, when there is nothing better to do (DESIGN 7).

Once an hour a pass goes over the executions in key order. Of one that `retention.executions` lets go, the interactions, items and units are
deleted first and the execution's own row last: a pass that is interrupted finds it again.
"""

from __future__ import annotations

from itertools import islice

from schemas import limits
from state.execution import ExecutionRecord
from state.keys import prefix_span, span, unit_key
from state.tables.rows import PartitionRows
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda

RETENTION_EVERY_MS = 3_600_000
"""Pause between two passes over the executions."""


class Retention:
    """The retention passes of one task."""

    def __init__(self, context: CoreContext, rows: PartitionRows, agenda: Agenda) -> None:
        self._clock = context.clock
        self._retention_ms = context.pipeline.retention.executions_ms
        self._step_indexes = [step.index for step in context.pipeline.await_steps]
        self._rows = rows
        self._agenda = agenda
        self._cursor = prefix_span("e")[0]
        self._due_ms = context.clock.now_ms() + RETENTION_EVERY_MS

    def is_due(self) -> bool:
        """Whether a slice may be deleted now."""
        return self._clock.now_ms() >= self._due_ms

    def delete_slice(self) -> None:
        """Delete at most a slice of rows in the open batch."""
        start, end = prefix_span("e")
        now_ms = self._clock.now_ms()
        doomed: list[bytes] = []
        seen, cursor = 0, self._cursor
        for key, execution in self._rows.scan(cursor, end, limits.SLICE_ITEMS):
            if self._is_over(execution, now_ms):
                doomed += self._rows_below(execution.execution_id, limits.SLICE_ITEMS - len(doomed))
                if len(doomed) >= limits.SLICE_ITEMS:
                    break
                doomed.append(key)
            seen, cursor = seen + 1, key + b"\0"
        self._rows.overlay.delete(doomed)
        is_pass_over = seen < limits.SLICE_ITEMS and len(doomed) < limits.SLICE_ITEMS
        due_ms = now_ms + (RETENTION_EVERY_MS if is_pass_over else 0)
        self._agenda.after_commit(lambda: self._go_on(start if is_pass_over else cursor, due_ms))

    def _is_over(self, execution: ExecutionRecord, now_ms: int) -> bool:
        return execution.is_terminal and execution.updated_at_ms < now_ms - self._retention_ms

    def _rows_below(self, execution_id: str, limit: int) -> list[bytes]:
        """At most `limit` keys of an execution's units, interactions and items."""
        units = [f"{execution_id}.{index}" for index in self._step_indexes]
        spans = [span(table, unit_id) for unit_id in units for table in ("interactions", "items")]
        spans += [(unit_key(unit_id), unit_key(unit_id) + b"\0") for unit_id in units]
        found = (key for start, end in spans for key, _ in self._rows.store.scan(start, end, limit))
        return list(islice(found, limit))

    def _go_on(self, cursor: bytes, due_ms: int) -> None:
        self._cursor, self._due_ms = cursor, due_ms
