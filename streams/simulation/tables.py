"""The tables of a simulated run against its facts: rows are what the facts fold to, on every machine and after every restore."""

from __future__ import annotations

from typing import Any, Protocol

from schemas.identity import home_partition
from schemas.names import Names
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.execution import ExecutionRecord
from state.folding import encode_row
from state.keys import PREFIXES, TABLES, execution_of_key, prefix_span
from state.tables.memory import MemoryStore
from state.tables.store import Store
from streams.clock import ManualClock
from streams.engine.restore import Restore
from streams.log.memory.log import MemoryLog
from streams.roles.core.task import CoreTask
from streams.simulation.coverage import Coverage
from streams.simulation.ledger import Ledger
from streams.simulation.machines import Machine, consumer_of, is_idle, is_member, task_insides
from streams.simulation.scenario import Scenario
from streams.simulation.violation import Breach, Violation

ROUNDS_MAX = 10_000
"""Steps of a restore after which it never ends: some take one record."""


class Looked(Protocol):
    """What of a world is looked at here."""

    scenario: Scenario
    log: MemoryLog
    names: Names
    clock: ManualClock
    ledger: Ledger
    coverage: Coverage
    forgotten: set[str]

    @property
    def machines(self) -> list[Machine]:
        """Every process that there is or was."""

    def running(self) -> list[Machine]:
        """Those that can be stepped now."""

    def may_be_gone(self, key: bytes) -> bool:
        """Whether a row may be deleted by now."""


def check_tables(world: Looked) -> None:
    """The rows of every running task are what its partition's facts fold to."""
    world.ledger.follow()
    folded = folded_rows(world)
    for machine in world.running():
        assert machine.worker is not None
        loop = machine.worker.loops.get("core")
        consumer = consumer_of(loop) if loop is not None else None
        if consumer is None or not is_member(world.log, consumer):
            continue
        for task in machine.tasks:
            store, _, _ = task_insides(task)
            name = f"the tables of {machine.name}[{task.partition}]"
            compare(world, Breach.TABLES_DIFFER, name, rows_of(store), folded.get(task.partition, {}))


def folded_rows(world: Looked) -> dict[int, dict[bytes, bytes]]:
    """What the facts fold to, by partition, as it is stored."""
    by_partition: dict[int, dict[bytes, bytes]] = {}
    partitions = world.scenario.pipeline.partitions
    for key, record in world.ledger.rows.by_key.items():
        execution_id = key[2:].decode().split(".")[0]
        by_partition.setdefault(home_partition(execution_id, partitions), {})[key] = encode_row(record)
    return by_partition


def rows_of(store: Any) -> dict[bytes, bytes]:
    """Every row of a store."""
    return {key: value for prefix in PREFIXES.values() for key, value in store.scan(*prefix_span(prefix))}


def compare(world: Looked, breach: Breach, tables: str, rows: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> None:
    """Find the first row that is not what the facts say; of executions that may be forgotten, rows may be gone, and stay so."""
    back = [key for key in rows if execution_of_key(key) in world.forgotten] if world.forgotten else []
    if back:
        raise Violation(Breach.FORGOTTEN_CAME_BACK, f"{tables} hold {back[0]!r}, which was deleted long ago")
    if rows == wanted:
        return
    differing = sorted(key for key in {*rows, *wanted} if rows.get(key) != wanted.get(key))
    forgotten = [key for key in differing if key not in rows and world.may_be_gone(key)]
    keys = [key for key in differing if key not in forgotten]
    if keys:
        raise Violation(
            breach,
            f"{tables} are not what the facts say: {keys[0]!r} is {rows.get(keys[0])!r}, not {wanted.get(keys[0])!r} ({len(keys)} rows)",
        )
    world.coverage.faults["rows forgotten"] += len(forgotten)
    gone = {execution_of_key(key) for key in forgotten if key.startswith(b"e")}
    world.forgotten |= gone
    orphans = [key for key in rows if execution_of_key(key) in gone]
    if orphans:
        raise Violation(Breach.ROWS_LEFT_BEHIND, f"{tables} hold {orphans[0]!r}, whose execution is forgotten")


def check_restore(world: Looked) -> None:
    """A fresh store, restored from the changelogs, is the same too."""
    folded = folded_rows(world)
    for partition in range(world.scenario.pipeline.partitions):
        name = f"the restored tables of partition {partition}"
        rows = rows_of(restored(world, partition))
        compare(world, Breach.RESTORE_DIFFERS, name, rows, folded.get(partition, {}))


def restored(world: Looked, partition: int, store: MemoryStore | None = None) -> Store:
    """A store, a fresh one unless another is given, as it is after a restore."""
    restore = Restore(
        world.log,
        store or MemoryStore(),
        topics={world.names.changelog(table): prefix for prefix, table in TABLES.items()},
        partition=partition,
        clock=world.clock,
        delete_retention_ms=CHANGELOG_DELETE_RETENTION_MS,
        reopen=MemoryStore,
    )
    if not any(restore.step(1) for _ in range(ROUNDS_MAX)):
        raise Violation(
            Breach.RESTORE_DIFFERS, f"the restore of partition {partition} does not end: {restore.waiting_for}"
        )
    return restore.store


def check_forgotten(world: Looked) -> None:
    """Nothing is left of what ended longer ago than executions are kept: neither on a machine, nor after a restore."""
    for machine in world.running():
        for task in machine.tasks:
            _check_gone(world, f"the tables of {machine.name}[{task.partition}]", rows_of(task_insides(task)[0]))
    for partition in range(world.scenario.pipeline.partitions):
        _check_gone(world, f"the restored tables of partition {partition}", rows_of(restored(world, partition)))
    for machine in world.machines:
        for (_, partition), (rows, positions) in machine.old_disk.items():
            store = MemoryStore()
            store.apply(dict(rows), dict(positions))
            found = rows_of(restored(world, partition, store))
            _check_gone(world, f"the tables of partition {partition}, restored onto an old disk,", found)


def _check_gone(world: Looked, tables: str, rows: dict[bytes, bytes]) -> None:
    left = [key for key in rows if world.may_be_gone(key)]
    if left:
        raise Violation(Breach.NEVER_FORGOTTEN, f"{tables} still hold {left[0]!r} and {len(left) - 1} rows more")


def check_waiting(world: Looked) -> None:
    """No execution waits without a timer, local work or a session."""
    for machine in world.running():
        for task in machine.tasks:
            if not is_idle(task) or any(pool.is_busy for pool in machine.pools):
                continue
            assert machine.worker is not None
            loop = machine.worker.loops["core"]
            consumer = consumer_of(loop)
            if loop._pending or consumer is None or not is_member(world.log, consumer):  # noqa: SLF001
                continue
            _check_waiting(world, task)


def _check_waiting(world: Looked, task: CoreTask) -> None:
    store, sessions, timers = task_insides(task)
    armed = {key[2:].decode().split(".")[0] for key, _ in timers.armed()}
    serving = {session.execution_id for session in sessions.values() if session.is_ended or session.stream is not None}
    for key, _ in store.scan(*prefix_span("e")):
        execution: ExecutionRecord | None = world.ledger.rows.get(key)
        if execution is not None and not execution.is_terminal and execution.execution_id not in armed | serving:
            raise Violation(
                Breach.WAITS_FOR_NOTHING, f"{execution.execution_id} ({execution.status}) waits for nothing"
            )
