"""The transactional batch loop: read, decide, write, commit, apply, hand over (DESIGN 6). Read this first.

One loop serves one role of one worker: one group consumer, one transactional producer, and a task for each owned partition. Everything a
batch reads and writes happens in one Kafka transaction; memory and disk follow only once it is committed.

    The loop owns     polling, membership, the transaction and its errors, positions, restore, bisecting a batch that cannot commit
    A task owns       what records mean, its rows, its timers, its local work; it never touches the log

`_transact` is the most dangerous function here; its docstring numbers its steps, and the simulator crashes between each two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog

from schemas import limits
from schemas.errors import (
    CommitUnknown,
    InstanceFenced,
    LogUnavailable,
    ProducerFenced,
    RecordTooLarge,
    StateBroken,
    TransactionAborted,
    UsageError,
)
from streams.clock import Clock
from streams.engine.gathering import Gathering
from streams.engine.membership import Membership
from streams.engine.owned_tasks import OwnedTasks
from streams.engine.pool import Pool
from streams.engine.quiet_positions import QuietPositions
from streams.engine.role import Role
from streams.engine.task import Entry, MakeTask, Outputs, Poisoned, Task
from streams.log.seam import GroupConsumer, Log, Producer, TopicPartition
from streams.telemetry.metrics import Metrics

logger = structlog.get_logger("kawait.loop")

COMMIT_TIMEOUT_S = 10.0
ABORTS_MAX = 10
"""Aborts in a row of one batch after which it is taken to be the fault of something in it, even if the broker does not say so."""
UNAVAILABLE_MAX = 1
"""Aborts in a row because the broker does not answer, after which the producer is replaced: measured, one that lived through a restart of
the broker may never get another answer."""
ABORTED_PAUSE_S = 0.05


class TransactionalLoop:
    """The loop of one role; `step` does one batch and never blocks longer than the poll wait and one commit.

    Args:
        role: Who it is on the log, and what it reads.
        make_task: Makes the task of a partition number and its inputs.
        pool: Where its tasks run the author's functions; results go to the task that owns the job.
        pace_s: Shortest time between two commits of positions that no record moved.
        each_turn: Called first in each turn.
        at: Called before each numbered step of the commit with the step's number; the simulator crashes here.
        wait: Sleeps; a test's clock does not.
    """

    def __init__(
        self,
        role: Role,
        *,
        log: Log,
        make_task: MakeTask,
        clock: Clock,
        metrics: Metrics,
        pool: Pool | None = None,
        pace_s: float = limits.BESIDE_MS / 1000,
        each_turn: Callable[[], None] = lambda: None,
        at: Callable[[int], None] = lambda _step: None,
        wait: Callable[[float], object] = lambda _seconds: None,
    ) -> None:
        self.name = role.name
        self.membership = Membership(role, log, rebalance=self, clock=clock, wait=wait)
        self.owned = OwnedTasks(role, log, make=partial(make_task, positions=self), clock=clock)
        self._clock = clock
        self._metrics = metrics
        self._pool = pool
        self._gathering = Gathering(self.owned, pool, clock)
        self._quiet = QuietPositions(self.owned, clock, pace_s)
        self._each_turn = each_turn
        self._at = at
        self._wait = wait
        self._pending: list[Entry] = []
        self._aborts = 0
        self._part = 0  # events of a bisected batch to try next; 0: all
        self._is_committed = False

    # --- what is asked from outside ------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Joined, and every owned partition restored (even if there is none)."""
        return self._producer is not None and self._metadata is not None and self.owned.are_restored

    @property
    def tasks(self) -> Mapping[TopicPartition, Task]:
        """Running tasks, by each of their inputs."""
        return self.owned.running

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Next offset to consume, as committed or about to be."""
        return self.owned.positions

    def consumed(self, at: TopicPartition) -> int:
        """How far the consumer has read, past markers."""
        assert self._consumer is not None
        return self._consumer.position(at)

    def decided(self, at: TopicPartition) -> int:
        """How far the partition's records are decided and committed."""
        return self.positions.get(at, -1)

    @property
    def _consumer(self) -> GroupConsumer | None:
        return self.membership.consumer

    @property
    def _producer(self) -> Producer | None:
        return self.membership.producer

    @property
    def _metadata(self) -> object:
        return self.membership.metadata

    # --- life ----------------------------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn: poll, restore, one batch. True when something was committed.

        Raises:
            InstanceFenced: a newer process has this instance name; exit.
            UsageError: something that only the operator can mend.
        """
        self._each_turn()
        if not self.membership.has_no_rival():
            return False
        try:
            if not self._ensure_clients():
                return False
            self._poll()
        except InstanceFenced as error:
            if self.membership.is_ghost(error):  # the membership is another member's already
                self.membership.leave()
                self._forget(self.owned.close())
                self.owned.assigned = ()
            return False
        self._take_results()
        self._wait_for_more()
        if self._consumer is not None:
            self.owned.restore(self._consumer)
        if not self._pending and (moved := self._quiet_positions()):
            return self._run([], moved)
        self._pending = self._pending or self._gathering.batch()
        if not self._pending or self._producer is None:
            return False
        return self._run(self._pending[: self._part or None])

    def close(self) -> None:
        """Stop cleanly: no batch is open between steps, so there is only membership and memory to give up."""
        self.membership.leave()
        self._forget(self.owned.close())
        self.membership.drop_producer()

    def _ensure_clients(self) -> bool:
        """Take the transactional id first, then join: a newcomer fences its predecessor before it owns anything."""
        if self._producer is None:
            if self.membership.is_in_grace:
                if self._consumer is not None:  # poll first: a zombie must learn that it is one (trap M)
                    self._poll()
                return False
            if not self.membership.make_producer():
                return False
            self.owned.make(self.owned.assigned)
        self.membership.join()
        return True

    def _take_over_own(self, *, fenced: bool) -> None:
        """After an unknown outcome: forget everything in memory, and take each partition over from what is committed.

        Never rewind onto stale rows; never make a new producer before polling when fenced: a zombie would fence the rightful owner.
        """
        self._forget(self.owned.close())
        self.membership.drop_producer(fenced=fenced)
        self._aborts = self._part = 0

    def _forget(self, closed: Sequence[Task]) -> None:
        """Entries of tasks that are closed are decided by whoever owns their partition next."""
        self._pending = [entry for entry in self._pending if entry.task not in closed]

    # --- membership (streams.log.seam.Rebalance) -----------------------------------------------------------------------------------------

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Own partitions from now on; they stay paused until their task is restored."""
        consumer = self._consumer
        assert consumer is not None or not partitions
        self.owned.assign(partitions)
        self._metrics.rebalanced(self.name, len(self.owned.assigned))
        self.membership.metadata = consumer.metadata() if consumer is not None else None
        if self._producer is not None:
            self.owned.make(partitions)

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Give partitions up; nothing is open here, so nothing is committed here."""
        self._forget(self.owned.give_up(partitions))

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """They are somebody else's already."""
        logger.warning("partitions lost", role=self.name, partitions=len(partitions))
        self.on_revoke(partitions)

    # --- 1 read --------------------------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Take what is there."""
        assert self._consumer is not None
        self.owned.balance_pauses(self._consumer)
        self._read(self._gathering.poll_wait_s(pending=bool(self._pending)))

    def _read(self, wait_s: float) -> None:
        assert self._consumer is not None
        try:
            self.owned.accept(self._consumer.poll(limits.BATCH_RECORDS_MAX, wait_s))
            self.membership.note_back()
        except LogUnavailable as error:
            self.membership.wait_for_broker(error)

    def _wait_for_more(self) -> None:
        """Let a batch grow while records come fast."""
        wait_s = 0.0 if self._pending else self._gathering.grow_s()
        if wait_s:
            self._wait(wait_s)
            self._read(0.0)
            self._take_results()

    def _take_results(self) -> None:
        """Jobs of the pool that have ended: whoever submitted them takes their end."""
        if self._pool is None:
            return
        for finished in self._pool.take():
            if isinstance(finished.error, StateBroken):  # a broken disk is no item's fault
                raise finished.error
            finished.done(finished.result, finished.error)

    def _quiet_positions(self) -> Mapping[TopicPartition, int]:
        """Positions that no record moved and that are to be committed now."""
        return {} if self._consumer is None or self._producer is None else self._quiet.moved(self._consumer)

    # --- 2 to 7 --------------------------------------------------------------------------------------------------------------------------

    def _run(self, batch: list[Entry], quiet: Mapping[TopicPartition, int] | None = None) -> bool:
        """Transact a batch, the first of what is pending; on an error that its content causes, half of it next time.

        Without events only the positions `quiet` move.
        """
        moved = quiet or {}
        tasks = list(dict.fromkeys((*(entry.task for entry in batch), *(self.owned.running[at] for at in moved))))
        try:
            done = self._transact(tasks, batch, moved)
        except CommitUnknown as error:
            logger.warning(
                "commit outcome unknown: taking over from what is committed", role=self.name, detail=str(error)
            )
            self._metrics.commit_unknown(self.name)
            self._take_over_own(fenced=error.fenced)
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
            self._wait(ABORTED_PAUSE_S)
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
            if not batch or isinstance(batch[0].event, Poisoned):  # not even its dead letter can be written
                raise
            self._bisect(batch, error)
            return False
        self._pending = self._pending[done:]
        self._aborts = self._part = 0
        return True

    def _is_its_content(self, error: Exception) -> bool:
        """Whether an event of the batch is what cannot be committed.

        The second time that a record is too large, or when the broker has refused the batch too often for whatever reason: a passing fault
        must not dead-letter innocent events.
        """
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

    def _bisect(self, batch: Sequence[Entry], error: Exception) -> None:
        """Half of the batch next time; a single event is dead-lettered in its place."""
        if not batch:
            return
        self._part = max(len(batch) // 2, 1)
        entry = batch[0]
        if len(batch) > 1 or isinstance(entry.event, Poisoned):
            return
        logger.error("an event cannot be committed; dead-lettering it", role=self.name, detail=str(error))
        self._aborts = 0
        self._pending[0] = Entry(entry.task, Poisoned(entry, error), entry.record)

    def _transact(self, tasks: Sequence[Task], batch: Sequence[Entry], quiet: Mapping[TopicPartition, int]) -> int:
        """One batch, one transaction. Returns how many events of it are done (a full transaction leaves the rest for the next).

        1. Read: the events are here; prefetch the rows they name.
        2. Decide every event in a plain loop over the overlay, then what follows for all they touched.
        3. Begin only now; send the consumed position of every input of every task that is touched, consumed or not: this is what
           fences a task that is no longer ours by the group's generation. All of them are real offsets; -1001 or an empty list fences
           nothing.
        4. Produce changelog rows, facts, requests, continuations, replies, while the positions are on their way.
        5. Commit. An error in here means that the outcome is unknown.
        6. Apply the rows and changelog positions to the store in one write. A crash before this is healed by the changelog.
        7. Hand over: offers to live sessions, and segments and publications to the pool.
        """
        producer = self._producer
        assert producer is not None
        started_s = self._clock.monotonic_s()
        self._is_committed = False
        self._at(1)
        by_task: dict[Task, list[Entry]] = {task: [] for task in tasks}
        for event in batch:
            by_task[event.task].append(event)
        for task, events in by_task.items():
            task.prefetch(events)
        self._at(2)
        outputs, done = self._decide(tasks, batch)
        changes = {task: task.changes() for task in tasks}
        moved = {**quiet, **self._moved(batch[:done])}
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
            if batch:
                self._metrics.committed(
                    self.name, done, self._clock.monotonic_s() - started_s, self._clock.monotonic_s() - begun_s
                )
            self._at(6)
            self._gathering.wrote(len(outputs.records))
            self._gathering.took(done, self._clock.monotonic_s() - started_s)
            self.positions.update(offsets)
        else:
            ends = {}
        self._is_committed = True  # also where there was nothing to commit: its work may have started
        for task in tasks:
            task.apply(changes[task], ends)
        self._at(7)
        for task in tasks:
            task.hand_over()
        return done

    def _decide(self, tasks: Sequence[Task], batch: Sequence[Entry]) -> tuple[Outputs, int]:
        outputs = Outputs()
        done = 0
        for entry in batch:
            task, event, _ = entry
            if isinstance(event, Poisoned):
                task.quarantine(event.entry, event.error, outputs)
            else:
                task.decide(entry, outputs)
            done += 1
            if outputs.size > limits.TRANSACTION_BYTES_MAX:
                break
        for task in tasks:
            task.settle(outputs)
        return outputs, done

    def _offsets(self, tasks: Iterable[Task], moved: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Positions of every input of every task that is touched."""
        return {at: moved.get(at, self.positions[at]) for task in tasks for at in task.inputs}

    @staticmethod
    def _moved(entries: Sequence[Entry]) -> dict[TopicPartition, int]:
        """How far these events move the positions of their partitions; each partition's come in order."""
        last: dict[tuple[str, int], int] = {}
        for _, _, record in entries:
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
                note = partial(ends.__setitem__, at) if last[key[0]] is key else None
                produce(at.topic, value, key=record_key, partition=at.partition, on_offset=note)
        for topic, out, out_key, partition, headers in outputs.records:
            produce(topic, out, key=out_key, partition=partition, headers=headers)
        return ends
