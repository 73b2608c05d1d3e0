"""The worker: one app instance, a thread for each role, until it is told to stop (SURFACE `kawait worker`).

A thread that meets something that only the operator can mend stops the whole worker with a clear error: half a worker would look alive.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from connectors.objects.publication import remove_stale
from schemas.errors import InstanceFenced, KawaitError, LogError, LogUnavailable
from state.tables.rocksdb import RocksStoreFactory
from streams.author.step_process import StepProcess
from streams.clock import Clock, SystemClock
from streams.engine.loop import TransactionalLoop
from streams.log.kafka.log import KafkaLog
from streams.log.seam import Log
from streams.process.interpreter import tune_interpreter
from streams.roles.object_source import ObjectPoller
from streams.telemetry.admin import AdminServer
from streams.telemetry.metrics import Metrics
from streams.worker.application import wait_for_start
from streams.worker.assembly import ROLES, Assembly, Worker
from streams.worker.topics import topic_remarks
from topologies.pipeline.ends import ObjectOutput, ObjectSource
from topologies.pipeline.model import Pipeline
from topologies.reading.choice import PipelineChoice

logger = structlog.get_logger("kawait.worker")

AUTO = "auto"
GAUGES_EVERY_S = 1.0


@dataclass(kw_only=True)
class WorkerSettings:
    """How a worker runs.

    Attributes:
        instance: Stable name (static membership), or `auto` for a new one each start (dynamic membership).
        choice: Where the pipeline came from: the author's code then runs in a process of its own. None: on threads of this one.
        admin_port: Port of /healthz, /readyz and /metrics; None: none; 0: a free one.
    """

    pipeline: Pipeline
    choice: PipelineChoice | None = None
    bootstrap: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ROLES
    instance: str = field(default_factory=socket.gethostname)
    state_dir: Path = Path("state")
    admin_port: int | None = None


def run_worker(
    settings: WorkerSettings,
    stop: threading.Event,
    *,
    clock: Clock | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Run until `stop` is set; returns the exit code. `clock`: the machine's, unless a test has one that goes wrong.

    Raises:
        UsageError: the pipeline, a topic or the state directory does not allow it to start.
    """
    tune_interpreter()
    static = settings.instance != AUTO
    instance = settings.instance if static else f"auto-{uuid.uuid4().hex[:12]}"  # noqa: TID251 - a name, not a decision
    pipeline, clock = settings.pipeline, clock or SystemClock()
    stores = RocksStoreFactory(settings.state_dir / pipeline.app, instance)  # held: exit before anybody is fenced
    log = KafkaLog(settings.bootstrap, settings.kafka)
    runs_steps = settings.choice is not None and not {"core", "continuation"}.isdisjoint(settings.roles)
    author = StepProcess(settings.choice) if settings.choice is not None and runs_steps else None
    try:
        taken_up = wait_for_start(pipeline, log, stop)
        if taken_up is None:
            return 0
        _tell_remarks(pipeline, log)
        worker = Assembly(
            pipeline=pipeline,
            log=log,
            clock=clock,
            stores=stores,
            instance=instance,
            static=static,
            taken_up=taken_up,
            roles=settings.roles,
            metrics=Metrics(),
            author=author,
            wait=stop.wait,
        ).build()
        if author is not None:
            author.wait_ready()
        _clean_up_output(pipeline, instance)
        with _admin(settings, worker):
            return serve(worker, pipeline, log, stop, clock, on_ready=on_ready)
    finally:
        if author is not None:
            author.close()
        log.close()
        stores.close()
        if not static:  # nobody will ever take this name again
            shutil.rmtree(stores.path, ignore_errors=True)


def _tell_remarks(pipeline: Pipeline, log: Log) -> None:
    """What is not as we would have made it about topics that will do; nothing where the broker is away again."""
    with contextlib.suppress(LogUnavailable):
        for remark in topic_remarks(pipeline, log):
            logger.warning("a topic is not as `kawait topics` would make it", detail=remark)


def _admin(settings: WorkerSettings, worker: Worker) -> AdminServer | _NoAdmin:
    if settings.admin_port is None:
        return _NoAdmin()
    return AdminServer(port=settings.admin_port, registry=worker.metrics.registry, is_ready=lambda: worker.is_ready)


class _NoAdmin:
    """Stands where an admin server is not wanted."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_exc_info: object) -> None:
        return None


def _clean_up_output(pipeline: Pipeline, instance: str) -> None:
    """Temporary files that this instance left behind when it was killed."""
    if isinstance(pipeline.output, ObjectOutput) and pipeline.output.location.exists():
        for name in remove_stale(pipeline.output.location, instance=instance):
            logger.info("removed an unfinished object of an earlier run", file=name)


def serve(
    worker: Worker,
    pipeline: Pipeline,
    log: Log,
    stop: threading.Event,
    clock: Clock,
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Run a worker's loops in threads until `stop` is set or one of them fails; returns the exit code."""
    failures: list[BaseException] = []
    threads = [
        threading.Thread(
            target=_run_loop, args=(loop, worker, stop, clock, failures), name=f"kawait-{role}", daemon=True
        )
        for role, loop in worker.loops.items()
    ]
    if "core" in worker.loops and isinstance(pipeline.source, ObjectSource):
        poller = ObjectPoller(pipeline, pipeline.source, log, clock, worker.loops["core"], worker.metrics)
        threads.append(threading.Thread(target=poller.run, args=(stop, failures), name="kawait-source", daemon=True))
    for thread in threads:
        thread.start()
    ready = False
    while not stop.wait(0.05):
        if not ready and worker.is_ready:
            ready = True
            on_ready()
        if not any(thread.is_alive() for thread in threads):
            break
    for thread in threads:
        thread.join()
    worker.free()
    for failure in failures[:1]:  # the others fell with it
        _report(failure)
    return 1 if failures else 0


def _report(failure: BaseException) -> None:
    if isinstance(failure, InstanceFenced):
        logger.error("another process runs under this instance name: this one stops", detail=str(failure))
    elif isinstance(failure, KawaitError):
        logger.error("the worker cannot go on", detail=str(failure))
    else:
        logger.error("the worker failed", exc_info=failure)


def _run_loop(
    loop: TransactionalLoop, worker: Worker, stop: threading.Event, clock: Clock, failures: list[BaseException]
) -> None:
    """One role's thread. Membership is given up on the thread that polls."""
    gauges_at_s = 0.0
    try:
        while not stop.is_set():
            loop.step()
            if loop.name == "core" and clock.monotonic_s() > gauges_at_s:
                gauges_at_s = clock.monotonic_s() + GAUGES_EVERY_S
                report_gauges(loop, worker)
    except BaseException as error:
        failures.append(error)
        stop.set()
    finally:
        try:
            loop.close()
        except LogError as error:
            logger.warning("closing", role=loop.name, detail=str(error))


def report_gauges(loop: TransactionalLoop, worker: Worker) -> None:
    """What is open right now on this worker."""
    health = [task.health() for task in dict.fromkeys(loop.tasks.values())]
    worker.metrics.open_interactions.set(sum(each.open for each in health))
    worker.metrics.oldest_pending_age.set(max((each.oldest_s for each in health), default=0.0))
    worker.metrics.deadlines_held.set(sum(each.held for each in health))
    worker.metrics.window_occupancy.set(sum(each.occupied for each in health))
