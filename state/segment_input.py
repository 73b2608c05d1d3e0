"""What enters the next segment of an execution, by its rows."""

from __future__ import annotations

from typing import Any, Protocol

from state.execution import ExecutionRecord
from state.interaction import InteractionRecord, InteractionStatus
from state.keys import interaction_key


class View(Protocol):
    """Rows by key."""

    def get(self, key: bytes) -> Any:
        """The record, or None."""


def segment_input(execution: ExecutionRecord, view: View) -> bytes | None:
    """Input of the segment at `step_index`: the unit's answer when it resumes from a scalar await, else the stored input."""
    if execution.input_unit_id is None:
        return execution.input
    interaction: InteractionRecord | None = view.get(interaction_key(execution.input_unit_id, None))
    if interaction is None:
        return execution.input
    return interaction.completion if interaction.status is InteractionStatus.COMPLETED else None
