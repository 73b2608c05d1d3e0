"""What the scenarios of known faults are made of: projects, drivers, a worker in real time, counters of work and of what is held.

Product modules are imported here, so that a test module names none.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import FrameType, FunctionType, ModuleType
from typing import Any
from unittest import mock

import msgspec

from connectors.objects.listing import identify
from connectors.objects.publication import ObjectPublication
from schemas import codec, limits
from schemas.envelopes import RequestEnvelope
from schemas.errors import InstanceFenced, KawaitError
from schemas.facts import Fact
from schemas.names import Names
from state.keys import TABLES
from state.tables.memory import MemoryStore, MemoryStoreFactory
from state.tables.timers import TimerIndex
from streams.author.calls import Author
from streams.author.step_process import StepProcess
from streams.clock import Clock, ManualClock, SystemClock
from streams.doors.submissions import command_for_object, command_for_payload, send
from streams.engine.aside import AtOnce
from streams.engine.loop import TransactionalLoop
from streams.engine.pool import ThreadPool
from streams.log.memory.log import MemoryLog
from streams.log.seam import Log, Record, TopicPartition
from streams.roles.object_source import ObjectPoller
from streams.testing.driver import Answer, TopologyTestDriver
from streams.testing.inline_pool import InlinePool
from streams.worker.application import take_up
from streams.worker.assembly import Assembly
from streams.worker.run import report_gauges
from streams.worker.topics import ensure_topics
from tests.faults.playing import ROOT, Outcome, outcome_of
from tests.topologies.outside import SECRET, price
from topologies.pipeline.ends import ObjectSource
from topologies.reading.choice import PipelineChoice
from topologies.reading.loading import load_pipeline

__all__ = [
    "DAY_MS",
    "HOUR_MS",
    "MINUTE_MS",
    "SHOP",
    "InstanceFenced",
    "KawaitError",
    "Outcome",
    "RealTime",
    "SystemClock",
    "ThreadPool",
    "TimerIndex",
    "TopologyTestDriver",
    "author_project",
    "counted_reads",
    "delete_records",
    "driver_of",
    "expire_offsets",
    "limits",
    "look_at_input",
    "outcome_of",
    "payload_bytes_held",
    "price",
    "put_file",
    "report_gauges",
    "restart_with",
    "shop",
    "slow_writes",
    "submission_id",
    "things_held",
    "waits_by_hand",
    "work_of",
]

SHOP = ROOT / "tests" / "topologies" / "pipelines"
ENVIRON = {"KAWAIT_TOKEN_K1": SECRET}
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
LONG_AGO_S = 1_600_000_000
ENDS = ("RunSucceeded", "RunFailed")

# --- projects and drivers ------------------------------------------------------------------------------------------------------------

ASK = (
    "kind: await, timeout: PT1H, await: {correlation: {strategy: interactionId}, "
    'transport: {type: kafka, request: {topic: "{app}.asked"}, response: {topic: "{app}.answered"}}}'
)
"""What `$ASK` stands for in a pipeline of `author_project`."""


def author_project(**files: str) -> None:
    """Write an author's project into the current folder: `some_yaml` becomes `some.yaml`, any other name a module."""
    for name, text in files.items():
        stem, _, kind = name.rpartition("_")
        path = f"{stem}.yaml" if kind == "yaml" else f"{name}.py"
        Path(path).write_text(dedent(text).replace("$ASK", ASK))


def driver_of(path: str | Path, *, answer: Answer | None = None, sets: Sequence[str] = ()) -> TopologyTestDriver:
    """A driver of a pipeline, on one partition."""
    return TopologyTestDriver(path, answer=answer, overrides=("kafka.partitions=1", *sets), environ=ENVIRON)


def shop(name: str, *, answer: Answer | None = None, sets: Sequence[str] = ()) -> TopologyTestDriver:
    """A driver of one of the small pipelines of tests/topologies, on one partition."""
    return driver_of(SHOP / f"{name}.yaml", answer=answer, sets=sets)


def restart_with(driver: TopologyTestDriver, *, clock: Clock | None = None, log: Log | None = None) -> None:
    """Start the driver's worker anew, with another clock or another way to the log."""
    for pool in driver.pools:
        pool.close()
    driver.worker = Assembly(
        pipeline=driver.pipeline,
        log=log or driver.log,
        clock=clock or driver.clock,
        stores=driver.stores,
        instance="driver",
        static=True,
        taken_up=take_up(driver.pipeline, driver.log),
        make_pool=lambda: InlinePool(driver.clock),
        aside=AtOnce(),
        pace_s=0.0,
    ).build()


