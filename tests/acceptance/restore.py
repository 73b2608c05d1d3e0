"""State directories that are lost, broken, old or foreign are rebuilt to the same tables; restore is fast and always ends."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from schemas.identity import home_partition
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.keys import TABLES, prefix_span
from state.tables.rocksdb import RocksStoreFactory
from streams.clock import SystemClock
from streams.demo.kafka import remove_app
from streams.engine.restore import Restore
from streams.log.kafka.connection import Connection
from streams.worker.topics import ensure_topics
from tests.acceptance.ground import App, Ground
from tests.acceptance.registry import Checks, line

RESTORE_S_MAX = 5.0
Tables = dict[tuple[int, bytes], bytes]


def _tables(app: App, state_dir: Path, instance: str = "w1") -> Tables:
    """Every row that a stopped worker has on disk."""
    stores = RocksStoreFactory(state_dir / app.name, instance)
    try:
        found: Tables = {}
        for number in range(app.pipeline.partitions):
            store = stores.open("core", number)
            for prefix in TABLES:
                found.update({(number, key): value for key, value in store.scan(*prefix_span(prefix))})
            store.close()
        return found
    finally:
        stores.close()


@contextmanager
def _half_done(ground: Ground, name: str, rows: int) -> Iterator[tuple[App, Path, str]]:
    """An application whose worker was stopped when about half of its rows were answered; its source has ended."""
    path = ground.payments(rows)
    app = ground.app(name)
    provider = app.provider("--rate", str(max(rows // 4, 100)))
    worker = app.worker()
    execution = app.submit(path)
    app.until(app.source_ended, "the end of the source", every_s=0.2)
    provider.end()
    app.until(lambda: _quiet(app), "quiet")
    worker.end()
    yield app, path, execution
    app.close()


def _quiet(app: App) -> bool:
    before = app.offsets(app.names.facts)
    time.sleep(0.7)
    return app.offsets(app.names.facts) == before


def _cut(files: list[Path]) -> None:
    for path in files:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)


def _overwrite(path: Path, text: str) -> None:
    path.write_text(text)


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file() and path.stat().st_size)


def _damages(app: App, old: Path, foreign: Path) -> dict[str, Callable[[], None]]:
    state, own = app.state_dir, app.state_dir / app.name / "w1"

    def replace(source: Path) -> None:
        shutil.rmtree(own)
        shutil.copytree(source, own)

    return {
        "deleted": lambda: shutil.rmtree(state),
        "table files cut in half": lambda: _cut(_files(state, "*.sst") + _files(state, "*.log")),
        "manifests cut in half": lambda: _cut(_files(state, "MANIFEST*")),
        "an older copy": lambda: replace(old),
        "of a foreign topic": lambda: replace(foreign),
        "format of another version": lambda: _overwrite(own / "FORMAT", "kawait-state 0\n"),
    }


@line("restore", "State directory deleted, truncated, or from an older or foreign topic: rebuilt, same tables")
def damaged(ground: Ground, checks: Checks) -> None:
    """The tables after each damage are those before it, and the execution goes on from them."""
    rows = ground.size(4_000, 1_000)
    with _half_done(ground, "other", 300) as (other, _, _):
        foreign = ground.folder / "foreign"
        shutil.copytree(other.state_dir / other.name / "w1", foreign)
    with _half_done(ground, "damaged", rows) as (app, path, execution):
        expected = ground.undisturbed([path])
        before = _tables(app, app.state_dir)
        old = app.folder / "old"
        shutil.copytree(app.state_dir / app.name / "w1", old)
        provider = app.provider("--rate", str(max(rows // 4, 100)))
        worker = app.worker()
        answered = sum(app.offsets(app.names.facts).values())
        app.until(lambda: sum(app.offsets(app.names.facts).values()) > answered + rows // 10, "some more answers")
        provider.end()
        app.until(lambda: _quiet(app), "quiet")
        worker.end()
        now = _tables(app, app.state_dir)
        checks.note("rows in the tables", f"{len(before)} in the older copy, {len(now)} now")
        for what, damage in _damages(app, old, foreign).items():
            damage()
            began_s = time.monotonic()
            worker = app.worker()
            ready_s = time.monotonic() - began_s
            worker.end()
            after = _tables(app, app.state_dir)
            differing = sum(1 for key in now.keys() | after.keys() if now.get(key) != after.get(key))
            checks.that(f"{what}: the same tables", not differing, f"{differing} rows differ; ready in {ready_s:.1f} s")
        app.provider()
        app.worker()
        held, figures = app.judge(rows, [path], app.wait([execution]), expected)
        checks.that("the execution finishes from rebuilt tables", held, figures)


@line("restore", "Topics deleted and made again under the same names: the old tables are dropped")
def recreated(ground: Ground, checks: Checks) -> None:
    """The stored positions carry the topic id."""
    with _half_done(ground, "recreated", 500) as (app, path, _):
        remove_app(app.pipeline, Connection(bootstrap=app.bootstrap))
        app.until(
            lambda: not app.log.topics([app.names.facts, app.names.changelog("units")], 10.0), "the topics to be gone"
        )
        ensure_topics(app.pipeline, app.log)
        worker = app.worker()
        worker.end()
        rows = len(_tables(app, app.state_dir))
        checks.that("the tables are empty", rows == 0, f"{rows} rows; {_because(app)}")
        app.provider()
        app.worker()
        execution = app.submit(path)
        held, figures = app.judge(500, [path], app.wait([execution]), ground.undisturbed([path]))
        checks.that("and the same file is paid as a new one", held, figures)


def _because(app: App) -> str:
    said = [text for text in app.logged("worker-w1").splitlines() if "state rebuilt" in text]
    return said[-1].strip()[:160] if said else "no rebuild was logged"


@line("restore", "Restore of 100k rows in under 5 s")
def fast(ground: Ground, checks: Checks) -> None:
    """All changelog records of one execution's partition into an empty RocksDB."""
    rows = ground.size(100_000, 10_000)
    path = ground.payments(rows)
    app = ground.app("restored")
    app.provider()
    worker = app.worker()
    execution = app.submit(path)
    app.wait([execution], timeout_s=300)
    worker.end()
    number = home_partition(execution, app.pipeline.partitions)
    stores = RocksStoreFactory(app.folder / "fresh", "w")
    clock = SystemClock()
    store = stores.open("core", number)

    def wiped() -> object:
        raise AssertionError("a fresh store needs no rebuild")

    restore = Restore(
        app.log,
        store,
        topics={app.names.changelog(table): prefix for prefix, table in TABLES.items()},
        partition=number,
        clock=clock,
        delete_retention_ms=CHANGELOG_DELETE_RETENTION_MS,
        reopen=wiped,  # type: ignore[arg-type] # never called
    )
    began_s = clock.monotonic_s()
    while not restore.step(0.1):
        pass
    seconds = clock.monotonic_s() - began_s
    done, _ = restore.progress()
    found = sum(1 for prefix in TABLES for _ in store.scan(*prefix_span(prefix)))
    restore.close()
    store.close()
    stores.close()
    checks.that(
        f"restore of an execution with {rows} payments",
        seconds < RESTORE_S_MAX * max(1, rows / 100_000),
        f"{seconds:.2f} s for {done} changelog records, {found} rows: {100_000 * seconds / done:.2f} s per 100k records",
    )
    shutil.rmtree(app.state_dir)
    began_s = clock.monotonic_s()
    app.worker()
    whole_s = clock.monotonic_s() - began_s
    checks.note("a worker without state, process start to ready", f"{whole_s:.1f} s with {done} changelog records")


