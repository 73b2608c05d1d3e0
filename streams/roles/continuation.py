"""The continuation agent: runs the suffix of one item for whoever parked it, once, and answers the owner (DESIGN 7 'Suspending').

Any instance may run it: a continuation record carries everything. The owner keeps attempts and retries. Author code runs on the pool while
the loop polls on; offsets move in the transaction that writes the answers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas import codec, limits
from schemas.envelopes import Continuation, ContinuationCompletion
from schemas.errors import CallTimeout, PoisonRecord
from schemas.limits import MESSAGE_CHARS_MAX
from schemas.names import Names
from streams.author.calls import Author, StepProcessEnded
from streams.author.chunks import ChunkSize
from streams.author.errors import describe_error
from streams.author.suffixes import suffix_limit_s
from streams.engine.pool import Finished, Pool, Ticket
from streams.engine.stateless import StatelessTask
from streams.engine.task import Event, Outputs
from streams.log.seam import Record, TopicPartition
from streams.roles import dead_letters
from streams.telemetry.metrics import Metrics
from topologies.pipeline.model import Pipeline

if TYPE_CHECKING:
    from streams.clock import Clock


@dataclass(kw_only=True)
class ContinuationContext:
    """What all continuation tasks of a worker share."""

    pipeline: Pipeline
    names: Names
    clock: Clock
    pool: Pool
    metrics: Metrics
    author: Author


Entry = tuple[Record, Continuation | PoisonRecord]


@dataclass(slots=True)
class _Chunk:
    """Consecutive records of one unit being run; `results` is None for a record that cannot be run."""

    entries: list[Entry]
    results: list[list[bytes] | Exception]
    seconds: float = 0.0
    """What the job itself took; the wait for the loop to notice must not count."""
    is_done: bool = False
    is_suspect: bool = False
    """One of them ended the step process; they are run one at a time from now on."""


class ContinuationTask(StatelessTask):
    """One partition of the continuations topic. Chunks run side by side; their answers are written in record order."""

    def __init__(self, context: ContinuationContext, inputs: tuple[TopicPartition, ...]) -> None:
        super().__init__(inputs)
        self._ctx = context
        self._inbox: deque[Entry] = deque()
        self._chunks: deque[_Chunk] = deque()
        self._size = ChunkSize()
        self._counts: Counter[tuple[str, str]] = Counter()

    def accept(self, records: Sequence[Record]) -> None:
        """Decode and start what can start."""
        self._inbox += [(record, self._read(record)) for record in records]
        self.bytes += sum(record.size for record in records)
        self._pump()

    def is_full(self) -> bool:
        """Whether reading should wait."""
        return len(self._inbox) + len(self.ready) > limits.BATCH_RECORDS_MAX or self.bytes > limits.INBOX_BYTES_MAX

    def _read(self, record: Record) -> Continuation | PoisonRecord:
        try:
            value = codec.decode(record.value)
        except PoisonRecord as error:
            return error
        if not isinstance(value, Continuation):
            return PoisonRecord("wrong-kind", f"a {type(value).__name__} does not belong here")
        if value.step_index not in {step.index for step in self._ctx.pipeline.await_steps}:
            return PoisonRecord(
                "unknown-step", f"step {value.step_index} of pipeline {self._ctx.pipeline.name} is no await"
            )
        return value

    def _pump(self) -> None:
        while self._inbox and sum(not chunk.is_done for chunk in self._chunks) < self._size.jobs_max:
            self._submit(_Chunk(self._take(), []))

    def _take(self) -> list[Entry]:
        """Records of one kind of suffix, at most a chunk; a poison record stands alone."""
        entries = [self._inbox.popleft()]
        first = entries[0][1]
        size = entries[0][0].size
        while isinstance(first, Continuation) and self._inbox and len(entries) < self._size.items:
            following = self._inbox[0][1]
            if not isinstance(following, Continuation) or following.step_index != first.step_index:
                break
            size += self._inbox[0][0].size
            if size > limits.JOB_BYTES_MAX:
                break
            entries.append(self._inbox.popleft())
        return entries

    def _submit(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        first = chunk.entries[0][1]
        if isinstance(first, PoisonRecord):
            chunk.is_done = True
            self._flush()
            return
        self._run(chunk, first)

    def _run(self, chunk: _Chunk, first: Continuation) -> None:
        author = self._ctx.author
        first_left = len(chunk.results)
        left = chunk.entries[first_left : first_left + 1 if chunk.is_suspect else None]
        todo = [continuation.completion for _, continuation in left if isinstance(continuation, Continuation)]
        results = chunk.results

        def job(ticket: Ticket) -> None:
            began_s = self._ctx.clock.monotonic_s()
            author.run_suffixes(first.step_index, todo, results, ticket.restart_limit)
            chunk.seconds += self._ctx.clock.monotonic_s() - began_s

        limit_s = suffix_limit_s(self._ctx.pipeline, first.step_index)
        self._ctx.pool.submit(self, chunk, job, limit_s=limit_s)

    def finished(self, finished: Finished) -> None:
        """A chunk has ended, or one of its items overstayed."""
        chunk, error = finished.tag, finished.error
        assert isinstance(chunk, _Chunk)
        if len(chunk.results) < len(chunk.entries):
            self._blame(chunk, error)
            first = chunk.entries[0][1]
            if len(chunk.results) < len(chunk.entries) and isinstance(first, Continuation):
                self._run(chunk, first)
                return
        chunk.is_done = True
        self._size.learn(len(chunk.entries), chunk.seconds)
        self._flush()
        self._pump()

    @staticmethod
    def _blame(chunk: _Chunk, error: BaseException | None) -> None:
        """Who overstayed is the first without a result; who ended the step process is known once it runs alone."""
        left = len(chunk.entries) - len(chunk.results)
        if isinstance(error, StepProcessEnded) and left > 1 and not chunk.is_suspect:
            chunk.is_suspect = True
            chunk.results = list(chunk.results)
        elif error is not None:
            chunk.results = [*chunk.results, error if isinstance(error, Exception) else CallTimeout(str(error))]

    def _flush(self) -> None:
        """Chunks that are done, as far as none before them is not."""
        while self._chunks and self._chunks[0].is_done:
            chunk = self._chunks.popleft()
            if isinstance(chunk.entries[0][1], PoisonRecord):
                self.ready.append(Event(self, chunk.entries[0][1], chunk.entries[0][0]))
                continue
            for (record, continuation), result in zip(chunk.entries, chunk.results, strict=True):
                assert isinstance(continuation, Continuation)
                self.ready.append(Event(self, outcome(continuation, result), record))

    def decide(self, event: Event, outputs: Outputs) -> None:
        """Answer the owner."""
        what = event.what
        if isinstance(what, PoisonRecord):
            self.quarantine(event, what, outputs)
            return
        assert isinstance(what, ContinuationCompletion)
        self._answer(what, outputs)

    def _answer(self, completion: ContinuationCompletion, outputs: Outputs) -> None:
        topic, key, partition = self._ctx.names.home_of(completion, self._ctx.pipeline.partitions)
        outputs.add(topic, codec.encode(completion), key=key, partition=partition)

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """The batch is committed: count it."""
        del rows, ends
        self._ctx.metrics.decided(self._counts)
        self._counts.clear()

    def drop(self) -> None:
        """The batch did not happen."""
        self._counts.clear()

    def quarantine(self, event: Event, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record that cannot be run, or whose answer cannot be committed."""
        assert event.record is not None
        reason = error.reason if isinstance(error, PoisonRecord) else "not-committable"
        self._counts["dead", reason] += 1
        detail = f"{type(error).__name__}: {error}"
        at_ms = self._ctx.clock.now_ms()
        dead_letters.write_record(outputs, self._ctx.names, event.record, reason=reason, detail=detail, at_ms=at_ms)
        if isinstance(event.what, ContinuationCompletion):  # the owner must hear of it
            self._answer(outcome_failed(event.what, "OUTPUT_TOO_LARGE", detail), outputs)

    def close(self) -> None:
        """Results of running suffixes are dropped; another member runs those records again."""
        self._ctx.pool.forget(self)


def outcome(continuation: Continuation, result: list[bytes] | Exception) -> ContinuationCompletion:
    """What the owner is told of one item."""
    common = (continuation.execution_id, continuation.unit_id, continuation.item_index, continuation.attempt)
    if isinstance(result, Exception):
        code, message, retryable = describe_error(result)
        return ContinuationCompletion(*common, [], code, message, retryable)
    return ContinuationCompletion(*common, result)


def outcome_failed(completion: ContinuationCompletion, code: str, message: str) -> ContinuationCompletion:
    """The same item, as a failure that no retry mends."""
    return ContinuationCompletion(
        completion.execution_id,
        completion.unit_id,
        completion.item_index,
        completion.attempt,
        [],
        code,
        message[:MESSAGE_CHARS_MAX],
        retryable=False,
    )
