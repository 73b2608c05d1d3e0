"""Item: how far the suffix of one item of an itemised unit has come (DESIGN 7). Record, transition table, `evolve`; pure.

*Verified* means SUCCEEDED and every output decodes; the reader of the outputs checks that.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from schemas import facts
from schemas.facts import Fact
from state.transition import Transitions, illegal


class ItemStatus(StrEnum):
    """Where an item stands."""

    PENDING = "PENDING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


_S = ItemStatus

TRANSITIONS: Transitions = {
    (None, facts.ContinuationSegmentCreated): _S.PENDING,
    (_S.PENDING, facts.ContinuationSegmentCreated): _S.PENDING,
    (None, facts.ContinuationCompleted): _S.SUCCEEDED,
    (_S.PENDING, facts.ContinuationCompleted): _S.SUCCEEDED,
    (None, facts.ContinuationAttemptFailed): _S.PENDING,  # FAILED when the fact names no retry
    (_S.PENDING, facts.ContinuationAttemptFailed): _S.PENDING,
}


class ItemRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is true of an item.

    Attributes:
        outputs: What the suffix made of it, 0..n payloads, UTF-8 JSON each.
        continued: A continuation record of this attempt is out.
        emissions: Continuation records emitted for this attempt.
        due_ms: When the next attempt starts, or an unanswered continuation record is emitted again.
    """

    unit_id: str
    item_index: int
    status: ItemStatus
    attempt: int = 1
    outputs: list[bytes] = []
    continued: bool = False
    emissions: int = 0
    due_ms: int | None = None
    error_code: str | None = None
    error_message: str | None = None


def evolve(record: ItemRecord | None, fact: Fact) -> ItemRecord:
    """The record after `fact`.

    Raises:
        IllegalTransition: `fact` is not possible now; `record` is unchanged.
    """
    status = record.status if record else None
    if (status, type(fact)) not in TRANSITIONS:
        raise illegal(status, fact)
    match fact:
        case facts.ContinuationCompleted():
            return ItemRecord(fact.unit_id, fact.item_index, _S.SUCCEEDED, fact.attempt, fact.outputs)
        case facts.ContinuationSegmentCreated():
            emissions = record.emissions if record and record.attempt == fact.attempt else 0
            return ItemRecord(
                fact.unit_id,
                fact.item_index or 0,
                _S.PENDING,
                fact.attempt,
                continued=True,
                emissions=emissions + 1,
                due_ms=fact.due_ms,
            )
        case facts.ContinuationAttemptFailed():
            return ItemRecord(
                fact.unit_id,
                fact.item_index,
                _S.FAILED if fact.retry_at_ms is None else _S.PENDING,
                fact.attempt + (fact.retry_at_ms is not None),
                due_ms=fact.retry_at_ms,
                error_code=fact.error_code,
                error_message=fact.error_message,
            )
        case _:  # pragma: no cover - the table names no other fact
            raise AssertionError(fact)
