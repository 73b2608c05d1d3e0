"""Unit: the durable state of one await step of one execution (BEHAVIOUR 2.2). Record, transition table, `evolve`; pure.

Theory of operation. A unit is open (WAITING_EXTERNAL) until something ends it; ending it ends every interaction of it, in this one row.
Counters only, never key sets, so that the row stays small however many items there are (CASES 50).

    dispatched   interactions made so far: the next item's index
    outputs      continuation completions: items whose outputs are stored, or that were skipped
    skipped      items among them that were left out
    failed       items whose suffix failed for good; `failures` names the first of them
    completed    provider completions, none of an item that expired; a gate of the suspending path, untouched while the unit is live (DESIGN 7)
    expected     gate, with dispatch_complete: set once, when dispatch is closed
    source_count no gate: the stream has ended, recovery never reads the source again

The two kinds of completion are never one counter.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from schemas import facts
from schemas.declaration import FORMAT
from schemas.facts import Fact
from schemas.limits import FAILURE_CHARS_MAX, FAILURES_KEPT
from state.transition import Transitions, by_status, illegal


class UnitStatus(StrEnum):
    """Where a unit stands; all but WAITING_EXTERNAL are final until a redrive opens it again."""

    WAITING_EXTERNAL = "WAITING_EXTERNAL"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"


_S = UnitStatus
_OPEN = UnitStatus.WAITING_EXTERNAL
_WHILE_OPEN = (
    facts.BoundaryInteractionDispatched,
    facts.BoundaryCompletionAdmitted,
    facts.InteractionTimedOut,
    facts.SourceEnded,
    facts.BoundaryDispatchCompleted,
    facts.ContinuationsSwept,
    facts.ContinuationCompleted,
    facts.ContinuationSkipped,
    facts.ContinuationAttemptFailed,
)

TRANSITIONS: Transitions = {
    (None, facts.BoundaryUnitOpened): _S.WAITING_EXTERNAL,
    **{(_S.WAITING_EXTERNAL, fact): _S.WAITING_EXTERNAL for fact in _WHILE_OPEN},
    (_S.WAITING_EXTERNAL, facts.BoundaryUnitClosed): _S.COMPLETED,  # or the outcome that the fact names
}


class UnitRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=FORMAT):
    """What is true of a unit; see the module for the counters.

    Attributes:
        live: The unit may be served by a live session; False once parked, never True again.
        cursor: Items below it were looked at for continuation after parking.
        step_number: The number of the step id in this application.
        key_rule: The rule by which the idempotency keys of its items are made.
        attempt: From 1; a redrive opens it again.
        passed: Items of arms that the await does not accept.
        delivered: Requests that the outside party took over, where that is reported.
        failures: The first failed items, a sentence each, at most `limits.FAILURES_KEPT`.
    """

    unit_id: str
    execution_id: str
    step_id: str
    step_number: int
    itemised: bool
    status: UnitStatus
    live: bool
    opened_at_ms: int
    dispatched: int = 0
    outputs: int = 0
    completed: int = 0
    source_count: int | None = None
    dispatch_complete: bool = False
    expected: int | None = None
    cursor: int = 0
    release: str = ""
    cardinality: str = "ONE_TO_ONE"
    key_rule: int = 2
    attempt: int = 1
    skipped: int = 0
    failed: int = 0
    passed: int = 0
    delivered: int = 0
    failures: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether anything of it can still happen."""
        return self.status is _OPEN

    @property
    def settled(self) -> int:
        """Items of which nothing more is to come: outputs stored, left out, or failed for good."""
        return self.outputs + self.failed

    @property
    def succeeded(self) -> int:
        """Items whose outputs are stored."""
        return self.outputs - self.skipped


def evolve(record: UnitRecord | None, fact: Fact) -> UnitRecord:
    """The record after `fact`.

    Raises:
        IllegalTransition: `fact` is not possible now; `record` is unchanged.
    """
    status = None if record is None else record.status
    after = _EVOLVE.get((status, type(fact)))
    if after is None:
        raise illegal(status, fact)
    return after(record, fact)


_replace = msgspec.structs.replace


def _opened(_record: None, fact: facts.BoundaryUnitOpened) -> UnitRecord:
    return UnitRecord(
        unit_id=fact.unit_id,
        execution_id=fact.execution_id,
        step_id=fact.step_id,
        step_number=fact.step_number,
        itemised=fact.itemised,
        status=UnitStatus.WAITING_EXTERNAL,
        live=fact.live,
        opened_at_ms=fact.at_ms,
        release=fact.release,
        cardinality=fact.cardinality,
        key_rule=fact.key_rule,
    )


def _dispatched(record: UnitRecord, fact: facts.BoundaryInteractionDispatched) -> UnitRecord:
    if fact.attempt > 1:  # the same item again, after a redrive
        return record
    return _replace(record, dispatched=record.dispatched + 1)


def _admitted(record: UnitRecord, _fact: facts.BoundaryCompletionAdmitted) -> UnitRecord:
    return record if record.live else _replace(record, completed=record.completed + 1)


def _timed_out(record: UnitRecord, _fact: facts.InteractionTimedOut) -> UnitRecord:
    return record  # an item that is left out is a continuation completion, never a provider's


def _source_ended(record: UnitRecord, fact: facts.SourceEnded) -> UnitRecord:
    return _replace(record, source_count=fact.count)


def _dispatch_completed(record: UnitRecord, fact: facts.BoundaryDispatchCompleted) -> UnitRecord:
    return _replace(record, live=False, dispatch_complete=True, expected=fact.expected, completed=fact.completed)


def _swept(record: UnitRecord, fact: facts.ContinuationsSwept) -> UnitRecord:
    return _replace(record, cursor=fact.cursor)


def _continued(record: UnitRecord, _fact: facts.ContinuationCompleted) -> UnitRecord:
    return _replace(record, outputs=record.outputs + 1)


def _skipped(record: UnitRecord, _fact: facts.ContinuationSkipped) -> UnitRecord:
    return _replace(record, outputs=record.outputs + 1, skipped=record.skipped + 1)


def _failed(record: UnitRecord, fact: facts.ContinuationAttemptFailed) -> UnitRecord:
    if fact.retry_at_ms is not None:
        return record
    failures = record.failures
    if len(failures) < FAILURES_KEPT:
        failures = [*failures, f"item {fact.item_index}: {fact.error_code}: {fact.error_message}"[:FAILURE_CHARS_MAX]]
    return _replace(record, failed=record.failed + 1, failures=failures)


def _closed(record: UnitRecord, fact: facts.BoundaryUnitClosed) -> UnitRecord:
    return _replace(record, status=UnitStatus(fact.outcome))


_BY_FACT: dict[type[Fact], Callable[[Any, Any], UnitRecord]] = {
    facts.BoundaryUnitOpened: _opened,
    facts.BoundaryInteractionDispatched: _dispatched,
    facts.BoundaryCompletionAdmitted: _admitted,
    facts.InteractionTimedOut: _timed_out,
    facts.SourceEnded: _source_ended,
    facts.BoundaryDispatchCompleted: _dispatch_completed,
    facts.ContinuationsSwept: _swept,
    facts.ContinuationCompleted: _continued,
    facts.ContinuationSkipped: _skipped,
    facts.ContinuationAttemptFailed: _failed,
    facts.BoundaryUnitClosed: _closed,
}

_EVOLVE = by_status(TRANSITIONS, _BY_FACT)
