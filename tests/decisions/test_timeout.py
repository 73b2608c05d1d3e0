"""Timeouts: fail, skip or value; the first terminal write wins (BEHAVIOUR 5.8, policies 2 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import facts
from schemas.facts import Fact
from state.unit import UnitStatus
from tests.decisions.given import (
    DEADLINE,
    EXECUTION,
    NO,
    UNIT,
    Given,
    admitted,
    answer,
    cancelled,
    closed,
    given,
    parked,
    scalar,
    scalar_waiting,
    stream,
    streaming,
    timed_out,
)
from topologies.decisions.admission import admit
from topologies.decisions.decision import (
    Append,
    CloseSession,
    DeadLetterExecution,
    Decisions,
    HoldCompletion,
    NoOp,
    Offer,
)
from topologies.decisions.timeout import expire
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Skip, Value

SKIP = Skip()
VALUE = Value(json=NO)


def expiring(item_index: int | None = None, *, live: bool = False, now_ms: int = DEADLINE) -> Any:
    def ask(here: Given) -> Decisions:
        interaction = here.interaction(item_index)
        return expire(here.pipeline, here.execution, here.unit(), interaction, live=live, now_ms=now_ms)

    return ask


def placed(item_index: int | None = None) -> facts.BoundaryCompletionAdmitted:
    return facts.BoundaryCompletionAdmitted(EXECUTION, DEADLINE, UNIT, item_index, NO, None, None, DEADLINE)


@pytest.mark.parametrize(
    ("pipeline", "known", "item_index"),
    [
        pytest.param(scalar(), scalar_waiting(), None, id="scalar"),
        pytest.param(stream(), streaming(3, live=True), 1, id="an item of a live window"),
        pytest.param(stream(), parked(3, answered=1, cursor=3), 1, id="an item of a parked unit"),
    ],
)
def test_an_expired_interaction_fails_the_unit_and_the_execution(
    pipeline: Pipeline, known: Sequence[Fact], item_index: int | None
) -> None:
    """Policy 6; BEHAVIOUR 161: siblings end with it, in one fact."""
    decided = given(pipeline, *known).when(expiring(item_index))
    assert decided.names == [
        "InteractionTimedOut",
        "BoundaryUnitClosed",
        "CloseSession",
        "RunFailed",
        "DeadLetterExecution",
        "TellOutcome",
    ]
    after = decided.folded()
    assert after.the_unit.status is UnitStatus.TIMED_OUT
    assert (after.the_execution.status, after.the_execution.error_code) == ("FAILED", "AWAIT_TIMEOUT")
    assert CloseSession(UNIT) in decided.decisions
    dead = next(decision for decision in decided.decisions if isinstance(decision, DeadLetterExecution))
    assert dead.step_id == "await-1"
    assert (f"of item {item_index}" in dead.detail) == (item_index is not None)
    after.when(expiring(2)).then(NoOp("timer-outlived"))


def test_an_item_may_be_left_out() -> None:
    after = (
        given(stream(on_timeout=SKIP), *streaming(2, live=True))
        .when(expiring(1, live=True))
        .then(
            Append(timed_out(1, "skip", DEADLINE)),
            Append(
                facts.ContinuationSkipped(
                    EXECUTION,
                    DEADLINE,
                    UNIT,
                    1,
                    1,
                    "AWAIT_TIMEOUT",
                    "no answer of item 1 for step await-1 within 60000 ms",
                )
            ),
        )
    )
    assert (after.the_unit.outputs, after.the_unit.completed, after.the_unit.is_open) == (1, 0, True)
    assert (after.the_unit.skipped, after.the_unit.succeeded) == (1, 0)
    parked_after = given(stream(on_timeout=SKIP), *parked(2, cursor=2)).when(expiring(0)).folded()
    assert (parked_after.the_unit.outputs, parked_after.the_unit.completed) == (1, 0), "never a provider completion"


@pytest.mark.parametrize(
    ("known", "live", "follows"),
    [
        pytest.param(streaming(2, live=True), True, [Offer(UNIT, 1)], id="live"),
        pytest.param(streaming(2, live=False), False, [HoldCompletion("early-held")], id="dispatching"),
    ],
)
def test_an_item_may_go_on_with_a_value(known: Sequence[Fact], live: bool, follows: Decisions) -> None:
    given(stream(on_timeout=VALUE), *known).when(expiring(1, live=live)).then(
        Append(timed_out(1, "value", DEADLINE)), Append(placed(1)), *follows
    )


def test_an_item_of_a_parked_unit_goes_on_with_a_value() -> None:
    decided = given(stream(on_timeout=VALUE), *parked(2, cursor=2)).when(expiring(1))
    assert decided.names[2:] == ["ContinuationSegmentCreated", "EmitContinuation"]


def test_a_scalar_goes_on_with_a_value() -> None:
    after = (
        given(scalar(on_timeout=VALUE), *scalar_waiting())
        .when(expiring())
        .then(Append(timed_out(None, "value", DEADLINE)), Append(placed()))
    )
    assert after.the_unit.completed == 1


@pytest.mark.parametrize(
    ("known", "now_ms"),
    [
        pytest.param(scalar_waiting(), DEADLINE - 1, id="before the deadline"),
        pytest.param([*scalar_waiting(), admitted()], DEADLINE, id="answered"),
        pytest.param([*scalar_waiting(), timed_out(resolution="value")], DEADLINE, id="expired already"),
        pytest.param([*scalar_waiting(), closed("CANCELLED"), cancelled()], DEADLINE, id="ended"),
        pytest.param(scalar_waiting()[:4], DEADLINE, id="no interaction"),
        pytest.param(scalar_waiting()[:3], DEADLINE, id="no unit"),
        pytest.param([], DEADLINE, id="nothing"),
    ],
)
@pytest.mark.parametrize("on_timeout", [None, VALUE])
def test_a_timer_that_outlived_its_interaction(known: Sequence[Fact], now_ms: int, on_timeout: Any) -> None:
    """CASES 37 and 38: at most one expiry an interaction."""
    given(scalar(on_timeout=on_timeout), *known).when(expiring(now_ms=now_ms)).then(NoOp("timer-outlived"))


@pytest.mark.parametrize("order", ["answer first", "deadline first"])
@pytest.mark.parametrize("on_timeout", [None, SKIP, VALUE])
def test_the_first_terminal_write_wins(order: str, on_timeout: Any) -> None:
    """BEHAVIOUR 155 to 157: one terminal state, whichever comes first, and the loser changes no outcome."""

    def answering(here: Given) -> Decisions:
        return admit(here.pipeline, answer(0), here.standing(0), live=True, now_ms=DEADLINE)

    here = given(stream(on_timeout=on_timeout), *streaming(1, live=True))
    first, second = (answering, expiring(0)) if order == "answer first" else (expiring(0), answering)
    here = here.when(first).folded()
    row, unit = here.interaction(0), here.the_unit
    assert row is not None
    decided = here.when(second)
    assert decided.names == (["NoOp"] if order == "answer first" else ["Refuse", "CompletionRefused"])
    after = decided.folded()
    later = after.interaction(0)
    assert later is not None
    assert (later.status, later.completion, after.the_unit) == (row.status, row.completion, unit)


def test_skip_has_no_meaning_for_a_scalar_await() -> None:
    with pytest.raises(AssertionError, match="check refuses"):
        given(scalar(on_timeout=SKIP), *scalar_waiting()).when(expiring())
