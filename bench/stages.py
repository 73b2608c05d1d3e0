"""Where a row's time goes inside the runtime: csv-payments on the test driver, one thread, no broker, a timer around each stage.

Times are self times: what a stage spends in another stage counts there. The driver's stand-in for the broker and the outside party is
listed too (`driver: ...`); what remains is the loop's own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec

from bench.throughput import RunFailed, inputs_for
from schemas.envelopes import RequestEnvelope
from streams.author import local, suffixes
from streams.demo import provider_answers as mock
from streams.demo.run import PIPELINE, TOKEN_NAME
from streams.engine import loop
from streams.log.memory import consumer as memory_consumer
from streams.log.memory import producer as memory_producer
from streams.roles.core import intake, local_work, source
from streams.roles.core import task as core
from streams.roles.ingress import task as ingress
from streams.testing import driver as testing
from topologies.reading.loading import load_pipeline

TOKEN_KEY = "k" * 32
Name = str | Callable[[tuple[Any, ...]], str]


def _decide_name(arguments: tuple[Any, ...]) -> str:
    return f"core: decide {type(arguments[1].event).__name__}"


STAGES: tuple[tuple[Any, str, Name], ...] = (
    (source.SourceStream, "pull", "pool: pull items from the source"),
    (intake.Intake, "_unshaped", "pool: project and shape answers"),
    (local.LocalAuthor, "project", "pool: project and shape answers"),
    (suffixes.Suffix, "run_chunk", "pool: run suffixes"),
    (local_work, "publish_object", "pool: publish the output"),
    (loop.TransactionalLoop, "_poll", "loop: poll"),
    (core.CoreTask, "accept", "core: decode records"),
    (core.CoreTask, "prefetch", "core: prefetch rows"),
    (core.CoreTask, "decide", _decide_name),
    (core.CoreTask, "settle", "core: settle"),
    (core.CoreTask, "changes", "core: encode rows"),
    (loop.TransactionalLoop, "_produce", "loop: produce"),
    (core.CoreTask, "apply", "core: apply rows"),
    (core.CoreTask, "hand_over", "core: hand over"),
    (loop.TransactionalLoop, "_take_results", "core: take results"),
    (ingress.IngressTask, "decide", "ingress: decide"),
    (memory_producer.MemoryProducer, "produce", "driver: log takes records"),
    (memory_producer.MemoryProducer, "commit", "driver: log commits"),
    (memory_consumer.MemoryGroupConsumer, "poll", "driver: log gives records"),
    (testing.TopologyTestDriver, "_answer_new", "driver: outside party"),
)
"""Owner, function, stage."""


class Stopwatch:
    """Self time by stage."""

    def __init__(self, clock_s: Callable[[], float] = time.thread_time) -> None:
        self.self_s: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._clock_s = clock_s
        self._stack: list[str] = []
        self._since_s = 0.0

    def timed(self, function: Callable[..., Any], name: Name) -> Callable[..., Any]:
        """The function, with its time counted."""
        clock_s, stack, self_s, calls = self._clock_s, self._stack, self.self_s, self.calls

        @wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            stage = name if isinstance(name, str) else name(arguments)
            now_s = clock_s()
            if stack:
                self_s[stack[-1]] += now_s - self._since_s
            stack.append(stage)
            calls[stage] += 1
            self._since_s = now_s
            try:
                return function(*arguments, **options)
            finally:
                now_s = clock_s()
                self_s[stage] += now_s - self._since_s
                stack.pop()
                self._since_s = now_s

        return run


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One line of a profile."""

    name: str
    us_per_row: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profiled run; `total_us_per_row` is the CPU time of the thread, timers included."""

    rows: int
    total_us_per_row: float
    stages: list[Stage]


@contextmanager
def wrapped(wrap: Callable[[Callable[..., Any], Name], Callable[..., Any]]) -> Iterator[None]:
    """Every stage's function replaced by what `wrap` makes of it, for a while."""
    with ExitStack() as stack:
        for owner, attribute, name in STAGES:
            original = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, wrap(original, name))
        yield


def measure(rows: int, folder: Path, *, live: bool = True) -> Profile:
    """Profile a run of `rows` rows."""
    watch = Stopwatch()
    with wrapped(watch.timed):
        total_s = run_driver(rows, folder, live=live)
    stages = [
        Stage(name=name, us_per_row=1e6 * spent_s / rows, calls=watch.calls[name])
        for name, spent_s in sorted(watch.self_s.items(), key=lambda pair: -pair[1])
    ]
    rest_s = total_s - sum(watch.self_s.values())
    stages.append(Stage(name="loop: the rest", us_per_row=1e6 * rest_s / rows, calls=0))
    return Profile(rows=rows, total_us_per_row=1e6 * total_s / rows, stages=stages)


def run_driver(rows: int, folder: Path, *, live: bool = True) -> float:
    """Run csv-payments on the driver; returns the CPU seconds of the run itself.

    Raises:
        RunFailed: it did not succeed.
    """
    output = folder / "driver"
    output.mkdir(parents=True, exist_ok=True)
    (path,) = inputs_for(folder / "in", rows)
    (output / f"{path.name}.out").unlink(missing_ok=True)
    overrides = [f"output.location={output.absolute()}"]
    overrides += [] if live else ["steps.await-payment-provider.await.live=false"]
    pipeline = load_pipeline(PIPELINE, environ={TOKEN_NAME: TOKEN_KEY}, overrides=overrides)
    driver = testing.TopologyTestDriver(pipeline, answer=_answer)
    try:
        execution = driver.submit(file=path)
        started_s = time.thread_time()
        driver.run()
        spent_s = time.thread_time() - started_s
        if driver.status(execution) != "SUCCEEDED":
            raise RunFailed(f"the profiled run ended as {driver.status(execution)}")
    finally:
        driver.close()
    return spent_s


def _answer(request: RequestEnvelope) -> Mapping[str, Any]:
    """What the mock provider answers."""
    told = msgspec.json.decode(mock.answer(msgspec.json.encode(request), reject_rate=mock.REJECT_RATE_DEFAULT))
    payload: Mapping[str, Any] = told["responsePayload"]
    return payload
