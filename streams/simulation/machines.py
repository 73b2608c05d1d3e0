"""App instances of a simulated run: started, killed between two numbered steps, stalled, restarted with what was on their disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import Gauge

from schemas.errors import CallTimeout, LogUnavailable
from schemas.topics import TopicSettings
from state.tables.memory import MemoryStoreFactory
from state.tables.overlay import CheckedOverlay
from streams.clock import ManualClock, SkewedClock
from streams.engine.aside import AtOnce
from streams.engine.loop import TransactionalLoop
from streams.engine.pool import Finished
from streams.log.memory.broker import Group, Partition
from streams.log.memory.consumer import MemoryGroupConsumer
from streams.log.memory.log import MemoryLog
from streams.log.seam import TopicPartition
from streams.roles.core.events import OutputPublished, PublicationBroke, ResultCollected, SegmentBroke, SegmentEnded
from streams.roles.core.task import CoreTask
from streams.roles.object_source import Lister
from streams.telemetry.metrics import Metrics
from streams.testing.inline_pool import InlinePool
from streams.worker.application import take_up
from streams.worker.assembly import Assembly, Worker
from topologies.pipeline.ends import ObjectSource
from topologies.pipeline.model import Pipeline

if TYPE_CHECKING:
    from state.tables.store import ChangelogPosition

CLOCKS_APART_MS = 20
"""What a machine's drift adds up to between two looks at the broker's clock, and more."""

POOL_CLOCK = ManualClock()
"""Of pools whose jobs overstay when the simulation says."""

WORK_ENDS = (SegmentEnded, SegmentBroke, OutputPublished, PublicationBroke, ResultCollected)
"""Events that end the local work of an execution."""

Disk = dict[tuple[str, int], tuple[dict[bytes, bytes], "dict[str, ChangelogPosition]"]]

At = Callable[["Machine", int], None]
"""Called before each numbered step of a machine's commits."""


class Killed(BaseException):
    """The process was killed between two steps."""


class QuietMetrics(Metrics):
    """Counts nothing: a simulated worker lives for milliseconds."""

    def __init__(self) -> None:
        """Make no registry."""

    def decided(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Nothing."""

    def committed(self, role: str, events: int, batch_s: float, transaction_s: float) -> None:
        """Nothing."""

    def aborted(self, role: str) -> None:
        """Nothing."""

    def commit_unknown(self, role: str) -> None:
        """Nothing."""

    def rebalanced(self, role: str, partitions: int) -> None:
        """Nothing."""

    def unread(self, role: str, partitions: int) -> None:
        """Nothing."""

    def restoring(self, partition: int, done: int, total: int) -> None:
        """Nothing."""

    def gave_up(self, partition: int) -> None:
        """Nothing."""

    def clocks_differ(self, seconds: float) -> None:
        """Nothing."""

    input_missing = Gauge("nothing", "nothing", registry=None)


class Disks(MemoryStoreFactory):
    """Stores in memory, which can be set back to an earlier state."""

    def copied(self) -> Disk:
        """What is on the disks now."""
        return {where: (dict(disk.rows), dict(disk.positions)) for where, disk in self._disks.items()}

    def set_back(self, disk: Disk) -> None:
        """Make an earlier state the present one."""
        for where in list(self._disks):
            self.wipe(*where)
        for where, (rows, positions) in disk.items():
            store = self.open(*where)
            store.apply(copy.copy(rows), copy.copy(positions))
            store.close()


class HeldPool(InlinePool):
    """A pool whose jobs run when the simulation says, or overstay."""

    def overstay(self, index: int) -> None:
        """Give a waiting job up, as a pool does with one that has not ended within its limit."""
        ticket, job = self.jobs[index]
        del self.jobs[index]
        ticket.abandoned = True
        self._done.append(Finished(ticket.owner, ticket.done, None, CallTimeout("no result within its limit")))
        del job


class Machine:
    """One app instance, its disk and its clock."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        log: MemoryLog,
        clock: SkewedClock,
        *,
        static: bool,
        roles: tuple[str, ...],
    ) -> None:
        self.name = name
        self.roles = roles
        self.static = static
        self.disks = Disks()
        self.old_disk: Disk = {}
        self.worker: Worker | None = None
        self.dead: list[Worker] = []
        self.is_stalled = False
        self._lister: Lister | None = None
        self._pipeline = pipeline
        self.clock = clock
        self._world_log = log
        self._log = log.seen_from(clock)
        self._log.clocks_apart_ms = CLOCKS_APART_MS

    def twin(self) -> Machine:
        """Another process under the same name, on a disk of its own."""
        return Machine(
            self.name,
            self._pipeline,
            self._world_log,
            self.clock,
            static=self.static,
            roles=self.roles,
        )

    def start(self, at: At) -> None:
        """Start the process; one that cannot see how its application stands starts later."""
        try:
            taken_up = take_up(self._pipeline, self._log)
        except LogUnavailable:
            return
        self.worker = Assembly(
            pipeline=self._pipeline,
            log=self._log,
            clock=self.clock,
            stores=self.disks,
            instance=self.name,
            static=self.static,
            taken_up=taken_up,
            roles=self.roles,
            metrics=QuietMetrics(),
            make_pool=lambda: HeldPool(POOL_CLOCK, held=True),
            make_overlay=CheckedOverlay,
            aside=AtOnce(),
            pace_s=0.0,
            at=lambda step: at(self, step),
        ).build()
        self.is_stalled = False

    def kill(self) -> None:
        """End the process where it stands: memory is gone, the log and the disk are not."""
        if self.worker is not None:
            self.dead.append(self.worker)
            for pool in self.worker.pools:
                pool.close()
        self.worker = self._lister = None

    def bury(self) -> None:
        """End the sessions and the transactions of its dead processes."""
        for loop in [loop for worker in self.dead for loop in worker.loops.values()]:
            consumer = consumer_of(loop)
            if consumer is not None:
                self._log.kick(consumer)
            self._log.expire_transaction(transactional_id_of(loop))
        self.dead = []

    def look_at_input(self) -> None:
        """Look at the input folder, as whoever owns partition 0 does."""
        source = self._pipeline.source
        assert isinstance(source, ObjectSource)
        core = self.worker.loops.get("core") if self.worker is not None else None
        if core is None or TopicPartition(f"{self._pipeline.app}.commands", 0) not in core.tasks:
            self._lister = None
            return
        if self._lister is None:
            producer, metrics = self._log.plain_producer(), QuietMetrics()
            self._lister = Lister(self._pipeline, source, self._log, self.clock, producer, metrics)
            self._lister._reply_id = f"lister of {self.name}"  # noqa: SLF001 - drawn, it would differ from run to run
        self._lister.look()

    def lose_disk(self, rng: Random) -> str:
        """What a restart finds on the disk: all, nothing, or an earlier state."""
        roll = rng.random()
        if roll < 0.6:
            return "its disk"
        if roll < 0.8:
            self.disks = Disks()
            return "no disk"
        self.disks.set_back(self.old_disk)
        return "an old disk"

    @property
    def pools(self) -> list[HeldPool]:
        """Pools of the running process."""
        return [cast("HeldPool", pool) for pool in self.worker.pools] if self.worker else []

    @property
    def tasks(self) -> list[CoreTask]:
        """Running core tasks."""
        core = self.worker.loops.get("core") if self.worker is not None else None
        if core is None:
            return []
        return list(dict.fromkeys(cast("list[CoreTask]", list(core.tasks.values()))))


