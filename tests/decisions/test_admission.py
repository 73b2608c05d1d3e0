"""Admission: one order of judgement, each refusal with its reason (BEHAVIOUR 5.2 and 5.3, DESIGN 8 policies 1-3, 7 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from schemas import facts, limits
from schemas.facts import Fact
from schemas.identity import parse_interaction_id
from tests.decisions.given import (
    AWAIT,
    DEADLINE,
    EXECUTION,
    NO,
    NOW,
    PROJECTION,
    TENANT,
    UNIT,
    YES,
    Given,
    admitted,
    answer,
    cancelled,
    closed,
    continuation_created,
    continued,
    dispatched,
    failed,
    given,
    held,
    opened,
    parked,
    refused,
    scalar,
    scalar_waiting,
    segment_completed,
    shaped,
    source_ended,
    started,
    stream,
    streaming,
    submitted,
    succeeded,
    timed_out,
)
from topologies.decisions.admission import Answer, admit, admit_held
from topologies.decisions.decision import Append, Decisions, Duplicate, HoldCompletion, NoOp, Offer, Refuse, Request
from topologies.pipeline.model import Pipeline
from topologies.pipeline.shapes import Misshapen, Shaped


def judging(the_answer: Answer, *, live: bool = False, now_ms: int = NOW) -> Any:
    """The question: what follows from this answer?"""

    def ask(known: Given) -> Decisions:
        return admit(known.pipeline, the_answer, known.standing(the_answer.ref.item_index), live=live, now_ms=now_ms)

    return ask


def verdict(pipeline: Pipeline, known: Sequence[Fact], the_answer: Answer, **options: Any) -> list[str]:
    """What happens to the answer, as words; a refusal with its reason."""
    decided = given(pipeline, *known).when(judging(the_answer, **options))
    decided.folded()
    return [
        f"refuse {decision.reason}" if isinstance(decision, Refuse) else name
        for decision, name in zip(decided.decisions, decided.names, strict=True)
    ]


ADMITTED = ["BoundaryCompletionAdmitted"]
HELD = ["BoundaryCompletionHeld"]
DUPLICATE = ["Duplicate"]


def refuse(reason: str) -> list[str]:
    return [f"refuse {reason}"]


def refuse_with_fact(reason: str) -> list[str]:
    return [f"refuse {reason}", "CompletionRefused"]


# --- the order of judgement, row by row ------------------------------------------------------------------------------------------------

BEFORE_THE_STEP = [submitted(), started()]
RESUMED = [*scalar_waiting(), admitted(), closed(), continuation_created(None)]
ENDED = {
    "succeeded": [*RESUMED, started(2), segment_completed(3), succeeded()],
    "expired": [*scalar_waiting(), timed_out(), closed("TIMED_OUT"), failed("AWAIT_TIMEOUT")],
    "failed": [*scalar_waiting(), closed("FAILED"), failed()],
    "cancelled": [*scalar_waiting(), closed("CANCELLED"), cancelled()],
    "value": [*scalar_waiting(), timed_out(resolution="value"), admitted()],
}

SCALAR_TABLE: list[tuple[str, Sequence[Fact], Answer, list[str]]] = [
    # 1 known?
    ("no such execution", [], answer(), refuse("unknown")),
    ("of another tenant", scalar_waiting(), answer(tenant_id="other"), refuse("unknown")),
    ("of another tenant, early", BEFORE_THE_STEP, answer(tenant_id="other"), refuse("unknown")),
    ("of the same tenant", scalar_waiting(), answer(tenant_id=TENANT), ADMITTED),
    ("a run step", scalar_waiting(), answer(unit_id=f"{EXECUTION}.0"), refuse("unknown")),
    ("no such step", scalar_waiting(), answer(unit_id=f"{EXECUTION}.9"), refuse("unknown")),
    ("an item of a scalar step", scalar_waiting(), answer(0), refuse("unknown")),
    # 2 reached?
    ("before its step", BEFORE_THE_STEP, answer(), HELD),
    ("before its step, queued", [submitted()], answer(), HELD),
    ("before its step, misshapen", BEFORE_THE_STEP, answer(payload=b"[]"), refuse("wrong-shape")),
    ("before its step, with a token", BEFORE_THE_STEP, answer(token_valid=True), refuse("bad-token")),
    ("before its step, again", [*BEFORE_THE_STEP, held()], answer(), DUPLICATE),
    (
        "before its step, other bytes",
        [*BEFORE_THE_STEP, held()],
        answer(payload=b'{"fee": "1.00", "ok": true}'),
        DUPLICATE,
    ),
    ("before its step, another one", [*BEFORE_THE_STEP, held()], answer(payload=NO), refuse("conflict")),
    ("execution failed before it", [*BEFORE_THE_STEP, failed()], answer(), refuse("unknown")),
    ("execution cancelled before it", [*BEFORE_THE_STEP, cancelled()], answer(), refuse("cancelled")),
    # 3 proven?
    ("with a forged token", scalar_waiting(), answer(token_valid=False), refuse("bad-token")),
    ("with a token", scalar_waiting(), answer(token_valid=True), ADMITTED),
    ("forged, answered", [*scalar_waiting(), admitted()], answer(token_valid=False), refuse("bad-token")),
    ("with the request's key", scalar_waiting(), answer(key=dispatched().idempotency_key), ADMITTED),
    ("with another key", scalar_waiting(), answer(key="another"), refuse("wrong-key")),
    ("equal, with another key", [*scalar_waiting(), admitted()], answer(key="another"), refuse("wrong-key")),
    # 4 answered?
    ("equal, waiting", [*scalar_waiting(), admitted()], answer(), DUPLICATE),
    ("equal in value", [*scalar_waiting(), admitted()], answer(payload=b'{"ok":true,"fee":"1.00"}'), DUPLICATE),
    ("equal, resumed", RESUMED, answer(), DUPLICATE),
    ("equal, succeeded", ENDED["succeeded"], answer(), DUPLICATE),
    ("equal, after the deadline", ENDED["succeeded"], answer(at_ms=DEADLINE + 1), DUPLICATE),
    ("different, waiting", [*scalar_waiting(), admitted()], answer(payload=NO), refuse_with_fact("conflict")),
    ("different, succeeded", ENDED["succeeded"], answer(payload=NO), refuse_with_fact("conflict")),
    ("misshapen second", [*scalar_waiting(), admitted()], answer(payload=b"[]"), refuse_with_fact("conflict")),
    # 5 open?
    ("unit expired", ENDED["expired"], answer(), refuse_with_fact("late")),
    ("unit failed", ENDED["failed"], answer(), refuse_with_fact("late")),
    ("unit cancelled", ENDED["cancelled"], answer(), refuse_with_fact("cancelled")),
    ("a value stands in its place", ENDED["value"], answer(), refuse_with_fact("late")),
    ("one ms before the deadline", scalar_waiting(), answer(at_ms=DEADLINE - 1), ADMITTED),
    ("at the deadline", scalar_waiting(), answer(at_ms=DEADLINE), refuse_with_fact("late")),
    ("after the deadline", scalar_waiting(), answer(at_ms=DEADLINE + 1), refuse_with_fact("late")),
    ("nobody says when it came in", scalar_waiting(), answer(at_ms=DEADLINE + 1, stamped=False), ADMITTED),
    ("late and misshapen", scalar_waiting(), answer(payload=b"[]", at_ms=DEADLINE), refuse_with_fact("late")),
    # 6 shaped?
    ("misshapen", scalar_waiting(), answer(payload=b"[]"), refuse("wrong-shape")),
    # 7
    ("in time", scalar_waiting(), answer(), ADMITTED),
]


@pytest.mark.parametrize(
    ("known", "the_answer", "expected"), [pytest.param(*row[1:], id=row[0]) for row in SCALAR_TABLE]
)
def test_the_order_of_judgement(known: Sequence[Fact], the_answer: Answer, expected: list[str]) -> None:
    assert verdict(scalar(), known, the_answer) == expected


@pytest.mark.parametrize(
    ("known", "the_answer", "expected"),
    [
        pytest.param(scalar_waiting(), answer(), refuse("bad-token"), id="none"),
        pytest.param(scalar_waiting(), answer(token_valid=False), refuse("bad-token"), id="forged"),
        pytest.param(scalar_waiting(), answer(token_valid=True), ADMITTED, id="valid"),
        pytest.param(BEFORE_THE_STEP, answer(), refuse("bad-token"), id="before its step none can be valid"),
        pytest.param(BEFORE_THE_STEP, answer(token_valid=True), refuse("bad-token"), id="before its step"),
        pytest.param([*scalar_waiting(), admitted()], answer(), refuse("bad-token"), id="answered, none"),
        pytest.param([*scalar_waiting(), admitted()], answer(token_valid=True), DUPLICATE, id="answered, valid"),
        pytest.param(ENDED["expired"], answer(token_valid=False), refuse("bad-token"), id="expired, forged"),
        pytest.param(ENDED["expired"], answer(token_valid=True), refuse_with_fact("late"), id="expired, valid"),
    ],
)
def test_under_signed_resume_token_every_answer_needs_one(
    known: Sequence[Fact], the_answer: Answer, expected: list[str]
) -> None:
    """Policy 3."""
    assert verdict(scalar(strategy="signedResumeToken"), known, the_answer) == expected


def test_an_admitted_answer_is_stored_as_it_was_shaped() -> None:
    given(scalar(), *scalar_waiting()).when(judging(answer(at_ms=NOW + 3), now_ms=DEADLINE + 9)).then(
        Append(facts.BoundaryCompletionAdmitted(EXECUTION, DEADLINE + 9, UNIT, None, YES, None, None, NOW + 3))
    )


def test_an_answer_that_came_in_time_is_admitted_however_late_we_are() -> None:
    """Policy 2: our own backlog never expires an answer that was there."""
    assert verdict(scalar(), scalar_waiting(), answer(at_ms=DEADLINE - 1), now_ms=DEADLINE + 86_400_000) == ADMITTED


def test_a_refusal_names_the_step_for_its_owner() -> None:
    pipeline = scalar()
    given(pipeline, *scalar_waiting(), admitted()).when(judging(answer(payload=NO))).then(
        Refuse("conflict", "another answer was admitted before", pipeline.await_step(AWAIT)),
        Append(refused("conflict")),
    )


def test_at_most_so_many_refusal_facts_an_interaction() -> None:
    """Policy 1: a flood of conflicts fills the refusals topic, not the facts."""
    known = given(scalar(), *scalar_waiting(), admitted())
    for _ in range(limits.REFUSAL_FACTS_MAX):
        decided = known.when(judging(answer(payload=NO)))
        assert decided.names == ["Refuse", "CompletionRefused"]
        decided.folded()
    assert known.when(judging(answer(payload=NO))).names == ["Refuse"]
    assert known.interaction() is not None
    assert known.when(judging(answer())).names == DUPLICATE


def test_the_first_value_is_never_overwritten() -> None:
    known = given(scalar(), *scalar_waiting(), admitted())
    for second in (NO, YES, b"[]"):
        known.when(judging(answer(payload=second))).folded()
    row = known.interaction()
    assert row is not None
    assert row.completion == YES


def test_an_equal_answer_of_a_type_that_is_gone_is_a_conflict_and_no_error() -> None:
    known = given(scalar(), *scalar_waiting(), admitted(completion=b'{"former":1}'))
    assert known.when(judging(answer())).names == ["Refuse", "CompletionRefused"]


# --- items -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "the_answer", "live", "expected"),
    [
        pytest.param(streaming(2, live=True), answer(1), True, [*ADMITTED, "Offer"], id="live"),
        pytest.param(streaming(2, live=True), answer(1), False, [*ADMITTED, "HoldCompletion"], id="live elsewhere"),
        pytest.param(streaming(2, live=False), answer(1), False, [*ADMITTED, "HoldCompletion"], id="before parking"),
        pytest.param(parked(2), answer(1), False, [*ADMITTED, "HoldCompletion"], id="ahead of the sweep"),
        pytest.param(
            parked(2, cursor=2),
            answer(1),
            False,
            [*ADMITTED, "ContinuationSegmentCreated", "EmitContinuation"],
            id="behind the cursor",
        ),
        pytest.param(streaming(2, live=True), answer(2), True, HELD, id="not dispatched yet"),
        pytest.param(streaming(2, live=True, ended=True), answer(2), True, refuse("unknown"), id="beyond the end"),
        pytest.param(streaming(2, live=True), answer(None), True, refuse("unknown"), id="no index"),
        pytest.param([submitted(), started()], answer(7), False, HELD, id="before its step"),
        pytest.param([*streaming(2, live=True), admitted(1)], answer(1), True, DUPLICATE, id="duplicate while live"),
        pytest.param([*parked(2, cursor=2), admitted(1)], answer(1), False, DUPLICATE, id="duplicate while parked"),
        pytest.param(
            [*streaming(2, live=True), admitted(1), continued(1)], answer(1), True, DUPLICATE, id="duplicate, continued"
        ),
        pytest.param(
            [*streaming(2, live=True), timed_out(1, "skip"), continued(1, outputs=[])],
            answer(1),
            True,
            refuse_with_fact("late"),
            id="skipped",
        ),
        pytest.param(
            [*streaming(2, live=True), timed_out(0), closed("TIMED_OUT"), failed("AWAIT_TIMEOUT")],
            answer(1),
            False,
            refuse_with_fact("late"),
            id="a sibling expired",
        ),
        pytest.param(
            [*streaming(2, live=True), closed("CANCELLED"), cancelled()],
            answer(5),
            False,
            refuse("cancelled"),
            id="never",
        ),
    ],
)
def test_items(known: Sequence[Fact], the_answer: Answer, live: bool, expected: list[str]) -> None:
    assert verdict(stream(), known, the_answer, live=live) == expected


def test_a_duplicate_adds_no_progress() -> None:
    """BEHAVIOUR hole 12: nor does it touch a counter of the fallback while the unit is live."""
    known = given(stream(), *streaming(2, live=True), admitted(0))
    before = dict(known.rows)
    known.when(judging(answer(0), live=True)).then(Duplicate())
    assert known.rows == before


def test_a_live_answer_is_stored_then_offered_and_moves_no_gate() -> None:
    known = given(stream(), *streaming(2, live=True))
    after = known.when(judging(answer(0), live=True)).then(Append(admitted(0)), Offer(UNIT, 0))
    assert (after.the_unit.completed, after.the_unit.expected, after.the_unit.dispatch_complete) == (0, None, False)


def test_a_held_item_answer_before_the_gates_moves_the_counter() -> None:
    known = given(stream(), *streaming(2, live=False))
    after = known.when(judging(answer(0))).then(Append(admitted(0)), HoldCompletion("early-held"))
    assert after.the_unit.completed == 1


def test_the_same_completion_id_in_two_executions_is_two_answers() -> None:
    """CASES 22 and 25: nothing but the derived id decides whom an answer is for."""
    other = parse_interaction_id("another-execution.1.u")
    known = given(scalar(), *scalar_waiting())
    stranger = msgspec.structs.replace(answer().completion, execution_id=other.execution_id)
    judged = admit(
        known.pipeline,
        Answer(stranger, other, NOW, None, shaped(YES)),
        type(known.standing())(None, None, None),
        live=False,
        now_ms=NOW,
    )
    assert [type(decision) for decision in judged] == [Refuse]


# --- projectors ------------------------------------------------------------------------------------------------------------------------


def projected(completion: bytes | None = b'{"ok":false,"fee":"9"}', raw: bytes = YES) -> Answer:
    return answer(shape=Shaped(completion, raw))


WITH_PROJECTOR = scalar_waiting(projector="shop:Project")


def test_the_projected_value_is_stored_with_what_was_sent() -> None:
    known = given(scalar(projection=PROJECTION), *WITH_PROJECTOR)
    known.when(judging(projected())).then(Append(admitted(None, b'{"ok":false,"fee":"9"}', YES)))


def test_a_second_answer_is_compared_with_what_was_sent_not_with_what_was_made_of_it() -> None:
    known = [*WITH_PROJECTOR, admitted(None, b'{"ok":false,"fee":"9"}', YES)]
    pipeline = scalar(projection=PROJECTION)
    assert verdict(pipeline, known, projected(None, b'{"ok":true,"fee":"1.00"}')) == DUPLICATE
    assert verdict(pipeline, known, projected(None, NO)) == refuse_with_fact("conflict")


@pytest.mark.parametrize(
    ("pipeline", "known"),
    [
        pytest.param(scalar(projection=PROJECTION), scalar_waiting(projector="shop:Former"), id="changed"),
        pytest.param(scalar(), WITH_PROJECTOR, id="removed"),
        pytest.param(scalar(projection=PROJECTION), scalar_waiting(), id="added"),
    ],
)
def test_only_the_projector_that_it_was_sent_with_completes_an_interaction(
    pipeline: Pipeline, known: Sequence[Fact]
) -> None:
    """BEHAVIOUR 69 and 70: refused, the row stays as it is."""
    assert verdict(pipeline, known, projected(None)) == refuse("wrong-shape")


def test_a_projector_that_refuses_leaves_the_interaction_open() -> None:
    """BEHAVIOUR 67: a later good answer works."""
    known = given(scalar(projection=PROJECTION), *WITH_PROJECTOR)
    decided = known.when(judging(answer(shape=Misshapen("projector raised"))))
    assert decided.names == ["Refuse"]
    assert decided.folded().when(judging(projected())).names == ADMITTED


# --- answers for steps that are not reached (policy 9) -------------------------------------------------------------------------------------


def test_early_answers_are_bounded() -> None:
    known = given(stream(), submitted(), started())
    for index in range(limits.EARLY_HELD_MAX):
        known.facts(held(index))
    decided = known.when(judging(answer(limits.EARLY_HELD_MAX)))
    assert [decision.reason for decision in decided.decisions if isinstance(decision, Refuse)] == ["too-early"]
    assert known.when(judging(answer(0))).names == DUPLICATE
    assert decided.names == ["Refuse"]


def test_an_early_answer_is_kept_as_it_came() -> None:
    raw = b'{ "ok": true, "fee": "1.0" }'
    known = given(stream(), submitted(), started())
    known.when(judging(answer(3, raw))).then(Append(held(3, raw, came_in_ms=NOW)))


HELD_THEN_SENT = [submitted(), started(), opened(itemised=True, live=True), held(0), dispatched(0, requested=False)]


def judging_held(the_answer: Answer, *, live: bool = False) -> Any:
    def ask(known: Given) -> Decisions:
        return admit_held(known.pipeline, the_answer, known.standing(the_answer.ref.item_index), live=live, now_ms=NOW)

    return ask


def test_a_held_answer_is_admitted_when_its_step_is_reached() -> None:
    known = given(stream(), *HELD_THEN_SENT)
    after = known.when(judging_held(answer(0), live=True)).then(Append(admitted(0)), Offer(UNIT, 0))
    after.when(judging_held(answer(0))).then(NoOp("held-answer-outlived"))


def test_a_held_answer_that_is_refused_costs_one_request_and_is_not_judged_again() -> None:
    """The projector sees the request only now; whatever it refuses, exactly one request leaves."""
    pipeline = stream(projection=PROJECTION)
    known = given(
        pipeline,
        submitted(),
        started(),
        opened(itemised=True, live=True),
        held(0),
        dispatched(0, requested=False, projector="shop:Project"),
    )
    decided = known.when(judging_held(answer(0, shape=Misshapen("projector raised"))))
    assert decided.names == ["Refuse", "CompletionRefused", "Request"]
    sent = decided.decisions[-1]
    assert isinstance(sent, Request)
    wanted = dispatched(0)
    assert (sent.fact.request, sent.fact.deadline_ms, sent.fact.idempotency_key) == (
        wanted.request,
        wanted.deadline_ms,
        wanted.idempotency_key,
    )
    after = decided.folded()
    after.when(judging_held(answer(0))).then(NoOp("held-answer-outlived"))
    assert after.when(judging(answer(0, shape=Shaped(YES, YES)), live=True)).names == [*ADMITTED, "Offer"]


@pytest.mark.parametrize(
    "known",
    [
        pytest.param([submitted(), started(), held(0)], id="not reached yet"),
        pytest.param([*HELD_THEN_SENT, closed("CANCELLED"), cancelled()], id="ended meanwhile: no request leaves"),
        pytest.param([*HELD_THEN_SENT, timed_out(0, "skip"), continued(0, outputs=[])], id="expired meanwhile"),
        pytest.param(streaming(1, live=True), id="nothing was held"),
        pytest.param(streaming(0, live=True), id="no interaction"),
    ],
)
def test_a_held_answer_that_outlived_its_interaction_does_nothing(known: Sequence[Fact]) -> None:
    given(stream(), *known).when(judging_held(answer(0))).then(NoOp("held-answer-outlived"))


def test_two_awaits_take_their_early_answers_in_step_order() -> None:
    """CASES 8: both answers are there before either step is reached."""
    known = given(stream(), submitted(), started())
    for index in (1, 0):
        known.when(judging(answer(index))).folded()
    assert known.the_execution.held == 2
    known.facts(opened(itemised=True, live=True), dispatched(0, requested=False), dispatched(1, requested=False))
    for index in (0, 1):
        assert known.when(judging_held(answer(index), live=True)).names == [*ADMITTED, "Offer"]


def test_after_the_end_of_the_source_an_item_within_it_is_known() -> None:
    known = given(stream(), *streaming(1, live=True), source_ended(1))
    assert known.when(judging(answer(0), live=True)).names == [*ADMITTED, "Offer"]
