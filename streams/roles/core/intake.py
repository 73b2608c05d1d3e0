"""Intake: what records mean, and projection before the batch (DESIGN 4 and 6 'Bounds').

Theory of operation. A command is ready at once. Answers stand in an inbox, in the order of their records. Those of a step with a projector
run the author's code, so they are projected on the pool first; at most one such job is out, and what stands behind it waits: the order of
the partition is kept. A projector that overstays its limit costs its own answer only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas import codec, limits
from schemas.envelopes import CancelCommand, ContinuationCompletion, ProviderCompletion, RedriveCommand, SubmitCommand
from schemas.errors import PeerError, PoisonRecord
from schemas.identity import home_partition, parse_interaction_id
from state.interaction import InteractionRecord
from state.keys import interaction_key
from state.tables.rows import PartitionRows, TaskClosed
from streams.author.calls import StepProcessEnded
from streams.engine.pool import Ticket
from streams.log.seam import Record
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda
from streams.roles.core.events import (
    AnswerArrived,
    CommandArrived,
    ContinuationArrived,
    HeldAnswerMet,
    RecordMisplaced,
    RecordPoisoned,
    StrangeAnswerArrived,
)
from topologies.decisions.admission import unshaped
from topologies.pipeline.shapes import Misshapen, Shape, Unshaped

INBOX_MAX = 2 * limits.BATCH_RECORDS_MAX
"""Records that may wait, in the inbox or decoded; beyond that reading pauses."""

DEATHS_MAX = 3
"""Ends of the step process with one answer alone in it, after which its projector gets the blame."""

_PROJECTION_LIMIT_S = limits.CALL_TIMEOUT_DEFAULT_MS / 1000
_COMMANDS = (SubmitCommand, CancelCommand, RedriveCommand)
_COMPLETIONS = (ProviderCompletion, ContinuationCompletion)

Arrival = AnswerArrived | ContinuationArrived | StrangeAnswerArrived | RecordPoisoned | RecordMisplaced


@dataclass(slots=True)
class _Projecting:
    """Answers being projected on the pool, in the order of their records."""

    entries: list[tuple[Record, AnswerArrived]]
    shapes: list[Shape]
    chunk: int = limits.BATCH_RECORDS_MAX
    """How many one job takes; one, after an answer in it ended the step process."""
    deaths: int = 0
    """How often the step process ended with the first answer without a shape alone in the job."""


def _project_on(projecting: _Projecting, shapes: list[Shape], error: BaseException | None) -> _Projecting:
    """What is left of a projection. The one that overstayed is refused, and so is one that ends the step process whenever it comes."""
    entries = projecting.entries
    if isinstance(error, StepProcessEnded):
        is_alone = projecting.chunk == 1
        has_moved = len(shapes) > len(projecting.shapes)
        deaths = 0 if has_moved else projecting.deaths + is_alone
        if deaths < DEATHS_MAX:
            return _Projecting(entries, shapes, 1, deaths)
    if error is not None:
        shapes = [*shapes, Misshapen(f"projector: {error}")]
        return _Projecting(entries, shapes, projecting.chunk)
    return _Projecting(entries, shapes, min(projecting.chunk * 2, limits.BATCH_RECORDS_MAX))


class Intake:
    """The records of one task, on their way to be events."""

    def __init__(self, context: CoreContext, rows: PartitionRows, agenda: Agenda, partition: int) -> None:
        self._pipeline = context.pipeline
        self._author = context.author
        self._commands = context.names.commands
        self._rows = rows
        self._agenda = agenda
        self._partition = partition
        self._inbox: deque[tuple[Record, Arrival]] = deque()
        self._projecting: _Projecting | None = None
        self.bytes = 0
        """Of records that are not decided yet, in the inbox or on the agenda."""
        self._projects = frozenset(step.index for step in self._pipeline.await_steps if step.projection is not None)

    @property
    def is_full(self) -> bool:
        """Whether reading should wait."""
        return len(self._inbox) + len(self._agenda.ready) > INBOX_MAX or self.bytes > limits.INBOX_BYTES_MAX

    def taken(self, record: Record) -> None:
        """A record is being decided."""
        self.bytes -= record.size

    @property
    def is_waiting(self) -> bool:
        """Whether records are here that are no events yet."""
        return bool(self._inbox) or self._projecting is not None

    def accept(self, records: Sequence[Record]) -> None:
        """Decode records; commands are ready at once, answers of a step with a projector are projected first."""
        for record in records:
            self.bytes += record.size
            if record.topic == self._commands:
                self._agenda.wake(self._read(record, _COMMANDS), record)
            else:
                self._inbox.append((record, self._read(record, _COMPLETIONS)))
        self._move_on()

    def _read(self, record: Record, kinds: tuple[type, ...]) -> Any:
        """What a record means."""
        value: Any = None
        try:
            value = codec.decode(record.value)
            if type(value) not in kinds:
                raise PoisonRecord("wrong-kind", f"a {type(value).__name__} does not belong on {record.topic}")
            home = home_partition(value.execution_id, self._pipeline.partitions)
            if home != self._partition:
                return RecordMisplaced(home)
            if isinstance(value, ContinuationCompletion):
                return ContinuationArrived(value)
            if not isinstance(value, ProviderCompletion):
                return CommandArrived(value)
            ref = parse_interaction_id(value.interaction_id)
            return AnswerArrived(value, ref) if ref.execution_id == value.execution_id else StrangeAnswerArrived(value)
        except PoisonRecord as error:
            return RecordPoisoned(error)
        except PeerError:
            return StrangeAnswerArrived(value)

    def _move_on(self) -> None:
        """Move the inbox on, in order, up to what waits for a projection."""
        while self._inbox and self._projecting is None:
            entries: list[tuple[Record, AnswerArrived]] = []
            while self._inbox and len(entries) < limits.BATCH_RECORDS_MAX:
                record, what = self._inbox[0]
                if self._needs_projector(what):
                    assert isinstance(what, AnswerArrived)
                    entries.append((record, what))
                elif entries:
                    break
                else:
                    self._agenda.wake(what, record)
                self._inbox.popleft()
            if entries:
                self._submit(_Projecting(entries, []))

    def _needs_projector(self, what: object) -> bool:
        return isinstance(what, AnswerArrived) and what.ref.step_index in self._projects

    def _submit(self, projecting: _Projecting) -> None:
        self._projecting = projecting
        self._agenda.submit(
            lambda ticket: self._project(projecting, ticket),
            lambda _result, error: self._projected(projecting, error),
            limit_s=_PROJECTION_LIMIT_S,
        )

    def _project(self, projecting: _Projecting, ticket: Ticket) -> None:
        """On the pool: shape answers against their committed requests."""
        todo = projecting.entries[len(projecting.shapes) :][: projecting.chunk]
        answers: list[Unshaped] = []
        size = 0
        while len(answers) < len(todo) and size < limits.JOB_BYTES_MAX:
            some = todo[len(answers) : len(answers) + limits.READ_ROWS]
            rows = self._rows.committed(
                [interaction_key(answer.ref.unit_id, answer.ref.item_index) for _, answer in some]
            )
            for (record, answer), row in zip(some, rows, strict=True):
                answers.append(self._unshaped(record, answer, row))
                size += len(answers[-1].payload) + len(answers[-1].request or b"")
        self._author.project(answers, projecting.shapes, ticket.restart_limit)

    def _unshaped(self, record: Record, answer: AnswerArrived, row: InteractionRecord | None) -> Unshaped:
        step = self._pipeline.await_step(answer.ref.step_index)
        completion = answer.completion
        return unshaped(step, row, completion.payload, actor=completion.actor, recorded_at_ms=record.timestamp_ms)

    def _projected(self, projecting: _Projecting, error: BaseException | None) -> None:
        if isinstance(error, TaskClosed):
            return
        entries, shapes = projecting.entries, list(projecting.shapes)
        if len(shapes) < len(entries):
            self._submit(_project_on(projecting, shapes, error))
            return
        for (record, answer), made in zip(entries, shapes, strict=True):
            answer.shape = made
            self._agenda.wake(answer, record)
        self._projecting = None
        self._move_on()

    def project_held(self, what: HeldAnswerMet) -> None:
        """Project an answer that was held, then let it be judged; its record was read long ago, so no order is to be kept."""

        def job(ticket: Ticket) -> Shape:
            row: InteractionRecord
            (row,) = self._rows.committed([interaction_key(what.unit_id, what.item_index)])
            step = self._pipeline.await_step(int(what.unit_id.rsplit(".", 1)[1]))
            recorded_at_ms = row.completed_at_ms or row.dispatched_at_ms
            assert row.answer is not None
            answer = unshaped(step, row, row.answer, actor=row.actor, recorded_at_ms=recorded_at_ms)
            shapes: list[Shape] = []
            self._author.project([answer], shapes, ticket.restart_limit)
            return shapes[0]

        def done(result: Shape | None, error: BaseException | None) -> None:
            made = result if result is not None else Misshapen(f"projector: {error}")
            self._agenda.wake(HeldAnswerMet(what.unit_id, what.item_index, made))

        self._agenda.submit(job, done, limit_s=_PROJECTION_LIMIT_S)
