"""Planted bugs: known mistakes that the simulator must catch, so that its silence means something.

Each names the breach that it causes, and is caught only by that: one that fails for another reason may have died, and nobody would know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas import facts
from schemas.errors import TransactionAborted
from state import interaction
from state.execution import ExecutionRecord, ExecutionStatus
from state.interaction import InteractionStatus
from streams.author import local
from streams.clock import BrokerClock
from streams.engine.loop import TransactionalLoop
from streams.engine.owned_tasks import OwnedTasks
from streams.engine.quiet_positions import QuietPositions
from streams.engine.restore import Restore
from streams.log.seam import Log, Record
from streams.roles.core import deciders, gates, retention
from streams.roles.core.deadlines import Deadlines
from streams.roles.core.deciders import Deciders
from streams.roles.core.events import AnswerArrived
from streams.roles.core.intake import Intake
from streams.roles.core.live_window import Sessions
from streams.roles.core.local_work import LocalWork
from streams.roles.core.session import Session
from streams.roles.ingress import task as ingress
from streams.roles.ingress.records import read_answer
from streams.simulation.violation import Breach, Failed
from streams.simulation.watch import WORK_ENDS
from topologies.decisions import admission, continuation, timeout
from topologies.decisions.decision import Append, DeadLetterItem, Decisions, Duplicate, Request
from topologies.decisions.dispatch import dispatch_items
from topologies.decisions.ending import fail
from topologies.decisions.retention import Fate
from topologies.pipeline.model import Pipeline, Retention
from topologies.pipeline.payloads import PayloadType

Swap = tuple[Any, str, Any]
"""Owner, attribute, what takes its place."""


@dataclass(frozen=True)
class Plant:
    """A known mistake.

    Attributes:
        swaps: Puts it in place.
        breach: What it must be caught by.
        saying: A regular expression that the words of the failure must match, where the name alone could mean something else.
    """

    swaps: Callable[[], list[Swap]]
    breach: Breach
    saying: str = ""

    def is_caught_by(self, failed: Failed) -> bool:
        """Whether a run failed for the reason that this mistake gives it."""
        return failed.breach is self.breach and re.search(self.saying, str(failed)) is not None


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


def _expire_over_backlog() -> list[Swap]:
    """A deadline rings while answers that were there before it wait to be decided."""

    def has_passed(_deadlines: Deadlines, _end: int) -> bool:
        return True

    return [(Deadlines, "has_passed", has_passed)]


def _ring_before_ingress() -> list[Swap]:
    """A deadline rings while answers lie on the response topic that nobody has taken over."""

    def is_taken_over(_log: Log, _group: str, _ends: Any) -> bool:
        return True

    return [(gates, "_is_taken_over", is_taken_over)]


def _trust_the_own_clock() -> list[Swap]:
    """Deadlines follow the clock of the machine, which another machine or the broker does not share."""

    def now_ms(clock: BrokerClock) -> int:
        return clock._own.now_ms()  # noqa: SLF001

    return [(BrokerClock, "now_ms", now_ms)]


def _leave_markers() -> list[Swap]:
    """Positions that no record moved are never committed."""

    def moved(_quiet: QuietPositions, _consumer: Any) -> dict[Any, int]:
        return {}

    return [(QuietPositions, "moved", moved)]


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


def _judge_by_our_own_haste() -> list[Swap]:
    """An answer counts as come in when ingress wrote it to `completions`, not when it was on the response topic."""
    reading = Intake._read  # noqa: SLF001

    def read(intake: Intake, record: Record, kinds: tuple[type, ...]) -> Any:
        event = reading(intake, record, kinds)
        if isinstance(event, AnswerArrived) and event.completion.came_in_ms is not None:
            late = msgspec.structs.replace(event.completion, came_in_ms=record.timestamp_ms)
            return AnswerArrived(late, event.ref, record.timestamp_ms)
        return event

    return [(Intake, "_read", read)]


def _never_look_at_the_stamp() -> list[Swap]:
    """An answer is in time while the deadline has not rung, even where the broker says that it was not."""
    closed = admission._closed  # noqa: SLF001

    def judging(rows: Any, _came_in_ms: int | None) -> str | None:
        return closed(rows, None)

    return [(admission, "_closed", judging)]


def _believe_the_sender() -> list[Swap]:
    """The time that a sender wrote on its record is taken for the time at which it came in."""

    def reading(record: Record) -> Any:
        return read_answer(record._replace(appended=True))

    return [(ingress, "read_answer", reading)]


# --- mistakes about items -----------------------------------------------------------------------------------------------------------------


def _number_no_equals() -> list[Swap]:
    """Items with equal fields have one key, so a provider that dedupes answers one of them."""

    def repeated(key: str, _number: int) -> str:
        return key

    return [(local, "repeated_key", repeated)]


def _stop_at_the_first() -> list[Swap]:
    """The first item that fails for good ends its execution, whatever the others have come to."""
    failed = continuation._failed  # noqa: SLF001

    def failing(pipeline: Any, result: Any, execution: Any, unit: Any, *, now_ms: int) -> Decisions:
        decisions = failed(pipeline, result, execution, unit, now_ms=now_ms)
        fact = getattr(decisions[0], "fact", None)
        if not isinstance(fact, facts.ContinuationAttemptFailed) or fact.retry_at_ms is not None:
            return decisions
        code = "AWAIT_ITEM_CONTINUATION_FAILED"
        return [*decisions, *fail(pipeline, execution, unit, code=code, message=fact.error_message, now_ms=now_ms)]

    return [(continuation, "_failed", failing)]


def _answer_for_the_expired() -> list[Swap]:
    """What `onTimeout: {skip}` leaves out counts as answered by the provider."""

    def expiring(*args: Any, **kwargs: Any) -> Decisions:
        decisions = timeout.expire(*args, **kwargs)
        expired = [decision.fact for decision in decisions if isinstance(decision, Append)]
        skipped = [
            fact for fact in expired if isinstance(fact, facts.InteractionTimedOut) and fact.resolution == "skip"
        ]
        for fact in skipped:
            unit_id, index, at_ms = fact.unit_id, fact.item_index, fact.at_ms
            admitted = facts.BoundaryCompletionAdmitted(
                fact.execution_id, at_ms, unit_id, index, b"null", None, None, at_ms
            )
            decisions.insert(1, Append(admitted))
        return decisions

    return [(deciders, "expire", expiring)]


def _letter_for_a_repeat() -> list[Swap]:
    """The second outcome of an item that was left out before is told by a letter again."""

    def completing(pipeline: Any, result: Any, execution: Any, unit: Any, item: Any, *, now_ms: int) -> Decisions:
        decisions = continuation.complete_item(pipeline, result, execution, unit, item, now_ms=now_ms)
        if item is None or item.letter_id is None or result.error_code is None:
            return decisions
        step_id, code, message = result.step_id or "", result.error_code, result.error_message or ""
        index, letter, tenant = item.item_index, item.letter_id, execution.tenant_id
        return [*decisions, DeadLetterItem(tenant, item.unit_id, index, step_id, letter, reason=code, detail=message)]

    return [(deciders, "complete_item", completing)]


# --- mistakes that a reader planted -----------------------------------------------------------------------------------------------------


def _forget_the_open() -> list[Swap]:
    """Retention deletes executions that nothing has changed for long, open ones too."""

    def fate_of(execution: ExecutionRecord, kept: Retention, *, now_ms: int) -> Fate:
        return Fate.DELETED if execution.updated_at_ms < now_ms - kept.executions_ms else Fate.KEPT

    return [(retention, "fate", fate_of)]


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


def _ignore_tombstones() -> list[Swap]:
    """A restore puts rows, and deletes none."""
    rows_of = Restore._rows  # noqa: SLF001

    def rows(restore: Restore, records: Any) -> dict[bytes, bytes | None]:
        return {key: value for key, value in rows_of(restore, records).items() if value is not None}

    return [(Restore, "_rows", rows)]


def _trust_an_old_store() -> list[Swap]:
    """A store is followed from its position however old it is: deletes that were compacted away meanwhile never reach it."""

    def distrust(_restore: Restore, _stored: Any, _starts: Any) -> str:
        return ""

    return [(Restore, "_distrust", distrust)]


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
    "expire-over-backlog": Plant(_expire_over_backlog, Breach.TIMED_OUT_IN_TIME),
    "ring-before-ingress": Plant(_ring_before_ingress, Breach.TIMED_OUT_IN_TIME),
    "trust-the-own-clock": Plant(_trust_the_own_clock, Breach.RANG_EARLY),
    "leave-markers": Plant(_leave_markers, Breach.NEVER_AT_REST),
    "never-resume": Plant(_never_resume, Breach.PAUSED_FOR_NOTHING),
    "type-by-the-branch": Plant(_type_by_the_branch, Breach.UNEXPECTED_ENDING, "validation error for Yes"),
    "judge-by-our-own-haste": Plant(_judge_by_our_own_haste, Breach.REFUSED_IN_TIME),
    "never-look-at-the-stamp": Plant(_never_look_at_the_stamp, Breach.ADMITTED_TOO_LATE),
    "believe-the-sender": Plant(_believe_the_sender, Breach.REFUSED_IN_TIME),
    "number-no-equals": Plant(_number_no_equals, Breach.WRONG_KEY, ":n="),
    "stop-at-the-first": Plant(_stop_at_the_first, Breach.ITEMS_ABANDONED),
    "answer-for-the-expired": Plant(_answer_for_the_expired, Breach.ADMITTED_AFTER_TIMEOUT),
    "letter-for-a-repeat": Plant(_letter_for_a_repeat, Breach.DEAD_LETTERS_MISCOUNTED, "letters of items"),
    "forget-the-open": Plant(_forget_the_open, Breach.TABLES_DIFFER, "is None, not"),
    "never-ask-after-all": Plant(_never_ask_after_all, Breach.REQUESTS_MISCOUNTED, "has 0 request records, not 1"),
    "sweep-past-retries": Plant(_sweep_past_retries, Breach.WAITS_FOR_NOTHING),
    "ignore-tombstones": Plant(_ignore_tombstones, Breach.FORGOTTEN_CAME_BACK, "the restored tables"),
    "trust-an-old-store": Plant(_trust_an_old_store, Breach.NEVER_FORGOTTEN, "onto an old disk"),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug for a while; None plants none."""
    swaps = PLANTS[name].swaps() if name else []
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in swaps]
    try:
        for where, attribute, value in swaps:
            setattr(where, attribute, value)
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)