def consumer_of(loop: TransactionalLoop) -> MemoryGroupConsumer | None:
    """The loop's group member."""
    return cast("MemoryGroupConsumer | None", loop._consumer)  # noqa: SLF001 - a simulation pulls plugs that no API has


def transactional_id_of(loop: TransactionalLoop) -> str:
    """The loop's transactional id."""
    return loop.membership.role.transactional_id


def paused_of(loop: TransactionalLoop) -> set[TopicPartition]:
    """Partitions that the loop does not read, because enough of them waits to be decided."""
    return loop.owned._paused  # noqa: SLF001


def group_of(log: MemoryLog, name: str) -> Group:
    """A consumer group as the broker knows it, which no client may ask."""
    return log._broker.group(name)  # noqa: SLF001


def spec_of(log: MemoryLog, topic: str) -> TopicSettings:
    """A topic as it was made."""
    return log._broker.topics[topic].spec  # noqa: SLF001


def partition_of(log: MemoryLog, at: TopicPartition) -> Partition:
    """A partition as the broker keeps it."""
    return log._broker.partition(at)  # noqa: SLF001


def is_member(log: MemoryLog, consumer: MemoryGroupConsumer, *, though_rebalancing: bool = False) -> bool:
    """Whether a consumer owns what it thinks it owns; while its group rebalances it may go on, but does not for long."""
    group = group_of(log, consumer.group)
    generation = consumer.metadata().generation
    is_current = consumer.member_id in group.members and group.generation == generation
    return is_current and (though_rebalancing or not group.rebalancing)


def task_insides(task: CoreTask) -> tuple[Any, Any, Any]:
    """Store, sessions and timers of a task."""
    return task.rows.store, task.sessions.by_unit, task.deadlines


def is_idle(task: CoreTask) -> bool:
    """Whether nothing of the task is queued or running."""
    agenda = task.agenda
    return not (
        agenda.is_waiting()
        or task.intake.is_waiting
        or agenda.sweeps
        or task.work._running  # noqa: SLF001
        or agenda._after  # noqa: SLF001
    )
