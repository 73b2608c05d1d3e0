"""Where the measurements run: a throw-away broker of their own, or the one that KAWAIT_BOOTSTRAP names."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.processes import children_of
from streams.broker.node import ThrowawayBroker
from streams.log.kafka.connection import Connection, connection
from streams.log.seam import Log, TopicPartition
from streams.process.launcher import LAUNCHER

ROOT = Path(__file__).parents[1]
BROKER = "broker"
STEPS = "-steps"
OFFSETS_TIMEOUT_S = 10.0


class Running(Protocol):
    """A process, as far as it is looked at from outside."""

    name: str

    @property
    def pid(self) -> int:
        """Its process id."""


@dataclass(frozen=True)
class Place:
    """A broker; of one that is not ours, neither CPU nor bytes on disk are known."""

    connection: Connection
    broker: ThrowawayBroker | None = None

    def pids(self, children: Sequence[Running]) -> dict[str, int]:
        """Process ids of the children, of their step processes, and of the broker, by name."""
        pids = {child.name: child.pid for child in children}
        for name, pid in list(pids.items()):
            pids.update({f"{name}{STEPS}": own for own in children_of(pid)})
        if self.broker is not None and self.broker.pid is not None:
            pids[BROKER] = self.broker.pid
        return pids

    def disk_bytes(self, topic: str) -> int | None:
        """Bytes of a topic's log segments, as the broker stores them (compressed, batches and markers included)."""
        if self.broker is None:
            return None
        partitions = (self.broker.directory / "data").glob(f"{topic}-[0-9]*/*.log")
        return sum(segment.stat().st_size for segment in partitions)


@contextmanager
def running_place(environ: Mapping[str, str], report: Callable[[str], None]) -> Iterator[Place]:
    """A broker for the time of the measurements."""
    if environ.get("KAWAIT_BOOTSTRAP"):
        yield Place(connection(environ["KAWAIT_BOOTSTRAP"], None, environ))
        return
    with ThrowawayBroker(report=report) as broker:
        yield Place(Connection(bootstrap=broker.bootstrap), broker)


def tied(command: Sequence[str]) -> list[str]:
    """A command that ends when this process does, kill -9 included."""
    return [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command]


def partitions_of(log: Log, topics: Sequence[str]) -> list[TopicPartition]:
    """Every partition of some topics."""
    known = log.topics(topics, OFFSETS_TIMEOUT_S)
    return [TopicPartition(name, number) for name in topics for number in range(known[name].partitions)]


def offsets_of(log: Log, topics: Sequence[str]) -> dict[str, int]:
    """Offsets used in each topic: records, and the marker of every transaction in every partition that it wrote."""
    partitions = partitions_of(log, topics)
    ends = log.end_offsets(partitions, "uncommitted", OFFSETS_TIMEOUT_S)
    return {topic: sum(ends[at] for at in partitions if at.topic == topic) for topic in topics}


def machine() -> dict[str, object]:
    """What a figure is worth nothing without."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memoryMiB": memory_mib,
        "python": sys.version.split()[0],
        # A build without profile-guided optimisation is a third slower: say which one it was.
        "optimisedPython": "--enable-optimizations" in str(_config_args()),
        "load": round(os.getloadavg()[0], 2),
    }


def _config_args() -> object:
    import sysconfig

    return sysconfig.get_config_var("CONFIG_ARGS")
