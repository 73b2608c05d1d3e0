"""Rows per second of csv-payments, with what each process used for it and what it left on each topic."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.place import ROOT, STEPS, Place, offsets_of, tied
from bench.processes import Usage, Watch
from streams.demo.kafka import KafkaStage, kafka_stage
from streams.demo.payments_file import generate
from streams.demo.run import AWAIT_STEP, DemoResult, DemoSettings, environment, prepare_inputs, run_demo
from streams.process.launcher import child_environment
from streams.worker.topics import topic_settings

RUN_S_BASE = 45.0
RATE_MIN = 400.0
"""Rows/s below which a run counts as stalled."""
COMPLAINT = re.compile(r"\b(warning|error|critical)\b", re.IGNORECASE)
WINDOW_KEY = f"steps.{AWAIT_STEP}.await.live.window"


class RunFailed(RuntimeError):
    """A measured run did not do its work, so its time means nothing."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run.

    Attributes:
        group: What it is compared with: rows, windows, workers, memory.
        rows: Of all files together.
        window: None: the default.
    """

    group: str
    rows: int
    files: int = 1
    broker: str = "kafka"
    live: bool = True
    window: int | None = None
    workers: int = 1

    @property
    def name(self) -> str:
        """For tables and plots."""
        parts = [self.broker, f"{self.rows:,} rows"]
        parts += [f"in {self.files} files"] if self.files > 1 else []
        parts += [f"{self.workers} workers"] if self.workers > 1 else []
        parts.append("suspending" if not self.live else "live" if self.window is None else f"window {self.window:,}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a case.

    Attributes:
        cpu_us_per_row: By process; those of several workers are summed.
        peak_mib: By process, the largest.
        offsets_per_row: By topic; see `offsets_of`.
        disk_bytes_per_row: By topic; None: not our broker.
        complaints: Lines at warning or above in the children's logs.
    """

    case: Case
    seconds: float
    rows_per_s: float
    cpu_us_per_row: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)
    offsets_per_row: dict[str, float] = field(default_factory=dict)
    disk_bytes_per_row: dict[str, float] | None = None
    complaints: list[str] = field(default_factory=list)


def inputs_for(folder: Path, rows: int, files: int = 1) -> tuple[Path, ...]:
    """Generated payments files, made once: the same path has the same ids each time."""
    each = rows // files
    made = []
    for number in range(1, files + 1):
        path = folder / f"payments_{each}_{number}.csv"
        made.append(path if path.exists() else generate(path, each, number))
    return tuple(made)


def settings_for(case: Case, inputs: Path, output: Path) -> DemoSettings:
    """The demo's settings of a case."""
    overrides = (f"{WINDOW_KEY}={case.window}",) if case.window is not None else ()
    files = inputs_for(inputs, case.rows, case.files)
    return DemoSettings(inputs=files, output=output, live=case.live, workers=case.workers, overrides=overrides)


