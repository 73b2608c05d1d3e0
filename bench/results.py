"""What a run has measured: kept as one value, written as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from bench.backlog import Backlog
from bench.budget import Budget
from bench.burst import Burst
from bench.idle import Idle
from bench.instructions import Instructions
from bench.latency import Latency
from bench.limit import Limit, Warming
from bench.restore import Restored
from bench.stages import Profile
from bench.throughput import Measured

QUIET_SHARE = 0.15


@dataclass(kw_only=True)
class Results:
    """Figures of one run of the bench, filled in as it goes; `problems` are parts that broke off."""

    plan: str
    machine: dict[str, object]
    warming: Warming | None = None
    limits: dict[str, Limit] = field(default_factory=dict)
    throughput: list[Measured] = field(default_factory=list)
    latency: list[Latency] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    burst: Burst | None = None
    backlog: Backlog | None = None
    restores: list[Restored] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)
    instructions: Instructions | None = None
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def limit_rows_per_s(self) -> float | None:
        """Mean of the limits before and after."""
        return mean(limit.rows_per_s for limit in self.limits.values()) if self.limits else None

    def ratio(self, measured: Measured) -> float | None:
        """A run's rate as a share of the limit; None for runs in memory, and without a limit."""
        limit = self.limit_rows_per_s
        return measured.rows_per_s / limit if limit and measured.case.broker == "kafka" else None

    def doubts(self) -> list[str]:
        """What a reader must know before believing the figures."""
        found = list(self.problems)
        if self.warming is not None and not self.warming.is_settled:
            found.append(self.warming.doubt)
        rates = [limit.rows_per_s for limit in self.limits.values()]
        if rates and max(rates) > min(rates) * (1 + QUIET_SHARE):
            found.append(f"the limit moved from {rates[0]:,.0f} to {rates[-1]:,.0f} rows/s: the machine was not quiet")
        found += [f"{item.case.name}: {line}" for item in self.throughput for line in item.complaints[:3]]
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        whole = asdict(self)
        whole["limitRowsPerSecond"] = self.limit_rows_per_s
        whole["doubts"] = self.doubts()
        for plain, measured in zip(whole["throughput"], self.throughput, strict=True):
            plain["name"] = measured.case.name
            plain["ratio"] = self.ratio(measured)
        if self.burst is not None:
            whole["burst"]["ratio"] = self.burst.ratio
        return whole

    def write(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
