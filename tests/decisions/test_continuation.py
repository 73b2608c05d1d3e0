"""The continuation planner: hold, offer, emit, sweep, store, try again, give up (BEHAVIOUR 3, DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import facts, limits
from schemas.envelopes import Continuation
from schemas.facts import Fact
from tests.decisions.given import (
    AWAIT,
    EXECUTION,
    LINE,
    NOW,
    TENANT,
    TO_TOPIC,
    UNIT,
    VERDICT,
    YES,
    Given,
    admitted,
    await_step,
    cancelled,
    closed,
    continuation_created,
    continuation_failed,
    continued,
    dispatch_completed,
    given,
    line,
    outcome,
    parked,
    pipeline_of,
    run_step,
    scalar,
    scalar_waiting,
    source_ended,
    stream,
    stream_to_total,
    streaming,
    suspended,
    swept,
    timed_out,
)
from topologies.decisions.continuation import after_completion, complete_item, gates_open, item_due, suffix_step, sweep
from topologies.decisions.decision import (
    Append,
    Decisions,
    EmitContinuation,
    EndSweep,
    HoldCompletion,
    NoOp,
    Offer,
    WriteOutput,
)
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Cardinality

DUE = NOW + limits.CONTINUATION_TIMEOUT_MS


def emitted(index: int, *, attempt: int = 1, emissions: int = 0, stop: int = 3, now_ms: int = NOW) -> Decisions:
    due = now_ms + limits.CONTINUATION_TIMEOUT_MS * 2**emissions
    created = facts.ContinuationSegmentCreated(EXECUTION, now_ms, UNIT, index, attempt, AWAIT + 1, due)
    record = Continuation(EXECUTION, TENANT, "shop", UNIT, index, attempt, AWAIT, stop, YES, step_id="await-1")
    return [Append(created), EmitContinuation(record)]


# --- after an answer was stored -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "known", "item_index", "live", "expected"),
    [
        pytest.param(scalar(), scalar_waiting(), None, False, [], id="scalar: advance releases"),
        pytest.param(stream(), streaming(2, live=True), 0, True, [Offer(UNIT, 0)], id="live"),
        pytest.param(stream(), streaming(2, live=True), 0, False, [HoldCompletion("early-held")], id="live elsewhere"),
        pytest.param(stream(), streaming(2, live=False), 0, False, [HoldCompletion("early-held")], id="dispatching"),
        pytest.param(
            stream(),
            [*streaming(2, live=False, ended=True), dispatch_completed(2)],
            0,
            False,
            [HoldCompletion("ahead-of-the-sweep")],
            id="closed, not parked",
        ),
        pytest.param(stream(), parked(2), 0, False, [HoldCompletion("ahead-of-the-sweep")], id="parked, not swept"),
        pytest.param(
            stream(), parked(2, cursor=1), 1, False, [HoldCompletion("ahead-of-the-sweep")], id="at the cursor"
        ),
        pytest.param(stream(), parked(2, cursor=1), 0, False, emitted(0), id="behind the cursor"),
        pytest.param(stream(), parked(2, cursor=1), 0, True, emitted(0), id="parked never becomes live again"),
        pytest.param(stream_to_total(), parked(2, cursor=2), 1, False, emitted(1, stop=3), id="up to the aggregate"),
    ],
)
def test_after_an_answer_was_stored(
    pipeline: Pipeline, known: Sequence[Fact], item_index: int | None, live: bool, expected: Decisions
) -> None:
    def ask(here: Given) -> Decisions:
        fact = admitted(item_index)
        return after_completion(pipeline, here.the_execution, here.the_unit, fact, live=live, now_ms=NOW)

    assert given(pipeline, *known).when(ask).decisions == expected


@pytest.mark.parametrize(
    ("known", "is_open"),
    [
        pytest.param(streaming(1, live=False, ended=True), False, id="running"),
        pytest.param([*streaming(1, live=False, ended=True), suspended()], False, id="parked, dispatch not closed"),
        pytest.param([*streaming(1, live=False, ended=True), dispatch_completed(1)], False, id="closed, not parked"),
        pytest.param(parked(1), True, id="both"),
        pytest.param([*parked(1), closed("FAILED")], False, id="unit ended"),
        pytest.param([*parked(1), continuation_created(None, 3)], False, id="released"),
        pytest.param(scalar_waiting(), False, id="a scalar has no items"),
    ],
)
def test_the_gates(known: Sequence[Fact], is_open: bool) -> None:
    here = given(stream(), *known)
    assert gates_open(here.the_execution, here.the_unit) is is_open


# --- the sweep -----------------------------------------------------------------------------------------------------------------------------


def sweeping(first: int, cursor: int) -> Any:
    def ask(here: Given) -> Decisions:
        rows = [(here.interaction(index), here.item(index)) for index in range(first, cursor)]
        found = [(interaction, item) for interaction, item in rows if interaction is not None]
        return sweep(here.pipeline, here.the_execution, here.the_unit, found, cursor, now_ms=NOW)

    return ask


def test_the_sweep_emits_each_completed_item_once_and_moves_the_cursor() -> None:
    known = given(stream(), *parked(4, answered=3))
    after = known.when(sweeping(0, 2)).then(*emitted(0), *emitted(1), Append(swept(2)))
    after = after.when(sweeping(2, 4)).then(*emitted(2), Append(swept(4)))
    after.when(sweeping(0, 4)).then(EndSweep(UNIT))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="not answered"),
        pytest.param([timed_out(0, "skip"), continued(0, outputs=[])], id="left out"),
        pytest.param([admitted(0), continued(0)], id="continued while it was live"),
        pytest.param([admitted(0), continuation_failed(0)], id="to be tried again: its timer emits it"),
        pytest.param([admitted(0), continuation_created(0, due_ms=DUE)], id="emitted already"),
    ],
)
def test_the_sweep_passes_by(more: Sequence[Fact]) -> None:
    given(stream(), *parked(1), *more).when(sweeping(0, 1)).then(Append(swept(1)))


def test_the_sweep_emits_a_retry_that_fell_due_before_the_gates_opened() -> None:
    """Its timer rang into closed gates and rings no more; without this the item would wait for ever."""
    known = given(stream(), *streaming(1, live=True), admitted(0), continuation_failed(0, retry_at_ms=NOW))
    known = known.when(due(0)).then(HoldCompletion("early-held"))
    known.facts(source_ended(1), dispatch_completed(1, 1), suspended())
    known.when(sweeping(0, 1)).then(*emitted(0, attempt=2), Append(swept(1)))


# --- an item's outcome -----------------------------------------------------------------------------------------------------------------------


def completing(
    index: int, attempt: int = 1, *, error: str | None = None, retryable: bool = True, now_ms: int = NOW
) -> Any:
    result = outcome(index, attempt, error=error, retryable=retryable)

    def ask(here: Given) -> Decisions:
        return complete_item(here.pipeline, result, here.execution, here.unit(), here.item(index), now_ms=now_ms)

    return ask


@pytest.mark.parametrize("known", [parked(2, answered=2, cursor=2), [*streaming(2, live=True), admitted(0)]])
def test_outputs_are_stored_once(known: Sequence[Fact]) -> None:
    after = given(stream(), *known).when(completing(0)).then(Append(continued(0)))
    assert after.the_unit.outputs == 1
    after.when(completing(0)).then(NoOp("already-continued"))
    after.when(completing(0, error="STEP_FAILED")).then(NoOp("already-continued"))


def test_outputs_of_an_output_topic_are_written_with_the_fact_that_stores_them() -> None:
    known = [*parked(1, answered=1, cursor=1)]
    written = WriteOutput(EXECUTION, line(0))
    after = given(stream(TO_TOPIC), *known).when(completing(0)).then(Append(continued(0)), written)
    after.when(completing(0)).then(NoOp("already-continued"))
    given(stream_to_total(TO_TOPIC), *known).when(completing(0)).then(Append(continued(0)))  # an aggregate follows


@pytest.mark.parametrize(
    ("known", "index", "attempt", "reason"),
    [
        pytest.param([], 0, 1, "unit-closed", id="no execution"),
        pytest.param([*parked(1), closed("CANCELLED"), cancelled()], 0, 1, "unit-closed", id="ended (BEHAVIOUR 163)"),
        pytest.param([*parked(1), closed("FAILED")], 0, 1, "unit-closed", id="unit ended"),
        pytest.param(parked(1, answered=1), 0, 2, "stale-attempt", id="of an attempt that was never made"),
        pytest.param([*parked(1, answered=1), continuation_failed(0)], 0, 1, "stale-attempt", id="of a former attempt"),
        pytest.param(parked(2), 2, 1, "no-such-item", id="beyond the stream (BEHAVIOUR 115)"),
        pytest.param(scalar_waiting(), 0, 1, "no-such-item", id="of a scalar"),
        pytest.param([*parked(1), continuation_failed(0, retry_at_ms=None)], 0, 1, "already-continued", id="given up"),
    ],
)
def test_an_outcome_that_changes_nothing(known: Sequence[Fact], index: int, attempt: int, reason: str) -> None:
    given(stream(), *known).when(completing(index, attempt)).then(NoOp(reason))


def test_an_item_is_tried_again_with_growing_waits_and_then_has_failed() -> None:
    here = given(stream(), *parked(2, answered=2, cursor=2), continuation_created(0, due_ms=DUE))
    for attempt, delay in ((1, 100), (2, 200)):
        here = here.when(completing(0, attempt, error="STEP_FAILED")).then(
            Append(continuation_failed(0, attempt, NOW + delay))
        )
        row = here.item(0)
        assert row is not None
        assert (row.attempt, row.due_ms, row.continued) == (attempt + 1, NOW + delay, False)
        here = here.when(due(0, now_ms=NOW + delay)).then(*emitted(0, attempt=attempt + 1, now_ms=NOW + delay))
    after = here.when(completing(0, 3, error="STEP_FAILED")).then(Append(continuation_failed(0, 3, None)))
    assert (after.the_unit.is_open, after.the_unit.failed, after.the_unit.outputs) == (True, 1, 0)
    after.when(completing(0, 3)).then(NoOp("already-continued"))
    after.when(completing(1)).then(Append(continued(1)))  # the others go on


@pytest.mark.parametrize(
    ("pipeline", "retryable"),
    [
        pytest.param(stream(), False, id="the error says so"),
        pytest.param(stream(attempts=1), True, id="one attempt"),
        pytest.param(pipeline_of(*stream().steps[:2]), True, id="no suffix, no policy"),
    ],
)
def test_an_item_is_not_tried_again_when(pipeline: Pipeline, retryable: bool) -> None:
    decided = given(pipeline, *parked(1, answered=1, cursor=1)).when(completing(0, error="X", retryable=retryable))
    assert decided.names == ["ContinuationAttemptFailed"]
    row = decided.folded().item(0)
    assert row is not None
    assert row.status == "FAILED"


def test_the_first_step_of_the_suffix_rules_its_retries() -> None:
    first = run_step(2, takes=VERDICT, gives=LINE, attempts=7)
    pipeline = pipeline_of(run_step(0, Cardinality.ONE_TO_MANY, takes=VERDICT, gives=VERDICT), await_step(1), first)
    assert suffix_step(pipeline, given(pipeline, *streaming(0, live=True)).the_unit) is first
    nested = pipeline_of(*pipeline.steps[:2], await_step(2))
    assert suffix_step(nested, given(nested, *streaming(0, live=True)).the_unit) is None


def test_a_long_error_is_cut() -> None:
    here = given(stream(), *parked(1, answered=1, cursor=1))
    result = type(outcome(0))(EXECUTION, UNIT, 0, 1, [], "X", "y" * 100_000)
    decided = complete_item(here.pipeline, result, here.execution, here.unit(), None, now_ms=NOW)
    assert isinstance(decided[0], Append)
    stored: Any = decided[0].fact
    assert len(stored.error_message) == 2_000


# --- an item's timer ---------------------------------------------------------------------------------------------------------------------------


def due(index: int, *, live: bool = False, now_ms: int = NOW) -> Any:
    def ask(here: Given) -> Decisions:
        item = here.item(index)
        assert item is not None
        interaction = here.interaction(index)
        return item_due(here.pipeline, here.execution, here.unit(), item, interaction, live=live, now_ms=now_ms)

    return ask


RETRY = continuation_failed(0, retry_at_ms=NOW)


@pytest.mark.parametrize(
    ("known", "live", "now_ms", "expected"),
    [
        pytest.param(
            [*streaming(1, live=True), admitted(0), RETRY], True, NOW, [Offer(UNIT, 0)], id="live: offered again"
        ),
        pytest.param(
            [*streaming(1, live=True), admitted(0), RETRY],
            False,
            NOW,
            [HoldCompletion("early-held")],
            id="no session yet",
        ),
        pytest.param(
            [*parked(1, answered=1, cursor=1), RETRY], False, NOW, emitted(0, attempt=2), id="parked: emitted"
        ),
        pytest.param(
            [*parked(1, answered=1), RETRY], False, NOW, emitted(0, attempt=2), id="parked, not swept: emitted"
        ),
        pytest.param(
            [*parked(1, answered=1, cursor=1), RETRY], False, NOW - 1, [NoOp("timer-outlived")], id="before its time"
        ),
        pytest.param(
            [*parked(1, answered=1, cursor=1), continuation_created(0, due_ms=DUE)],
            False,
            DUE,
            emitted(0, emissions=1, now_ms=DUE),
            id="unanswered: emitted again, twice the wait",
        ),
        pytest.param(
            [*parked(1, answered=1, cursor=1), continuation_created(0, due_ms=DUE)],
            False,
            NOW,
            [NoOp("timer-outlived")],
            id="an old timer of an item that was emitted since",
        ),
        pytest.param(
            [*parked(1, answered=1), RETRY, closed("FAILED")], False, NOW, [NoOp("timer-outlived")], id="ended"
        ),
        pytest.param(
            [*parked(1, answered=1), RETRY, continued(0, 2)], False, NOW, [NoOp("timer-outlived")], id="done meanwhile"
        ),
        pytest.param([*parked(1), RETRY], False, NOW, [NoOp("timer-outlived")], id="no answer"),
    ],
)
def test_an_items_timer(known: Sequence[Fact], live: bool, now_ms: int, expected: Decisions) -> None:
    given(stream(), *known).when(due(0, live=live, now_ms=now_ms)).then(*expected)


def test_an_items_timer_without_its_execution() -> None:
    here = given(stream(), *parked(1, answered=1), RETRY)
    item = here.item(0)
    assert item is not None
    for execution, unit in ((None, here.unit()), (here.execution, None)):
        assert item_due(here.pipeline, execution, unit, item, None, live=False, now_ms=NOW) == [NoOp("timer-outlived")]


def test_a_continuation_that_nobody_answers_fails_its_item_in_the_end() -> None:
    """Every wait has a deadline (DESIGN 7)."""
    here = given(stream(), *parked(1, answered=1)).when(sweeping(0, 1)).folded()
    now_ms, waits = NOW, []
    for _ in range(limits.CONTINUATION_ATTEMPTS_MAX - 1):
        row = here.item(0)
        assert row is not None
        assert row.due_ms is not None
        waits.append(row.due_ms - now_ms)
        now_ms = row.due_ms
        decided = here.when(due(0, now_ms=now_ms))
        assert decided.names == ["ContinuationSegmentCreated", "EmitContinuation"]
        here = decided.folded()
    assert waits == [limits.CONTINUATION_TIMEOUT_MS * 2**n for n in range(limits.CONTINUATION_ATTEMPTS_MAX - 1)]
    row = here.item(0)
    assert row is not None
    assert row.due_ms is not None
    decided = here.when(due(0, now_ms=row.due_ms))
    after = decided.folded()
    assert after.the_unit.failures == [
        "item 0: CONTINUATION_LOST: no continuation agent answered; is the role `continuation` running?"
    ]


def test_an_answer_to_an_earlier_emission_of_the_attempt_counts() -> None:
    here = given(
        stream(), *parked(1, answered=1, cursor=1), continuation_created(0, due_ms=NOW), continuation_created(0)
    )
    here.when(completing(0)).then(Append(continued(0)))


def test_a_live_outcome_after_parking_counts_once_beside_the_continuation() -> None:
    """BEHAVIOUR 151: exactly one of both reaches the output."""
    here = given(
        stream(TO_TOPIC),
        *streaming(1, live=True),
        admitted(0),
        source_ended(1),
        dispatch_completed(1, 1),
        suspended(),
    )
    here = here.when(sweeping(0, 1)).folded()
    here = here.when(completing(0)).then(Append(continued(0)), WriteOutput(EXECUTION, line(0)))
    here.when(completing(0)).then(NoOp("already-continued"))
