"""Local work: segments, publications and collections that this process runs for its executions (DESIGN 7 'Finishing').

Theory of operation. The core decides `RunSegment`, `Publish` or `Collect`; the work starts on the pool once that batch is committed, and its
end is an event like any other. An execution has one such work at a time: it counts as running from the decision until its *end is decided*.
Started again any earlier, a second result would meet other rows. `LocalWork` is what `topologies.decisions.advance.Local` asks; losing it costs
repeated work only.

An effect (a publication) leaves the fence of Kafka's transactions. It starts only within half the session timeout after it was prepared,
stops when the partition is given up, and `close` waits for it before the store goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from schemas import limits
from schemas.errors import CallTimeout
from state.execution import ExecutionRecord
from state.tables.rows import PartitionRows, TaskClosed
from streams.author.segments import run_steps, time_limit_s
from streams.engine.pool import Job, Ticket
from streams.engine.task import Event, Outputs
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda, Perform
from streams.roles.core.events import OutputPublished, PublicationBroke, ResultCollected, SegmentBroke, SegmentEnded
from streams.roles.core.live_window import Sessions
from streams.roles.core.publishing import publish_object
from streams.roles.core.stored import collect, stored_chunks, stored_payloads
from topologies.decisions.advance import segment_input
from topologies.decisions.decision import Collect, Publish, RunSegment

EFFECT_START_S_MAX = limits.SESSION_TIMEOUT_MS / 2000
"""Half the session timeout: nobody else owns the partition so soon."""

_LIMIT_S = limits.CALL_TIMEOUT_DEFAULT_MS / 1000
_ENDS = (SegmentEnded, SegmentBroke, OutputPublished, PublicationBroke, ResultCollected)


class LocalWork:
    """What one task does for its executions; a `topologies.decisions.advance.Local`."""

    def __init__(self, context: CoreContext, rows: PartitionRows, agenda: Agenda, sessions: Sessions) -> None:
        self.running: set[str] = set()
        """Executions with work on the pool, or with an end that is not decided yet."""
        self._starting: set[str] = set()
        self._ended: set[str] = set()
        self._ctx = context
        self._pipeline = context.pipeline
        self._rows = rows
        self._agenda = agenda
        self._sessions = sessions
        self._effects: list[threading.Event] = []

    # --- topologies.decisions.advance.Local ---------------------------------------------------------------------------------------------------------

    def is_running(self, execution_id: str) -> bool:
        """A segment, publication or collection of it is on the pool, or will be once this batch is committed; its result may wait."""
        return (execution_id in self.running and execution_id not in self._ended) or execution_id in self._starting

    def has_session(self, unit_id: str) -> bool:
        """A session of it is open, or will be once this batch is committed."""
        return self._sessions.has(unit_id)

    def parking_count(self, unit_id: str) -> int | None:
        """Items with a stored answer, when parking is all that its session can still do."""
        return self._sessions.parking_count(unit_id)

    # --- the batch -----------------------------------------------------------------------------------------------------------------------

    def performers(self) -> dict[type, Perform]:
        """The decisions that start local work; each waits for the commit."""
        return {RunSegment: self._do_run, Publish: self._do_publish, Collect: self._do_collect}

    def _do_run(self, decision: RunSegment, _outputs: Outputs, _event: Event | None) -> None:
        self._start_later(decision.execution_id, lambda execution: self._start_segment(execution, decision))

    def _do_publish(self, decision: Publish, _outputs: Outputs, _event: Event | None) -> None:
        self._start_later(decision.execution_id, self._start_publication)

    def _do_collect(self, decision: Collect, _outputs: Outputs, _event: Event | None) -> None:
        self._start_later(decision.execution_id, self._start_collection)

    def _start_later(self, execution_id: str, start: Callable[[ExecutionRecord], None]) -> None:
        def act() -> None:
            execution = self._rows.execution(execution_id)
            if execution is not None:
                self.running.add(execution_id)
                start(execution)

        self._starting.add(execution_id)
        self._agenda.after_commit(act)

    def note_end(self, what: Any) -> None:
        """The end of local work is being decided."""
        if isinstance(what, _ENDS):
            self._ended.add(what.execution_id)

    def commit_ends(self) -> None:
        """The batch is committed: what it decided the end of is over."""
        self.running -= self._ended
        self._ended.clear()

    def commit_starts(self) -> None:
        """What the batch decided to start has started."""
        self._starting.clear()

    def drop(self) -> None:
        """The batch did not happen."""
        self._ended.clear()
        self._starting.clear()

    def join_effects(self) -> None:
        """Wait for effects under way; they notice that `rows` is closing."""
        for done in self._effects:
            done.wait(EFFECT_START_S_MAX)

    # --- on the pool ---------------------------------------------------------------------------------------------------------------------

    def _submit(
        self, job: Job, ended: Callable[[Any], object], broke: Callable[[BaseException], object], *, limit_s: float
    ) -> None:
        """Run `job`; its result or error becomes an event."""

        def done(result: Any, error: BaseException | None) -> None:
            if result is not None:
                self._agenda.wake(ended(result))
            elif not isinstance(error, TaskClosed):
                self._agenda.wake(broke(error or CallTimeout("no result")))

        self._agenda.submit(job, done, limit_s=limit_s)

    def _start_segment(self, execution: ExecutionRecord, decision: RunSegment) -> None:
        pipeline, rows, execution_id = self._pipeline, self._rows, execution.execution_id
        author = self._ctx.author
        unit, payload = rows.unit(execution.input_unit_id), segment_input(execution, rows.overlay)
        many = execution.many or (unit is not None and unit.itemised)

        def job(_ticket: Ticket) -> tuple[bytes, bool]:
            inputs = stored_payloads(rows, unit, payload, many=execution.many)
            return author.run_segment(decision.first, decision.stop, inputs, many=many)

        self._submit(
            job,
            lambda result: SegmentEnded(execution_id, decision.stop, *result),
            lambda error: SegmentBroke(execution_id, error),
            limit_s=time_limit_s(run_steps(pipeline, decision.first, decision.stop)),
        )

    def _start_publication(self, execution: ExecutionRecord) -> None:
        pipeline, rows, clock, execution_id = self._pipeline, self._rows, self._ctx.clock, execution.execution_id
        unit, payload = rows.unit(execution.await_unit_id), segment_input(execution, rows.overlay)
        start_by_s = clock.monotonic_s() + EFFECT_START_S_MAX
        effect = threading.Event()
        self._effects = [*(known for known in self._effects if not known.is_set()), effect]

        def check() -> None:
            if rows.is_closing:
                raise TaskClosed

        def job(_ticket: Ticket) -> list[str]:
            try:
                check()
                if clock.monotonic_s() > start_by_s:  # we may be a zombie by now
                    raise CallTimeout("the effect did not start in time after it was prepared")
                chunks = stored_chunks(rows, unit, payload, many=execution.many)
                return publish_object(pipeline, execution, chunks, instance=self._ctx.instance, check=check)
            finally:
                effect.set()

        self._submit(
            job,
            lambda result: OutputPublished(execution_id, result),
            lambda error: PublicationBroke(execution_id, error),
            limit_s=_LIMIT_S,
        )

    def _start_collection(self, execution: ExecutionRecord) -> None:
        rows, execution_id = self._rows, execution.execution_id
        unit, payload = rows.unit(execution.await_unit_id), segment_input(execution, rows.overlay)
        many = execution.many or (unit is not None and unit.itemised)

        def job(_ticket: Ticket) -> bytes:
            if not many:
                return payload or b"null"
            return collect(stored_chunks(rows, unit, payload, many=execution.many))

        self._submit(
            job,
            lambda result: ResultCollected(execution_id, result, many),
            lambda error: SegmentBroke(execution_id, error),
            limit_s=_LIMIT_S,
        )
