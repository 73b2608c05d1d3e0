"""The composition root: the only module that names concrete classes (DESIGN 3).

`build_roles` makes the loops of a worker over a log; the worker, the demo, the test driver and the simulator all run what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectors.resume_token import TokenSigner
from schemas import limits
from schemas.names import Names
from state.keys import TABLES
from state.tables.store import StoreFactory
from streams.author.calls import Author, LocalAuthor
from streams.clock import Clock
from streams.engine.loop import TransactionalLoop
from streams.engine.pool import Pool, ThreadPool
from streams.engine.task import MakeTask
from streams.log.seam import Log
from streams.roles.context import CoreContext
from streams.roles.continuation import ContinuationContext, ContinuationTask
from streams.roles.core.task import CoreTask
from streams.roles.ingress.task import IngressContext, IngressTask
from streams.telemetry.metrics import Metrics
from topologies.pipeline.ends import TopicSource
from topologies.pipeline.model import Pipeline

ROLES = ("core", "ingress", "continuation")

PoolFactory = Callable[[], Pool]


def signer_of(pipeline: Pipeline) -> TokenSigner | None:
    """Who signs and verifies the pipeline's resume tokens."""
    if pipeline.tokens is None:
        return None
    return TokenSigner(active=pipeline.tokens.active, keys=pipeline.tokens.keys)


@dataclass(kw_only=True)
class Worker:
    """The loops of one app instance."""

    loops: dict[str, TransactionalLoop]
    pools: list[Pool]
    metrics: Metrics
    core: CoreContext | None = None

    @property
    def is_ready(self) -> bool:
        """Every role has joined and restored."""
        return all(loop.is_ready for loop in self.loops.values())

    def close(self) -> None:
        """Stop every loop and free what they share."""
        for loop in self.loops.values():
            loop.close()
        for pool in self.pools:
            pool.close()


def build_worker(
    pipeline: Pipeline,
    *,
    log: Log,
    clock: Clock,
    stores: StoreFactory,
    instance: str,
    static: bool,
    topic_ids: Mapping[str, str],
    roles: tuple[str, ...] = ROLES,
    metrics: Metrics | None = None,
    make_pool: PoolFactory | None = None,
    author: Author | None = None,
    at: Callable[[int], None] = lambda _step: None,
    wait: Callable[[float], None] = lambda _seconds: None,
) -> Worker:
    """Make the loops of some roles.

    `instance` names the transactional ids and, when `static`, the group members; `topic_ids` are as `verify_topics` returns them;
    `at` and `wait` are as in `TransactionalLoop`; without an `author` its code runs on the pool's threads.
    """
    parts = _Parts(
        pipeline=pipeline,
        log=log,
        clock=clock,
        stores=stores,
        instance=instance,
        static=static,
        topic_ids=topic_ids,
        make_pool=make_pool or (lambda: ThreadPool(limits.POOL_THREADS, clock)),
        author=author or LocalAuthor(pipeline),
        at=at,
        wait=wait,
        worker=Worker(loops={}, pools=[], metrics=Metrics() if metrics is None else metrics),
    )
    if "core" in roles:
        parts.add_core()
    if "ingress" in roles:
        parts.add_ingress()
    if "continuation" in roles:
        parts.add_continuation()
    return parts.worker


@dataclass(kw_only=True)
class _Parts:
    """What the loops of one worker are put together from."""

    pipeline: Pipeline
    log: Log
    clock: Clock
    stores: StoreFactory
    instance: str
    static: bool
    topic_ids: Mapping[str, str]
    make_pool: PoolFactory
    author: Author
    at: Callable[[int], None]
    wait: Callable[[float], None]
    worker: Worker

    def __post_init__(self) -> None:
        self._names = Names.of(self.pipeline.app)
        self._signer = signer_of(self.pipeline)

    def _add(
        self, role: str, topics: tuple[str, ...], make_task: MakeTask, *, co_partitioned: bool, pool: Pool | None = None
    ) -> None:
        self.worker.loops[role] = TransactionalLoop(
            name=role,
            log=self.log,
            group=self._names.group(role),
            instance=self.instance if self.static else None,
            transactional_id=self._names.transactional_id(role, self.instance),
            topics=topics,
            own_topic=self._names.completions,
            co_partitioned=co_partitioned,
            make_task=make_task,
            clock=self.clock,
            metrics=self.worker.metrics,
            pool=pool,
            at=self.at,
            wait=self.wait,
        )

    def _new_pool(self) -> Pool:
        pool = self.make_pool()
        self.worker.pools.append(pool)
        return pool

    def add_core(self) -> None:
        """Executions, units, interactions and items."""
        names, loops = self._names, self.worker.loops
        pool = self._new_pool()
        context = self.worker.core = CoreContext(
            pipeline=self.pipeline,
            names=names,
            log=self.log,
            clock=self.clock,
            pool=pool,
            stores=self.stores,
            signer=self._signer,
            metrics=self.worker.metrics,
            instance=self.instance,
            author=self.author,
            topic_ids={names.changelog(table): self.topic_ids[names.changelog(table)] for table in TABLES.values()},
            consumed=lambda partition: loops["core"].consumed(partition),  # noqa: PLW0108 - the loop is made after it
            decided=lambda partition: loops["core"].positions.get(partition, -1),
        )
        topics = (names.commands, names.completions)
        self._add(
            "core",
            topics,
            lambda partition, inputs: CoreTask(context, partition, inputs),
            co_partitioned=True,
            pool=pool,
        )

    def add_ingress(self) -> None:
        """Answers and source records, from the user's topics to ours."""
        source = (self.pipeline.source.topic,) if isinstance(self.pipeline.source, TopicSource) else ()
        topics = (*self.pipeline.response_topics, *source)
        if not topics:
            return
        context = IngressContext(
            pipeline=self.pipeline,
            names=self._names,
            clock=self.clock,
            signer=self._signer,
            metrics=self.worker.metrics,
        )
        self._add("ingress", topics, lambda _partition, inputs: IngressTask(context, inputs), co_partitioned=False)

    def add_continuation(self) -> None:
        """Suffixes of parked executions."""
        pool = self._new_pool()
        context = ContinuationContext(
            pipeline=self.pipeline,
            names=self._names,
            clock=self.clock,
            pool=pool,
            metrics=self.worker.metrics,
            author=self.author,
        )
        self._add(
            "continuation",
            (self._names.continuations,),
            lambda _partition, inputs: ContinuationTask(context, inputs),
            co_partitioned=False,
            pool=pool,
        )
