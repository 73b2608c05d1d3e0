"""Items that failed or were left out: the others go on, and the execution ends once all of them are settled (DECISIONS 8 and 9)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from schemas import limits
from schemas.envelopes import ContinuationCompletion
from schemas.facts import Fact
from schemas.identity import interaction_id, letter_id
from tests.decisions.given import (
    EXECUTION,
    IDLE,
    LINE,
    NOW,
    TENANT,
    TO_TOPIC,
    UNIT,
    VERDICT,
    Doing,
    Given,
    admitted,
    await_step,
    continuation_failed,
    continued,
    given,
    outcome,
    parked,
    pipeline_of,
    run_step,
    skipped,
    source_ended,
    stream,
    stream_to_total,
    streaming,
)
from topologies.decisions.advance import advance
from topologies.decisions.continuation import complete_item
from topologies.decisions.decision import (
    Append,
    DeadLetterExecution,
    DeadLetterItem,
    Decisions,
    NoOp,
    TellOutcome,
)
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Cardinality, DeadLetterAndSkip, Skip

LIVE = [*streaming(2, live=True), admitted(0), admitted(1), source_ended(2)]
PARKED = parked(2, answered=2, cursor=2)
ON_BOTH_PATHS = pytest.mark.parametrize("known", [LIVE, PARKED], ids=["live", "parked"])
GAVE_UP = continuation_failed(0, retry_at_ms=None)


def completing(result: ContinuationCompletion) -> Callable[[Given], Decisions]:
    def ask(here: Given) -> Decisions:
        item = here.item(result.item_index)
        return complete_item(here.pipeline, result, here.execution, here.unit(), item, now_ms=NOW)

    return ask


def looked_at(here: Given) -> Decisions:
    """What `advance` says of it: a live session holds it, or nothing does."""
    doing = Doing(session=True) if here.the_unit.live else IDLE
    return advance(here.pipeline, here.the_execution, here.rows, doing, doing, now_ms=NOW)


def broken(item_index: int = 0, attempt: int = 1, *, at: str | None = None) -> ContinuationCompletion:
    return msgspec.structs.replace(outcome(item_index, attempt, error="STEP_FAILED"), step_id=at)


# --- failed ------------------------------------------------------------------------------------------------------------------------------


@ON_BOTH_PATHS
def test_a_failed_item_stops_nobody_while_others_are_open(known: list[Fact]) -> None:
    here = given(stream(attempts=1), *known).when(completing(broken())).then(Append(GAVE_UP))
    assert here.when(looked_at).decisions == []
    assert (here.the_unit.is_open, here.the_execution.is_terminal) == (True, False)


@ON_BOTH_PATHS
@pytest.mark.parametrize("pipeline", [stream(attempts=1), stream(TO_TOPIC, attempts=1), stream_to_total(attempts=1)])
def test_with_the_last_item_settled_the_execution_fails_once(known: list[Fact], pipeline: Pipeline) -> None:
    decided = given(pipeline, *known, GAVE_UP, continued(1)).when(looked_at)
    assert decided.names == ["BoundaryUnitClosed", "CloseSession", "RunFailed", "DeadLetterExecution", "TellOutcome"]
    after = decided.folded()
    assert (after.the_execution.status, after.the_execution.error_code) == ("FAILED", "AWAIT_ITEM_CONTINUATION_FAILED")
    assert after.the_execution.error_message == "1 of 2 items failed: item 0: STEP_FAILED: it broke"
    assert after.the_unit.status == "FAILED"
    assert after.when(looked_at).decisions == []
    told = next(decision.outcome for decision in decided.decisions if isinstance(decision, TellOutcome))
    assert (told.succeeded, told.skipped) == (1, 0)


def test_a_stream_that_has_not_ended_goes_on_behind_its_failed_items() -> None:
    known = [*streaming(1, live=True), admitted(0), GAVE_UP]
    assert given(stream(attempts=1), *known).when(looked_at).decisions == []


def test_an_execution_names_how_many_items_failed_and_the_first_twenty() -> None:
    count = 50
    here = given(stream(attempts=1), *parked(count, answered=count, cursor=count))
    for index in range(count):
        result = ContinuationCompletion(EXECUTION, UNIT, index, 1, [], "STEP_FAILED", f"{index} " + "y" * 5_000)
        here = here.when(completing(result)).folded()
    assert len(here.the_unit.failures) == limits.FAILURES_KEPT
    decided = here.when(looked_at)
    (letter,) = [decision for decision in decided.decisions if isinstance(decision, DeadLetterExecution)]
    assert letter.detail.startswith(f"{count} of {count} items failed: item 0: STEP_FAILED: 0 yyy")
    assert all(f"item {index}: STEP_FAILED: {index} y" in letter.detail for index in range(limits.FAILURES_KEPT))
    assert letter.detail.endswith("and 30 more")
    assert len(letter.detail) <= limits.MESSAGE_CHARS_MAX


# --- left out ----------------------------------------------------------------------------------------------------------------------------


@ON_BOTH_PATHS
def test_an_item_may_be_left_out_after_its_last_attempt(known: list[Fact]) -> None:
    here = given(stream(attempts=2, on_error=Skip()), *known)
    here = here.when(completing(broken())).then(Append(continuation_failed(0)))
    here = here.when(completing(broken(attempt=2))).then(Append(skipped(0, attempt=2)))
    assert (here.the_unit.outputs, here.the_unit.skipped, here.the_unit.failed) == (1, 1, 0)
    item = here.item(0)
    assert item is not None
    assert (item.status, item.error_code, item.error_message) == ("SKIPPED", "STEP_FAILED", "it broke")
    here.when(completing(broken(attempt=2))).then(NoOp("already-continued"))
    assert here.facts(continued(1)).when(looked_at).names == ["ContinuationSegmentCreated", "CloseSession"]


@ON_BOTH_PATHS
def test_an_item_that_is_left_out_with_a_dead_letter_has_one_for_each_attempt_that_ended_it(known: list[Fact]) -> None:
    here = given(stream(attempts=1, on_error=DeadLetterAndSkip()), *known)
    letter = letter_id(interaction_id(UNIT, 0), 1)
    dead = DeadLetterItem(TENANT, UNIT, 0, "run-2", letter, reason="STEP_FAILED", detail="it broke")
    after = here.when(completing(broken())).then(Append(skipped(0, letter=letter)), dead)
    item = after.item(0)
    assert item is not None
    assert item.letter_id == letter
    after.when(completing(broken())).then(NoOp("already-continued"))
    assert letter_id(interaction_id(UNIT, 0), 2) != letter != letter_id(interaction_id(UNIT, 1), 1)


def two_steps(first: Skip | DeadLetterAndSkip | None, second: Skip | DeadLetterAndSkip | None) -> Pipeline:
    return pipeline_of(
        *stream().steps[:1],
        await_step(),
        run_step(2, takes=VERDICT, gives=LINE, attempts=1, on_error=first),
        run_step(3, takes=LINE, gives=LINE, on_error=second),
        run_step(4, Cardinality.MANY_TO_ONE, takes=LINE, gives=LINE, on_error=None),
    )


@pytest.mark.parametrize(
    ("pipeline", "at", "follows"),
    [
        pytest.param(two_steps(None, Skip()), "run-3", ["ContinuationSkipped"], id="its own"),
        pytest.param(two_steps(None, Skip()), "run-2", ["ContinuationAttemptFailed"], id="not that of a later one"),
        pytest.param(
            two_steps(DeadLetterAndSkip(), None), "run-3", ["ContinuationAttemptFailed"], id="nor of an earlier one"
        ),
        pytest.param(
            two_steps(DeadLetterAndSkip(), None),
            None,
            ["ContinuationSkipped", "DeadLetterItem"],
            id="nobody knows which: the first rules, as for retries",
        ),
        pytest.param(two_steps(Skip(), None), "run-4", ["ContinuationSkipped"], id="none of the suffix: the first"),
    ],
)
def test_the_step_at_which_an_item_failed_says_what_becomes_of_it(
    pipeline: Pipeline, at: str | None, follows: list[str]
) -> None:
    assert given(pipeline, *PARKED).when(completing(broken(at=at))).names == follows


def test_nothing_is_written_to_an_output_topic_for_an_item_that_is_left_out() -> None:
    decided = given(stream(TO_TOPIC, attempts=1, on_error=Skip()), *PARKED).when(completing(broken()))
    assert decided.names == ["ContinuationSkipped"]


def test_a_stream_of_which_every_item_was_left_out_succeeds_empty() -> None:
    here = given(stream(TO_TOPIC, on_error=Skip()), *PARKED, skipped(0), skipped(1)).when(looked_at).folded()
    decided = here.when(looked_at)
    (told,) = [decision.outcome for decision in decided.decisions if isinstance(decision, TellOutcome)]
    assert (told.status, told.succeeded, told.skipped) == ("SUCCEEDED", 0, 2)
