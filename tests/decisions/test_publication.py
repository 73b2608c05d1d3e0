"""Publication: the output is where it belongs before the execution is SUCCEEDED (DESIGN 7, BEHAVIOUR 2.6 and 5.10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import facts, limits
from schemas.envelopes import ExecutionOutcome
from schemas.facts import Fact
from tests.decisions.given import (
    EXECUTION,
    NOW,
    TO_OBJECT,
    TO_TOPIC,
    UNIT,
    Given,
    admitted,
    cancelled,
    closed,
    continuation_created,
    continued,
    given,
    line,
    lines,
    parked,
    scalar,
    segment_completed,
    source_ended,
    started,
    stream,
    streaming,
    submitted,
    succeeded,
)
from topologies.decisions.decision import (
    Append,
    CloseSession,
    Collect,
    Decisions,
    NoOp,
    Publish,
    TellOutcome,
    WriteOutput,
)
from topologies.decisions.publication import collected, prepare, publication_failed, publication_id, published

ID = publication_id(EXECUTION)
SCALAR_END = [submitted(), started(), segment_completed(3, line(0))]
STREAM_END = [*streaming(1, live=True), admitted(0), continued(0), source_ended(1), continuation_created(None, 3)]
PARKED_END = [*parked(1, answered=1, cursor=1), continued(0), continuation_created(None, 3)]


def prepared(attempt: int = 1) -> facts.TerminalPublicationPrepared:
    return facts.TerminalPublicationPrepared(EXECUTION, NOW, ID, attempt, NOW + limits.CALL_TIMEOUT_DEFAULT_MS)


def preparing(here: Given) -> Decisions:
    return prepare(here.pipeline, here.the_execution, here.unit(), now_ms=NOW)


def publishing(outputs: list[str]) -> Any:
    return lambda here: published(here.the_execution, here.unit(), outputs, now_ms=NOW)


def failing(code: str = "IO", *, retryable: bool = True, message: str = "disk full") -> Any:
    def ask(here: Given) -> Decisions:
        return publication_failed(
            here.pipeline,
            here.the_execution,
            here.unit(),
            code=code,
            message=message,
            retryable=retryable,
            now_ms=NOW,
        )

    return ask


def reply(status: str, **values: Any) -> TellOutcome:
    return TellOutcome(ExecutionOutcome("", EXECUTION, status, **values))


@pytest.mark.parametrize("known", [STREAM_END, PARKED_END], ids=["live", "parked"])
def test_prepared_then_effect_then_success_with_the_closed_unit(known: Sequence[Fact]) -> None:
    here = given(stream(TO_OBJECT), *known).when(preparing).then(Append(prepared()), Publish(EXECUTION, ID, 1))
    assert (here.the_execution.status, here.the_unit.is_open) == ("RUNNING", True)
    after = here.when(publishing(["a.out"])).then(
        Append(facts.TerminalPublicationCompleted(EXECUTION, NOW, ID, ["a.out"])),
        Append(closed()),
        CloseSession(UNIT),
        Append(succeeded()),
        reply("SUCCEEDED", outputs=["a.out"], succeeded=1, skipped=0),
    )
    assert (after.the_execution.status, after.the_execution.outputs) == ("SUCCEEDED", ["a.out"])
    assert not after.the_unit.is_open
    after.when(publishing(["b.out"])).then(NoOp("publication-outlived"))
    after.when(failing()).then(NoOp("publication-outlived"))


def test_the_id_of_a_publication_is_stable() -> None:
    assert publication_id("x") == "x:terminal-output:object-publish"


def test_a_failed_effect_is_tried_again_under_the_same_id_with_growing_waits() -> None:
    here = given(scalar(TO_OBJECT), *SCALAR_END)
    waits = []
    for attempt in range(1, limits.PUBLICATION_ATTEMPTS_MAX):
        here = here.when(preparing).then(Append(prepared(attempt)), Publish(EXECUTION, ID, attempt))
        decided = here.when(failing())
        assert decided.names == ["TerminalPublicationFailed"]
        failed: Any = decided.appended[0]
        assert (failed.publication_id, failed.attempt) == (ID, attempt)
        waits.append(failed.retry_at_ms - NOW)
        here = decided.folded()
        assert here.the_execution.status == "WAIT_RETRY"
        here.when(publishing(["late.out"])).then(NoOp("publication-outlived"))  # the attempt counted as failed
        here.when(failing()).then(NoOp("publication-outlived"))
    assert waits == sorted(waits)
    assert len(set(waits)) == len(waits)
    here = here.when(preparing).folded()
    decided = here.when(failing())
    assert decided.names == ["RunFailed", "DeadLetterExecution", "TellOutcome"]
    assert decided.folded().the_execution.error_code == "IO"


def test_a_conflict_is_final() -> None:
    here = given(stream(TO_OBJECT), *STREAM_END, prepared())
    decided = here.when(failing("PUBLICATION_CONFLICT", retryable=False))
    assert decided.names == ["BoundaryUnitClosed", "CloseSession", "RunFailed", "DeadLetterExecution", "TellOutcome"]
    after = decided.folded()
    assert (after.the_execution.status, after.the_execution.error_code) == ("FAILED", "PUBLICATION_CONFLICT")
    assert after.the_unit.status == "FAILED"


@pytest.mark.parametrize("ask", [publishing(["a.out"]), failing()], ids=["done", "failed"])
def test_an_effect_that_outlived_its_execution(ask: Any) -> None:
    given(scalar(TO_OBJECT), *SCALAR_END, prepared(), cancelled()).when(ask).then(NoOp("publication-outlived"))
    given(scalar(TO_OBJECT), *SCALAR_END).when(ask).then(NoOp("publication-outlived"))
    given(scalar(TO_OBJECT), submitted(), started()).when(ask).then(NoOp("publication-outlived"))


def test_an_output_topic_gets_what_was_collected() -> None:
    here = given(scalar(TO_TOPIC), *SCALAR_END).when(preparing).then(Collect(EXECUTION))
    here.when(lambda g: collected(g.pipeline, g.the_execution, None, line(0), many=False, now_ms=NOW)).then(
        WriteOutput(EXECUTION, line(0)), Append(succeeded()), reply("SUCCEEDED")
    )
    here = given(scalar(TO_TOPIC), *SCALAR_END)
    here.when(lambda g: collected(g.pipeline, g.the_execution, None, lines(2), many=True, now_ms=NOW)).then(
        WriteOutput(EXECUTION, line(0)), WriteOutput(EXECUTION, line(1)), Append(succeeded()), reply("SUCCEEDED")
    )


def test_an_output_topic_that_got_each_item_needs_nothing_more() -> None:
    given(stream(TO_TOPIC), *STREAM_END).when(preparing).then(
        Append(closed()), CloseSession(UNIT), Append(succeeded()), reply("SUCCEEDED", succeeded=1, skipped=0)
    )


def test_without_an_output_the_result_is_kept() -> None:
    here = given(stream(), *STREAM_END).when(preparing).then(Collect(EXECUTION))
    after = here.when(lambda g: collected(g.pipeline, g.the_execution, g.unit(), lines(1), many=True, now_ms=NOW)).then(
        Append(closed()),
        CloseSession(UNIT),
        Append(succeeded(lines(1))),
        reply("SUCCEEDED", result=lines(1), succeeded=1, skipped=0),
    )
    assert after.the_execution.result == lines(1)