def expire_offsets(driver: TopologyTestDriver, topic: str) -> None:
    """Forget what was committed of a topic, as a broker does when its group was empty for long."""
    for group in driver.log._broker.groups.values():
        for at in [at for at in group.committed if at.topic == topic]:
            del group.committed[at]


def delete_records(driver: TopologyTestDriver, topic: str) -> None:
    """Delete what a topic holds, as a broker does when its retention is over."""
    at = TopicPartition(topic, 0)
    driver.log.trim(at, driver.log.end_offsets([at], "uncommitted", 1)[at])


def submission_id(pipeline: str, payload: bytes) -> str:
    """The execution that a payload is, were it submitted."""
    return command_for_payload(load_pipeline(pipeline, environ=ENVIRON), payload).execution_id


def put_file(path: str, text: str) -> Path:
    """A file that was written long ago; gives its absolute path."""
    file = Path(path).absolute()
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    return file


class _Looks(threading.Event):
    """Stands for the event that stops a poller: it lets it look some times, and time pass between two looks."""

    def __init__(self, driver: TopologyTestDriver, looks: int) -> None:
        super().__init__()
        self._driver = driver
        self._looks = looks

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._driver.advance(int(timeout * 1_000))
        self._looks -= 1
        if self._looks == 0:
            self.set()
        return self.is_set()


def look_at_input(driver: TopologyTestDriver, looks: int = 4) -> list[BaseException]:
    """Let a worker's poller look at the input folder, and the application run; gives what stopped the poller, if anything did."""
    source = driver.pipeline.source
    assert isinstance(source, ObjectSource)
    driver.run()
    failures: list[BaseException] = []
    poller = ObjectPoller(driver.pipeline, source, driver.log, driver.clock, driver.worker.loops["core"])
    poller.run(_Looks(driver, looks), failures)
    driver.run()
    return failures


# --- work and memory, counted --------------------------------------------------------------------------------------------------------


class Reads:
    """Rows that were read from the stores, by table."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        """By key."""
        self.scanned: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        """All of them."""
        return self.asked.total() + self.scanned.total()


@contextmanager
def counted_reads(clock: ManualClock | None = None) -> Iterator[Reads]:
    """Count what is read from stores in memory; each row takes a millisecond of the clock."""
    reads, get_many, scan = Reads(), MemoryStore.get_many, MemoryStore.scan

    def note(kind: Counter[str], key: bytes) -> None:
        kind[TABLES[chr(key[0])]] += 1
        if clock is not None:
            clock.advance(1)

    def counting_get_many(store: MemoryStore, keys: Sequence[bytes]) -> list[bytes | None]:
        for key in keys:
            note(reads.asked, key)
        return get_many(store, keys)

    def counting_scan(
        store: MemoryStore, start: bytes, end: bytes, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in scan(store, start, end, limit):
            note(reads.scanned, key)
            yield key, value

    with (
        mock.patch.object(MemoryStore, "get_many", counting_get_many),
        mock.patch.object(MemoryStore, "scan", counting_scan),
    ):
        yield reads


def work_of(call: Callable[[], object]) -> int:
    """How much Python is executed by a call, in bytecodes."""
    count = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


_CODE = (type, ModuleType, FunctionType)
_LOG_AND_STORES = ("streams.log.memory", "state.tables.memory")


def _held_by(root: object) -> Iterator[object]:
    """Everything that an object leads to, but code, the log and the stores."""
    seen, todo = {id(root)}, [root]
    while todo:
        thing = todo.pop()
        yield thing
        fields = getattr(type(thing), "__struct_fields__", ())  # those that the collector does not look into
        for other in (*gc.get_referents(thing), *(getattr(thing, name) for name in fields)):
            if id(other) in seen or isinstance(other, _CODE):
                continue
            if not type(other).__module__.startswith(_LOG_AND_STORES):
                seen.add(id(other))
                todo.append(other)


def things_held(root: object) -> int:
    """How many objects it keeps alive."""
    return sum(1 for _ in _held_by(root))


def payload_bytes_held(root: object, size: int) -> int:
    """Bytes of payloads of at least `size` that it keeps alive."""
    return sum(len(thing) for thing in _held_by(root) if isinstance(thing, bytes) and len(thing) >= size)


# --- slowness ------------------------------------------------------------------------------------------------------------------------


@contextmanager
def slow_writes(seconds: float) -> Iterator[None]:
    """Make each write to an output object take long."""
    write = ObjectPublication.write

    def slow(publication: ObjectPublication, chunk: bytes) -> None:
        time.sleep(seconds)
        write(publication, chunk)

    with mock.patch.object(ObjectPublication, "write", slow):
        yield


@contextmanager
def waits_by_hand(clock: ManualClock) -> Iterator[None]:
    """Make waits between threads pass on the driver's clock instead, each to its end; the machine's clock is the driver's meanwhile."""

    def wait(_condition: threading.Condition, timeout: float | None = None) -> bool:
        assert timeout is not None, "nobody would ever end this wait"
        clock.advance(int(timeout * 1_000))
        return False

    with mock.patch.object(threading.Condition, "wait", wait), mock.patch("time.monotonic", clock.monotonic_s):
        yield


