"""What is measured in each mode, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.throughput import Case

PARTS = (
    "rows",
    "windows",
    "workers",
    "memory",
    "latency",
    "budget",
    "burst",
    "backlog",
    "restore",
    "idle",
    "profile",
    "instructions",
)
"""Names for `--only`; the limit is measured whenever rows, windows or workers are."""

FILES = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes.

    Attributes:
        limit_rows: For the upper bound, before and after.
        sizes: Rows in one file, each live and suspending.
        window_rows, windows: Each window over so many rows.
        workers_rows: Of eight files, with one worker and with two.
        memory: Rows in memory, each live and suspending.
        latency: In flight -> rows.
        burst: Deadlines at once; parcels a second beside them; seconds until they fall.
        backlog: Parcels that measure the capacity; seconds of twice as many; seconds until a deadline.
        idle_units, idle_s: Parked units, and how long each look takes.
        instructions: Whether they are counted.
    """

    name: str
    limit_rows: int
    sizes: tuple[int, ...]
    window_rows: int
    windows: tuple[int, ...]
    workers_rows: int
    memory: tuple[int, ...]
    latency: dict[int, int]
    budget_rows: int
    burst: tuple[int, float, float]
    backlog: tuple[int, float, float]
    restore_rows: int
    idle_units: int
    idle_s: float
    profile_rows: int
    instructions: bool

    def cases(self) -> list[Case]:
        """Every throughput run, in order."""
        found = [Case(group="rows", rows=rows, live=live) for rows in self.sizes for live in (True, False)]
        found += [Case(group="windows", rows=self.window_rows, window=window) for window in self.windows]
        found += [
            Case(group="workers", rows=self.workers_rows, files=FILES, workers=workers, live=live)
            for workers, live in ((1, True), (2, True), (2, False))
        ]
        found += [
            Case(group="memory", rows=rows, broker="memory", live=live)
            for rows in self.memory
            for live in (True, False)
        ]
        return found


FULL = Plan(
    name="full",
    limit_rows=100_000,
    sizes=(1_000, 10_000, 100_000),
    window_rows=50_000,
    windows=(128, 1_024, 8_192, 16_384),
    workers_rows=40_000,
    memory=(1_000, 10_000, 100_000),
    latency={1: 500, 16: 2_000},
    budget_rows=10_000,
    burst=(8_000, 50.0, 20.0),
    backlog=(3_000, 60.0, 10.0),
    restore_rows=100_000,
    idle_units=10_000,
    idle_s=10.0,
    profile_rows=20_000,
    instructions=True,
)
QUICK = Plan(
    name="quick",
    limit_rows=20_000,
    sizes=(1_000, 10_000),
    window_rows=5_000,
    windows=(128, 1_024, 8_192),
    workers_rows=8_000,
    memory=(1_000, 10_000),
    latency={1: 100, 16: 400},
    budget_rows=2_000,
    burst=(1_000, 50.0, 12.0),
    backlog=(500, 15.0, 3.0),
    restore_rows=10_000,
    idle_units=2_000,
    idle_s=3.0,
    profile_rows=2_000,
    instructions=False,
)
