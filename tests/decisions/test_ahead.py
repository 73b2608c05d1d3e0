"""Looking ahead: what would make the first request vain is looked for before it, and fails the execution once."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import PublicationConflict
from tests.decisions.given import (
    AWAIT,
    EXECUTION,
    NOW,
    ORDER,
    TO_OBJECT,
    TO_TOPIC,
    Doing,
    Given,
    await_step,
    cancelled,
    given,
    pipeline_of,
    run_step,
    scalar,
    segment_completed,
    started,
    stream,
    stream_to_total,
    streaming,
    submitted,
)
from topologies.decisions.advance import advance
from topologies.decisions.ahead import looked_ahead
from topologies.decisions.decision import Append, Decisions, LookAhead, NoOp, RunSegment
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Cardinality

LOOK = LookAhead(EXECUTION, AWAIT)


def advancing(*, looked: bool = False) -> Any:
    """The question: what does the execution do next?"""
    local = Doing(looked=looked)

    def ask(known: Given) -> Decisions:
        return advance(known.pipeline, known.the_execution, known.rows, local, local, now_ms=NOW)

    return ask


def test_the_place_of_an_output_object_is_looked_at_before_a_stream_is_read() -> None:
    given(stream(TO_OBJECT), submitted()).when(advancing()).then(LOOK)


def test_the_place_of_an_output_object_is_looked_at_before_the_one_request() -> None:
    given(scalar(TO_OBJECT), submitted(), started(), segment_completed()).when(advancing()).then(LOOK)


def test_the_steps_before_the_one_request_run_before_the_look() -> None:
    run = RunSegment(EXECUTION, 0, AWAIT)
    given(scalar(TO_OBJECT), submitted()).when(advancing()).then(Append(started()), run)


def test_a_stream_is_counted_for_the_aggregate_behind_it() -> None:
    given(stream_to_total(), submitted()).when(advancing()).then(LOOK)


def test_a_stream_is_not_counted_where_each_item_may_become_many() -> None:
    many = pipeline_of(
        run_step(0, Cardinality.ONE_TO_MANY, takes=ORDER, gives=ORDER),
        await_step(output=ORDER),
        run_step(2, Cardinality.ONE_TO_MANY, takes=ORDER, gives=ORDER),
        run_step(3, Cardinality.MANY_TO_ONE, takes=ORDER, gives=ORDER),
    )
    assert "LookAhead" not in given(many, submitted()).when(advancing()).names


@pytest.mark.parametrize("pipeline", [scalar(), scalar(TO_TOPIC), stream(), stream(TO_TOPIC)])
def test_a_pipeline_of_which_nothing_can_be_known_pays_nothing(pipeline: Pipeline) -> None:
    for known in ([submitted()], [submitted(), started(), segment_completed()]):
        assert "LookAhead" not in given(pipeline, *known).when(advancing()).names


def test_one_look_is_enough() -> None:
    assert given(stream(TO_OBJECT), submitted()).when(advancing(looked=True)).names == [
        "SegmentAttemptStarted",
        "BoundaryUnitOpened",
        "OpenSession",
    ]


@pytest.mark.parametrize("sent", [0, 2])
def test_nothing_is_looked_at_once_the_unit_is_open(sent: int) -> None:
    """After a restart too: the look came before it."""
    assert "LookAhead" not in given(stream(TO_OBJECT), *streaming(sent, live=True)).when(advancing()).names


def looking(code: str | None) -> Any:
    """The question: what follows from what was seen?"""

    def ask(known: Given) -> Decisions:
        return looked_ahead(known.pipeline, known.execution, None, code=code, message="it is there", now_ms=NOW)

    return ask


def test_what_would_fail_at_the_end_fails_now_and_once() -> None:
    decided = given(stream(TO_OBJECT), submitted()).when(looking(PublicationConflict.code))
    assert decided.names == ["RunFailed", "DeadLetterExecution", "TellOutcome"]


def test_a_good_look_changes_nothing() -> None:
    given(stream(TO_OBJECT), submitted()).when(looking(None)).then()


def test_a_look_at_what_has_ended_is_nobodys() -> None:
    given(stream(TO_OBJECT), submitted(), cancelled()).when(looking("PUBLICATION_FAILED")).then(NoOp("look-outlived"))