# --- a worker in real time -----------------------------------------------------------------------------------------------------------


class RealTime:
    """A whole worker on the log in memory, with threads and the machine's clock; it runs until its process ends.

    Args:
        pipeline: Path of its file.
        in_step_process: Whether the author's code runs in a process of its own.
    """

    def __init__(self, pipeline: str | Path, *, in_step_process: bool = False, sets: Sequence[str] = ()) -> None:
        clock = SystemClock()
        choice = PipelineChoice(path=Path(pipeline), overrides=("kafka.partitions=1", *sets))
        self.pipeline = choice.load(ENVIRON)
        self._log = MemoryLog(clock=clock)
        self._doors = self._log.plain_producer()
        self._outside = self._log.producer("outside")
        self._outside.init(1)
        self._answered: set[str] = set()
        self._failures: list[BaseException] = []
        ensure_topics(self.pipeline, self._log)
        author: Author | None = None
        if in_step_process:
            author = StepProcess(choice)
            author.wait_ready()
        worker = Assembly(
            pipeline=self.pipeline,
            log=self._log,
            clock=clock,
            stores=MemoryStoreFactory(),
            instance="real",
            static=True,
            taken_up=take_up(self.pipeline, self._log),
            author=author,
            wait=time.sleep,
        ).build()
        for loop in worker.loops.values():
            threading.Thread(target=self._run, args=(loop,), daemon=True).start()

    def _run(self, loop: TransactionalLoop) -> None:
        try:
            while True:
                loop.step()
                time.sleep(0.001)
        except BaseException as error:
            self._failures.append(error)
            raise

    def submit(self, value: object = None, *, file: Path | None = None) -> str:
        """Submit a payload or a file; returns the execution id."""
        command = (
            command_for_payload(self.pipeline, json.dumps(value).encode())
            if file is None
            else command_for_object(self.pipeline, identify(file))
        )
        send(self.pipeline, self._doors, command, timeout_s=1)
        return command.execution_id

    def answer(self, reply: Callable[[RequestEnvelope], object], *, at_least: int = 1) -> None:
        """Answer what was not answered yet, all at once, as soon as it is so much."""
        app = self.pipeline.app
        asked = [
            msgspec.json.decode(record.value or b"", type=RequestEnvelope) for record in self._records(f"{app}.asked")
        ]
        waiting = [request for request in asked if request.interaction_id not in self._answered]
        if len(waiting) < at_least:
            return
        self._outside.begin()
        for request in waiting:
            self._answered.add(request.interaction_id)
            envelope = {
                "interactionId": request.interaction_id,
                "resumeToken": request.resume_token,
                "responsePayload": reply(request),
            }
            self._outside.produce(f"{app}.answered", json.dumps(envelope).encode(), partition=0)
        self._outside.commit(1)

    def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether something comes true in time."""
        until_s = time.monotonic() + limit_s
        while not condition():
            if self._failures:
                raise self._failures[0]
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        return True

    def facts(self, execution_id: str) -> list[Fact]:
        """What happened to an execution."""
        found = (codec.decode(record.value) for record in self._records(Names.of(self.pipeline.app).facts))
        return [fact for fact in found if isinstance(fact, Fact) and fact.execution_id == execution_id]

    def end_of(self, execution_id: str) -> str | None:
        """Name of the fact that ended an execution, if anything did."""
        return next((name for fact in self.facts(execution_id) if (name := type(fact).__name__) in ENDS), None)

    def failed_attempts(self, execution_id: str) -> list[int | None]:
        """The item of each attempt that failed; None: the segment before the items."""
        kinds = ("SegmentAttemptFailed", "ContinuationAttemptFailed")
        found = [fact for fact in self.facts(execution_id) if type(fact).__name__ in kinds]
        return [getattr(fact, "item_index", None) for fact in found]

    def _records(self, topic: str) -> list[Record]:
        reader = self._log.reader()
        reader.assign({TopicPartition(topic, 0): 0})
        found = reader.poll(1_000_000, 0)
        reader.close()
        return found
