"""The transactional batch loop: read, decide, write, commit, apply, release (DESIGN 6). Read this first.

One loop serves one role of one worker: one group consumer, one transactional producer, and a task for each owned partition. Everything a
batch reads and writes happens in one Kafka transaction; memory and disk follow only once it is committed.

    The loop owns     polling, membership, the transaction and its errors, positions, restore, bisecting a batch that cannot commit
    A task owns       what records mean, its rows, its timers, its local work; it never touches the log

`_transact` is the most dangerous function here; its docstring numbers its steps, and the simulator crashes between each two of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import structlog

from schemas import limits
from schemas.errors import (
    CommitUnknown,
    InstanceFenced,
    KawaitError,
    LogUnavailable,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    StateBroken,
    TransactionAborted,
    UsageError,
)
from streams.clock import Clock
from streams.engine.pool import Pool
from streams.engine.task import Event, MakeTask, Outputs, Task
from streams.log.seam import GroupConsumer, Log, Producer, Record, TopicPartition

logger = structlog.get_logger("kawait.loop")

INIT_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 10.0
OFFSETS_TIMEOUT_S = 2.0
POLL_S_MAX = 0.1
BUSY_POLL_S = 0.001
"""Poll wait while the worker pool has results to come: they cannot interrupt a poll."""
BUSY_POLL_S_MAX = 0.008
"""The same once the results take their time: each turn costs the pool its interpreter lock."""
ABORTS_MAX = 10
"""Aborts in a row of one batch after which it is taken to be the fault of something in it, even if the broker does not say so."""
UNAVAILABLE_MAX = 1
"""Aborts in a row because the broker does not answer, after which the producer is replaced: measured, one that lived through a restart of
the broker may never get another answer."""
RESTORE_BUDGET_S = 0.1
BACK_AFTER_S = 3.0
"""Quiet for so long means that the broker is back."""
WAITING_TOLD_EVERY_S = 10.0
FENCED_GRACE_S = 2.5
"""After a fence, poll so long before making a new producer: a newer process with our name shows within one heartbeat (1 s)."""
RIVAL_S_MAX = limits.SESSION_TIMEOUT_MS / 1000 + 5.0
"""A dead member with our name is gone after its session timeout; one that is still there then is alive."""
RIVAL_POLL_S = 0.5
GATHER_S_MIN = 0.0005
"""A shorter wait is not worth the turn."""


@dataclass
class _Rival:
    """A member that has our instance name, while we have no producer that could tell whose it is."""

    error: InstanceFenced
    until_s: float


class Pace:
    """How fast the role writes, and how long its next batch may gather for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 0.0  # records a second
        self._last_s = clock.monotonic_s()

    def wrote(self, records: int) -> None:
        """A transaction with so many records was committed."""
        now_s = self._clock.monotonic_s()
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        if elapsed_s > 0:
            self._rate += (min(records / elapsed_s, limits.GATHER_RATE_MAX) - self._rate) / 4

    def gather_s(self) -> float:
        """Proportional to the rate."""
        return self._rate * limits.GATHER_S_MAX / limits.GATHER_RATE_MAX


