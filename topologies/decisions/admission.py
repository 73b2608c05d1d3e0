"""Admission: judge an answer once; admit it, or refuse it with a reason (BEHAVIOUR 2.1 and 5.2, DESIGN 8 policies 1-3, 7, 9).

Theory of operation. The shell hands in what it prepared without deciding anything: the answer's place, its record time, whether its
token proves what it should, and its payload validated (and projected) against the step's types. The order of judgement:

    1 known?      execution, step and item exist, tenant fits                          else unknown
    2 reached?    the interaction was dispatched                                       else held early, within bounds
    3 proven?     the token fits this interaction (mandatory under signedResumeToken)  else bad-token
                  a key that it names is the request's                                 else wrong-key
    4 answered?   equal to the first answer: duplicate                                 else conflict
    5 open?       unit open, not timed out, came in before the deadline (where known)  else cancelled or late
    6 shaped?     the payload is of the step's type                                    else wrong-shape
    7 admitted

Expected outcomes are decisions, never exceptions. First terminal write wins; a first value is never overwritten.
"""

from __future__ import annotations

import msgspec

from schemas import facts, limits
from schemas.envelopes import ProviderCompletion
from schemas.identity import InteractionRef, execution_of
from state.execution import ExecutionRecord, ExecutionStatus
from state.interaction import InteractionRecord, InteractionStatus
from state.unit import UnitRecord, UnitStatus
from topologies.decisions.continuation import after_completion
from topologies.decisions.decision import Append, Decisions, Duplicate, JudgeHeld, NoOp, Refuse, Request
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.shapes import Misshapen, Shape, Shaped, Unshaped
from topologies.pipeline.steps import AwaitStep

_replace = msgspec.structs.replace
_PENDING, _COMPLETED, _HELD = InteractionStatus.PENDING, InteractionStatus.COMPLETED, InteractionStatus.HELD
_TIMED_OUT = InteractionStatus.TIMED_OUT


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A provider completion as the shell prepared it.

    Attributes:
        recorded_at_ms: When it came in; where nobody says so, when it was appended to `completions`.
        token_valid: The token proves this interaction; None: there was none.
        shape: None when no step could say what shape it should have.
    """

    completion: ProviderCompletion
    ref: InteractionRef
    recorded_at_ms: int
    token_valid: bool | None
    shape: Shape | None


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The rows that an answer meets."""

    execution: ExecutionRecord | None
    unit: UnitRecord | None
    interaction: InteractionRecord | None


def admit(pipeline: Pipeline, answer: Answer, rows: Standing, *, live: bool, now_ms: int) -> Decisions:
    """What follows from an answer. `live`: a local live session holds the unit and takes offers."""
    execution, interaction = rows.execution, rows.interaction
    step = _step_of(pipeline, answer.ref)
    if execution is None or step is None or execution.tenant_id != (answer.completion.tenant_id or execution.tenant_id):
        return [Refuse("unknown", "no such interaction", step)]
    if interaction is None or interaction.status is _HELD:
        return _before_dispatch(step, answer, rows, now_ms=now_ms)
    if not _proven(step, answer):
        return [Refuse("bad-token", "the resume token does not prove this interaction", step)]
    if answer.completion.idempotency_key not in (None, interaction.idempotency_key):
        return [Refuse("wrong-key", "its idempotencyKey is not the request's: it may be meant for another one", step)]
    shape = answer.shape
    assert shape is not None, "an interaction exists, so its step gave the answer a shape"
    if interaction.status is _COMPLETED and not interaction.timed_out:
        return _second_answer(step, answer, shape, interaction, now_ms=now_ms)
    reason = _closed(rows, answer.completion.came_in_ms)
    if reason is not None:
        detail = f"answered at {answer.recorded_at_ms}"
        if _is_kept(interaction, shape, reason):
            return [Refuse(reason, detail, step, kept=True), _kept_fact(answer, reason, now_ms)]
        return [Refuse(reason, detail, step), *_refusal_fact(interaction, answer, reason, now_ms)]
    if interaction.projector != (step.projection.name if step.projection else None):
        return [Refuse("wrong-shape", f"it waits for the projector {interaction.projector}", step)]
    if not isinstance(shape, Shaped):
        return [Refuse("wrong-shape", shape.detail, step)]
    if interaction.held is not None:
        return _beside_held(step, answer, interaction)
    assert rows.unit is not None
    if (
        shape.completion is None
    ):  # it was shaped before its request was there to project it with: keep it, judge it next
        return [_held_fact(answer, now_ms), JudgeHeld(answer.ref.unit_id, answer.ref.item_index)]
    fact = facts.BoundaryCompletionAdmitted(
        execution_id=answer.ref.execution_id,
        at_ms=now_ms,
        unit_id=answer.ref.unit_id,
        item_index=answer.ref.item_index,
        completion=shape.completion,
        answer=shape.answer,
        actor=answer.completion.actor,
        completed_at_ms=answer.recorded_at_ms,
    )
    return [Append(fact), *after_completion(pipeline, execution, rows.unit, fact, live=live, now_ms=now_ms)]


