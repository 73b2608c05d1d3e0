"""The demo's workers and provider as threads on a memory log: one process, no Kafka, and nothing is kept after it ends (DESIGN 9)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from state.tables.memory import MemoryStoreFactory
from streams.clock import SystemClock
from streams.demo import provider_answers as mock
from streams.demo.run import DemoFailed, DemoSettings, payment_topics
from streams.log.memory.log import MemoryLog
from streams.log.seam import Log, TopicPartition
from streams.process.interpreter import SWITCH_INTERVAL_S
from streams.telemetry.metrics import Metrics
from streams.worker.application import take_up
from streams.worker.assembly import Assembly
from streams.worker.run import serve
from streams.worker.topics import ensure_topics
from topologies.pipeline.model import Pipeline

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_RECORDS = 2_000
POLL_S = 0.05


@dataclass
class MemoryStage:
    """Threads of workers and of a provider."""

    log: Log
    pipeline: Pipeline
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def start(self, name: str, run: Callable[[], object]) -> None:
        """Run a part in a thread of its own."""

        def body() -> None:
            try:
                run()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=body, name=f"kawait-{name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Do nothing while everything runs."""
        if self.failures:
            raise DemoFailed(f"the demo broke off: {self.failures[0]!r}") from self.failures[0]
        ended = [thread.name for thread in self.threads if not thread.is_alive()]
        if ended and not self.stop.is_set():
            raise DemoFailed(f"the demo broke off: {', '.join(ended)} ended; what it said is above")

    def close(self) -> None:
        """End every part."""
        self.stop.set()
        for thread in self.threads:
            thread.join(STOP_TIMEOUT_S)


@contextmanager
def memory_stage(settings: DemoSettings, environ: Mapping[str, str], folder: Path) -> Iterator[MemoryStage]:
    """Workers and a provider that are ready, on a log in memory.

    Args:
        settings: What is run.
        environ: With the token keys.
        folder: An empty one.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    clock = SystemClock()
    pipeline = settings.choice(folder, settings.app).load(environ)
    log = MemoryLog(clock)
    ensure_topics(pipeline, log)
    stage = MemoryStage(log, pipeline)
    ready = [_start_worker(stage, f"demo-{number}") for number in range(1, settings.workers + 1)]
    stage.start("provider", lambda: answer_requests(log, pipeline, settings.reject_rate, stage.stop))
    try:
        until_s = clock.monotonic_s() + READY_TIMEOUT_S
        while not all(event.wait(POLL_S) for event in ready):
            stage.check()
            if clock.monotonic_s() > until_s:
                raise DemoFailed(f"the workers were not ready within {READY_TIMEOUT_S:g} s")
        yield stage
    finally:
        stage.close()


def _start_worker(stage: MemoryStage, instance: str) -> threading.Event:
    ready = threading.Event()
    worker = Assembly(
        pipeline=stage.pipeline,
        log=stage.log,
        clock=SystemClock(),
        stores=MemoryStoreFactory(),
        instance=instance,
        static=True,
        taken_up=take_up(stage.pipeline, stage.log),
        metrics=Metrics(),
        wait=stage.stop.wait,
    ).build()
    stop = stage.stop
    stage.start(instance, lambda: serve(worker, stage.pipeline, stage.log, stop, SystemClock(), on_ready=ready.set))
    return ready


def answer_requests(log: Log, pipeline: Pipeline, reject_rate: float, stop: threading.Event) -> None:
    """The mock provider on any log: answers every request from the start of the topic, until `stop` is set."""
    requests, responses = payment_topics(pipeline)
    reader, producer = log.reader(), log.plain_producer()
    partitions = range(log.topics([requests], 10.0)[requests].partitions)
    reader.assign({TopicPartition(requests, number): 0 for number in partitions})
    try:
        while not stop.is_set():
            for record in reader.poll(POLL_RECORDS, POLL_S):
                answer = mock.answer(record.value, reject_rate=reject_rate)
                producer.send(responses, answer, key=record.key, timeout_s=10.0)
    finally:
        reader.close()
        producer.close()