class TransactionalLoop:
    """The loop of one role; `step` does one batch and never blocks longer than the poll wait and one commit.

    Args:
        name: The role, for logs and metrics.
        topics: Input topics.
        own_topic: A topic of the application that the role may write.
        co_partitioned: Equal partition numbers of all topics form one task; else each partition is a task.
        make_task: Makes the task of a partition number and its inputs.
        pool: Where its tasks run the author's functions; results go to the task that owns the job.
        at: Called before each numbered step of the commit with the step's number; the simulator crashes here.
    """

    def __init__(
        self,
        *,
        name: str,
        log: Log,
        group: str,
        instance: str | None,
        transactional_id: str,
        topics: Sequence[str],
        own_topic: str,
        co_partitioned: bool,
        make_task: MakeTask,
        clock: Clock,
        metrics: Any,
        pool: Pool | None = None,
        at: Callable[[int], None] = lambda _step: None,
        wait: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.name = name
        self.tasks: dict[TopicPartition, Task] = {}
        """Running tasks, by each of their inputs."""
        self.positions: dict[TopicPartition, int] = {}
        """Next offset to consume, as committed or about to be."""
        self._log = log
        self._group = group
        self._instance = instance
        self._transactional_id = transactional_id
        self._topics = tuple(topics)
        self._own_topic = own_topic
        self._co_partitioned = co_partitioned
        self._make_task = make_task
        self._clock = clock
        self._metrics = metrics
        self._pool = pool
        self._at = at
        self._wait = wait
        self._consumer: GroupConsumer | None = None
        self._producer: Producer | None = None
        self._metadata: object = None
        self._restoring: list[Task] = []
        self._assigned: tuple[TopicPartition, ...] = ()
        self._pending: list[Event] = []
        self._aborts = 0
        self._part = 0  # events of a bisected batch to try next; 0: all
        self._is_committed = False
        self._fenced_until_s = 0.0
        self._rival: _Rival | None = None
        self._pace = Pace(clock)
        self._idle_turns = 0
        self._paused: set[TopicPartition] = set()
        self._away = False
        self._away_at_s = 0.0
        self._waiting_told_s = 0.0

    # --- life ------------------------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Joined, and every owned partition restored (even if there is none)."""
        return self._producer is not None and self._metadata is not None and not self._restoring

    def step(self) -> bool:
        """One turn: poll, restore, one batch. True when something was committed.

        Raises:
            InstanceFenced: a newer process has this instance name; exit.
            UsageError: something that only the operator can mend.
        """
        if self._rival is not None and not self._outlive(self._rival):
            return False
        try:
            if not self._ensure_clients():
                return False
            self._poll()
        except InstanceFenced as error:
            self._suspect(error)
            return False
        self._take_results()
        self._wait_for_more()
        self._restore()
        self._pending = self._pending or self._gather()
        if not self._pending or self._producer is None:
            return False
        return self._run(self._pending[: self._part or None])

    # --- a newer process with our name, or a ghost of our own ----------------------------------------------------------------------------
    #
    # Measured: when a static member's session lapses while the broker restarts, the client's own second join may fence its first one. (Which
    # of the two it was the group cannot tell: its members keep the client id of the one they replaced.) Two things tell:
    #   - A newer process takes the role's transactional id before it joins, so who still holds the id was fenced by nobody else.
    #   - A newer process stays a member, while a ghost is gone after its session timeout.

    def _suspect(self, error: InstanceFenced) -> None:
        """The broker says that our name belongs to another member.

        Raises:
            InstanceFenced: a newer process has this instance name.
        """
        if self._instance is None:
            raise error
        if self._producer is None:
            self._rival = _Rival(error, self._clock.monotonic_s() + RIVAL_S_MAX)
        else:
            try:
                if not self._producer.holds_id(self._own_topic, OFFSETS_TIMEOUT_S):
                    raise error
            except LogUnavailable as away:
                self._note_away(away)
                return
            logger.warning("fenced by this worker's own earlier join; joining anew", role=self.name, detail=str(error))
        self._leave()

    def _outlive(self, rival: _Rival) -> bool:
        """Whether the other member is gone, so that we may join again.

        Raises:
            InstanceFenced: it is still there: a newer process has this instance name.
        """
        assert self._instance is not None
        try:
            is_there = self._log.has_member(self._group, self._instance, OFFSETS_TIMEOUT_S)
        except LogUnavailable as away:
            rival.until_s = self._clock.monotonic_s() + RIVAL_S_MAX  # nobody is a member while the broker is away
            self._note_away(away)
            return False
        if is_there:
            if self._clock.monotonic_s() > rival.until_s:
                raise rival.error
            self._wait(RIVAL_POLL_S)
            return False
        logger.warning("fenced by a member that is gone; joining anew", role=self.name, detail=str(rival.error))
        self._rival = None
        return True

    def _leave(self) -> None:
        """Give up the membership, which is another member's already."""
        assert self._consumer is not None
        self._consumer.close()
        self._consumer = None
        self._close_tasks()
        self._assigned = ()
        self._metadata = None

    def close(self) -> None:
        """Stop cleanly: no batch is open between steps, so there is only membership and memory to give up."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._close_tasks()
        self._drop_producer()

    def _ensure_clients(self) -> bool:
        """Take the transactional id first, then join: a newcomer fences its predecessor before it owns anything."""
        if self._producer is None and not self._make_producer():
            return False
        if self._consumer is None:
            self._consumer = self._log.group_consumer(
                group=self._group, instance=self._instance, topics=self._topics, rebalance=self
            )
        return True

    def _make_producer(self) -> bool:
        if self._clock.monotonic_s() < self._fenced_until_s:
            if self._consumer is not None:  # poll first: a zombie must learn that it is one (trap M)
                self._poll()
            return False
        producer = self._log.producer(self._transactional_id)
        try:
            producer.init(INIT_TIMEOUT_S)
        except LogUnavailable as error:
            producer.close()
            self._note_away(error)
            return False
        except ProducerFenced:
            producer.close()
            self._fenced_until_s = self._clock.monotonic_s() + FENCED_GRACE_S
            return False
        self._producer = producer
        self._note_back()
        if self._assigned:
            self._make_tasks(self._assigned)
        return True

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _note_away(self, error: KawaitError) -> None:
        if not self._away:
            logger.warning("waiting for the broker", role=self.name, detail=str(error))
        self._away = True
        self._away_at_s = self._clock.monotonic_s()
        self._wait(0.2)

    def _note_back(self) -> None:
        """Clients complain about once a second while the broker is away, and are quiet in between."""
        if self._away and self._clock.monotonic_s() - self._away_at_s > BACK_AFTER_S:
            logger.info("the broker is back", role=self.name)
            self._away = False

    # --- membership (streams.log.seam.Rebalance) ------------------------------------------------------------------------------------------

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Own partitions from now on; they stay paused until their task is restored."""
        consumer = self._consumer
        assert consumer is not None or not partitions
        self._assigned = tuple(dict.fromkeys((*self._assigned, *partitions)))
        self._refuse_uneven(self._assigned)
        self._metrics.rebalanced(self.name, len(self._assigned))
        self._metadata = consumer.metadata() if consumer is not None else None
        if self._producer is not None:
            self._make_tasks(partitions)

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Give partitions up; nothing is open here, so nothing is committed here."""
        gone = set(partitions)
        self._assigned = tuple(at for at in self._assigned if at not in gone)
        self._close_tasks(gone)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """They are somebody else's already."""
        logger.warning("partitions lost", role=self.name, partitions=len(partitions))
        self.on_revoke(partitions)

    def _refuse_uneven(self, partitions: Sequence[TopicPartition]) -> None:
        """One execution's commands and completions must belong to one task."""
        if not self._co_partitioned:
            return
        by_topic = {topic: sorted(at.partition for at in partitions if at.topic == topic) for topic in self._topics}
        if len({tuple(numbers) for numbers in by_topic.values()}) > 1:
            counts = ", ".join(f"{topic}: {len(numbers)}" for topic, numbers in by_topic.items())
            msg = f"unequal partitions were assigned ({counts}); these topics must have the same number of partitions: see `kawait topics`"
            raise UsageError(msg)

    def _make_tasks(self, partitions: Iterable[TopicPartition]) -> None:
        groups: dict[Any, list[TopicPartition]] = {}
        for at in partitions:
            groups.setdefault(at.partition if self._co_partitioned else at, []).append(at)
        for inputs in groups.values():
            self._restoring.append(self._make_task(inputs[0].partition, tuple(sorted(inputs))))

    def _close_tasks(self, gone: set[TopicPartition] | None = None) -> None:
        """Close the tasks of some partitions, or all."""
        doomed = [
            task
            for task in dict.fromkeys((*self.tasks.values(), *self._restoring))
            if gone is None or gone & set(task.inputs)
        ]
        for task in doomed:
            task.close()
            for at in task.inputs:
                self.tasks.pop(at, None)
                self.positions.pop(at, None)
                self._paused.discard(at)
        self._restoring = [task for task in self._restoring if task not in doomed]
        self._pending = [event for event in self._pending if event.task not in doomed]

    def _take_over_own(self, *, fenced: bool) -> None:
        """After an unknown outcome: forget everything in memory, and take each partition over from what is committed.

        Never rewind onto stale rows; never make a new producer before polling when fenced: a zombie would fence the rightful owner.
        """
        self._close_tasks()
        self._drop_producer()
        self._aborts = self._part = 0
        self._fenced_until_s = self._clock.monotonic_s() + (FENCED_GRACE_S if fenced else 0.0)

    # --- restore -----------------------------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        for task in list(self._restoring):
            try:
                ready = self._find_positions(task) and task.restore(RESTORE_BUDGET_S / len(self._restoring))
            except LogUnavailable as error:
                self._note_waiting(task, error)
                continue
            if ready and task in self._restoring:
                self._restoring.remove(task)
                self._start(task)

    def _note_waiting(self, task: Task, error: LogUnavailable) -> None:
        """Say why partitions are not taken over, now and then."""
        if self._clock.monotonic_s() > self._waiting_told_s + WAITING_TOLD_EVERY_S:
            self._waiting_told_s = self._clock.monotonic_s()
            logger.warning(
                "waiting to take partitions over",
                role=self.name,
                partitions=len(self._restoring),
                first=f"{task.inputs[0].topic}[{task.inputs[0].partition}]",
                detail=str(error),
            )

    def _find_positions(self, task: Task) -> bool:
        """Committed offsets, stable (no transaction pending); the log start for a partition that never committed."""
        if all(at in self.positions for at in task.inputs):
            return True
        assert self._consumer is not None
        committed = self._consumer.committed(task.inputs, OFFSETS_TIMEOUT_S)
        starts = self._log.start_offsets(task.inputs, OFFSETS_TIMEOUT_S)
        for at in task.inputs:
            offset = committed.get(at)
            if offset is not None and offset < starts[at]:
                msg = (
                    f"{at.topic}[{at.partition}]: group {self._group} has consumed up to {offset}, but the topic only keeps offsets from "
                    f"{starts[at]}: records were deleted unread. Raise the topic's retention; to go on without them, set the group's offset "
                    "to the log start with kafka-consumer-groups --reset-offsets"
                )
                raise OffsetOutOfRange(msg)
            self.positions[at] = starts[at] if offset is None else offset
        return True

    def _start(self, task: Task) -> None:
        assert self._consumer is not None
        task.start()
        for at in task.inputs:
            self.tasks[at] = task
            self._consumer.seek(at, self.positions[at])
        self._consumer.resume(task.inputs)

    # --- 1 read ------------------------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Take what is there."""
        assert self._consumer is not None
        self._balance_pauses()
        try:
            self._accept(self._consumer.poll(limits.BATCH_RECORDS_MAX, self._poll_wait_s()))
            self._note_back()
        except LogUnavailable as error:
            self._note_away(error)

    def _poll_wait_s(self) -> float:
        if self._pending or self._restoring or any(task.has_work() for task in self._running()):
            return 0.0
        if self._pool is not None and self._pool.is_busy:
            return min(BUSY_POLL_S * (1, 2, 4, 8)[min(self._idle_turns, 3)], BUSY_POLL_S_MAX)
        due = [due for task in self._running() if (due := task.next_due_ms()) is not None]
        return min([POLL_S_MAX, *(max(0.0, (at_ms - self._clock.now_ms()) / 1000) for at_ms in due)])

    def _running(self) -> list[Task]:
        return list(dict.fromkeys(self.tasks.values()))

    def _accept(self, records: Sequence[Record]) -> None:
        by_task: defaultdict[Task, list[Record]] = defaultdict(list)
        tasks: Mapping[Any, Task] = self.tasks
        for record in records:
            task = tasks.get((record.topic, record.partition))  # a plain tuple finds what a TopicPartition does
            if task is not None:
                by_task[task].append(record)
        for task, owned in by_task.items():
            task.accept(owned)

    def _balance_pauses(self) -> None:
        assert self._consumer is not None
        for task in self._running():
            full, paused = task.is_full(), task.inputs[0] in self._paused
            if full and not paused:
                self._consumer.pause(task.inputs)
                self._paused.update(task.inputs)
            elif paused and not full:
                self._consumer.resume(task.inputs)
                self._paused.difference_update(task.inputs)

    def _wait_for_more(self) -> None:
        """Let a batch grow while records come fast: a transaction costs the same for one record as for a thousand (DESIGN 6 'Batch').

        One in flight never waits; the wait grows with the rate, and nothing is polled meanwhile, so it is short.
        """
        wait_s = self._pace.gather_s()
        if wait_s < GATHER_S_MIN or self._pending or not any(task.has_work() for task in self._running()):
            return
        self._wait(wait_s)
        assert self._consumer is not None
        try:
            self._accept(self._consumer.poll(limits.BATCH_RECORDS_MAX, 0.0))
        except LogUnavailable as error:
            self._note_away(error)
        self._take_results()

    def _take_results(self) -> None:
        if self._pool is None:
            return
        for finished in self._pool.take():
            if isinstance(finished.error, StateBroken):  # a broken disk is no item's fault
                raise finished.error
            cast("Task", finished.owner).finished(finished)

    def consumed(self, at: TopicPartition) -> int:
        """How far the consumer has read, past markers."""
        assert self._consumer is not None
        return self._consumer.position(at)

    def _gather(self) -> list[Event]:
        batch: list[Event] = []
        for task in self._running():
            if len(batch) < limits.BATCH_RECORDS_MAX and task.has_work():
                batch += task.events(limits.BATCH_RECORDS_MAX - len(batch))
        self._idle_turns = 0 if batch else self._idle_turns + 1
        return batch

    # --- 2 to 7 ------------------------------------------------------------------------------------------------------------------------

    def _run(self, batch: list[Event]) -> bool:
        """Transact a batch, the first of what is pending; on an error that its content causes, half of it next time."""
        tasks = list(dict.fromkeys(event.task for event in batch))
        try:
            done = self._transact(tasks, batch)
        except CommitUnknown as error:
            logger.warning(
                "commit outcome unknown: taking over from what is committed", role=self.name, detail=str(error)
            )
            self._metrics.commit_unknown(self.name)
            self._take_over_own(fenced=getattr(error, "fenced", False))
            return False
        except ProducerFenced as error:
            logger.warning("fenced", role=self.name, detail=str(error))
            self._take_over_own(fenced=True)
            return False
        except (LogUnavailable, TransactionAborted) as error:
            if not self._abort(tasks):
                return False
            self._aborts += 1
            self._metrics.aborted(self.name)
            if isinstance(error, LogUnavailable) and self._aborts > UNAVAILABLE_MAX:
                logger.warning(
                    "the broker takes no transaction: trying with a new producer", role=self.name, detail=str(error)
                )
                self._take_over_own(fenced=True)
                return False
            if self._is_its_content(error):
                self._bisect(batch, error)
            self._wait(0.05)
            return False
        except (UsageError, StateBroken):
            raise
        except Exception as error:
            if self._is_committed:  # deciding it again would do it twice
                logger.exception("a committed batch could not be applied; taking over", role=self.name)
                self._take_over_own(fenced=False)
                return True
            logger.exception("a batch could not be decided; looking for the event", role=self.name)
            if not self._abort(tasks):
                return False
            if isinstance(batch[0].what, Poisoned):  # not even its dead letter can be written
                raise
            self._bisect(batch, error)
            return False
        self._pending = self._pending[done:]
        self._aborts = self._part = 0
        return True

    def _is_its_content(self, error: Exception) -> bool:
        """Whether an abort is the batch's own fault: it says so twice, or says anything too often. Innocent events must not be dead-lettered."""
        if isinstance(error, RecordTooLarge):
            return self._aborts > 1
        return isinstance(error, TransactionAborted) and self._aborts > ABORTS_MAX

    def _abort(self, tasks: Iterable[Task]) -> bool:
        """Drop the batch and its transaction; False when the abort shows that the producer is done for, and everything is taken over anew."""
        for task in tasks:
            task.drop()
        try:
            if self._producer is not None:
                self._producer.abort()
        except ProducerFenced as error:  # or the coordinator gave the transaction up while the broker was away
            logger.warning("fenced", role=self.name, detail=str(error))
            self._take_over_own(fenced=True)
            return False
        return True

    def _bisect(self, batch: Sequence[Event], error: Exception) -> None:
        """Half of the batch next time; a single event is dead-lettered in its place."""
        self._part = max(len(batch) // 2, 1)
        event = batch[0]
        if len(batch) > 1 or isinstance(event.what, Poisoned):
            return
        logger.error("an event cannot be committed; dead-lettering it", role=self.name, detail=str(error))
        self._aborts = 0
        self._pending[0] = Event(event.task, Poisoned(event, error), event.record)

    def _transact(self, tasks: Sequence[Task], batch: Sequence[Event]) -> int:
        """One batch, one transaction. Returns how many events of it are done (a full transaction leaves the rest for the next).

        1. Read: the events are here; prefetch the rows they name.
        2. Decide every event in a plain loop over the overlay, then what follows for all they touched.
        3. Begin only now; send the consumed position of every input of every task that is touched, consumed or not: this is what
           fences a task that is no longer ours by the group's generation. All of them are real offsets; -1001 or an empty list fences
           nothing.
        4. Produce changelog rows, facts, requests, continuations, replies, while the positions are on their way.
        5. Commit. An error in here means that the outcome is unknown.
        6. Apply the rows and changelog positions to the store in one write. A crash before this is healed by the changelog.
        7. Release local work: offers to live sessions, segments, publications.
        """
        producer = self._producer
        assert producer is not None
        started_s = self._clock.monotonic_s()
        self._is_committed = False
        self._at(1)
        by_task: dict[Task, list[Event]] = {task: [] for task in tasks}
        for event in batch:
            by_task[event.task].append(event)
        for task, events in by_task.items():
            task.prefetch(events)
        self._at(2)
        outputs, done = self._decide(tasks, batch)
        changes = {task: task.changes() for task in tasks}
        moved = self._moved(batch[:done])
        if outputs.records or moved or any(changes.values()):
            self._at(3)
            producer.begin()
            begun_s = self._clock.monotonic_s()
            offsets = self._offsets(tasks, moved)
            producer.send_offsets(offsets, self._metadata)
            self._at(4)
            ends = self._produce(producer, outputs, changes)
            self._at(5)
            producer.commit(COMMIT_TIMEOUT_S)
            self._is_committed = True
            self._metrics.committed(
                self.name, done, self._clock.monotonic_s() - started_s, self._clock.monotonic_s() - begun_s
            )
            self._at(6)
            self._pace.wrote(len(outputs.records))
            self.positions.update(offsets)
        else:
            ends = {}
        self._is_committed = True  # also where there was nothing to commit: its work may have started
        for task in tasks:
            task.apply(changes[task], ends)
        self._at(7)
        for task in tasks:
            task.release()
        return done

    def _decide(self, tasks: Sequence[Task], batch: Sequence[Event]) -> tuple[Outputs, int]:
        outputs = Outputs()
        done = 0
        for event in batch:
            task, what, _ = event
            if isinstance(what, Poisoned):
                task.quarantine(what.event, what.error, outputs)
            else:
                task.decide(event, outputs)
            done += 1
            if outputs.bytes > limits.TRANSACTION_BYTES_MAX:
                break
        for task in tasks:
            task.settle(outputs)
        return outputs, done

    def _offsets(self, tasks: Iterable[Task], moved: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Positions of every input of every task that is touched."""
        return {at: moved.get(at, self.positions[at]) for task in tasks for at in task.inputs}

    @staticmethod
    def _moved(events: Sequence[Event]) -> dict[TopicPartition, int]:
        """How far these events move the positions of their partitions; each partition's come in order."""
        last: dict[tuple[str, int], int] = {}
        for _, _, record in events:
            if record is not None:
                last[record.topic, record.partition] = record.offset + 1
        return {TopicPartition(topic, partition): offset for (topic, partition), offset in last.items()}

    def _produce(
        self, producer: Producer, outputs: Outputs, changes: Mapping[Task, Mapping[bytes, bytes | None]]
    ) -> dict[TopicPartition, int]:
        """Produce everything; the returned mapping holds, once committed, the last changelog offset of each partition."""
        produce = producer.produce
        ends: dict[TopicPartition, int] = {}
        for task, rows in changes.items():
            last = {key[0]: key for key in rows}  # of each table, whose delivery report is its changelog's highest
            for key, value in rows.items():
                at, record_key = task.changelog_of(key)
                note = _noting(ends, at) if last[key[0]] is key else None
                produce(at.topic, value, key=record_key, partition=at.partition, on_offset=note)
        for topic, out, out_key, partition, headers in outputs.records:
            produce(topic, out, key=out_key, partition=partition, headers=headers)
        return ends


class Poisoned(NamedTuple):
    """Stands for an event that cannot be committed."""

    event: Event
    error: Exception


def _noting(ends: dict[TopicPartition, int], at: TopicPartition) -> Callable[[int], None]:
    def note(offset: int) -> None:
        ends[at] = offset

    return note
