"""Local work: segments, publications and collections that this process runs for its executions (DESIGN 7 'Finishing').

Theory of operation. The core decides `RunSegment`, `LookAhead`, `Publish` or `Collect`; the work starts on the pool once that batch is committed, and its
end is an event like any other. An execution has one such work at a time: it counts as running from the decision until its *end is decided*.
Started again any earlier, a second result would meet other rows. `LocalWork` is what `topologies.decisions.advance` asks; losing it costs
repeated work only.

    decided   -> starting   |  committed: on the pool   |  its end is an event: deciding it ends it, once that is committed

An effect (a publication) leaves the fence of Kafka's transactions. It starts only within half the session timeout after it was prepared,
stops when the partition is given up, and `close` waits for it before the store goes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from connectors.objects.publication import ObjectKeyRefused, PublicationFailed
from schemas import limits
from schemas.errors import CallTimeout, PublicationConflict
from state.execution import ExecutionRecord
from state.segment_input import segment_input
from state.tables.rows import PartitionRows, TaskClosed
from state.unit import UnitRecord
from streams.author.calls import StreamRequest
from streams.author.errors import AggregateTooLarge
from streams.author.segments import run_steps, time_limit_s
from streams.engine.pool import Ticket
from streams.engine.task import Entry, Outputs
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda
from streams.roles.core.events import (
    CoreEvent,
    LookedAhead,
    OutputPublished,
    PublicationBroke,
    ResultCollected,
    SegmentBroke,
    SegmentEnded,
)
from streams.roles.core.look_ahead import count_items, try_output
from streams.roles.core.performing import Perform
from streams.roles.core.proof import SourceProof
from streams.roles.core.publishing import publish_object
from streams.roles.core.stored import collect, stored_chunks, stored_payloads
from topologies.decisions.ahead import counted_by
from topologies.decisions.decision import Collect, LookAhead, Publish, RunSegment

EFFECT_START_S_MAX = limits.SESSION_TIMEOUT_MS / 2000
"""Half the session timeout: nobody else owns the partition so soon."""

_LIMIT_S = limits.CALL_TIMEOUT_DEFAULT_MS / 1000
_ENDS = (SegmentEnded, SegmentBroke, OutputPublished, PublicationBroke, ResultCollected, LookedAhead)


StartsWork = RunSegment | LookAhead | Publish | Collect


class Work(Protocol):
    """One piece of local work; `run` is for the pool, and its result is the event of its end."""

    @property
    def limit_s(self) -> float:
        """How long it may take."""

    def run(self, ticket: Ticket) -> CoreEvent:
        """Do it."""

    def broke(self, error: BaseException) -> CoreEvent:
        """The event of its failure."""


@dataclass(frozen=True, slots=True)
class Given:
    """What work starts from: the execution, the unit whose items it reads, and its payload, as they were committed."""

    context: CoreContext
    rows: PartitionRows
    execution: ExecutionRecord
    unit: UnitRecord | None
    payload: bytes | None

    @property
    def is_many(self) -> bool:
        """Whether a stream enters."""
        return self.execution.many or (self.unit is not None and self.unit.itemised)


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """Run the steps of a segment."""

    given: Given
    decision: RunSegment

    @property
    def limit_s(self) -> float:
        """The steps' own limits."""
        return time_limit_s(run_steps(self.given.context.pipeline, self.decision.first, self.decision.stop))

    def run(self, ticket: Ticket) -> SegmentEnded:
        """Run them."""
        proof = SourceProof.of(self.given.execution, self.decision.first)
        if proof is None:
            return self._ended()
        proof.begin(ticket.restart_limit)
        with proof.reading(ticket.restart_limit):
            ended = self._ended()
        proof.finish(time.monotonic(), ticket.restart_limit)
        return ended

    def _ended(self) -> SegmentEnded:
        given, decision = self.given, self.decision
        inputs = stored_payloads(given.rows, given.unit, given.payload, many=given.execution.many)
        output, many = given.context.author.run_segment(decision.first, decision.stop, inputs, many=given.is_many)
        return SegmentEnded(decision.execution_id, decision.stop, output, many)

    def broke(self, error: BaseException) -> SegmentBroke:
        """A step failed."""
        return SegmentBroke(self.decision.execution_id, error)


@dataclass(frozen=True, slots=True)
class PublicationWork:
    """Make the output objects appear."""

    given: Given
    start_by_s: float
    limit_s: float = _LIMIT_S
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, _ticket: Ticket) -> OutputPublished:
        """Write them, unless it is too late: we may be a zombie by then."""
        given = self.given
        execution = given.execution
        try:
            self._check()
            if given.context.clock.monotonic_s() > self.start_by_s:
                raise CallTimeout("the effect did not start in time after it was prepared")
            chunks = stored_chunks(given.rows, given.unit, given.payload, many=execution.many)
            outputs = publish_object(
                given.context.pipeline, execution, chunks, instance=given.context.instance, check=self._check
            )
            return OutputPublished(execution.execution_id, outputs)
        finally:
            self.is_over.set()

    def _check(self) -> None:
        if self.given.rows.is_closing:
            raise TaskClosed

    def broke(self, error: BaseException) -> PublicationBroke:
        """Nothing appeared, or not all of it."""
        return PublicationBroke(self.given.execution.execution_id, error)


