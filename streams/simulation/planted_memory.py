"""Planted bugs of memory: what is forgotten too early, or comes back; objects that are taken too early, or read as they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.objects.listing import FilesystemSource
from state.execution import ExecutionRecord
from streams.engine.restore import Restore
from streams.roles.core import retention
from streams.roles.core.proof import SourceProof
from streams.simulation.planting import Plant, Swap
from streams.simulation.violation import Breach
from streams.worker import application
from topologies.decisions.retention import Fate
from topologies.pipeline.model import Retention


def _dispatch_before_the_look() -> list[Swap]:
    """Rows of an object are asked for as they are read; whether it is what was submitted is looked at when all are read."""

    def compare(_proof: SourceProof, _read_until_s: float, _before_each: Any) -> None:
        """Nothing."""

    return [(SourceProof, "compare", compare)]


def _forget_the_stub() -> list[Swap]:
    """What an input showed is forgotten whole as soon as what somebody submitted by hand is."""

    def fate_of(execution: ExecutionRecord, kept: Retention, *, now_ms: int) -> Fate:
        is_old = execution.is_terminal and execution.updated_at_ms < now_ms - kept.executions_ms
        return Fate.DELETED if is_old else Fate.KEPT

    return [(retention, "fate", fate_of)]


def _take_what_lies_there() -> list[Swap]:
    """An object is whole as soon as it is seen."""

    def is_whole(_folder: FilesystemSource, _path: Any, _seen: Any, _now_ms: int) -> bool:
        return True

    return [(FilesystemSource, "_is_whole", is_whole)]


def _forget_the_open() -> list[Swap]:
    """Retention deletes executions that nothing has changed for long, open ones too."""

    def fate_of(execution: ExecutionRecord, kept: Retention, *, now_ms: int) -> Fate:
        return Fate.DELETED if execution.updated_at_ms < now_ms - kept.executions_ms else Fate.KEPT

    return [(retention, "fate", fate_of)]


def _ignore_tombstones() -> list[Swap]:
    """A restore puts rows, and deletes none."""
    rows_of = Restore._rows  # noqa: SLF001

    def rows(restore: Restore, records: Any) -> dict[bytes, bytes | None]:
        return {key: value for key, value in rows_of(restore, records).items() if value is not None}

    return [(Restore, "_rows", rows)]


def _trust_an_old_store() -> list[Swap]:
    """A store is followed from its position however old it is: deletes that were compacted away meanwhile never reach it."""

    def distrust(_restore: Restore, _stored: Any, _starts: Any) -> str:
        return ""

    return [(Restore, "_distrust", distrust)]


def _take_lost_for_never() -> list[Swap]:
    """Offsets that are gone are taken for such that were never committed: everything that is there is taken up."""

    def refuse_lost(_start: Any, _application: Any, _beginning: Any) -> None:
        """Nothing."""

    return [(application._Start, "_refuse_lost", refuse_lost)]  # noqa: SLF001


def _keep_offsets_of_the_gone() -> list[Swap]:
    """Offsets of a topic that was deleted and made again count on: its new records are passed over."""
    first_offsets = application._Start._first_offsets  # noqa: SLF001

    def offsets(start: Any, known: Any, beginning: Any) -> Any:
        return first_offsets(start, known, beginning._replace(again=frozenset()))

    return [(application._Start, "_first_offsets", offsets)]  # noqa: SLF001


PLANTS: Mapping[str, Plant] = {
    "dispatch-before-the-look": Plant(_dispatch_before_the_look, Breach.ROW_NOT_SUBMITTED),
    "take-lost-for-never": Plant(_take_lost_for_never, Breach.LOST_OFFSETS_IGNORED),
    "keep-offsets-of-the-gone": Plant(_keep_offsets_of_the_gone, Breach.WORKER_RAISED, "OffsetOutOfRange"),
    "forget-the-stub": Plant(_forget_the_stub, Breach.TABLES_DIFFER, "is None, not"),
    "take-what-lies-there": Plant(_take_what_lies_there, Breach.TAKEN_UNFINISHED),
    "forget-the-open": Plant(_forget_the_open, Breach.TABLES_DIFFER, "is None, not"),
    "ignore-tombstones": Plant(_ignore_tombstones, Breach.NEVER_FORGOTTEN, "the restored tables"),
    "trust-an-old-store": Plant(_trust_an_old_store, Breach.NEVER_FORGOTTEN, "onto an old disk"),
}