@contextmanager
def running_stage(settings: DemoSettings, place: Place) -> Iterator[tuple[KafkaStage, Path]]:
    """Workers and provider on the broker, and the folder of their state and logs; all gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="kawait-bench-", ignore_cleanup_errors=True) as name,
        kafka_stage(settings, environment(os.environ), Path(name), given=place.connection) as stage,
    ):
        yield stage, Path(name)


def run_limited(settings: DemoSettings, stage: KafkaStage, rows: int) -> DemoResult:
    """Run the demo, but not for ever: a run that stalls is a finding, and the bench goes on.

    Raises:
        RunFailed: not done in time.
    """
    limit_s = RUN_S_BASE + rows / RATE_MIN
    until_s = time.monotonic() + limit_s

    def check(answers: int, _rows: int) -> None:
        if time.monotonic() > until_s:
            raise RunFailed(f"not done within {limit_s:.0f} s; {answers} of {rows} requests are answered")

    return run_demo(settings, stage, prepare_inputs(settings), progress=check)


def run(case: Case, place: Place | None, folder: Path) -> Measured:
    """Run a case; files are kept below `folder`.

    Raises:
        RunFailed: some row has no output.
    """
    if case.broker == "memory":
        return _run_in_memory(case, folder)
    assert place is not None
    settings = settings_for(case, folder / "in", folder / "files")
    with running_stage(settings, place) as (stage, logs):
        watch = Watch(place.pids(stage.children))
        result = run_limited(settings, stage, case.rows)
        usage = watch.stop()
        _check(case, result.rows, result)
        topics = [spec.name for spec in topic_settings(stage.pipeline)]
        offsets = offsets_of(stage.log, topics)
        disk = {topic: size for topic in topics if (size := place.disk_bytes(topic)) is not None}
        complaints = complaints_in(logs)
        app = stage.pipeline.app
    return Measured(
        case=case,
        seconds=result.seconds,
        rows_per_s=result.rows_per_second,
        cpu_us_per_row=cpu_per_row(usage, case.rows),
        peak_mib=_peaks(usage),
        offsets_per_row={short(topic, app): count / case.rows for topic, count in offsets.items() if count},
        disk_bytes_per_row={short(topic, app): size / case.rows for topic, size in disk.items() if size} or None,
        complaints=complaints,
    )


def _check(case: Case, rows: int, result: DemoResult) -> None:
    if rows != case.rows or result.failed:
        why = "; ".join(failure.error for failure in result.failures) or "rows are missing"
        raise RunFailed(f"{case.name}: {rows - result.failed} of {case.rows} rows have an output: {why}")


def _run_in_memory(case: Case, folder: Path) -> Measured:
    """In a process of its own: a heap that an earlier run has filled would count against it. CPU includes its start."""
    settings = settings_for(case, folder / "in", folder / "files")
    inputs = [part for path in settings.inputs for part in ("--input", str(path))]
    sets = [part for override in settings.overrides for part in ("--set", override)]
    live = [] if case.live else ["--no-live"]
    command = [
        "demo",
        *inputs,
        *sets,
        *live,
        "--output",
        str(settings.output),
        "--workers",
        str(case.workers),
        "--json",
    ]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(
            tied([sys.executable, "-P", "-m", "streams", *command]),
            stdout=said,
            stderr=complained,
            env=child_environment(os.environ),
            cwd=ROOT,
        )
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)  # taken from under it, for the usage
        said.seek(0)
        complained.seek(0)
        lines, noise = said.read().decode().splitlines(), complained.read().decode(errors="replace")
    if process.returncode != 0 or not lines:
        raise RunFailed(f"{case.name}: ended with {process.returncode}: {noise.strip()[-500:]}")
    result = json.loads(lines[-1])
    if result["rows"] != case.rows or result["failed"]:
        raise RunFailed(f"{case.name}: {result}")
    usage = {"all": Usage(cpu_s=used.ru_utime + used.ru_stime, peak_mib=used.ru_maxrss / 1024)}
    return Measured(
        case=case,
        seconds=result["seconds"],
        rows_per_s=result["rowsPerSecond"],
        cpu_us_per_row=cpu_per_row(usage, case.rows),
        peak_mib=_peaks(usage),
        complaints=[line for line in noise.splitlines() if COMPLAINT.search(line)],
    )


def short(topic: str, app: str) -> str:
    """A topic's name without the app."""
    return topic.removeprefix(f"{app}.")


def part_of(process: str) -> str:
    """`worker-2-core` is a core, and its step process is steps."""
    return "steps" if process.endswith(STEPS) else re.sub(r"^worker-\d+-", "", process)


def cpu_per_row(usage: dict[str, Usage], rows: int) -> dict[str, float]:
    """Microseconds of CPU for a row, by part; several workers' are summed."""
    found: dict[str, float] = {}
    for name, used in usage.items():
        found[part_of(name)] = found.get(part_of(name), 0.0) + 1e6 * used.cpu_s / rows
    return found


def _peaks(usage: dict[str, Usage]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, used in usage.items():
        found[part_of(name)] = max(found.get(part_of(name), 0.0), used.peak_mib)
    return found


def complaints_in(folder: Path) -> list[str]:
    """What the children logged at warning or above."""
    return [
        f"{path.stem}: {line[:200]}"
        for path in sorted(folder.glob("*.log"))
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if COMPLAINT.search(line)
    ]