@line(
    "restore",
    "Restore always ends: trailing markers, empty partitions, the open transaction of a dead producer, a second rebalance",
)
def ends(ground: Ground, checks: Checks) -> None:
    """Each of them on the changelogs of a running application."""
    with _half_done(ground, "ends", 600) as (app, path, execution):
        expected = ground.undisturbed([path])
        topic = app.names.changelog("units")
        for number in range(app.pipeline.partitions):
            _leave(app, topic, number, how="abort")
        checks.that("trailing markers of aborted transactions, and partitions that hold nothing else", *_starts(app))
        _leave(app, topic, home_partition(execution, app.pipeline.partitions), how="die")
        checks.that("the open transaction of a dead producer", *_starts(app, within_s=20))
        shutil.rmtree(app.state_dir)
        workers = [app.worker(name, state_dir=app.folder / f"s-{name}", wait=False) for name in ("w1", "b", "c")]
        workers[2].wait_ready(time.monotonic() + 60)
        workers[2].end()
        for worker in workers[:2]:
            worker.wait_ready(time.monotonic() + 60)
        app.provider()
        held, figures = app.judge(600, [path], app.wait([execution]), expected)
        checks.that("rebalances while three workers restore", held, figures)


def _starts(app: App, *, within_s: float = 12) -> tuple[bool, str]:
    """A worker without state gets ready; how long it took."""
    shutil.rmtree(app.state_dir, ignore_errors=True)
    began_s = time.monotonic()
    worker = app.worker()
    seconds = time.monotonic() - began_s
    worker.end()
    return seconds < within_s, f"ready in {seconds:.1f} s"


def _leave(app: App, topic: str, partition: int, *, how: str) -> None:
    """Write into a transaction that is aborted, or left open by a producer that dies."""
    producer = Producer(
        {
            "bootstrap.servers": app.bootstrap,
            "transactional.id": f"{app.name}-{how}-{partition}",
            "transaction.timeout.ms": 5_000,
            "message.timeout.ms": 4_000,
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", key=b"x", partition=partition)
    producer.flush(10)
    if how == "abort":
        producer.abort_transaction(10)
    else:
        producer.purge()  # no abort: what a process leaves that was killed
