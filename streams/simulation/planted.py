"""Planted bugs: known mistakes that the simulator must catch, so that its silence means something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from schemas import facts
from schemas.errors import TransactionAborted
from state import interaction
from state.execution import ExecutionStatus
from state.interaction import InteractionStatus
from streams.engine.loop import TransactionalLoop
from streams.roles.core.deadlines import Deadlines
from streams.roles.core.deciders import Deciders
from streams.roles.core.events import OutputPublished, PublicationBroke, ResultCollected, SegmentBroke, SegmentEnded
from streams.roles.core.live_window import Sessions
from streams.roles.core.local_work import LocalWork
from streams.roles.core.session import Session
from topologies.decisions import admission
from topologies.decisions.decision import Append, Duplicate
from topologies.decisions.dispatch import dispatch_items
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import PayloadType

Swap = tuple[Any, str, Any]
"""Owner, attribute, what takes its place."""

# --- mistakes that the design warns of ------------------------------------------------------------------------------------------------


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

    table: dict[Any, Any] = {
        **interaction.TRANSITIONS,
        (InteractionStatus.COMPLETED, facts.BoundaryCompletionAdmitted): InteractionStatus.COMPLETED,
    }
    return [(admission, "_second_answer", second), (interaction, "TRANSITIONS", table)]


def _rewind_after_unknown() -> list[Swap]:
    """After a commit whose outcome is unknown the batch is decided again on the rows in memory."""

    def rewind(loop: TransactionalLoop, *, fenced: bool) -> None:
        del fenced
        for task in dict.fromkeys(loop.tasks.values()):
            task.drop()
        loop.membership.drop_producer()
        loop.owned.assigned = ()

    return [(TransactionalLoop, "_take_over_own", rewind)]


# --- mistakes that the simulator has found ------------------------------------------------------------------------------------------------


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
    ends = (SegmentEnded, SegmentBroke, OutputPublished, PublicationBroke, ResultCollected)

    def forgetting(work: LocalWork, execution_id: str) -> bool:
        waiting = [entry.event for entry in work._agenda.ready if isinstance(entry.event, ends)]  # noqa: SLF001
        return is_running(work, execution_id) and execution_id not in {event.execution_id for event in waiting}

    return [(LocalWork, "is_running", forgetting)]


def _blame_the_content() -> list[Swap]:
    """A batch that was aborted twice, for whatever reason, is bisected down to an innocent event, which is dead-lettered."""

    def blames(loop: TransactionalLoop, error: Exception) -> bool:
        return isinstance(error, TransactionAborted) and loop._aborts > 1  # noqa: SLF001

    return [(TransactionalLoop, "_is_its_content", blames)]


def _expire_over_backlog() -> list[Swap]:
    """A deadline rings while answers that were there before it wait to be decided."""

    def is_open(deadlines: Deadlines) -> bool:
        deadlines._gate_ms = deadlines._ctx.clock.now_ms()  # noqa: SLF001
        return True

    return [(Deadlines, "_is_gate_open", is_open)]


def _type_by_the_branch() -> list[Swap]:
    """What waits behind an await is read by the type of the branch that follows it."""

    def item_type(pipeline: Pipeline, index: int) -> PayloadType:
        return pipeline.output_type if index == len(pipeline.steps) else pipeline.steps[index].input

    return [(Pipeline, "item_type", item_type)]


PLANTS: Mapping[str, Callable[[], list[Swap]]] = {
    "skip-offsets": _skip_offsets,
    "offer-before-commit": _offer_before_commit,
    "count-a-duplicate": _count_a_duplicate,
    "rewind-after-unknown": _rewind_after_unknown,
    "number-items-by-commits": _number_items_by_commits,
    "read-on-after-failure": _read_on_after_failure,
    "forget-local-work": _forget_local_work,
    "blame-the-content": _blame_the_content,
    "expire-over-backlog": _expire_over_backlog,
    "type-by-the-branch": _type_by_the_branch,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug for a while; None plants none."""
    swaps = PLANTS[name]() if name else []
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in swaps]
    try:
        for where, attribute, value in swaps:
            setattr(where, attribute, value)
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)
