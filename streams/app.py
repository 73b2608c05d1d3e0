"""The composition root: the only module that names concrete classes (DESIGN 3).

`build_roles` makes the loops of a worker over a log; the worker, the demo, the test driver and the simulator all run what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectors.resume_token import TokenSigner
from schemas import limits
from schemas.errors import TopicMismatch
from schemas.topics import catalogue, mismatches
from state.keys import TABLES
from state.table import StoreFactory
from streams.author import Author, LocalAuthor
from streams.clock import Clock
from streams.continuations import ContinuationContext, ContinuationTask
from streams.core import CoreTask
from streams.core_context import CoreContext
from streams.ingress import IngressContext, IngressTask
from streams.log import Log, TopicSpec
from streams.loop import TransactionalLoop
from streams.metrics import Metrics
from streams.names import Names
from streams.pool import Pool, ThreadPool
from topologies.pipeline import Pipeline, TopicSource

TOPICS_TIMEOUT_S = 30.0
ROLES = ("core", "ingress", "continuation")

PoolFactory = Callable[[], Pool]


def signer_of(pipeline: Pipeline) -> TokenSigner | None:
    """Who signs and verifies the pipeline's resume tokens."""
    if pipeline.tokens is None:
        return None
    return TokenSigner(active=pipeline.tokens.active, keys=pipeline.tokens.keys)


def topic_specs(pipeline: Pipeline) -> list[TopicSpec]:
    """Every topic that the pipeline needs, as it must be."""
    settings = catalogue(
        pipeline.app,
        partitions=pipeline.partitions,
        replication_factor=pipeline.replication_factor,
        facts_retention_ms=pipeline.retention.facts_ms,
        external=pipeline.external_topics,
    )
    return [TopicSpec(spec.name, spec.partitions, spec.replication_factor, spec.config) for spec in settings]


def ensure_topics(pipeline: Pipeline, log: Log, *, timeout_s: float = TOPICS_TIMEOUT_S) -> list[str]:
    """Create what is missing and refuse what does not fit.

    Returns:
        Names of the topics that were created.

    Raises:
        TopicMismatch: a topic has other settings than the pipeline needs; nothing was changed in it.
    """
    specs = topic_specs(pipeline)
    known = log.topics([spec.name for spec in specs], timeout_s)
    missing = [spec for spec in specs if spec.name not in known]
    if missing:
        log.create_topics(missing, timeout_s)
    verify_topics(pipeline, log, timeout_s=timeout_s)
    return [spec.name for spec in missing]


def verify_topics(pipeline: Pipeline, log: Log, *, timeout_s: float = TOPICS_TIMEOUT_S) -> Mapping[str, str]:
    """Check every topic.

    Returns:
        Topic ids by name.

    Raises:
        TopicMismatch: a topic is missing or has other settings than the pipeline needs; every one is named.
    """
    settings = catalogue(
        pipeline.app,
        partitions=pipeline.partitions,
        replication_factor=pipeline.replication_factor,
        facts_retention_ms=pipeline.retention.facts_ms,
        external=pipeline.external_topics,
    )
    known = log.topics([spec.name for spec in settings], timeout_s)
    problems: list[str] = []
    missing: list[str] = []
    for spec in settings:
        state = known.get(spec.name)
        if state is None:
            missing.append(spec.name)
        else:
            problems += mismatches(spec, state.partitions, state.config)
    if missing:
        named = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
        problems.append(
            f"missing topics: {named}; create them with `kawait topics {pipeline.path} --app {pipeline.app}`"
        )
    if problems:
        raise TopicMismatch("\n".join(problems))
    return {name: state.topic_id for name, state in known.items()}


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
    shared = Metrics() if metrics is None else metrics
    names = Names.of(pipeline.app)
    signer = signer_of(pipeline)
    runs = author or LocalAuthor(pipeline)
    make = make_pool or (lambda: ThreadPool(limits.POOL_THREADS, clock))
    worker = Worker(loops={}, pools=[], metrics=shared)

    def loop(role: str, topics: tuple[str, ...], **rest: object) -> TransactionalLoop:
        return TransactionalLoop(
            name=role,
            log=log,
            group=names.group(role),
            instance=instance if static else None,
            transactional_id=names.transactional_id(role, instance),
            topics=topics,
            own_topic=names.completions,
            clock=clock,
            metrics=shared,
            at=at,
            wait=wait,
            **rest,  # type: ignore[arg-type]
        )

    if "core" in roles:
        pool = make()
        worker.pools.append(pool)
        context = CoreContext(
            pipeline=pipeline,
            names=names,
            log=log,
            clock=clock,
            pool=pool,
            stores=stores,
            signer=signer,
            metrics=shared,
            instance=instance,
            author=runs,
            topic_ids={names.changelog(table): topic_ids[names.changelog(table)] for table in TABLES.values()},
            consumed=lambda partition: worker.loops["core"].consumed(partition),  # noqa: PLW0108 - the loop is made after it
            decided=lambda partition: worker.loops["core"].positions.get(partition, -1),
        )
        worker.core = context
        worker.loops["core"] = loop(
            "core",
            (names.commands, names.completions),
            co_partitioned=True,
            make_task=lambda partition, inputs: CoreTask(context, partition, inputs),
            pool=pool,
        )
    if "ingress" in roles:
        source = (pipeline.source.topic,) if isinstance(pipeline.source, TopicSource) else ()
        topics = (*pipeline.response_topics, *source)
        ingress = IngressContext(pipeline=pipeline, names=names, clock=clock, signer=signer, metrics=shared)
        if topics:
            worker.loops["ingress"] = loop(
                "ingress",
                topics,
                co_partitioned=False,
                make_task=lambda _partition, inputs: IngressTask(ingress, inputs),
            )
    if "continuation" in roles:
        pool = make()
        worker.pools.append(pool)
        continuation = ContinuationContext(
            pipeline=pipeline, names=names, clock=clock, pool=pool, metrics=shared, author=runs
        )
        worker.loops["continuation"] = loop(
            "continuation",
            (names.continuations,),
            co_partitioned=False,
            make_task=lambda _partition, inputs: ContinuationTask(continuation, inputs),
            pool=pool,
        )
    return worker
