"""From dispatch to resume, hop by hop, at low load: who waits for whom, and how long.

The window is the load: with a window of 1 the next payment leaves when the last one has its output. Times inside the worker come from the
facts (`at_ms`, the owner's clock when it decided), times of records from their timestamps, and the time a transaction took to become
visible from an observer that reads every topic read_committed, as the next process does. All run on one machine, so on one clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as KafkaPartition

from bench.place import Place, partitions_of
from bench.throughput import Case, RunFailed, run_limited, running_stage, settings_for
from schemas import codec
from schemas.envelopes import ProviderCompletion
from schemas.facts import BoundaryCompletionAdmitted, BoundaryInteractionDispatched, ContinuationCompleted
from schemas.identity import parse_interaction_id
from schemas.names import Names
from streams.demo.run import payment_topics
from streams.log.seam import TopicPartition

WARM_UP_SHARE = 0.1
DRAIN_S = 10.0
LIMIT_FACTOR = 100  # a payment at a time takes longer than one of many
POLL_S = 0.1

HOPS: tuple[tuple[str, str, str], ...] = (
    ("request transaction", "dispatched", "request_seen"),
    ("provider reads and answers", "request_seen", "result_made"),
    ("provider sends", "result_made", "result_seen"),
    ("ingress reads and writes", "result_seen", "completion_made"),
    ("ingress commits", "completion_made", "completion_seen"),
    ("core reads, projects, admits", "completion_seen", "admitted"),
    ("admission transaction", "admitted", "admitted_seen"),
    ("suffix runs", "admitted_seen", "output"),
    ("output transaction", "output", "output_seen"),
)
"""Hops of one payment in order: name, from, to (names of moments). They add up to `dispatched` .. `output_seen`."""


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Of one hop or of the whole, in milliseconds."""

    name: str
    p50_ms: float
    p99_ms: float
    mean_ms: float


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One run.

    Attributes:
        resume: From the decision to dispatch until the suffix has run: the figure that is promised.
        committed: Until the output is committed and visible.
    """

    in_flight: int
    samples: int
    resume: Quantiles
    committed: Quantiles
    hops: list[Quantiles] = field(default_factory=list)


Moments = dict[int, dict[str, float]]
"""Item index -> moment -> epoch ms."""


def measure(in_flight: int, rows: int, place: Place, folder: Path) -> Latency:
    """Run some rows with a small window.

    Raises:
        RunFailed: an item's moments are not complete.
    """
    settings = settings_for(Case(group="latency", rows=rows, window=in_flight), folder / "in", folder / "files")
    with running_stage(settings, place) as (stage, _):
        names = Names.of(stage.pipeline.app)
        requests, results = payment_topics(stage.pipeline)
        topics = {requests: "request", results: "result", names.completions: "completion", names.facts: "fact"}
        observer = Observer(place, topics, partitions_of(stage.log, list(topics)), outputs=rows)
        try:
            run_limited(settings, stage, LIMIT_FACTOR * rows)
        finally:
            observer.stop()
    return summary(in_flight, observer.moments(), rows)


class Observer:
    """Reads topics in a thread and notes when each record became visible.

    Args:
        kinds: What each topic carries: request, result, completion, fact.
        outputs: How many outputs there will be.
    """

    def __init__(
        self, place: Place, kinds: Mapping[str, str], partitions: Sequence[TopicPartition], *, outputs: int
    ) -> None:
        self._kinds = kinds
        self._outputs = outputs
        self._seen: list[tuple[float, Message]] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                **place.connection.config,
                "bootstrap.servers": place.connection.bootstrap,
                "group.id": "kawait-bench-observer",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([KafkaPartition(at.topic, at.partition, 0) for at in partitions])
        self._thread = threading.Thread(target=self._run, name="bench-observer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                self._seen.append((time.time() * 1000, message))

    def stop(self) -> None:
        """Wait until every output was seen, for a while, and stop."""
        until_s = time.monotonic() + DRAIN_S
        while time.monotonic() < until_s and self._outputs_seen() < self._outputs:
            time.sleep(POLL_S)
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _outputs_seen(self) -> int:
        return sum("output_seen" in moments for moments in self.moments().values())

    def moments(self) -> Moments:
        """What was seen, by item."""
        found: Moments = {}
        for seen_ms, message in list(self._seen):
            _note(found, self._kinds[message.topic() or ""], message, seen_ms)
        return found


def _note(found: Moments, kind: str, message: Message, seen_ms: float) -> None:
    """Put one record's moments to its item."""
    value, made_ms = message.value() or b"", float(message.timestamp()[1])
    if kind == "fact":
        _note_fact(found, codec.decode(value), seen_ms)
        return
    if kind == "completion":
        decoded = codec.decode(value)
        name = decoded.interaction_id if isinstance(decoded, ProviderCompletion) else None
    else:
        name = msgspec.json.decode(value)["interactionId"]
    index = parse_interaction_id(name).item_index if name else None
    if index is not None:
        found.setdefault(index, {}).update({f"{kind}_made": made_ms, f"{kind}_seen": seen_ms})


def _note_fact(found: Moments, fact: Any, seen_ms: float) -> None:
    match fact:
        case BoundaryInteractionDispatched():
            found.setdefault(fact.item_index or 0, {})["dispatched"] = fact.at_ms
        case BoundaryCompletionAdmitted():
            found.setdefault(fact.item_index or 0, {}).update(admitted=fact.at_ms, admitted_seen=seen_ms)
        case ContinuationCompleted():
            found.setdefault(fact.item_index, {}).update(output=fact.at_ms, output_seen=seen_ms)
        case _:
            pass


def summary(in_flight: int, moments: Moments, rows: int) -> Latency:
    """Quantiles of complete items, the first tenth left out as warm-up.

    Raises:
        RunFailed: moments are missing.
    """
    wanted = {moment for _, start, end in HOPS for moment in (start, end)}
    complete = [moments[index] for index in sorted(moments) if wanted <= moments[index].keys()]
    if len(complete) < rows:
        raise RunFailed(
            f"latency at {in_flight} in flight: {len(complete)} of {rows} payments were followed to their end"
        )
    counted = complete[int(rows * WARM_UP_SHARE) :]

    def between(name: str, start: str, end: str) -> Quantiles:
        return quantiles(name, [item[end] - item[start] for item in counted])

    return Latency(
        in_flight=in_flight,
        samples=len(counted),
        resume=between("dispatch to resume", "dispatched", "output"),
        committed=between("dispatch to committed output", "dispatched", "output_seen"),
        hops=[between(*hop) for hop in HOPS],
    )


def quantiles(name: str, values: Sequence[float]) -> Quantiles:
    """Median, 99th percentile (nearest rank) and mean of at least one value."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Quantiles(name=name, p50_ms=at(0.5), p99_ms=at(0.99), mean_ms=sum(ordered) / len(ordered))
