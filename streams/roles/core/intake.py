"""Intake: what records mean, and projection before the batch (DESIGN 4 and 6 'Bounds').

Theory of operation. A command is ready at once. Answers stand in an inbox, in the order of their records. Those of a step with a projector
run the author's code, so they are projected on the pool first; at most one such job is out, and what stands behind it waits: the order of
the partition is kept. A projector that overstays its limit costs its own answer only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from schemas import codec, limits
from schemas.envelopes import (
    CancelCommand,
    ContinuationCompletion,
    NoteInputMoved,
    ProviderCompletion,
    RedriveCommand,
    SubmitCommand,
)
from schemas.errors import PeerError, PoisonRecord
from schemas.identity import home_partition, parse_interaction_id, step_of
from state.interaction import InteractionRecord, kept_completion
from state.keys import interaction_key
from state.tables.rows import PartitionRows, TaskClosed
from streams.author.chunks import Chunk
from streams.engine.pool import Ticket
from streams.engine.task import Entry, Outputs
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
from streams.roles.core.performing import Perform
from topologies.decisions.admission import unshaped
from topologies.decisions.decision import JudgeHeld
from topologies.pipeline.shapes import Misshapen, Shape, Unshaped

ENDS_MAX = 3
"""Ends of the step process with one answer alone in it, after which its projector gets the blame."""

_replace = msgspec.structs.replace
_PROJECTION_LIMIT_S = limits.CALL_TIMEOUT_DEFAULT_MS / 1000
_COMMANDS = (SubmitCommand, CancelCommand, RedriveCommand, NoteInputMoved)
_COMPLETIONS = (ProviderCompletion, ContinuationCompletion)

Arrival = AnswerArrived | ContinuationArrived | StrangeAnswerArrived | RecordPoisoned | RecordMisplaced
ProjectionChunk = Chunk[tuple[Record, AnswerArrived], Shape]
"""Answers being projected on the pool, in the order of their records."""


def records_max() -> int:
    """Records that may wait, in the inbox or decoded; beyond that reading pauses."""
    return 2 * limits.BATCH_RECORDS_MAX


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
        self._projecting: ProjectionChunk | None = None
        self.waiting_bytes = 0
        """Of records that are not decided yet, in the inbox or on the agenda."""
        self._projected = {step.index: step for step in self._pipeline.await_steps if step.projection is not None}

    @property
    def is_full(self) -> bool:
        """Whether reading should wait."""
        waiting = len(self._inbox) + len(self._agenda.ready)
        return waiting > records_max() or self.waiting_bytes > limits.INBOX_BYTES_MAX

    def is_full_of(self, topic: str) -> bool:
        """Whether records of this topic should wait, though others may be read."""
        is_too_much = self.waiting_bytes > limits.INBOX_BYTES_MAX // 2
        return topic == self._commands and (is_too_much or len(self._agenda.commands) > records_max())

    def taken(self, record: Record) -> None:
        """A record is being decided."""
        self.waiting_bytes -= record.size

    @property
    def is_waiting(self) -> bool:
        """Whether records are here that are no events yet."""
        return bool(self._inbox) or self._projecting is not None

    def accept(self, records: Sequence[Record]) -> None:
        """Decode records; commands are ready at once, answers of a step with a projector are projected first."""
        for record in records:
            self.waiting_bytes += record.size
            if record.topic == self._commands:
                self._agenda.wake_command(self._read(record, _COMMANDS), record)
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
            if ref.execution_id != value.execution_id:
                return StrangeAnswerArrived(value)
            if value.came_in_ms is None and not value.origin_topic and record.appended:  # it came in here, by a door
                value = _replace(value, came_in_ms=record.timestamp_ms)
            return AnswerArrived(value, ref, value.came_in_ms or record.timestamp_ms)
        except PoisonRecord as error:
            return RecordPoisoned(error)
        except PeerError:
            return StrangeAnswerArrived(value)

    def _move_on(self) -> None:
        """Move the inbox on, in order, up to what waits for a projection."""
        while self._inbox and self._projecting is None:
            entries = list(self._next_projected())
            if entries:
                self._project(ProjectionChunk(entries, limits.BATCH_RECORDS_MAX))

    def _next_projected(self) -> Iterator[tuple[Record, AnswerArrived]]:
        """The next answers of steps with a projector, at most a batch; what stands before them is ready at once."""
        count = 0
        while self._inbox and count < limits.BATCH_RECORDS_MAX:
            record, event = self._inbox[0]
            if isinstance(event, AnswerArrived) and event.ref.step_index in self._projected:
                count += 1
                yield record, event
            elif count:
                return
            else:
                self._agenda.wake(event, record)
            self._inbox.popleft()

    # --- projection ----------------------------------------------------------------------------------------------------------------------

    def _project(self, projection: ProjectionChunk) -> None:
        """Run the next job of a projection."""
        self._projecting = projection
        entries, shapes = projection.next_job(), projection.results

        def job(ticket: Ticket) -> None:
            self._author.project(self._unshaped(entries), shapes, ticket.restart_limit)

        def done(_nothing: object, error: BaseException | None) -> None:
            self._take_shapes(projection, error)

        self._agenda.submit(job, done, limit_s=_PROJECTION_LIMIT_S)

    def _unshaped(self, entries: list[tuple[Record, AnswerArrived]]) -> list[Unshaped]:
        """On the pool: answers beside their committed requests, as many as one job may hold."""
        found: list[Unshaped] = []
        size = 0
        while len(found) < len(entries) and size < limits.JOB_BYTES_MAX:
            some = entries[len(found) : len(found) + limits.READ_ROWS]
            rows = self._rows.committed([interaction_key(event.ref.unit_id, event.ref.item_index) for _, event in some])
            for (_, event), row in zip(some, rows, strict=True):
                answer = unshaped(self._projected[event.ref.step_index], row, event.completion, event.completed_at_ms)
                found.append(answer)
                size += len(answer.payload) + len(answer.request or b"")
        return found

    def _take_shapes(self, projection: ProjectionChunk, error: BaseException | None) -> None:
        """A job of a projection has ended; a projector that overstays, or ends the step process whenever it runs, costs its own answer."""
        if isinstance(error, TaskClosed):
            return
        if error is None:
            projection.went_well()
        elif (charged := projection.blame(error, ends_max=ENDS_MAX)) is not None:
            projection.results.append(Misshapen(f"projector: {charged}"))
        if projection.left:
            self._project(projection)
            return
        for (record, event), shape in zip(projection.entries, projection.results, strict=True):
            event.shape = shape
            self._agenda.wake(event, record)
        self._projecting = None
        self._move_on()

    # --- answers that were held ----------------------------------------------------------------------------------------------------------

    def performers(self) -> dict[type, Perform]:
        """The decision that waits for a projection, and for the commit."""
        return {JudgeHeld: self._do_judge}

    def _do_judge(self, decision: JudgeHeld, _outputs: Outputs, _entry: Entry | None) -> None:
        self._agenda.after_commit(lambda: self.judge_held(decision.unit_id, decision.item_index))

    def judge_held(self, unit_id: str, item_index: int | None) -> None:
        """Let an answer that was held be judged; its record was read long ago, so no order is to be kept."""
        if step_of(unit_id) not in self._projected:
            self._agenda.wake(HeldAnswerMet(unit_id, item_index))
            return

        def job(ticket: Ticket) -> HeldAnswerMet:
            row: InteractionRecord
            (row,) = self._rows.committed([interaction_key(unit_id, item_index)])
            assert row.held is not None
            held = kept_completion(row, row.held)
            answer = unshaped(self._projected[step_of(unit_id)], row, held, row.held.completed_at_ms)
            shapes: list[Shape] = []
            self._author.project([answer], shapes, ticket.restart_limit)
            return HeldAnswerMet(unit_id, item_index, shapes[0])

        def done(event: HeldAnswerMet | None, error: BaseException | None) -> None:
            failed = HeldAnswerMet(unit_id, item_index, Misshapen(f"projector: {error}"))
            self._agenda.wake(event if event is not None else failed)

        self._agenda.submit(job, done, limit_s=_PROJECTION_LIMIT_S)