def refuse_stranger(completion: ProviderCompletion) -> Decisions:
    """An answer that names no interaction at all."""
    return [Refuse("unknown", f"{completion.interaction_id[:80]!r} is no interaction id", None)]


def _step_of(pipeline: Pipeline, ref: InteractionRef) -> AwaitStep | None:
    """The await step that an interaction id names, when it can have such an interaction."""
    if ref.step_index >= len(pipeline.steps):
        return None
    step = pipeline.steps[ref.step_index]
    if not isinstance(step, AwaitStep):
        return None
    return step if step.itemised == (ref.item_index is not None) else None


def _proven(step: AwaitStep, answer: Answer) -> bool:
    """Mandatory under signedResumeToken; elsewhere a token that is there must still be right (policy 3)."""
    return answer.token_valid is True or (answer.token_valid is None and not step.needs_token)


def _second_answer(
    step: AwaitStep, answer: Answer, shape: Shape, interaction: InteractionRecord, *, now_ms: int
) -> Decisions:
    """Policy 1: an equal one is a duplicate, another one a conflict; the first value stays."""
    if isinstance(shape, Shaped):
        first = interaction.completion if interaction.answer is None else interaction.answer
        second = shape.completion if shape.answer is None else shape.answer
        kind = step.output if interaction.answer is None else step.answer_type
        if first is not None and second is not None and _same(kind, first, second):
            return [Duplicate()]
    return [
        Refuse("conflict", "another answer was admitted before", step),
        *_refusal_fact(interaction, answer, "conflict", now_ms),
    ]


def _same(kind: PayloadType, first: bytes, second: bytes) -> bool:
    """Whether two answers mean the same value, however each is written (1.0 and 1.00)."""
    try:
        return kind.same(first, second)
    except ValueError:  # the stored one is of a type that the pipeline had before
        return False


def _closed(rows: Standing, came_in_ms: int | None) -> str | None:
    """Why an unanswered interaction takes no answer any more; None: it does.

    Where nobody says when the answer came in, no time is compared: it is in time while the deadline has not rung.
    """
    unit, interaction = rows.unit, rows.interaction
    assert interaction is not None
    if unit is None or not unit.is_open:
        return "cancelled" if unit is not None and unit.status is UnitStatus.CANCELLED else "late"
    if interaction.timed_out or interaction.status is _TIMED_OUT:
        return "late"
    return "late" if came_in_ms is not None and came_in_ms >= interaction.deadline_ms else None


def _refusal_fact(interaction: InteractionRecord, answer: Answer, reason: str, now_ms: int) -> Decisions:
    if interaction.refusals >= limits.REFUSAL_FACTS_MAX:
        return []
    return [
        Append(
            facts.CompletionRefused(
                execution_id=answer.ref.execution_id,
                at_ms=now_ms,
                unit_id=answer.ref.unit_id,
                item_index=answer.ref.item_index,
                reason=reason,
            )
        )
    ]


# --- late answers that are kept -------------------------------------------------------------------------------------------------------


def _is_kept(interaction: InteractionRecord, shape: Shape, reason: str) -> bool:
    """The first good answer that came too late stays on its row: the outside party did the work, and a redrive can admit it.

    `late` is said of what timed out or failed only; what was cancelled, or succeeded without it, says so or is answered already.
    """
    return reason == "late" and interaction.late is None and isinstance(shape, Shaped)


def _kept_fact(answer: Answer, reason: str, now_ms: int) -> Append:
    return Append(
        facts.CompletionRefused(
            execution_id=answer.ref.execution_id,
            at_ms=now_ms,
            unit_id=answer.ref.unit_id,
            item_index=answer.ref.item_index,
            reason=reason,
            kept_answer=answer.completion.payload,
            resume_token=answer.completion.resume_token,
            actor=answer.completion.actor,
            completed_at_ms=answer.recorded_at_ms,
            came_in_ms=answer.completion.came_in_ms,
            origin_topic=answer.completion.origin_topic,
            origin_partition=answer.completion.origin_partition,
            origin_offset=answer.completion.origin_offset,
        )
    )


# --- answers for steps that are not reached ------------------------------------------------------------------------------------------


