"""Retention: what may be forgotten of ended executions, and when (DESIGN 7, DECISIONS 18).

What somebody submitted by hand is forgotten whole after `retention.executions`. What an input showed may be shown again: of that a stub is kept,
so that it starts nothing again, until `retention.keys` have passed since its end.
"""

from __future__ import annotations

from enum import Enum, auto

from schemas import facts
from state.execution import ExecutionRecord
from topologies.decisions.decision import Append, Decisions, DeleteRows
from topologies.pipeline.model import Retention

CLOCKS_APART_MS = 86_400_000
"""A stub is kept for so much longer than a lister takes objects: its file server, its worker and ours may go by different clocks."""


class Fate(Enum):
    """What retention does with an execution."""

    KEPT = auto()
    BECOMES_STUB = auto()
    """What belongs to it is deleted, then all but id, status and end of its own row."""
    DELETED = auto()


def fate(execution: ExecutionRecord, retention: Retention, *, now_ms: int) -> Fate:
    """What becomes of the execution now."""
    ended_ms_ago = now_ms - execution.updated_at_ms
    if not execution.is_terminal or ended_ms_ago <= retention.executions_ms:
        return Fate.KEPT
    if execution.origin == "person" or ended_ms_ago > retention.keys_ms + CLOCKS_APART_MS:
        return Fate.DELETED
    return Fate.KEPT if execution.forgotten else Fate.BECOMES_STUB


def forget(keys: list[bytes], stubs: list[str], *, now_ms: int) -> Decisions:
    """Delete rows, and leave stubs of executions of which no other row is left."""
    return [*(Append(facts.RunForgotten(execution_id, now_ms)) for execution_id in stubs), DeleteRows(keys)]
