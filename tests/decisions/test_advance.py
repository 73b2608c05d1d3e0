"""Advance: from rows alone, what an execution does next; right after every event, after a restart, and twice in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import facts, limits
from schemas.facts import Fact
from state.segment_input import segment_input
from tests.decisions.given import (
    AWAIT,
    EXECUTION,
    IDLE,
    INPUT,
    LINE,
    NO,
    NOW,
    ORDER,
    TENANT,
    TO_OBJECT,
    TO_TOPIC,
    UNIT,
    VERDICT,
    YES,
    Doing,
    Given,
    Then,
    admitted,
    await_step,
    cancelled,
    closed,
    continuation_created,
    continued,
    dispatch_completed,
    dispatched,
    failed,
    given,
    held,
    opened,
    parked,
    pipeline_of,
    request,
    run_step,
    scalar,
    scalar_waiting,
    segment_completed,
    segment_failed,
    source_ended,
    started,
    stream,
    stream_to_total,
    streaming,
    submitted,
    succeeded,
    suspended,
    timed_out,
)
from topologies.decisions import advance as core
from topologies.decisions.advance import advance
from topologies.decisions.decision import (
    Append,
    CloseSession,
    Collect,
    DeadLetterExecution,
    Decisions,
    OpenSession,
    Publish,
    Request,
    RunSegment,
    StartSweep,
)
from topologies.decisions.publication import publication_id
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Cardinality


def advancing(local: Doing = IDLE, *, now_ms: int = NOW) -> Any:
    """The question: what does the execution do next?"""

    def ask(known: Given) -> Decisions:
        return advance(known.pipeline, known.the_execution, known.rows, local, local, now_ms=now_ms)

    return ask


SENDING = Doing(session=True)
DRY = Doing(session=True, parking=0)


def prepared(attempt: int = 1) -> facts.TerminalPublicationPrepared:
    return facts.TerminalPublicationPrepared(
        EXECUTION, NOW, publication_id(EXECUTION), attempt, NOW + limits.CALL_TIMEOUT_DEFAULT_MS
    )


# --- segments --------------------------------------------------------------------------------------------------------------------------


def test_a_new_execution_runs_up_to_the_await() -> None:
    given(scalar(), submitted()).when(advancing()).then(Append(started()), RunSegment(EXECUTION, 0, AWAIT))


def test_a_pipeline_without_an_await_runs_to_its_end() -> None:
    lone = pipeline_of(run_step(0, takes=ORDER, gives=ORDER), run_step(1, takes=ORDER, gives=ORDER))
    given(lone, submitted()).when(advancing()).then(Append(started()), RunSegment(EXECUTION, 0, 2))


def test_a_segment_that_a_lost_process_ran_is_run_again_under_the_same_attempt() -> None:
    given(scalar(), submitted(), started()).when(advancing()).then(Append(started()), RunSegment(EXECUTION, 0, AWAIT))


def test_a_running_segment_is_left_alone() -> None:
    given(scalar(), submitted(), started()).when(advancing(Doing(running=True))).then()


def test_a_retry_waits_until_it_is_due() -> None:
    known = given(scalar(), submitted(), started(), segment_failed(NOW + 100))
    known.when(advancing(now_ms=NOW + 99)).then()
    known.when(advancing(now_ms=NOW + 100)).then(
        Append(facts.SegmentAttemptStarted(EXECUTION, NOW + 100, 0, 2, "run-0")), RunSegment(EXECUTION, 0, AWAIT)
    )


@pytest.mark.parametrize("ending", [succeeded(), failed(), cancelled()], ids=lambda fact: type(fact).__name__)
def test_an_execution_that_ended_does_nothing(ending: Fact) -> None:
    given(scalar(), submitted(), started(), ending).when(advancing()).then()


# --- a scalar await ----------------------------------------------------------------------------------------------------------------------


def test_a_scalar_await_opens_sends_and_parks_at_once() -> None:
    """No gap between sending and waiting for an early answer to fall into (CASES 2, 14; BEHAVIOUR 86)."""
    pipeline = scalar()
    sent = dispatched()
    after = (
        given(pipeline, submitted(), started(), segment_completed())
        .when(advancing())
        .then(
            Append(opened(itemised=False, live=False)),
            Append(sent),
            Request(pipeline.await_step(AWAIT), TENANT, sent),
            Append(dispatch_completed(1)),
            Append(suspended()),
        )
    )
    assert (after.the_execution.status, after.the_execution.step_index) == ("WAITING_EXTERNAL", AWAIT)
    after.when(advancing()).then()


def test_an_await_may_be_the_first_step() -> None:
    first = pipeline_of(await_step(0), run_step(1, takes=VERDICT, gives=LINE))
    decided = given(first, submitted()).when(advancing())
    assert decided.names == [
        "BoundaryUnitOpened",
        "BoundaryInteractionDispatched",
        "Request",
        "BoundaryDispatchCompleted",
        "SegmentSuspended",
    ]
    decided.folded().when(advancing()).then()


def test_no_request_leaves_for_an_answer_that_is_held() -> None:
    known = given(scalar(), submitted(), held(), started(), segment_completed())
    decided = known.when(advancing())
    assert "Request" not in decided.names
    row = decided.folded().interaction()
    assert row is not None
    assert row.held is not None
    assert row.held.answer == YES


def test_a_request_that_is_too_large_fails_the_execution_before_anything_is_sent() -> None:
    big = b'{"id":"%s"}' % (b"x" * limits.PAYLOAD_BYTES_MAX)
    decided = given(scalar(), submitted(), started(), segment_completed(output=big)).when(advancing())
    assert decided.names == ["RunFailed", "DeadLetterExecution", "TellOutcome"]
    dead = decided.decisions[1]
    assert isinstance(dead, DeadLetterExecution)
    assert "limits.PAYLOAD_BYTES_MAX" in dead.detail
    assert dead.step_id == "await-1"


def test_a_parked_execution_waits_while_there_is_no_answer() -> None:
    given(scalar(), *scalar_waiting()).when(advancing()).then()


def test_an_answer_releases_a_scalar_await_once() -> None:
    known = given(scalar(), *scalar_waiting(), admitted())
    after = known.when(advancing()).then(Append(closed()), Append(continuation_created(None, 2)))
    assert segment_input(after.the_execution, after.rows) == YES
    after.when(advancing()).then(Append(started(2)), RunSegment(EXECUTION, 2, 3))


def test_a_value_in_place_of_an_answer_releases_it_too() -> None:
    known = given(scalar(), *scalar_waiting(), timed_out(resolution="value"), admitted(completion=NO))
    after = known.when(advancing()).then(Append(closed()), Append(continuation_created(None, 2)))
    assert segment_input(after.the_execution, after.rows) == NO


def test_a_retry_after_the_await_reads_the_answer_again() -> None:
    """BEHAVIOUR 93: the pointer is kept."""
    known = given(
        scalar(),
        *scalar_waiting(),
        admitted(),
        closed(),
        continuation_created(None),
        started(2),
        segment_failed(NOW, 2),
    )
    assert segment_input(known.the_execution, known.rows) == YES
    known.when(advancing()).then(Append(started(2, 2)), RunSegment(EXECUTION, 2, 3))


def test_parked_at_a_unit_that_ended_is_never_a_wait_for_ever() -> None:
    decided = given(scalar(), *scalar_waiting(), closed("FAILED")).when(advancing())
    assert decided.names == ["RunFailed", "DeadLetterExecution", "TellOutcome"]


def two_awaits() -> Pipeline:
    return pipeline_of(
        run_step(0, takes=ORDER, gives=ORDER),
        await_step(1, output=ORDER),
        await_step(2),
        run_step(3, takes=VERDICT, gives=LINE),
    )


def test_two_awaits_in_a_row_are_two_units_the_second_opened_after_the_first_resumed() -> None:
    """BEHAVIOUR 95 and 96."""
    known = given(two_awaits(), *scalar_waiting(), admitted(completion=request(7)))
    assert known.unit(f"{EXECUTION}.2") is None
    resumed = continuation_created(None, 2, next_id="await-2")
    after = known.when(advancing()).then(Append(closed()), Append(resumed))
    decided = after.when(advancing())
    sent = decided.decisions[2]
    assert isinstance(sent, Request)
    assert (sent.fact.unit_id, sent.fact.request) == (f"{EXECUTION}.2", request(7))
    waiting = decided.folded()
    assert waiting.the_execution.await_unit_id == f"{EXECUTION}.2"
    waiting.when(advancing()).then()


def test_an_await_may_be_the_last_step() -> None:
    """BEHAVIOUR 98."""
    last = pipeline_of(run_step(0, takes=ORDER, gives=ORDER), await_step(1), output=TO_OBJECT)
    after = (
        given(last, *scalar_waiting(), admitted())
        .when(advancing())
        .then(Append(closed()), Append(continuation_created(None, 2, next_id="")))
    )
    after.when(advancing()).then(Append(prepared()), Publish(EXECUTION, publication_id(EXECUTION), 1))
    assert segment_input(after.the_execution, after.rows) == YES


def test_the_input_of_a_segment_is_missing_while_its_answer_is() -> None:
    known = given(scalar(), *scalar_waiting(), closed("FAILED"), continuation_created(None))
    assert segment_input(known.the_execution, known.rows) is None
    decided = core._ask(known.pipeline, known.the_execution, known.pipeline.await_step(1), known.rows, now_ms=NOW)
    assert any(isinstance(decision, DeadLetterExecution) and "missing" in decision.detail for decision in decided)


# --- a stream into an await ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [True, False])
def test_a_stream_opens_its_unit_and_a_session(live: bool) -> None:
    given(stream(live=live), submitted()).when(advancing()).then(
        Append(started()), Append(opened(itemised=True, live=live)), OpenSession(EXECUTION, UNIT)
    ).when(advancing(SENDING)).then()


def test_a_new_owner_opens_a_session_and_no_second_unit() -> None:
    given(stream(), *streaming(2, live=True)).when(advancing()).then(OpenSession(EXECUTION, UNIT))


def test_a_source_that_failed_is_read_again_when_its_retry_is_due() -> None:
    known = given(stream(), *streaming(2, live=True), segment_failed(NOW + 100))
    known.when(advancing(now_ms=NOW + 99)).then()
    known.when(advancing(now_ms=NOW + 100)).then(
        Append(facts.SegmentAttemptStarted(EXECUTION, NOW + 100, 0, 2, "run-0")), OpenSession(EXECUTION, UNIT)
    )


def test_a_stream_that_failed_before_its_unit_was_open_starts_again() -> None:
    known = given(stream(), submitted(), started(), segment_failed(NOW))
    known.when(advancing()).then(
        Append(started(attempt=2)), Append(opened(itemised=True, live=True)), OpenSession(EXECUTION, UNIT)
    )


def scalar_then_stream() -> Pipeline:
    return pipeline_of(
        run_step(0, takes=ORDER, gives=ORDER),
        await_step(1, output=ORDER),
        run_step(2, Cardinality.ONE_TO_MANY, takes=ORDER, gives=ORDER),
        await_step(3),
        run_step(4, takes=VERDICT, gives=LINE),
    )


def test_a_stream_made_of_an_answer_is_read_from_that_answer_after_a_takeover_too() -> None:
    known = given(
        scalar_then_stream(), *scalar_waiting(), admitted(completion=request(5)), closed(), continuation_created(None)
    )
    after = known.when(advancing()).folded()
    assert after.the_execution.await_unit_id == f"{EXECUTION}.3"
    assert segment_input(after.the_execution, after.rows) == request(5)
    after.when(advancing()).then(OpenSession(EXECUTION, f"{EXECUTION}.3"))


def test_a_unit_that_is_there_already_is_not_opened_twice() -> None:
    known = given(stream(), *streaming(1, live=True), closed("FAILED"))
    decided = known.when(advancing())
    assert "BoundaryUnitOpened" not in decided.names


PARKING = [
    Append(facts.BoundaryDispatchCompleted(EXECUTION, NOW, UNIT, 3, 2)),
    Append(suspended()),
    CloseSession(UNIT),
    StartSweep(UNIT),
]


@pytest.mark.parametrize(
    ("known", "local", "expected"),
    [
        pytest.param(streaming(3, live=True), SENDING, [], id="live, source open"),
        pytest.param(streaming(3, live=True, ended=True), SENDING, [], id="live, source ended, busy"),
        pytest.param(
            [*streaming(3, live=True, ended=True), admitted(0), admitted(1)],
            Doing(session=True, parking=2),
            PARKING,
            id="live, idle: parked with counts from rows",
        ),
        pytest.param(
            [*streaming(3, live=True, ended=True)],
            IDLE,
            [OpenSession(EXECUTION, UNIT)],
            id="live, new owner: served from rows, the source is not read",
        ),
        pytest.param(
            [*streaming(3, live=False), admitted(0), admitted(1), source_ended(3)],
            SENDING,
            PARKING,
            id="suspending, parked",
        ),
        pytest.param(
            [*streaming(3, live=False), admitted(0), admitted(1), source_ended(3)], IDLE, PARKING, id="new owner"
        ),
        pytest.param(streaming(3, live=False), SENDING, [], id="suspending, source open: no join yet"),
        pytest.param(
            [*streaming(3, live=False), *(admitted(index) for index in range(3))],
            SENDING,
            [],
            id="all answered, count unknown",
        ),
        pytest.param(
            [
                *streaming(3, live=True),
                *(admitted(index) for index in range(3)),
                *(continued(index) for index in range(3)),
            ],
            SENDING,
            [],
            id="all continued, count unknown (CASES 52)",
        ),
    ],
)
def test_while_a_stream_is_dispatched(known: Sequence[Fact], local: Doing, expected: list[Any]) -> None:
    given(stream(), *known).when(advancing(local)).then(*expected)


def test_parking_is_normal() -> None:
    """DESIGN 7: no error, no retry, no dead letter."""
    known = given(stream(), *streaming(3, live=True, ended=True))
    after = known.when(advancing(DRY)).folded()
    row = after.the_execution
    assert (row.status, row.attempt, row.error_code, row.due_ms) == ("WAITING_EXTERNAL", 1, None, None)
    assert (after.the_unit.live, after.the_unit.expected, after.the_unit.dispatch_complete) == (False, 3, True)
    after.when(advancing()).then()


def test_only_a_unit_whose_source_ended_is_parked() -> None:
    known = given(stream(), *streaming(3, live=True))
    with pytest.raises(AssertionError, match="source ended"):
        core.park(known.the_execution, known.the_unit, completed=0, now_ms=NOW)


# --- strict parent release -----------------------------------------------------------------------------------------------------------------

RELEASED_AT_THE_END: Decisions = [Append(continuation_created(None, 3)), CloseSession(UNIT)]
RELEASED_AT_THE_AGGREGATE: Decisions = [
    Append(closed()),
    Append(continuation_created(None, 3, next_id="run-3")),
    CloseSession(UNIT),
]


def outcomes(count: int) -> list[Fact]:
    return [fact for index in range(count) for fact in (admitted(index), continued(index))]


@pytest.mark.parametrize(
    ("known", "local"),
    [
        pytest.param([*streaming(3, live=True), *outcomes(3), source_ended(3)], SENDING, id="a live window ran dry"),
        pytest.param([*streaming(3, live=True, ended=True), *outcomes(3)], IDLE, id="a new owner of it"),
        pytest.param([*parked(3, cursor=3), *outcomes(3)], IDLE, id="parked"),
        pytest.param(
            [*parked(3, cursor=3), *outcomes(2), timed_out(2, "skip"), continued(2, outputs=[])],
            IDLE,
            id="one left out",
        ),
        pytest.param(streaming(0, live=True, ended=True), SENDING, id="an empty stream (policy 5, CASES 53)"),
        pytest.param(streaming(0, live=False, ended=True), SENDING, id="an empty stream, suspending"),
        pytest.param(parked(0, cursor=0), IDLE, id="an empty stream, parked by a former owner"),
    ],
)
def test_when_every_item_has_its_outputs_the_execution_goes_on_once(known: Sequence[Fact], local: Doing) -> None:
    after = given(stream(TO_OBJECT), *known).when(advancing(local)).then(*RELEASED_AT_THE_END)
    assert after.the_unit.is_open  # closed with the terminal status: its rows are still to be published
    after.when(advancing()).then(Append(prepared()), Publish(EXECUTION, publication_id(EXECUTION), 1))
    total = given(stream_to_total(), *known).when(advancing(local)).then(*RELEASED_AT_THE_AGGREGATE)
    total.when(advancing()).then(Append(started(3)), RunSegment(EXECUTION, 3, 4))


@pytest.mark.parametrize("missing", range(3))
@pytest.mark.parametrize("at", ["parked", "live"])
def test_an_execution_is_held_while_any_item_lacks_its_outputs(missing: int, at: str) -> None:
    """BEHAVIOUR 106: answers are not outputs."""
    begun = parked(3, cursor=3) if at == "parked" else streaming(3, live=True, ended=True)
    stored = [continued(index) for index in range(3) if index != missing]
    known = given(stream(), *begun, *(admitted(index) for index in range(3)), *stored)
    known.when(advancing(SENDING)).then()


def test_an_execution_is_held_while_an_item_is_tried_again() -> None:
    retried = facts.ContinuationAttemptFailed(EXECUTION, NOW, UNIT, 0, 1, "X", "x", NOW + 1)
    given(stream(), *parked(1, answered=1), continuation_created(0), retried).when(advancing()).then()


# --- the end ---------------------------------------------------------------------------------------------------------------------------------

AT_THE_END = [submitted(), started(), segment_completed(3, b"{}")]


def test_an_object_is_published_before_success() -> None:
    given(scalar(TO_OBJECT), *AT_THE_END).when(advancing()).then(
        Append(prepared()), Publish(EXECUTION, publication_id(EXECUTION), 1)
    ).when(advancing(Doing(running=True))).then()


def test_a_prepared_publication_is_done_again_by_a_new_owner_under_its_stable_id() -> None:
    """BEHAVIOUR 183."""
    given(scalar(TO_OBJECT), *AT_THE_END, prepared()).when(advancing()).then(
        Append(prepared()), Publish(EXECUTION, publication_id(EXECUTION), 1)
    )


@pytest.mark.parametrize("output", [None, TO_TOPIC])
def test_a_result_is_collected_from_committed_rows(output: Any) -> None:
    given(scalar(output), *AT_THE_END).when(advancing()).then(Collect(EXECUTION))


def test_items_that_were_written_as_they_finished_need_no_publication() -> None:
    known = given(stream(TO_TOPIC), *streaming(1, live=True, ended=True), *outcomes(1), continuation_created(None, 3))
    decided = known.when(advancing())
    assert decided.names == ["BoundaryUnitClosed", "CloseSession", "RunSucceeded", "TellOutcome"]
    decided.folded().when(advancing()).then()


# --- twice in a row ----------------------------------------------------------------------------------------------------------------------------

SITUATIONS: dict[str, tuple[Pipeline, Sequence[Fact]]] = {
    "submitted": (scalar(), [submitted()]),
    "at the await": (scalar(), [submitted(), started(), segment_completed()]),
    "answered": (scalar(), [*scalar_waiting(), admitted()]),
    "resumed": (scalar(), [*scalar_waiting(), admitted(), closed(), continuation_created(None)]),
    "stream": (stream(), [submitted()]),
    "taken over": (stream(), streaming(2, live=True)),
    "ran dry": (stream(), [*streaming(2, live=True, ended=True), *outcomes(2)]),
    "ended": (stream(), streaming(2, live=False, ended=True)),
    "parked": (stream(), [*parked(2, cursor=2), *outcomes(2)]),
    "retry": (scalar(), [submitted(), started(), segment_failed(NOW)]),
    "publishing": (scalar(TO_OBJECT), AT_THE_END),
    "collecting": (scalar(), AT_THE_END),
    "written": (stream(TO_TOPIC), [*streaming(1, live=True, ended=True), *outcomes(1)]),
}


@pytest.mark.parametrize(("pipeline", "known"), SITUATIONS.values(), ids=SITUATIONS)
def test_advance_settles_and_then_says_nothing_more(pipeline: Pipeline, known: Sequence[Fact]) -> None:
    here = given(pipeline, *known)
    local = Doing()
    decided = Then(here, [])
    for _ in range(6):
        decided = here.when(advancing(local))
        if not decided.decisions:
            return
        decided.folded()
        for decision in decided.decisions:
            local.running = local.running or isinstance(decision, RunSegment | Publish | Collect)
            local.session = (local.session or isinstance(decision, OpenSession)) and not isinstance(
                decision, CloseSession
            )
    pytest.fail(f"still deciding: {decided.names}")


def test_the_request_of_a_declared_key_is_the_segments_input() -> None:
    keyed = scalar(idempotency_key_fields=("id", "amount"))
    decided = given(keyed, submitted(), started(), segment_completed(output=INPUT)).when(advancing())
    sent = decided.decisions[2]
    assert isinstance(sent, Request)
    assert sent.fact.idempotency_key == "await-1:id=o-1:amount=1"


def test_the_input_of_what_follows_an_itemised_await_are_its_items_outputs() -> None:
    """They are read from the item rows, a slice at a time; the execution's row holds none of them (CASES 50)."""
    known = given(stream_to_total(), *parked(1, cursor=1), *outcomes(1), closed(), continuation_created(None, 3))
    assert known.the_execution.input_unit_id == UNIT
    assert segment_input(known.the_execution, known.rows) == b""