def _before_dispatch(step: AwaitStep, answer: Answer, rows: Standing, *, now_ms: int) -> Decisions:
    """Ids are derivable, so an answer may come before its request (policy 9, CASES 1 and 11)."""
    execution, held = rows.execution, rows.interaction
    assert execution is not None
    if not _may_come(step, answer.ref, execution, rows.unit):
        reason = "cancelled" if execution.status is ExecutionStatus.CANCELLED else "unknown"
        return [Refuse(reason, "this interaction will never be dispatched", step)]
    if step.needs_token or answer.token_valid is not None:
        return [Refuse("bad-token", "no token was issued for this interaction yet", step)]
    if isinstance(answer.shape, Misshapen):
        return [Refuse("wrong-shape", answer.shape.detail, step)]
    if held is not None:
        return _beside_held(step, answer, held)
    if execution.held >= limits.EARLY_HELD_MAX:
        return [
            Refuse(
                "too-early",
                f"{execution.held} answers are held for this execution already (limits.EARLY_HELD_MAX)",
                step,
            )
        ]
    return [_held_fact(answer, now_ms)]


def _beside_held(step: AwaitStep, answer: Answer, held: InteractionRecord) -> Decisions:
    """A second answer while the first one waits to be judged."""
    if held.held is not None and _same(step.answer_type, held.held.answer, answer.completion.payload):
        return [Duplicate()]
    return [Refuse("conflict", "another answer is held already", step)]


def _held_fact(answer: Answer, now_ms: int) -> Append:
    return Append(
        facts.BoundaryCompletionHeld(
            execution_id=answer.ref.execution_id,
            at_ms=now_ms,
            unit_id=answer.ref.unit_id,
            item_index=answer.ref.item_index,
            answer=answer.completion.payload,
            resume_token=answer.completion.resume_token,
            actor=answer.completion.actor,
            completed_at_ms=answer.recorded_at_ms,
            origin_topic=answer.completion.origin_topic,
            origin_partition=answer.completion.origin_partition,
            origin_offset=answer.completion.origin_offset,
            came_in_ms=answer.completion.came_in_ms,
        ),
    )


def _may_come(step: AwaitStep, ref: InteractionRef, execution: ExecutionRecord, unit: UnitRecord | None) -> bool:
    """Whether the execution may still dispatch this interaction."""
    if execution.is_terminal or (unit is not None and not unit.is_open):
        return False
    if unit is None:
        return execution.step_index <= step.index
    return unit.itemised and (unit.source_count is None or (ref.item_index or 0) < unit.source_count)


def admit_held(pipeline: Pipeline, answer: Answer, rows: Standing, *, live: bool, now_ms: int) -> Decisions:
    """Judge an answer that waited for its step, or for its request; a refusal sends the request now if that was not done before."""
    interaction = rows.interaction
    if interaction is None or interaction.status is not InteractionStatus.PENDING or interaction.held is None:
        return [NoOp("held-answer-outlived")]
    if rows.unit is None or not rows.unit.is_open:
        return [NoOp("held-answer-outlived")]
    # It was there in time whatever the clocks say, and nothing is held against itself.
    answer = _replace(answer, completion=_replace(answer.completion, came_in_ms=None))
    rows = _replace(rows, interaction=_replace(interaction, held=None))
    decisions = admit(pipeline, answer, rows, live=live, now_ms=now_ms)
    refusal = next((decision for decision in decisions if isinstance(decision, Refuse)), None)
    if refusal is None:
        return decisions
    assert rows.execution is not None
    # Without the fact the answer would be judged again, and the request sent again, after a restart.
    refused = facts.CompletionRefused(
        execution_id=answer.ref.execution_id,
        at_ms=now_ms,
        unit_id=answer.ref.unit_id,
        item_index=answer.ref.item_index,
        reason=refusal.reason,
    )
    if interaction.requested:
        return [refusal, Append(refused)]
    request = Request(pipeline.await_step(answer.ref.step_index), rows.execution.tenant_id, _request_of(interaction))
    return [refusal, Append(refused), request]


def _request_of(interaction: InteractionRecord) -> facts.BoundaryInteractionDispatched:
    return facts.BoundaryInteractionDispatched(
        execution_id=execution_of(interaction.unit_id),
        at_ms=interaction.dispatched_at_ms,
        unit_id=interaction.unit_id,
        item_index=interaction.item_index,
        attempt=interaction.attempt,
        idempotency_key=interaction.idempotency_key,
        deadline_ms=interaction.deadline_ms,
        input_type=interaction.input_type,
        output_type=interaction.output_type,
        request=interaction.request,
    )


def unshaped(
    step: AwaitStep, row: InteractionRecord | None, completion: ProviderCompletion, recorded_at_ms: int
) -> Unshaped:
    """What the shape of an answer depends on.

    A projector is not run where there is no request yet, nor again for an interaction that was answered (BEHAVIOUR hole 24).
    """
    payload, actor = completion.payload, completion.actor or ""
    projection = step.projection
    if projection is None or row is None or row.status is not _PENDING or row.projector != projection.name:
        return Unshaped(step.index, payload, None, "", actor, recorded_at_ms)
    return Unshaped(step.index, payload, row.request, completion.interaction_id, actor, recorded_at_ms)
