"""Owned tasks: one for each owned partition, or set of equal ones; made, restored, started, paused, closed (DESIGN 6 'Restore')."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from schemas.errors import LogUnavailable, OffsetOutOfRange, OffsetsLost, UsageError
from streams.clock import Clock
from streams.engine.role import Role, lost_offset
from streams.engine.task import Task
from streams.log.seam import GroupConsumer, Log, Record, TopicPartition

logger = structlog.get_logger("kawait.loop")

OFFSETS_TIMEOUT_S = 2.0
RESTORE_BUDGET_S = 0.1
WAITING_TOLD_EVERY_S = 10.0


class OwnedTasks:
    """The tasks of one role of one worker.

    Args:
        make: Makes the task of a partition number and its inputs.
    """

    def __init__(
        self, role: Role, log: Log, *, make: Callable[[int, tuple[TopicPartition, ...]], Task], clock: Clock
    ) -> None:
        self.running: dict[TopicPartition, Task] = {}
        """By each of their inputs."""
        self.positions: dict[TopicPartition, int] = {}
        """Next offset to consume, as committed or about to be."""
        self.assigned: tuple[TopicPartition, ...] = ()
        self._role = role
        self._log = log
        self._make = make
        self._clock = clock
        self._restoring: list[Task] = []
        self._paused: set[TopicPartition] = set()
        self._waiting_told_s = 0.0

    @property
    def all_running(self) -> list[Task]:
        """Every task that takes events, once."""
        return list(dict.fromkeys(self.running.values()))

    @property
    def are_restored(self) -> bool:
        """Whether every task that was made takes events."""
        return not self._restoring

    # --- partitions come and go ----------------------------------------------------------------------------------------------------------

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are ours too.

        Raises:
            UsageError: unequal partition numbers of topics that form one task.
        """
        self.assigned = tuple(dict.fromkeys((*self.assigned, *partitions)))
        self._refuse_uneven(self.assigned)

    def _refuse_uneven(self, partitions: Sequence[TopicPartition]) -> None:
        """One execution's commands and completions must belong to one task."""
        if not self._role.co_partitioned:
            return
        by_topic = {
            topic: sorted(at.partition for at in partitions if at.topic == topic and self._holds_task(at))
            for topic in self._role.topics
        }
        if len({tuple(numbers) for numbers in by_topic.values()}) > 1:
            counts = ", ".join(f"{topic}: {len(numbers)}" for topic, numbers in by_topic.items())
            msg = f"unequal partitions were assigned ({counts}); these topics must have the same number of partitions: see `kawait topics`"
            raise UsageError(msg)

    def make(self, partitions: Iterable[TopicPartition]) -> None:
        """Make the tasks of these partitions; they take no events before they are restored."""
        groups: dict[Any, list[TopicPartition]] = {}
        for at in filter(self._holds_task, partitions):
            groups.setdefault(at.partition if self._role.co_partitioned else at, []).append(at)
        for inputs in groups.values():
            self._restoring.append(self._make(inputs[0].partition, tuple(sorted(inputs))))

    def _holds_task(self, at: TopicPartition) -> bool:
        """Partitions beyond the application's number stay empty, whoever added them."""
        return self._role.partitions is None or at.partition < self._role.partitions

    def give_up(self, partitions: Iterable[TopicPartition]) -> list[Task]:
        """These partitions are not ours any more. Returns the tasks that were closed."""
        gone = set(partitions)
        self.assigned = tuple(at for at in self.assigned if at not in gone)
        return self.close(gone)

    def close(self, gone: set[TopicPartition] | None = None) -> list[Task]:
        """Close the tasks of some partitions, or all. Returns them."""
        doomed = [
            task
            for task in dict.fromkeys((*self.running.values(), *self._restoring))
            if gone is None or gone & set(task.inputs)
        ]
        for task in doomed:
            task.close()
            for at in task.inputs:
                self.running.pop(at, None)
                self.positions.pop(at, None)
                self._paused.discard(at)
        self._restoring = [task for task in self._restoring if task not in doomed]
        return doomed

    # --- restore -------------------------------------------------------------------------------------------------------------------------

    def restore(self, consumer: GroupConsumer) -> None:
        """Go on restoring; a task whose rows are true is started."""
        for task in list(self._restoring):
            try:
                found = self._find_positions(task, consumer)
                ready = found and task.restore(RESTORE_BUDGET_S / len(self._restoring))
            except LogUnavailable as error:
                self._note_waiting(task, error)
                continue
            if ready and task in self._restoring:
                self._restoring.remove(task)
                self._start(task, consumer)

    def _note_waiting(self, task: Task, error: LogUnavailable) -> None:
        """Say why partitions are not taken over, now and then."""
        if self._clock.monotonic_s() > self._waiting_told_s + WAITING_TOLD_EVERY_S:
            self._waiting_told_s = self._clock.monotonic_s()
            logger.warning(
                "waiting to take partitions over",
                role=self._role.name,
                partitions=len(self._restoring),
                first=f"{task.inputs[0].topic}[{task.inputs[0].partition}]",
                detail=str(error),
            )

    def _find_positions(self, task: Task, consumer: GroupConsumer) -> bool:
        """Committed offsets, stable (no transaction pending); the log start for a partition that never committed.

        Raises:
            OffsetsLost: one that had a committed offset has none any more, and its records matter too much to guess.
            OffsetOutOfRange: records were deleted before they were read.
        """
        if all(at in self.positions for at in task.inputs):
            return True
        committed = consumer.committed(task.inputs, OFFSETS_TIMEOUT_S)
        starts = self._log.start_offsets(task.inputs, OFFSETS_TIMEOUT_S)
        for at in task.inputs:
            offset = committed.get(at)
            if offset is not None and offset < starts[at]:
                msg = (
                    f"{at.topic}[{at.partition}]: group {self._role.group} has consumed up to {offset}, but the topic only keeps offsets from "
                    f"{starts[at]}: records were deleted unread. Raise the topic's retention; to go on without them, set the group's offset "
                    "to the log start with kafka-consumer-groups --reset-offsets"
                )
                raise OffsetOutOfRange(msg)
            if offset is None and self._role.has_lost(at):
                raise OffsetsLost(lost_offset(self._role.group, at))
            self.positions[at] = starts[at] if offset is None else offset
        return True

    def _start(self, task: Task, consumer: GroupConsumer) -> None:
        task.start()
        for at in task.inputs:
            self.running[at] = task
            consumer.seek(at, self.positions[at])
        consumer.resume(task.inputs)

    # --- records -------------------------------------------------------------------------------------------------------------------------

    def accept(self, records: Sequence[Record]) -> None:
        """Hand records to the tasks that own them; a record of a task that is gone is nobody's."""
        by_task: defaultdict[Task, list[Record]] = defaultdict(list)
        running: Mapping[Any, Task] = self.running
        for record in records:
            task = running.get((record.topic, record.partition))  # a plain tuple finds what a TopicPartition does
            if task is not None:
                by_task[task].append(record)
        for task, owned in by_task.items():
            task.accept(owned)

    def balance_pauses(self, consumer: GroupConsumer) -> None:
        """Read on only for tasks that have room."""
        for task in self.all_running:
            full = task.full_inputs()
            if not full and not self._paused:
                continue
            pause = [at for at in full if at not in self._paused]
            resume = [at for at in task.inputs if at in self._paused and at not in full]
            if pause:
                consumer.pause(pause)
                self._paused.update(pause)
            if resume:
                consumer.resume(resume)
                self._paused.difference_update(resume)
