"""Late answers: refused and told to the owner, and the first good one is kept for a redrive (DECISIONS 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from schemas import facts, limits
from schemas.envelopes import ProviderCompletion
from schemas.facts import Fact
from schemas.identity import interaction_id, parse_interaction_id
from state.interaction import kept_completion
from tests.decisions.given import (
    AWAIT,
    DEADLINE,
    EXECUTION,
    NO,
    NOW,
    UNIT,
    YES,
    Given,
    admitted,
    cancelled,
    closed,
    failed,
    given,
    parked,
    refused,
    scalar,
    scalar_waiting,
    skipped,
    stream,
    streaming,
    timed_out,
)
from topologies.decisions.admission import Answer, admit
from topologies.decisions.decision import Append, Decisions, Refuse
from topologies.pipeline.model import Pipeline
from topologies.pipeline.shapes import Misshapen, Shape, Shaped
from topologies.pipeline.steps import Skip, Value

PLACE: dict[str, Any] = {"origin_topic": "answers", "origin_partition": 3, "origin_offset": 77, "came_in_ms": DEADLINE}
SIGNED = scalar(strategy="signedResumeToken")


def answering(
    item_index: int | None = None,
    payload: bytes = YES,
    *,
    at_ms: int = DEADLINE,
    token_valid: bool | None = None,
    shape: Shape | None = None,
) -> Any:
    iid = interaction_id(UNIT, item_index)
    token = None if token_valid is None else "a-token"
    completion = ProviderCompletion(EXECUTION, iid, payload, resume_token=token, actor="Ann", **PLACE)
    made = shape or Shaped(payload, None)
    the_answer = Answer(completion, parse_interaction_id(iid), at_ms, token_valid, made)

    def ask(here: Given) -> Decisions:
        return admit(here.pipeline, the_answer, here.standing(item_index), live=False, now_ms=NOW)

    return ask


def kept(item_index: int | None = None, payload: bytes = YES, token: str | None = None, at_ms: int = DEADLINE) -> Fact:
    return facts.CompletionRefused(
        EXECUTION, NOW, UNIT, item_index, "late", payload, token, "Ann", at_ms, DEADLINE, "answers", 3, 77
    )


EXPIRED = [timed_out(), closed("TIMED_OUT"), failed("AWAIT_TIMEOUT")]


@pytest.mark.parametrize(
    ("pipeline", "known", "index"),
    [
        pytest.param(scalar(), scalar_waiting(), None, id="behind the deadline, before it rang"),
        pytest.param(scalar(), [*scalar_waiting(), *EXPIRED], None, id="expired, and with it the execution"),
        pytest.param(stream(), [*parked(2), closed("FAILED"), failed()], 1, id="another item failed the execution"),
        pytest.param(
            stream(on_timeout=Skip()),
            [*streaming(2, live=True), timed_out(1, "skip"), skipped(1, "AWAIT_TIMEOUT")],
            1,
            id="the item was left out",
        ),
        pytest.param(
            scalar(on_timeout=Value(json=NO)),
            [*scalar_waiting(), timed_out(None, "value"), admitted(completion=NO)],
            None,
            id="the step's own value was taken",
        ),
    ],
)
def test_the_first_late_answer_is_refused_and_kept(
    pipeline: Pipeline, known: Sequence[Fact], index: int | None
) -> None:
    refusal = Refuse("late", f"answered at {DEADLINE}", pipeline.await_step(AWAIT), kept=True)
    after = given(pipeline, *known).when(answering(index)).then(refusal, Append(kept(index)))
    row = after.interaction(index)
    assert row is not None
    assert row.late is not None
    assert kept_completion(row, row.late) == ProviderCompletion(
        EXECUTION, interaction_id(UNIT, index), YES, actor="Ann", **PLACE
    )
    second = after.when(answering(index, NO))
    assert [decision.kept for decision in second.decisions if isinstance(decision, Refuse)] == [False]
    again = second.folded().interaction(index)
    assert again is not None
    assert again.late == row.late, "only the first"


@pytest.mark.parametrize(
    ("known", "ask"),
    [
        pytest.param([*scalar_waiting(), closed("CANCELLED"), cancelled()], answering(), id="cancelled"),
        pytest.param([*scalar_waiting(), *EXPIRED], answering(token_valid=False), id="a bad token"),
        pytest.param([*scalar_waiting(), *EXPIRED], answering(shape=Misshapen("no")), id="of a wrong shape"),
        pytest.param([*scalar_waiting(), admitted()], answering(payload=NO), id="answered before"),
    ],
)
def test_what_no_redrive_could_admit_is_not_kept(known: Sequence[Fact], ask: Any) -> None:
    decided = given(scalar(), *known).when(ask)
    assert [decision.kept for decision in decided.decisions if isinstance(decision, Refuse)] == [False]
    row = decided.folded().interaction()
    assert row is not None
    assert row.late is None


def test_where_a_token_is_needed_a_late_answer_without_it_is_not_kept_and_one_with_it_is() -> None:
    here = given(SIGNED, *scalar_waiting(), *EXPIRED)
    here.when(answering()).then(
        Refuse("bad-token", "the resume token does not prove this interaction", SIGNED.await_step(AWAIT))
    )
    refusal = Refuse("late", f"answered at {DEADLINE}", SIGNED.await_step(AWAIT), kept=True)
    here.when(answering(token_valid=True)).then(refusal, Append(kept(token="a-token")))


def test_a_flood_of_refusals_does_not_keep_the_first_good_one_out() -> None:
    flood = [refused("conflict") for _ in range(limits.REFUSAL_FACTS_MAX)]
    here = given(scalar(), *scalar_waiting(), *flood, *EXPIRED).when(answering()).folded()
    row = here.interaction()
    assert row is not None
    assert row.late is not None


def test_the_answer_that_is_kept_is_what_was_sent_not_what_was_made_of_it() -> None:
    here = given(scalar(), *scalar_waiting(), *EXPIRED)
    after = here.when(answering(payload=YES, shape=Shaped(NO, YES))).folded()
    row = after.interaction()
    assert row is not None
    assert row.late is not None
    assert msgspec.json.decode(row.late.answer) == msgspec.json.decode(YES)
