"""Item: how far the suffix of one item of an itemised unit has come (DESIGN 7). Record, transition table, `evolve`; pure.

*Verified* means SUCCEEDED and every output decodes; the reader of the outputs checks that.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from schemas import facts
from schemas.declaration import FORMAT
from schemas.facts import Fact
from state.transition import Transitions, by_status, illegal


class ItemStatus(StrEnum):
    """Where an item stands."""

    PENDING = "PENDING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    """Left out, as its step says; the others go on without it."""


_S = ItemStatus
_SUCCEEDED = _S.SUCCEEDED

TRANSITIONS: Transitions = {
    (None, facts.ContinuationSegmentCreated): _S.PENDING,
    (_S.PENDING, facts.ContinuationSegmentCreated): _S.PENDING,
    (None, facts.ContinuationCompleted): _S.SUCCEEDED,
    (_S.PENDING, facts.ContinuationCompleted): _S.SUCCEEDED,
    (None, facts.ContinuationAttemptFailed): _S.PENDING,  # FAILED when the fact names no retry
    (_S.PENDING, facts.ContinuationAttemptFailed): _S.PENDING,
    (None, facts.ContinuationSkipped): _S.SKIPPED,
    (_S.PENDING, facts.ContinuationSkipped): _S.SKIPPED,
}


class ItemRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=FORMAT):
    """What is true of an item.

    Attributes:
        outputs: What the suffix made of it, 0..n payloads, UTF-8 JSON each.
        continued: A continuation record of this attempt is out.
        emissions: Continuation records emitted for this attempt.
        due_ms: When the next attempt starts, or an unanswered continuation record is emitted again.
        letter_id: Its dead letter, where it was skipped with one.
        value: What enters its suffix, of an item that passed the await by.
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
    letter_id: str | None = None
    value: bytes | None = None


def evolve(record: ItemRecord | None, fact: Fact) -> ItemRecord:
    """The record after `fact`.

    Raises:
        IllegalTransition: `fact` is not possible now; `record` is unchanged.
    """
    status = None if record is None else record.status
    after = _EVOLVE.get((status, type(fact)))
    if after is None:
        raise illegal(status, fact)
    return after(record, fact)


def _completed(_record: ItemRecord | None, fact: facts.ContinuationCompleted) -> ItemRecord:
    return ItemRecord(fact.unit_id, fact.item_index, _SUCCEEDED, fact.attempt, fact.outputs)


def _created(record: ItemRecord | None, fact: facts.ContinuationSegmentCreated) -> ItemRecord:
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


def _failed(_record: ItemRecord | None, fact: facts.ContinuationAttemptFailed) -> ItemRecord:
    return ItemRecord(
        fact.unit_id,
        fact.item_index,
        _S.FAILED if fact.retry_at_ms is None else _S.PENDING,
        fact.attempt + (fact.retry_at_ms is not None),
        due_ms=fact.retry_at_ms,
        error_code=fact.error_code,
        error_message=fact.error_message,
    )


def _skipped(_record: ItemRecord | None, fact: facts.ContinuationSkipped) -> ItemRecord:
    return ItemRecord(
        fact.unit_id,
        fact.item_index,
        _S.SKIPPED,
        fact.attempt,
        error_code=fact.error_code,
        error_message=fact.error_message,
        letter_id=fact.letter_id,
    )


_BY_FACT: dict[type[Fact], Callable[[Any, Any], ItemRecord]] = {
    facts.ContinuationSkipped: _skipped,
    facts.ContinuationCompleted: _completed,
    facts.ContinuationSegmentCreated: _created,
    facts.ContinuationAttemptFailed: _failed,
}

_EVOLVE = by_status(TRANSITIONS, _BY_FACT)
