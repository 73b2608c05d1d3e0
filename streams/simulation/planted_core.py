"""Planted bugs of the core: commits, sessions, offers, pauses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas import facts
from schemas.errors import TransactionAborted
from state import interaction
from state.execution import ExecutionStatus
from state.interaction import InteractionStatus
from streams.engine.loop import TransactionalLoop
from streams.engine.owned_tasks import OwnedTasks
from streams.roles.core import deciders
from streams.roles.core.deciders import Deciders
from streams.roles.core.live_window import Sessions
from streams.roles.core.local_work import LocalWork
from streams.roles.core.session import Session
from streams.simulation.machines import WORK_ENDS
from streams.simulation.planting import Plant, Swap
from streams.simulation.violation import Breach
from topologies.decisions import admission, continuation
from topologies.decisions.decision import Append, Decisions, Duplicate, Request
from topologies.decisions.dispatch import dispatch_items
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import PayloadType


def _skip_offsets() -> list[Swap]:
    """A transaction carries the offsets of records alone: what writes for a partition without reading from it is fenced by nothing."""

    def offsets(_loop: TransactionalLoop, _tasks: Any, moved: Any) -> Any:
        return dict(moved)

    return [(TransactionalLoop, "_offsets", offsets)]


def _offer_before_commit() -> list[Swap]:
    """An admitted completion is offered when it is decided."""

    def offer(sessions: Sessions, decision: Any, _outputs: Any, _event: Any) -> None:
        session = sessions.by_unit.get(decision.unit_id)
        if session is not None and session.live:
            session.offer(decision.item_index)

    return [(Sessions, "_do_offer", offer)]


def _count_a_duplicate() -> list[Swap]:
    """An equal second answer is admitted again."""
    judge = admission._second_answer  # noqa: SLF001

    def second(step: Any, answer: Any, shape: Any, row: Any, *, now_ms: int) -> Any:
        decisions = judge(step, answer, shape, row, now_ms=now_ms)
        if decisions == [Duplicate()]:
            ref = answer.ref
            again = facts.BoundaryCompletionAdmitted(
                execution_id=ref.execution_id,
                at_ms=now_ms,
                unit_id=ref.unit_id,
                item_index=ref.item_index,
                completion=row.completion,
                answer=row.answer,
                actor=row.actor,
                completed_at_ms=answer.recorded_at_ms,
            )
            return [Append(again)]
        return decisions

    admitted = facts.BoundaryCompletionAdmitted
    table = dict(interaction._EVOLVE)  # noqa: SLF001
    table[InteractionStatus.COMPLETED, admitted] = table[InteractionStatus.PENDING, admitted]
    return [(admission, "_second_answer", second), (interaction, "_EVOLVE", table)]


def _rewind_after_unknown() -> list[Swap]:
    """After a commit whose outcome is unknown the batch is decided again on the rows in memory."""

    def rewind(loop: TransactionalLoop, *, fenced: bool) -> None:
        del fenced
        for task in dict.fromkeys(loop.tasks.values()):
            task.drop()
        loop.membership.drop_producer()
        loop.owned.assigned = ()

    return [(TransactionalLoop, "_take_over_own", rewind)]


def _number_items_by_commits() -> list[Swap]:
    """The next item's index follows the commits while items that were pulled before wait to be dispatched."""
    note = Session.note

    def counting(session: Session, fact: Any, now_s: float) -> None:
        note(session, fact, now_s)
        if isinstance(fact, facts.BoundaryInteractionDispatched) and fact.item_index is not None:
            session.next_index = fact.item_index + 1

    return [(Session, "note", counting)]


def _read_on_after_failure() -> list[Swap]:
    """A stream that failed is read on, and seems to have ended."""
    open_session, on_pulled = Sessions._open, Deciders._on_pulled  # noqa: SLF001 - a planted bug sits inside

    def opening(sessions: Sessions, unit_id: str) -> None:
        open_session(sessions, unit_id)
        session = sessions.by_unit.get(unit_id)
        if session is not None:
            session.__class__ = _Stubborn

    def pulled(deciders: Deciders, event: Any, record: Any) -> Any:
        batch = deciders._batch  # noqa: SLF001
        execution = batch.execution(event.session.execution_id)
        if execution is not None and execution.status is ExecutionStatus.WAIT_RETRY:
            return dispatch_items(
                deciders._pipeline,  # noqa: SLF001
                msgspec.structs.replace(execution, status=ExecutionStatus.RUNNING),
                batch.unit(event.session.unit_id),
                event.first_index,
                event.items,
                (),
                ended=event.ended,
                now_ms=execution.updated_at_ms,
            )
        return on_pulled(deciders, event, record)

    return [(Sessions, "_open", opening), (Deciders, "_on_pulled", pulled)]


