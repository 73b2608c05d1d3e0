"""Retention: which ended executions may be forgotten (DESIGN 7)."""

from __future__ import annotations

from state.execution import ExecutionRecord


def may_be_forgotten(execution: ExecutionRecord, *, retention_ms: int, now_ms: int) -> bool:
    """Whether the execution ended longer ago than executions are kept."""
    return execution.is_terminal and execution.updated_at_ms < now_ms - retention_ms