@dataclass(frozen=True, slots=True)
class LookAheadWork:
    """Find out what can be known before the first request."""

    given: Given
    decision: LookAhead

    @property
    def limit_s(self) -> float:
        """As long as the steps may take that make the items."""
        return time_limit_s(
            run_steps(self.given.context.pipeline, self.given.execution.step_index, self.decision.boundary)
        )

    def run(self, ticket: Ticket) -> LookedAhead:
        """Try the output, count the items."""
        given = self.given
        context, execution = given.context, given.execution
        try_output(context.pipeline, execution, instance=context.instance)
        counting = counted_by(context.pipeline, self.decision.boundary)
        if counting is not None:
            self._count(context.pipeline.steps[counting].step_id, ticket)
        return LookedAhead(execution.execution_id)

    def _count(self, step_id: str, ticket: Ticket) -> None:
        given, boundary = self.given, self.decision.boundary
        execution = given.execution
        payloads = stored_payloads(given.rows, given.unit, given.payload, many=execution.many)
        asked = StreamRequest(execution.execution_id, execution.step_index, boundary, payloads)
        items = given.context.author.open_items(asked)
        try:
            count_items(items, step_id, ticket.restart_limit)
        finally:
            items.close()

    def broke(self, error: BaseException) -> LookedAhead:
        """What it found; anything else that broke it is met again by the work itself, and judged there."""
        return LookedAhead(self.given.execution.execution_id, error if isinstance(error, _FOUND) else None)


_FOUND = (PublicationFailed, PublicationConflict, ObjectKeyRefused, AggregateTooLarge)


@dataclass(frozen=True, slots=True)
class CollectionWork:
    """Gather the result of an execution."""

    given: Given
    limit_s: float = _LIMIT_S

    def run(self, _ticket: Ticket) -> ResultCollected:
        """Read it from committed rows."""
        given = self.given
        execution_id = given.execution.execution_id
        if not given.is_many:
            return ResultCollected(execution_id, given.payload or b"null", many=False)
        chunks = stored_chunks(given.rows, given.unit, given.payload, many=given.execution.many)
        return ResultCollected(execution_id, collect(chunks), many=True)

    def broke(self, error: BaseException) -> SegmentBroke:
        """It cannot be gathered."""
        return SegmentBroke(self.given.execution.execution_id, error)


class LocalWork:
    """What one task does for its executions; a `topologies.decisions.advance.RunningWork`."""

    def __init__(self, context: CoreContext, rows: PartitionRows, agenda: Agenda) -> None:
        self._running: set[str] = set()
        """Executions with work on the pool, or with an end that is not decided yet."""
        self._starting: dict[str, StartsWork] = {}
        """By execution: work that the open batch decided."""
        self._ended: set[str] = set()
        """Executions of which the open batch decides the end of the work."""
        self._looked: set[str] = set()
        """Those among them whose work was a look ahead."""
        self._effects: list[threading.Event] = []
        self._ctx = context
        self._rows = rows
        self._agenda = agenda

    def is_running(self, execution_id: str) -> bool:
        """Work of it is on the pool, or will be once this batch is committed; its result may wait."""
        is_out = execution_id in self._running and execution_id not in self._ended
        return is_out or execution_id in self._starting

    def has_looked(self, execution_id: str) -> bool:
        """The open batch decides what a look ahead of it found."""
        return execution_id in self._looked

    # --- the batch -----------------------------------------------------------------------------------------------------------------------

    def performers(self) -> dict[type, Perform]:
        """The decisions that start local work; each waits for the commit."""
        return dict.fromkeys((RunSegment, LookAhead, Publish, Collect), self._do_start)

    def _do_start(self, decision: StartsWork, _outputs: Outputs, _entry: Entry | None) -> None:
        self._starting[decision.execution_id] = decision

    def note_end(self, event: object) -> None:
        """An event is being decided: it may be the end of local work."""
        if isinstance(event, _ENDS):
            self._ended.add(event.execution_id)
            if isinstance(event, LookedAhead):
                self._looked.add(event.execution_id)

    def commit(self) -> None:
        """The batch is committed: what it decided the end of is over, what it decided to start starts."""
        self._running -= self._ended
        starting, self._starting = self._starting, {}
        self._ended.clear()
        self._looked.clear()
        for execution_id, decision in starting.items():
            self._start(execution_id, decision)

    def drop(self) -> None:
        """The batch did not happen."""
        self._ended.clear()
        self._looked.clear()
        self._starting.clear()

    # --- on the pool ---------------------------------------------------------------------------------------------------------------------

    def _start(self, execution_id: str, decision: StartsWork) -> None:
        execution = self._rows.execution(execution_id)
        if execution is None:
            return
        self._running.add(execution_id)
        work = self._work(execution, decision)

        def done(event: CoreEvent | None, error: BaseException | None) -> None:
            if event is not None:
                self._agenda.wake(event)
            elif not isinstance(error, TaskClosed):
                self._agenda.wake(work.broke(error or CallTimeout("no result")))

        self._agenda.submit(work.run, done, limit_s=work.limit_s)

    def _work(self, execution: ExecutionRecord, decision: StartsWork) -> Work:
        is_input = isinstance(decision, RunSegment | LookAhead)
        unit_id = execution.input_unit_id if is_input else execution.await_unit_id
        unit, payload = self._rows.unit(unit_id), segment_input(execution, self._rows)
        given = Given(self._ctx, self._rows, execution, unit, payload)
        match decision:
            case RunSegment():
                return SegmentWork(given, decision)
            case LookAhead():
                return LookAheadWork(given, decision)
            case Publish():
                publication = PublicationWork(given, self._ctx.clock.monotonic_s() + EFFECT_START_S_MAX)
                under_way = (effect for effect in self._effects if not effect.is_set())
                self._effects = [*under_way, publication.is_over]
                return publication
            case Collect():
                return CollectionWork(given)

    def join_effects(self) -> None:
        """Wait for effects under way; they notice that the rows are closing."""
        for is_over in self._effects:
            is_over.wait(EFFECT_START_S_MAX)
