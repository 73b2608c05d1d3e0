"""Endings and submissions: each ends, or begins, once, and tells whoever waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from schemas.envelopes import ExecutionOutcome, SubmitCommand
from schemas.facts import Fact
from schemas.limits import MESSAGE_CHARS_MAX
from state.unit import UnitStatus
from tests.decisions.given import (
    EXECUTION,
    INPUT,
    NOW,
    TENANT,
    UNIT,
    Given,
    admitted,
    cancelled,
    closed,
    failed,
    given,
    parked,
    scalar,
    scalar_waiting,
    segment_completed,
    segment_failed,
    started,
    stream,
    streaming,
    submitted,
    succeeded,
)
from topologies.decisions.decision import Append, CloseSession, DeadLetterExecution, Decisions, NoOp, TellOutcome
from topologies.decisions.ending import cancel, fail
from topologies.decisions.submission import input_moved, submit
from topologies.pipeline.payload_list import join_payloads, split_payloads

OPEN = {
    "queued": [submitted()],
    "running": [submitted(), started()],
    "waiting for a retry": [submitted(), started(), segment_failed(NOW + 1)],
    "parked": scalar_waiting(),
    "live": streaming(2, live=True),
    "parked with items": parked(2, answered=1),
}
ENDED = {"succeeded": succeeded(), "failed": failed(), "cancelled": cancelled()}


def cancelling(here: Given) -> Decisions:
    return cancel(here.execution, here.unit(), reason="not wanted", now_ms=NOW)


def failing(message: str = "it broke") -> Any:
    return lambda here: fail(here.pipeline, here.the_execution, here.unit(), code="X", message=message, now_ms=NOW)


@pytest.mark.parametrize("known", OPEN.values(), ids=OPEN)
def test_whatever_is_open_can_be_cancelled_and_leaves_nothing_open(known: Sequence[Fact]) -> None:
    decided = given(stream(), *known).when(cancelling)
    after = decided.folded()
    assert after.the_execution.status == "CANCELLED"
    unit = after.unit()
    assert unit is None or (unit.status is UnitStatus.CANCELLED and CloseSession(UNIT) in decided.decisions)
    told = [decision.outcome.status for decision in decided.decisions if isinstance(decision, TellOutcome)]
    assert told == ["CANCELLED"]
    assert after.when(cancelling).decisions == []


@pytest.mark.parametrize("known", OPEN.values(), ids=OPEN)
def test_whatever_is_open_can_fail_and_is_dead_lettered(known: Sequence[Fact]) -> None:
    decided = given(stream(), *known).when(failing())
    after = decided.folded()
    assert (after.the_execution.status, after.the_execution.error_code) == ("FAILED", "X")
    assert after.unit() is None or not after.the_unit.is_open
    assert [type(decision).__name__ for decision in decided.decisions].count("DeadLetterExecution") == 1


@pytest.mark.parametrize("ending", ENDED.values(), ids=ENDED)
def test_what_ended_stays_as_it_is(ending: Fact) -> None:
    assert given(scalar(), submitted(), started(), ending).when(cancelling).decisions == []
    assert given(scalar()).when(cancelling).decisions == []


@pytest.mark.parametrize(
    ("known", "step_id"),
    [
        (scalar_waiting(), "await-1"),
        ([submitted(), started()], "run-0"),
        ([submitted(), started(), segment_completed(3)], None),
        ([*scalar_waiting(), admitted(), closed()], "await-1"),
    ],
)
def test_a_dead_letter_names_the_step(known: Sequence[Fact], step_id: str | None) -> None:
    decided = given(scalar(), *known).when(failing())
    assert [d.step_id for d in decided.decisions if isinstance(d, DeadLetterExecution)] == [step_id]


def test_a_long_message_is_cut() -> None:
    decided = given(scalar(), submitted(), started()).when(failing("y" * 100_000))
    assert len(decided.folded().the_execution.error_message or "") == MESSAGE_CHARS_MAX


# --- submission ----------------------------------------------------------------------------------------------------------------------------


def submitting(reply_id: str | None = None) -> Any:
    command = SubmitCommand(EXECUTION, TENANT, "shop", "key-1", INPUT, reply_id=reply_id)
    return lambda here: submit(here.pipeline, command, here.execution, now_ms=NOW)


def test_a_submission_starts_an_execution() -> None:
    after = given(scalar()).when(submitting()).then(Append(submitted()))
    assert after.the_execution.status == "QUEUED"
    after.when(submitting()).then(NoOp("duplicate-submission"))


def test_whoever_waits_is_told_that_it_was_accepted() -> None:
    """CASES 4: a door that answers after this reply can be followed by an answer at once, and it is not unknown."""
    kept = msgspec.structs.replace(submitted(), reply_id="r1")
    given(scalar()).when(submitting("r1")).then(
        Append(kept), TellOutcome(ExecutionOutcome("r1", EXECUTION, "ACCEPTED"))
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (scalar_waiting(), ExecutionOutcome("r2", EXECUTION, "WAITING_EXTERNAL", duplicate=True)),
        (
            [submitted(), started(), succeeded(b"1")],
            ExecutionOutcome("r2", EXECUTION, "SUCCEEDED", duplicate=True, result=b"1"),
        ),
        (
            [submitted(), started(), failed()],
            ExecutionOutcome(
                "r2", EXECUTION, "FAILED", duplicate=True, error_code="STEP_FAILED", error_message="it broke"
            ),
        ),
    ],
)
def test_a_second_submitter_is_told_how_the_first_one_stands(known: Sequence[Fact], expected: ExecutionOutcome) -> None:
    """BEHAVIOUR 196."""
    given(scalar(), *known).when(submitting("r2")).then(TellOutcome(expected))


# --- lists of payloads ---------------------------------------------------------------------------------------------------------------------

PAYLOADS = st.lists(st.sampled_from([b"1", b'{"a":"\xc3\xa4,]"}', b"[1,2]", b'"]"', b"null", b"{}"]))


@drawn(PAYLOADS)
def test_payloads_come_out_of_a_list_as_they_went_in(payloads: list[bytes]) -> None:
    assert split_payloads(join_payloads(payloads)) == payloads


# --- objects that nobody handed in -----------------------------------------------------------------------------------------------------


def listed(value: bytes = b"[]") -> SubmitCommand:
    return SubmitCommand(EXECUTION, TENANT, "shop", "key", value, source_sha256="beef", reply_id="r", origin="object")


def test_an_object_that_is_no_input_is_an_execution_that_fails_at_once() -> None:
    here = given(scalar())
    decisions = submit(here.pipeline, listed(), None, now_ms=NOW)
    names = [type(each.fact if isinstance(each, Append) else each).__name__ for each in decisions]
    assert names == ["RunSubmitted", "RunFailed", "DeadLetterExecution", "TellOutcome"]
    (letter,) = [decision for decision in decisions if isinstance(decision, DeadLetterExecution)]
    assert (letter.reason, letter.value) == ("WRONG_INPUT", b"[]")
    (told,) = [decision.outcome for decision in decisions if isinstance(decision, TellOutcome)]
    assert (told.status, told.error_code) == ("FAILED", "WRONG_INPUT")


def test_it_is_dead_lettered_once_however_often_it_is_listed() -> None:
    here = given(scalar(), *[d.fact for d in submit(scalar(), listed(), None, now_ms=NOW) if isinstance(d, Append)])
    (again,) = submit(here.pipeline, listed(), here.execution, now_ms=NOW)
    assert isinstance(again, TellOutcome)
    assert (again.outcome.status, again.outcome.duplicate) == ("FAILED", True)


def test_a_moved_input_is_noted_once_and_only_of_what_has_ended() -> None:
    ended = given(scalar(), submitted(), failed())
    (noted,) = input_moved(ended.execution, "/failed/a.csv", now_ms=NOW)
    assert isinstance(noted, Append)
    moved = given(scalar(), submitted(), failed(), noted.fact)
    assert moved.the_execution.moved_to == "/failed/a.csv"
    assert moved.the_execution.updated_at_ms == ended.the_execution.updated_at_ms, "its end is when it was"
    for execution in (moved.execution, given(scalar(), *scalar_waiting()).execution, None):
        (nothing,) = input_moved(execution, "/failed/a.csv", now_ms=NOW)
        assert isinstance(nothing, NoOp)
