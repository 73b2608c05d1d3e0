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
from topologies.pipeline.steps import DeadLetterAndSkip


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


def _letter_for_each_attempt() -> list[Swap]:
    """A letter tells of each attempt that failed at a step with `onError: {deadLetter}`, not of the item that is left out."""
    failed = continuation._failed  # noqa: SLF001

    def failing(pipeline: Any, result: Any, execution: Any, unit: Any, *, now_ms: int) -> Decisions:
        decisions = failed(pipeline, result, execution, unit, now_ms=now_ms)
        step = continuation.suffix_step(pipeline, unit)
        if step is None or not isinstance(step.on_error, DeadLetterAndSkip) or len(decisions) > 1:
            return decisions
        index, code = result.item_index, result.error_code
        letter = f"{unit.unit_id}.{index}.{result.attempt}"
        told = DeadLetterItem(
            execution.tenant_id, unit.unit_id, index, step.step_id, letter, reason=code, detail="again"
        )
        return [*decisions, told]

    return [(continuation, "_failed", failing)]


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
    "letter-for-each-attempt": Plant(_letter_for_each_attempt, Breach.DEAD_LETTERS_MISCOUNTED, "letters of items"),
}
