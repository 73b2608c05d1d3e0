"""Planted bugs of items: keys, failures, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas import facts
from streams.author import local
from streams.roles.core import deciders
from streams.simulation.planting import Plant, Swap
from streams.simulation.violation import Breach
from topologies.decisions import continuation, timeout
from topologies.decisions.decision import Append, DeadLetterItem, Decisions
from topologies.decisions.ending import fail
from topologies.pipeline.payloads import PayloadType


def _number_no_equals() -> list[Swap]:
    """Items with equal fields have one key, so a provider that dedupes answers one of them."""

    def repeated(key: str, _number: int) -> str:
        return key

    return [(local, "repeated_key", repeated)]


def _stop_at_the_first() -> list[Swap]:
    """The first item that fails for good ends its execution, whatever the others have come to."""
    failed = continuation._failed  # noqa: SLF001

    def failing(pipeline: Any, result: Any, execution: Any, unit: Any, *, now_ms: int) -> Decisions:
        decisions = failed(pipeline, result, execution, unit, now_ms=now_ms)
        fact = getattr(decisions[0], "fact", None)
        if not isinstance(fact, facts.ContinuationAttemptFailed) or fact.retry_at_ms is not None:
            return decisions
        code = "AWAIT_ITEM_CONTINUATION_FAILED"
        return [*decisions, *fail(pipeline, execution, unit, code=code, message=fact.error_message, now_ms=now_ms)]

    return [(continuation, "_failed", failing)]


def _answer_for_the_expired() -> list[Swap]:
    """What `onTimeout: {skip}` leaves out counts as answered by the provider."""

    def expiring(*args: Any, **kwargs: Any) -> Decisions:
        decisions = timeout.expire(*args, **kwargs)
        expired = [decision.fact for decision in decisions if isinstance(decision, Append)]
        skipped = [
            fact for fact in expired if isinstance(fact, facts.InteractionTimedOut) and fact.resolution == "skip"
        ]
        for fact in skipped:
            unit_id, index, at_ms = fact.unit_id, fact.item_index, fact.at_ms
            admitted = facts.BoundaryCompletionAdmitted(
                fact.execution_id, at_ms, unit_id, index, b"null", None, None, at_ms
            )
            decisions.insert(1, Append(admitted))
        return decisions

    return [(deciders, "expire", expiring)]


def _letter_for_a_repeat() -> list[Swap]:
    """The second outcome of an item that was left out before is told by a letter again."""

    def completing(pipeline: Any, result: Any, execution: Any, unit: Any, item: Any, *, now_ms: int) -> Decisions:
        decisions = continuation.complete_item(pipeline, result, execution, unit, item, now_ms=now_ms)
        if item is None or item.letter_id is None or result.error_code is None:
            return decisions
        step_id, code, message = result.step_id or "", result.error_code, result.error_message or ""
        index, letter, tenant = item.item_index, item.letter_id, execution.tenant_id
        return [*decisions, DeadLetterItem(tenant, item.unit_id, index, step_id, letter, reason=code, detail=message)]

    return [(deciders, "complete_item", completing)]


def _read_digits_as_floats() -> list[Swap]:
    """A decimal that comes as a number has as many digits as a float has."""

    def read(kind: PayloadType, data: bytes) -> Any:
        return kind.validate_json(data)

    return [(PayloadType, "read", read)]


def _take_what_is_no_number() -> list[Swap]:
    """A number too large for any is admitted, and JSON says null of it."""

    def refuse(_kind: PayloadType, _value: Any) -> None:
        """Nothing."""

    return [(PayloadType, "_refuse_no_number", refuse)]


PLANTS: Mapping[str, Plant] = {
    "read-digits-as-floats": Plant(_read_digits_as_floats, Breach.WRONG_VALUE),
    "take-what-is-no-number": Plant(_take_what_is_no_number, Breach.ANSWER_MISJUDGED),
    "number-no-equals": Plant(_number_no_equals, Breach.WRONG_KEY, ":n="),
    "stop-at-the-first": Plant(_stop_at_the_first, Breach.ITEMS_ABANDONED),
    "answer-for-the-expired": Plant(_answer_for_the_expired, Breach.ADMITTED_AFTER_TIMEOUT),
    "letter-for-a-repeat": Plant(_letter_for_a_repeat, Breach.DEAD_LETTERS_MISCOUNTED, "letters of items"),
}
