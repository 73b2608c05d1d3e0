"""Steady backlog: twice as many records as the application can take, for a minute. Do timers ring at their time, and does every partition move?

Parcels of one piece come at twice the rate that the application was measured to handle, before and since, so what waits grows all the time.
Among them are some that nobody answers about. A ring may wait for its gate: from the deadline on the brokers' clocks may differ by a second, a look
at what had come in follows within another one, and what it finds must be read. That reading is seen in the offsets that ingress and core commit.
All of this is no lateness.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from bench.burst import RANG
from bench.checkout import Tree, this_tree
from bench.installed import Application, running
from bench.parcels import PARTITIONS, SILENT, Outside, Sender, answering, timeout, write
from bench.place import Place
from bench.throughput import RunFailed
from bench.topics import Schemas, Topics

OVERLOAD = 2.0
CAPACITY_S_MAX = 120.0
SAMPLE_S = 0.25
OBSERVED_S = 5
SILENT_PER_S = 10
SILENT_SHARE = 1 / 3
"""Silent parcels are among the first of the minute: those of its end would not be asked about within it."""
READ = ("parcels", "commands", "completions")
"""What waits to be read in a backlog: by ingress, and by the core."""
GATE_MS = 2_000
"""A second by which brokers may differ, and a second between two looks."""
MARKER = 1
"""A partition may end in the mark of a transaction, which is no record."""
CALL_S = 10.0
"""For one look at offsets."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """One run.

    Attributes:
        capacity_per_s: Parcels a second that could be handled.
        waiting: Records that were not yet read at the end: of the source, commands and completions.
        timers: Deadlines that passed within the run; `rang` of them rang.
        late_s: The largest time from a deadline, or from its gate where that opened later, until it rang.
        gate_s: The longest that a gate stayed shut.
        slowest: Facts of the partition that wrote fewest; `mean` of all.
        still_s: The longest that a partition wrote none.
    """

    seconds: float
    capacity_per_s: float
    sent: int
    waiting: int
    timers: int
    rang: int
    late_s: float
    gate_s: float
    slowest: int
    mean: float
    still_s: float


def measure(warm: int, seconds: float, wait_s: float, place: Place, folder: Path) -> Backlog:
    """Measure the capacity with `warm` parcels, then send twice as much for some seconds; an answer is waited for `wait_s`.

    Raises:
        RunFailed: the parcels that measure the capacity were not received.
    """
    tree = this_tree()
    with (
        running(tree, place, (timeout(wait_s),), write(folder / "parcels")) as application,
        answering(application, place) as (sender, outside),
    ):
        capacity = _capacity(application, place, sender, warm)
        samples = _overload(application, place, sender, capacity, seconds)
        return _read(application, tree, place, outside, samples, Sent(sender.sent, capacity.per_s))


@dataclass(frozen=True)
class Sent:
    """How much was sent, and how much a second can be handled."""

    parcels: int
    capacity_per_s: float


@dataclass
class Capacity:
    """How much can be handled: as measured without a backlog, or as seen since over some seconds, whatever is more."""

    per_s: float
    facts_per_parcel: float

    def take(self, app: str, samples: Sequence[Sample]) -> None:
        """Learn from what was handled lately."""
        last = samples[-1]
        before = next((each for each in reversed(samples) if each.at_ms <= last.at_ms - OBSERVED_S * 1000), None)
        if before is not None:
            facts = last.facts(app) - before.facts(app)
            self.per_s = max(self.per_s, facts / self.facts_per_parcel / (last.at_ms - before.at_ms) * 1000)


@dataclass(frozen=True)
class Sample:
    """Ends and committed offsets at one moment, by topic and partition."""

    at_ms: int
    ends: Mapping[tuple[str, int], int]
    committed: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def facts(self, app: str) -> int:
        """Ends of all partitions of facts."""
        return sum(self.ends[f"{app}.facts", number] for number in range(PARTITIONS))


def _capacity(application: Application, place: Place, sender: Sender, warm: int) -> Capacity:
    """From the first parcel sent to the last one received."""
    topics = Topics(place.connection)
    received = f"{application.name}.received"
    try:
        began_s = time.monotonic()
        for number in range(warm):
            sender.send(f"warm-{number}")
        sender.flush()
        while len(topics.records(received)) < warm:
            if time.monotonic() > began_s + CAPACITY_S_MAX:
                raise RunFailed(f"{len(topics.records(received))} of {warm} parcels were received")
            time.sleep(SAMPLE_S)
        facts = f"{application.name}.facts"
        return Capacity(warm / (time.monotonic() - began_s), topics.offsets(facts)[facts] / warm)
    finally:
        topics.close()


class _Offsets:
    """Looks at ends and at what the application's groups have committed."""

    def __init__(self, application: Application, place: Place) -> None:
        self._app = application.name
        config: dict[str, Any] = {**place.connection.config, "bootstrap.servers": place.connection.bootstrap}
        self._admin = AdminClient({**config, "log_level": 3})
        names = ("facts", "answered", *READ)
        self._partitions = [(f"{self._app}.{name}", number) for name in names for number in range(PARTITIONS)]

    def look(self) -> Sample:
        """Now."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {KafkaPartition(*at): latest for at in self._partitions}
        found = self._admin.list_offsets(wanted, request_timeout=CALL_S)
        asked = [self._committed(role) for role in ("core", "ingress")]
        at_ms = round(time.time() * 1000)
        ends = {(at.topic, at.partition): future.result(CALL_S).offset for at, future in found.items()}
        committed = {
            (at.topic, at.partition): at.offset for future in asked for at in future.result(CALL_S).topic_partitions
        }
        return Sample(at_ms, ends, committed)

    def _committed(self, role: str) -> Any:
        group = f"{self._app}.{role}"
        asked = [ConsumerGroupTopicPartitions(group)]
        return self._admin.list_consumer_group_offsets(asked, request_timeout=CALL_S)[group]


def _overload(
    application: Application, place: Place, sender: Sender, capacity: Capacity, seconds: float
) -> list[Sample]:
    """Send, and look."""
    offsets = _Offsets(application, place)
    samples = [offsets.look()]
    silent, looked_s = 0, 0.0
    for passed_s in sender.steadily(lambda: OVERLOAD * capacity.per_s, seconds, "steady"):
        for process in application.processes:
            process.check()
        while silent < min(passed_s, seconds * SILENT_SHARE) * SILENT_PER_S:
            sender.send(f"{SILENT}-{silent}")
            silent += 1
        if passed_s > looked_s + SAMPLE_S:
            looked_s = passed_s
            samples.append(offsets.look())
            capacity.take(application.name, samples)
    samples.append(offsets.look())
    return samples


def _read(
    application: Application, tree: Tree, place: Place, outside: Outside, samples: Sequence[Sample], sent: Sent
) -> Backlog:
    """What came of it, from the facts and the samples."""
    schemas = Schemas(tree.root)
    topics = Topics(place.connection)
    rang: dict[str, int] = {}
    homes: dict[str, int] = {}
    facts = f"{application.name}.facts"
    try:
        for record in topics.records(facts):
            key = record.key.decode()
            homes[key] = record.partition
            if schemas.decode(record.value)[0] == RANG:
                rang[key] = record.at_ms
    finally:
        topics.close()
    deadlines = {one.execution_id: one.deadline_ms for one in outside.asked if one.parcel.startswith(SILENT)}
    return summary(application.name, samples, deadlines, rang, homes, sent)


def summary(
    app: str,
    samples: Sequence[Sample],
    deadlines: Mapping[str, int],
    rang: Mapping[str, int],
    homes: Mapping[str, int],
    sent: Sent,
) -> Backlog:
    """The figures.

    Raises:
        RunFailed: no deadline passed.
    """
    end_ms = samples[-1].at_ms
    due = {name: at_ms for name, at_ms in deadlines.items() if at_ms < end_ms}
    if not due:
        raise RunFailed(f"none of {len(deadlines)} deadlines passed within the run")
    gates = {name: opened(app, samples, at_ms, homes[name]) for name, at_ms in due.items()}
    late = [rang.get(name, end_ms) - min(max(at_ms, gates[name]), end_ms) for name, at_ms in due.items()]
    written = {number: [each.ends[f"{app}.facts", number] for each in samples] for number in range(PARTITIONS)}
    counts = [ends[-1] - ends[0] for ends in written.values()]
    last = samples[-1]
    read = [(f"{app}.{name}", number) for name in READ for number in range(PARTITIONS)]
    return Backlog(
        seconds=(end_ms - samples[0].at_ms) / 1000,
        capacity_per_s=sent.capacity_per_s,
        sent=sent.parcels,
        waiting=sum(last.ends[at] - max(last.committed.get(at, 0), 0) for at in read),
        timers=len(due),
        rang=sum(name in rang for name in due),
        late_s=max(0, *late) / 1000,
        gate_s=max(0, *(gates[name] - at_ms for name, at_ms in due.items())) / 1000,
        slowest=min(counts),
        mean=sum(counts) / len(counts),
        still_s=max(_still_s(samples, ends) for ends in written.values()),
    )


def opened(app: str, samples: Sequence[Sample], deadline_ms: int, home: int) -> int:
    """When all had been read that had come in when the gate's look may have come: answers by ingress, then completions by the core."""
    at = min(bisect_left(samples, deadline_ms + GATE_MS, key=lambda each: each.at_ms), len(samples) - 1)
    answered = [(f"{app}.answered", number) for number in range(PARTITIONS)]
    at = _passed(samples, at, answered)
    return samples[_passed(samples, at, [(f"{app}.completions", home)])].at_ms


def _passed(samples: Sequence[Sample], at: int, partitions: Sequence[tuple[str, int]]) -> int:
    """The first sample from `at` on whose committed offsets have reached the ends of that one."""
    ends = {each: samples[at].ends[each] for each in partitions}
    for number in range(at, len(samples)):
        committed = samples[number].committed
        if all(committed.get(each, 0) >= end - MARKER for each, end in ends.items() if end):
            return number
    return len(samples) - 1


def _still_s(samples: Sequence[Sample], ends: Sequence[int]) -> float:
    """The longest time without a change."""
    changes = [samples[0].at_ms]
    changes += [
        after.at_ms for after, (one, two) in zip(samples[1:], itertools.pairwise(ends), strict=True) if one != two
    ]
    return max(after - before for before, after in itertools.pairwise([*changes, samples[-1].at_ms])) / 1000
