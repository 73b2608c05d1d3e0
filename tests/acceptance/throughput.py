"""Throughput against the limit that the same broker shows in the same run; memory, and work per row."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

from bench.processes import children_of, peak_mib
from streams.demo.kafka import kafka_stage
from streams.demo.run import DemoSettings, prepare_inputs, run_demo
from streams.log.kafka.connection import Connection
from streams.log.seam import TopicPartition
from tests.acceptance.ground import SHARED, Ground
from tests.acceptance.registry import Checks, line

LIVE_SHARE_MIN = 0.20
SUSPENDING_SHARE_MIN = 0.10
TEN_THOUSAND_S_MAX = 5.0
MEMORY_MIB_MAX = 600
DOUBLING_MAX = 2.2
LIMIT = SHARED / "limit.py"


@dataclass(frozen=True)
class Run:
    """What a run of the demo took."""

    rows: int
    seconds: float
    memory_mib: float
    records: int
    log_bytes: int

    @property
    def rows_per_s(self) -> float:
        """Rows with an output, over the time from submission to the published file."""
        return self.rows / self.seconds

    def __str__(self) -> str:
        size = f", {self.log_bytes / self.rows:.0f} B on disk a row" if self.log_bytes else ""
        return (
            f"{self.rows_per_s:,.0f} rows/s ({self.rows} rows in {self.seconds:.2f} s), core {self.memory_mib:.0f} MiB, "
            f"{self.records / self.rows:.1f} offsets a row{size}"
        )


def _limit(ground: Ground, rows: int) -> float:
    """Rows a second of the unmodified upper bound on the same broker."""
    said = subprocess.run(
        [sys.executable, str(LIMIT), str(rows), ground.bootstrap],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout
    found = re.search(r"rows_per_s=(\d+)", said)
    assert found, said
    return float(found[1])


def _demo(ground: Ground, rows: int, *, live: bool = True) -> Run:
    """Run the demo as shipped: the same processes as `kawait demo --bootstrap`, with their memory read at the end."""
    path = ground.payments(rows)
    folder = ground.folder / f"demo-{rows}-{live}"
    for used in (folder / "stage", folder / "out"):
        used.mkdir(parents=True, exist_ok=True)
    settings = DemoSettings(inputs=(path,), output=folder / "out", live=live)
    inputs = prepare_inputs(settings)
    work = folder / "stage" / f"{len(list((folder / 'stage').iterdir()))}"
    work.mkdir()
    with kafka_stage(settings, ground.environ, work, given=Connection(bootstrap=ground.bootstrap)) as stage:
        result = run_demo(settings, stage, inputs)
        core = next(child for child in stage.children if child.name == "worker-1-core")
        memory = sum(map(peak_mib, [core.pid, *children_of(core.pid)]))
        records = _offsets(stage.log, stage.pipeline.app, stage.pipeline.partitions)
        size = _log_bytes(ground, stage.pipeline.app)
    assert result.failed == 0, result.failures
    assert result.approved + result.rejected == rows
    return Run(rows, result.seconds, memory, records, size)


def _offsets(log: object, app: str, partitions: int) -> int:
    """Offsets of all topics that the demo wrote: records and markers."""
    names = [
        *(f"{app}.{name}" for name in ("commands", "completions", "facts", "payment.requests", "payment.results")),
        *(f"{app}.{table}-changelog" for table in ("executions", "units", "interactions", "items")),
        f"{app}.continuations",
    ]
    at = [TopicPartition(name, number) for name in names for number in range(partitions)]
    return sum(log.end_offsets(at, "uncommitted", 10.0).values())  # type: ignore[attr-defined]


def _log_bytes(ground: Ground, app: str) -> int:
    """Bytes of the app's segments on disk; 0 where the broker is not ours."""
    broker = ground._broker
    if broker is None:
        return 0
    return sum(path.stat().st_size for path in (broker.directory / "data").glob(f"{app}.*/*.log"))


@line(
    "throughput",
    "100,000 rows in one file with the demo as shipped: at least 0.20 of the limit, suspending at least 0.10; memory; doubling",
)
def throughput(ground: Ground, checks: Checks) -> None:
    """The limit is measured right before and right after; both are reported."""
    if not checks.that("the limit's program is there", LIMIT.exists(), "../shared/limit.py"):
        return
    rows = ground.size(100_000, 20_000)
    ten = _demo(ground, 10_000)
    checks.that(
        f"10,000 rows in well under {TEN_THOUSAND_S_MAX:g} s",
        ten.seconds < TEN_THOUSAND_S_MAX,
        ten,
    )
    before = _limit(ground, rows)
    live = _demo(ground, rows)
    middle = _limit(ground, rows)
    suspending = _demo(ground, rows, live=False)
    after = _limit(ground, rows)
    for name, run, least, around in (
        ("live", live, LIVE_SHARE_MIN, (before, middle)),
        ("suspending", suspending, SUSPENDING_SHARE_MIN, (middle, after)),
    ):
        limit = sum(around) / 2
        checks.that(
            f"{name}: at least {least:g} of the limit",
            run.rows_per_s >= least * limit,
            f"{run.rows_per_s / limit:.3f}: {run}; limit {around[0]:,.0f} before, {around[1]:,.0f} rows/s after",
        )
    checks.that(
        f"core memory under {MEMORY_MIB_MAX} MiB at {rows} rows, its step process included",
        max(live.memory_mib, suspending.memory_mib) < MEMORY_MIB_MAX,
        f"live {live.memory_mib:.0f}, suspending {suspending.memory_mib:.0f} MiB (peak)",
    )
    half = _demo(ground, rows // 2)
    again = _demo(ground, rows)
    whole = min(live, again, key=lambda run: run.seconds)
    checks.that(
        f"doubling {rows // 2} rows takes at most {DOUBLING_MAX:g} times the time",
        whole.seconds <= DOUBLING_MAX * half.seconds,
        f"{whole.seconds / half.seconds:.2f} times: {half.seconds:.2f} s, then {whole.seconds:.2f} s (the better of two)",
    )
    checks.that(
        f"... and at most {DOUBLING_MAX:g} times the records and bytes",
        whole.records <= DOUBLING_MAX * half.records and whole.log_bytes <= DOUBLING_MAX * half.log_bytes,
        f"{whole.records / half.records:.2f} times the offsets"
        + (f", {whole.log_bytes / half.log_bytes:.2f} times the bytes" if half.log_bytes else ""),
    )
    checks.that(
        "memory does not grow with finished items",
        live.memory_mib - half.memory_mib < 100,
        f"{half.memory_mib:.0f} MiB at {rows // 2} rows, {live.memory_mib:.0f} MiB at {rows}",
    )