class _Stubborn(Session):
    """Keeps its stream whatever happens."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "stream" or value is not None:
            super().__setattr__(name, value)


def _forget_local_work() -> list[Swap]:
    """Local work counts as over when its job ends, not when its result is decided: it is started again in between."""
    is_running = LocalWork.is_running

    def forgetting(work: LocalWork, execution_id: str) -> bool:
        if execution_id in work._starting:  # noqa: SLF001
            return True
        ended = (entry.event for entry in work._agenda.ready if isinstance(entry.event, WORK_ENDS))  # noqa: SLF001
        return is_running(work, execution_id) and all(end.execution_id != execution_id for end in ended)

    return [(LocalWork, "is_running", forgetting)]


def _forget_an_attempt() -> list[Swap]:
    """A live session does not hear that an attempt failed: the item's next outcome is taken to be its first, which has no row yet."""
    noted_by = {kind: note for kind, note in Session._noted_by.items() if kind is not facts.ContinuationAttemptFailed}  # noqa: SLF001
    return [(Session, "_noted_by", noted_by)]


def _blame_the_content() -> list[Swap]:
    """A batch that was aborted twice, for whatever reason, is bisected down to an innocent event, which is dead-lettered."""

    def blames(loop: TransactionalLoop, error: Exception) -> bool:
        return isinstance(error, TransactionAborted) and loop._aborts > 1  # noqa: SLF001

    return [(TransactionalLoop, "_is_its_content", blames)]


def _never_resume() -> list[Swap]:
    """What was paused because enough of it waited is not read again."""
    balance = OwnedTasks.balance_pauses

    def pausing(owned: OwnedTasks, consumer: Any) -> None:
        before = set(owned._paused)  # noqa: SLF001
        balance(owned, consumer)
        resumed = before - owned._paused  # noqa: SLF001
        consumer.pause(sorted(resumed))
        owned._paused |= resumed  # noqa: SLF001

    return [(OwnedTasks, "balance_pauses", pausing)]


def _type_by_the_branch() -> list[Swap]:
    """What waits behind an await is read by the type of the branch that follows it."""

    def item_type(pipeline: Pipeline, index: int) -> PayloadType:
        return pipeline.output_type if index == len(pipeline.steps) else pipeline.steps[index].input

    return [(Pipeline, "item_type", item_type)]


def _never_ask_after_all() -> list[Swap]:
    """A held answer is refused, and the request that it made unnecessary is not sent after all."""

    def admitting(*args: Any, **kwargs: Any) -> Decisions:
        return [decision for decision in admission.admit_held(*args, **kwargs) if not isinstance(decision, Request)]

    return [(deciders, "admit_held", admitting)]


def _sweep_past_retries() -> list[Swap]:
    """The sweep of a parked unit takes an item whose suffix was tried before for one that is done."""

    def sweeping(pipeline: Any, execution: Any, unit: Any, rows: Any, *args: Any, **kwargs: Any) -> Decisions:
        fresh = [(interaction, item) for interaction, item in rows if item is None]
        return continuation.sweep(pipeline, execution, unit, fresh, *args, **kwargs)

    return [(deciders, "sweep", sweeping)]


PLANTS: Mapping[str, Plant] = {
    "skip-offsets": Plant(_skip_offsets, Breach.ZOMBIE_COMMITTED),
    "offer-before-commit": Plant(_offer_before_commit, Breach.OFFERED_BEFORE_COMMIT),
    "count-a-duplicate": Plant(_count_a_duplicate, Breach.HAPPENED_TWICE, "was admitted twice"),
    "rewind-after-unknown": Plant(_rewind_after_unknown, Breach.HAPPENED_TWICE),
    "number-items-by-commits": Plant(_number_items_by_commits, Breach.OUTPUTS_DIFFER, "undisturbed, on the other path"),
    "read-on-after-failure": Plant(_read_on_after_failure, Breach.OUTPUTS_DIFFER, "undisturbed, on the other path"),
    "forget-local-work": Plant(_forget_local_work, Breach.WORK_STARTED_TWICE),
    "forget-an-attempt": Plant(_forget_an_attempt, Breach.ROW_NOT_NEW, "t/.* was taken to be a new row"),
    "blame-the-content": Plant(_blame_the_content, Breach.EVENT_BLAMED, "the commit of .* was refused"),
    "never-resume": Plant(_never_resume, Breach.PAUSED_FOR_NOTHING),
    "type-by-the-branch": Plant(_type_by_the_branch, Breach.UNEXPECTED_ENDING, "validation error for Yes"),
    "never-ask-after-all": Plant(_never_ask_after_all, Breach.REQUESTS_MISCOUNTED, "has 0 request records, not 1"),
    "sweep-past-retries": Plant(_sweep_past_retries, Breach.WAITS_FOR_NOTHING),
}
