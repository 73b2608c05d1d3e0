"""What waiting costs: CPU of a worker without work, and of one with many parked units."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from bench import scalar
from bench.place import Place, offsets_of
from bench.processes import Watch
from bench.throughput import RunFailed
from schemas import codec
from schemas.identity import home_partition
from schemas.names import Names
from streams.demo.kafka import PROCESSES, READY_TIMEOUT_S, remove_app
from streams.doors.submissions import command_for_payload
from streams.log.kafka.log import KafkaLog
from streams.process.child import Child, end_all
from streams.worker.topics import ensure_topics
from topologies.pipeline.model import Pipeline
from topologies.reading.choice import PipelineChoice

PARK_TIMEOUT_S = 120.0
SETTLE_S = 3.0
"""Left alone for so long before it counts: the last commit, the first quiet polls."""
FACTS_PARKED = 4
"""RunSubmitted, BoundaryUnitOpened, BoundaryInteractionDispatched, SegmentSuspended: at least so many of each execution."""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Percent of one core by process; `park_s` is how long parking `parked` units took."""

    load: str
    parked: int
    seconds: float
    percent: dict[str, float]
    park_s: float = 0.0


def measure(units: int, seconds: float, place: Place, folder: Path) -> list[Idle]:
    """The broker alone, a worker without work, then the same with `units` parked; the project is kept below `folder`."""
    alone = _look("broker alone", 0, seconds, place, [])
    with _running(place, folder / "question") as (pipeline, log, children):
        nothing = _look("worker without work", 0, seconds, place, children)
        park_s = _park(pipeline, place, log, units)
        parked = _look(f"{units:,} parked units", units, seconds, place, children, park_s)
    return [alone, nothing, parked]


def _look(load: str, parked: int, seconds: float, place: Place, children: list[Child], park_s: float = 0.0) -> Idle:
    time.sleep(SETTLE_S)
    watch = Watch(place.pids(children))
    time.sleep(seconds)
    for child in children:
        child.check()
    return Idle(load=load, parked=parked, seconds=seconds, percent=watch.percent(), park_s=park_s)


@contextmanager
def _running(place: Place, project: Path) -> Iterator[tuple[Pipeline, KafkaLog, list[Child]]]:
    """A worker of the one-question pipeline; nobody answers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kawait-bench-")))
        path = scalar.write(project)
        app = f"bench-idle-{secrets.token_hex(4)}"
        pipeline = PipelineChoice(path=path, app=app).load(os.environ)
        log = KafkaLog(place.connection.bootstrap, place.connection.config)
        stack.callback(log.close)
        stack.callback(remove_app, pipeline, place.connection)
        ensure_topics(pipeline, log)
        children: list[Child] = []
        stack.callback(lambda: end_all(children))
        common = [str(path), "--app", app, "--bootstrap", place.connection.bootstrap, "--admin-port", "off"]
        for name, roles in PROCESSES:
            own = ["--roles", roles, "--instance", "auto", "--state-dir", str(folder / name)]
            children.append(Child(name, ["worker", *common, *own], environ=os.environ, log_path=folder / f"{name}.log"))
        until_s = time.monotonic() + READY_TIMEOUT_S
        for child in children:
            child.wait_ready(until_s)
        yield pipeline, log, children


def _park(pipeline: Pipeline, place: Place, log: KafkaLog, units: int) -> float:
    """Submit executions and wait until each has sent its question; returns the seconds it took.

    Raises:
        RunFailed: not in time.
    """
    names = Names.of(pipeline.app)
    producer = Producer({**place.connection.config, "bootstrap.servers": place.connection.bootstrap, "linger.ms": 5})
    started_s = time.monotonic()
    for number in range(units):
        command = command_for_payload(pipeline, b'{"number": %d}' % number, key=f"q-{number}")
        home = home_partition(command.execution_id, pipeline.partitions)
        producer.produce(names.commands, codec.encode(command), key=command.execution_id.encode(), partition=home)
        producer.poll(0)
    producer.flush()
    questions = f"{pipeline.app}.questions"
    while (sent := offsets_of(log, [questions, names.facts]))[questions] < units or sent[
        names.facts
    ] < FACTS_PARKED * units:
        if time.monotonic() > started_s + PARK_TIMEOUT_S:
            raise RunFailed(f"{sent} offsets after {PARK_TIMEOUT_S:g} s: {units} units are not parked")
        time.sleep(0.1)
    return time.monotonic() - started_s
