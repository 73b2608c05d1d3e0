"""Assembly: the roles of a worker over seams (log, stores, clock, pool, author). Whoever runs it chooses the implementations.

The worker, the demo, the test driver and the simulator all run what `Assembly.build` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from schemas import limits
from schemas.names import Names
from state.tables.overlay import Overlay
from state.tables.rows import MakeOverlay
from state.tables.store import StoreFactory
from streams.author.calls import Author
from streams.author.local import LocalAuthor
from streams.clock import BrokerClock, Clock
from streams.engine.aside import Aside, AsideThread
from streams.engine.broker_time import BrokerTime
from streams.engine.looks import Looks
from streams.engine.loop import TransactionalLoop
from streams.engine.pool import Pool, ThreadPool
from streams.engine.role import Role
from streams.engine.task import MakeTask, Positions, Task
from streams.engine.unread import UnreadPartitions
from streams.log.seam import Log, TopicPartition
from streams.roles.context import CoreContext, RoleContext, signer_of
from streams.roles.continuation import ContinuationTask
from streams.roles.core.task import CoreTask
from streams.roles.ingress.task import IngressTask
from streams.telemetry.metrics import Metrics
from streams.worker.application import TakenUp, vital_topics
from topologies.pipeline.ends import TopicSource
from topologies.pipeline.model import Pipeline

ROLES = ("core", "ingress", "continuation")

PoolFactory = Callable[[], Pool]


@dataclass(kw_only=True)
class Worker:
    """The loops of one app instance."""

    loops: dict[str, TransactionalLoop]
    pools: list[Pool]
    metrics: Metrics
    aside: Aside
    """Asks the broker beside the loops."""
    closes: list[Callable[[], None]] = field(default_factory=list)
    """Frees what the loops share besides."""

    @property
    def is_ready(self) -> bool:
        """Every role has joined and restored."""
        return all(loop.is_ready for loop in self.loops.values())

    def close(self) -> None:
        """Stop every loop and free what they share."""
        for loop in self.loops.values():
            loop.close()
        self.free()

    def free(self) -> None:
        """Free what the loops share; they are closed."""
        for pool in self.pools:
            pool.close()
        for close in self.closes:
            close()


@dataclass(kw_only=True)
class Assembly:
    """What a worker is put together from.

    Attributes:
        instance: Names the transactional ids and, when `static`, the group members.
        taken_up: As `streams.worker.application.take_up` returns it.
        make_pool: Makes the pool of a role; default: one of threads.
        author: Runs the author's code; default: on the pool's threads.
        make_overlay: Makes the open batch of a partition; where speed does not matter it can check what it is told.
        clock: The machine's.
        aside: Asks the broker beside the loops; default: on a thread of its own.
        pace_s: Shortest time between two such questions of a task, and between two commits of positions that no record moved.
        at, wait: As in `TransactionalLoop`.
    """

    pipeline: Pipeline
    log: Log
    clock: Clock
    stores: StoreFactory
    instance: str
    static: bool
    taken_up: TakenUp
    roles: tuple[str, ...] = ROLES
    metrics: Metrics = field(default_factory=Metrics)
    make_pool: PoolFactory | None = None
    author: Author | None = None
    make_overlay: MakeOverlay = Overlay
    aside: Aside | None = None
    pace_s: float = limits.BESIDE_MS / 1000
    at: Callable[[int], None] = lambda _step: None
    wait: Callable[[float], object] = lambda _seconds: None

    def build(self) -> Worker:
        """The loops of the roles."""
        worker = Worker(loops={}, pools=[], metrics=self.metrics, aside=self.aside or AsideThread())
        worker.closes.append(worker.aside.close)
        context = self._context()
        if "core" in self.roles:
            self._add_core(worker, context)
        if "ingress" in self.roles:
            self._add_ingress(worker, context)
        if "continuation" in self.roles:
            self._add_continuation(worker, context)
        return worker

    def _context(self) -> RoleContext:
        return RoleContext(
            pipeline=self.pipeline,
            names=Names.of(self.pipeline.app),
            clock=BrokerClock(self.clock),
            signer=signer_of(self.pipeline),
            metrics=self.metrics,
            author=self.author or LocalAuthor(self.pipeline),
            topic_ids=self.taken_up.topic_ids,
        )

    def _loop(
        self,
        worker: Worker,
        role: str,
        names: Names,
        topics: tuple[str, ...],
        make_task: MakeTask,
        *,
        clock: Clock | None = None,
        co_partitioned: bool = False,
        pool: Pool | None = None,
        each_turn: Callable[[], None] = lambda: None,
    ) -> TransactionalLoop:
        who = Role(
            name=role,
            group=names.group(role),
            instance=self.instance if self.static else None,
            transactional_id=names.transactional_id(role, self.instance),
            topics=topics,
            own_topic=names.completions,
            co_partitioned=co_partitioned,
            partitions=self.pipeline.partitions if co_partitioned else None,
            taken=self.taken_up.taken,
            topic_ids=self.taken_up.topic_ids,
            vital=vital_topics(self.pipeline),
        )
        unread = UnreadPartitions(who, self.log, worker.aside, self.clock, self.metrics)

        def each() -> None:
            each_turn()
            unread.turn()

        loop = TransactionalLoop(
            who,
            log=self.log,
            make_task=make_task,
            clock=clock or self.clock,
            metrics=self.metrics,
            pool=pool,
            pace_s=self.pace_s,
            each_turn=each,
            at=self.at,
            wait=self.wait,
        )
        unread.membership = loop.membership
        return loop

    def _pool(self, worker: Worker) -> Pool:
        pool = self.make_pool() if self.make_pool is not None else ThreadPool(limits.POOL_THREADS, self.clock)
        worker.pools.append(pool)
        return pool

    def _add_core(self, worker: Worker, shared: RoleContext) -> None:
        """Executions, units, interactions and items."""
        names, pool = shared.names, self._pool(worker)
        time = BrokerTime(shared.clock, self.log, names.replies, worker.aside, self.metrics, pace_s=self.pace_s)
        worker.closes.append(time.close)
        context = CoreContext(
            **vars(shared),
            log=self.log,
            looks=Looks(self.log, worker.aside),
            pace_s=self.pace_s,
            pool=pool,
            stores=self.stores,
            instance=self.instance,
            make_overlay=self.make_overlay,
        )

        def make_task(partition: int, inputs: tuple[TopicPartition, ...], positions: Positions) -> Task:
            return CoreTask(context, partition, inputs, positions)

        topics = (names.commands, names.completions)
        worker.loops["core"] = self._loop(
            worker,
            "core",
            names,
            topics,
            make_task,
            clock=shared.clock,
            co_partitioned=True,
            pool=pool,
            each_turn=time.keep,
        )

    def _add_ingress(self, worker: Worker, context: RoleContext) -> None:
        """Answers and source records, from the user's topics to ours."""
        source = (self.pipeline.source.topic,) if isinstance(self.pipeline.source, TopicSource) else ()
        topics = (*self.pipeline.response_topics, *source)
        if not topics:
            return

        def make_task(partition: int, inputs: tuple[TopicPartition, ...], positions: Positions) -> Task:
            del partition, positions
            return IngressTask(context, inputs)

        worker.loops["ingress"] = self._loop(worker, "ingress", context.names, topics, make_task)

    def _add_continuation(self, worker: Worker, context: RoleContext) -> None:
        """Suffixes of parked executions."""
        pool = self._pool(worker)

        def make_task(partition: int, inputs: tuple[TopicPartition, ...], positions: Positions) -> Task:
            del partition, positions
            return ContinuationTask(context, pool, inputs)

        topics = (context.names.continuations,)
        worker.loops["continuation"] = self._loop(worker, "continuation", context.names, topics, make_task, pool=pool)
