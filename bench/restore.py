"""How long a worker that has lost its state needs until it works again."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.place import Place, offsets_of
from bench.processes import peak_mib
from bench.throughput import RATE_MIN, RUN_S_BASE, Case, RunFailed, run_limited, running_stage, settings_for
from connectors.objects.listing import identify
from schemas.limits import WINDOW_MAX
from schemas.names import Names
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.keys import TABLES
from state.tables.rocksdb import RocksStoreFactory
from streams.clock import SystemClock
from streams.demo.kafka import PROVIDER, READY_TIMEOUT_S, KafkaStage
from streams.demo.run import PIPELINE, DemoSettings, environment, prepare_inputs
from streams.doors.submissions import command_for_object, send
from streams.engine.restore import Restore
from streams.process.child import Child, end_all
from streams.worker.topics import verify_topics

STEP_S = 0.1
RESTORE_S_MAX = 120.0
INSTANCE = "bench-restore"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """One restore.

    Attributes:
        state: `finished`: every row has its output; `open`: every row waits for its answer.
        changelog_records: Read back, markers included.
        restore_s: From the changelogs into an empty RocksDB, all partitions, nothing else.
        ready_lost_s: A worker process from its start until it is ready, state directory empty.
        ready_kept_s: The same with the state directory kept: what starting and joining take.
    """

    state: str
    rows: int
    changelog_records: int
    restore_s: float
    ready_lost_s: float
    ready_kept_s: float
    peak_mib: float

    @property
    def per_100k_s(self) -> float:
        """Restore time scaled to 100,000 rows."""
        return self.restore_s * 100_000 / self.rows


def measure(rows: int, place: Place, folder: Path) -> list[Restored]:
    """Restore the state of a finished run, and that of one whose rows all wait."""
    return [_measure("finished", rows, place, folder), _measure("open", rows, place, folder)]


def _measure(state: str, rows: int, place: Place, folder: Path) -> Restored:
    # Unanswered items fill the window, on the suspending path too: the widest one holds most rows open.
    rows = rows if state == "finished" else min(rows, WINDOW_MAX)
    case = Case(group="restore", rows=rows, window=None if state == "finished" else rows)
    settings = settings_for(case, folder / "in", folder / "files")
    # One environment for all: the restarted worker must know the key of the tokens.
    environ = environment(os.environ)
    with running_stage(settings, place) as (stage, run_folder):
        if state == "finished":
            run_limited(settings, stage, rows)
        else:
            _dispatch_only(settings, stage, rows)
        end_all(stage.children)
        stage.children.clear()
        names = Names.of(stage.pipeline.app)
        records = sum(offsets_of(stage.log, [names.changelog(table) for table in TABLES.values()]).values())
        restore_s = _restore(stage)
        lost, kept = _restarts(settings, stage, place, run_folder, environ)
    return Restored(
        state=state,
        rows=rows,
        changelog_records=records,
        restore_s=restore_s,
        ready_lost_s=lost[0],
        ready_kept_s=kept[0],
        peak_mib=lost[1],
    )


def _dispatch_only(settings: DemoSettings, stage: KafkaStage, rows: int) -> None:
    """Send every request; nobody answers."""
    for child in [child for child in stage.children if child.name == PROVIDER]:
        stage.children.remove(child)
        child.end()
    producer = stage.log.plain_producer()
    for path in prepare_inputs(settings):
        send(stage.pipeline, producer, command_for_object(stage.pipeline, identify(path)), timeout_s=30.0)
    producer.close()
    topic = f"{stage.pipeline.app}.payment.requests"
    until_s = time.monotonic() + RUN_S_BASE + rows / RATE_MIN
    while offsets_of(stage.log, [topic])[topic] < rows:
        stage.check()
        if time.monotonic() > until_s:
            raise RunFailed(f"{rows} requests were not sent in time")
        time.sleep(0.1)


def _restore(stage: KafkaStage) -> float:
    """In this process: each partition in turn, the partitions without rows too."""
    pipeline, clock = stage.pipeline, SystemClock()
    names = Names.of(pipeline.app)
    verify_topics(pipeline, stage.log)
    with tempfile.TemporaryDirectory(prefix="kawait-bench-") as name:
        stores = RocksStoreFactory(Path(name), INSTANCE)
        started_s = time.monotonic()
        for partition in range(pipeline.partitions):
            store = stores.open("core", partition)
            restore = Restore(
                stage.log,
                store,
                topics={names.changelog(table): prefix for prefix, table in TABLES.items()},
                partition=partition,
                clock=clock,
                delete_retention_ms=CHANGELOG_DELETE_RETENTION_MS,
                reopen=lambda: store,  # noqa: B023 - an empty store is never reopened
            )
            while not restore.step(STEP_S):
                if time.monotonic() > started_s + RESTORE_S_MAX:
                    raise RunFailed(f"partition {partition} is not restored: {restore.waiting_for or restore.phase}")
            restore.store.close()
        passed_s = time.monotonic() - started_s
        stores.close()
    return passed_s


def _restarts(
    settings: DemoSettings, stage: KafkaStage, place: Place, folder: Path, environ: Mapping[str, str]
) -> Iterator[tuple[float, float]]:
    """Two starts of a worker, on a state directory that is empty the first time: seconds until ready, peak MiB."""
    app = stage.pipeline.app
    overrides = [part for override in settings.choice(folder / "in", app).overrides for part in ("--set", override)]
    common = ["worker", str(PIPELINE), "--app", app, "--bootstrap", place.connection.bootstrap, *overrides]
    own = ["--roles", "core", "--instance", INSTANCE, "--state-dir", str(folder / "lost"), "--admin-port", "off"]
    for number in (1, 2):
        started_s = time.monotonic()
        child = Child(INSTANCE, [*common, *own], environ=environ, log_path=folder / f"restore-{number}.log")
        try:
            child.wait_ready(started_s + READY_TIMEOUT_S)
            yield time.monotonic() - started_s, peak_mib(child.pid)
        finally:
            child.end()
