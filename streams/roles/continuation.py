"""The continuation agent: runs the suffix of one item for whoever parked it, once, and answers the owner (DESIGN 7 'Suspending').

Any instance may run it: a continuation record carries everything. The owner keeps attempts and retries. Author code runs on the pool while
the loop polls on; offsets move in the transaction that writes the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from schemas import codec, limits
from schemas.envelopes import Continuation, ContinuationCompletion
from schemas.errors import PoisonRecord
from schemas.limits import MESSAGE_CHARS_MAX
from streams.author.chunks import Chunk, ChunkSize, completion_of
from streams.author.suffixes import suffix_limit_s
from streams.engine.pool import Pool, Ticket
from streams.engine.stateless import StatelessTask
from streams.engine.task import Entry, Outputs
from streams.log.seam import Record, TopicPartition
from streams.roles import dead_letters
from streams.roles.context import RoleContext

Read = tuple[Record, Continuation | PoisonRecord]


class SuffixChunk(Chunk[Read, list[bytes] | Exception]):
    """Consecutive records of one kind of suffix being run; a record that cannot be run stands alone."""

    is_done: bool = False


class ContinuationTask(StatelessTask):
    """One partition of the continuations topic. Chunks run side by side; their answers are written in record order."""

    def __init__(self, context: RoleContext, pool: Pool, inputs: tuple[TopicPartition, ...]) -> None:
        super().__init__(inputs, context.metrics)
        self._ctx = context
        self._pool = pool
        self._inbox: deque[Read] = deque()
        self._chunks: deque[SuffixChunk] = deque()
        self._size = ChunkSize()

    def accept(self, records: Sequence[Record]) -> None:
        """Decode and start what can start."""
        self._inbox += [(record, self._read(record)) for record in records]
        self.waiting_bytes += sum(record.size for record in records)
        self._pump()

    def is_waiting(self) -> bool:
        """Whether records were read and are not answered yet."""
        return bool(self._inbox or self._chunks or self.ready)

    def is_full(self) -> bool:
        """Whether reading should wait."""
        return (
            len(self._inbox) + len(self.ready) > limits.BATCH_RECORDS_MAX or self.waiting_bytes > limits.INBOX_BYTES_MAX
        )

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
            chunk = self._take()
            self._chunks.append(chunk)
            self._run(chunk)

    def _take(self) -> SuffixChunk:
        """Records of one kind of suffix, at most a chunk."""
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
        return SuffixChunk(entries, len(entries))

    def _run(self, chunk: SuffixChunk) -> None:
        """Run the next job of a chunk, if it has one."""
        first = chunk.entries[0][1]
        if isinstance(first, PoisonRecord):
            chunk.is_done = True
            self._flush()
            return
        completions = [read.completion for _, read in chunk.next_job() if isinstance(read, Continuation)]
        results = chunk.results

        def job(ticket: Ticket) -> None:
            began_s = self._ctx.clock.monotonic_s()
            self._ctx.author.run_suffixes(first.step_index, completions, results, ticket.restart_limit)
            chunk.seconds += self._ctx.clock.monotonic_s() - began_s

        def done(_nothing: object, error: BaseException | None) -> None:
            self._ended(chunk, error)

        self._pool.submit(self, job, done, limit_s=suffix_limit_s(self._ctx.pipeline, first.step_index))

    def _ended(self, chunk: SuffixChunk, error: BaseException | None) -> None:
        """A job of a chunk has ended, or one of its items overstayed."""
        if error is None:
            chunk.went_well()
        elif (charged := chunk.blame(error)) is not None:
            chunk.results.append(charged)
        if chunk.left:
            self._run(chunk)
            return
        chunk.is_done = True
        self._size.learn(len(chunk.entries), chunk.seconds)
        self._flush()
        self._pump()

    def _flush(self) -> None:
        """Chunks that are done, as far as none before them is not."""
        while self._chunks and self._chunks[0].is_done:
            chunk = self._chunks.popleft()
            record, first = chunk.entries[0]
            if isinstance(first, PoisonRecord):
                self.ready.append(Entry(self, first, record))
                continue
            for (record, read), result in zip(chunk.entries, chunk.results, strict=True):
                assert isinstance(read, Continuation)
                told = completion_of(read.execution_id, read.unit_id, read.item_index, read.attempt, result)
                self.ready.append(Entry(self, told, record))

    def decide(self, entry: Entry, outputs: Outputs) -> None:
        """Answer the owner."""
        if isinstance(entry.event, PoisonRecord):
            self.quarantine(entry, entry.event, outputs)
            return
        assert isinstance(entry.event, ContinuationCompletion)
        self._answer(entry.event, outputs)

    def _answer(self, completion: ContinuationCompletion, outputs: Outputs) -> None:
        topic, key, partition = self._ctx.names.home_of(completion, self._ctx.pipeline.partitions)
        outputs.add(topic, codec.encode(completion), key=key, partition=partition)

    def quarantine(self, entry: Entry, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record that cannot be run, or whose answer cannot be committed."""
        assert entry.record is not None
        reason = error.reason if isinstance(error, PoisonRecord) else "not-committable"
        self.tally.count("dead", reason)
        detail = f"{type(error).__name__}: {error}"
        at_ms = self._ctx.clock.now_ms()
        dead_letters.write_record(outputs, self._ctx.names, entry.record, reason=reason, detail=detail, at_ms=at_ms)
        if isinstance(entry.event, ContinuationCompletion):  # the owner must hear of it
            self._answer(_as_failure(entry.event, "OUTPUT_TOO_LARGE", detail), outputs)

    def close(self) -> None:
        """Results of running suffixes are dropped; another member runs those records again."""
        self._pool.forget(self)


def _as_failure(completion: ContinuationCompletion, code: str, message: str) -> ContinuationCompletion:
    """The same item, as a failure that no retry mends."""
    return ContinuationCompletion(
        execution_id=completion.execution_id,
        unit_id=completion.unit_id,
        item_index=completion.item_index,
        attempt=completion.attempt,
        outputs=[],
        error_code=code,
        error_message=message[:MESSAGE_CHARS_MAX],
        retryable=False,
    )
