"""Records and bytes of one row, by topic: what the log carries for it, read back record by record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.place import OFFSETS_TIMEOUT_S, Place, offsets_of, partitions_of
from bench.throughput import Case, run_limited, running_stage, settings_for, short
from streams.log.seam import Log
from streams.worker.topics import topic_settings

READ_RECORDS = 5_000
READ_S = 0.2
READ_TURNS_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class TopicShare:
    """One topic's share of a row.

    Attributes:
        markers: Offsets that hold no record: a marker for each transaction that wrote the partition.
        bytes: Key, value and headers, before compression.
        disk_bytes: As stored; None: not our broker.
    """

    topic: str
    records: float
    markers: float
    bytes: float
    disk_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """All topics of a run."""

    case: Case
    topics: list[TopicShare]

    @property
    def records(self) -> float:
        """Of one row, over all topics."""
        return sum(share.records for share in self.topics)

    @property
    def bytes(self) -> float:
        """Of one row, over all topics, before compression."""
        return sum(share.bytes for share in self.topics)


def measure(case: Case, place: Place, folder: Path) -> Budget:
    """Run a case and read everything that it left."""
    settings = settings_for(case, folder / "in", folder / "files")
    with running_stage(settings, place) as (stage, _):
        run_limited(settings, stage, case.rows)
        topics = [spec.name for spec in topic_settings(stage.pipeline)]
        offsets = offsets_of(stage.log, topics)
        shares = [
            TopicShare(
                topic=short(topic, stage.pipeline.app),
                records=records / case.rows,
                markers=(offsets[topic] - records) / case.rows,
                bytes=size / case.rows,
                disk_bytes=None if (disk := place.disk_bytes(topic)) is None else disk / case.rows,
            )
            for topic in topics
            for records, size in [_read(stage.log, topic)]
            if records
        ]
    return Budget(case=case, topics=shares)


def _read(log: Log, topic: str) -> tuple[int, int]:
    """Committed records of a topic, and their bytes."""
    partitions = partitions_of(log, [topic])
    ends = log.end_offsets(partitions, "committed", OFFSETS_TIMEOUT_S)
    full = [at for at in partitions if ends[at]]
    if not full:
        return 0, 0
    reader = log.reader()
    reader.assign(dict.fromkeys(full, 0))
    records = size = 0
    try:
        for _ in range(READ_TURNS_MAX):
            for record in reader.poll(READ_RECORDS, READ_S):
                records += 1
                size += len(record.key or b"") + len(record.value or b"")
                size += sum(len(name) + len(value or b"") for name, value in record.headers)
            if all(reader.position(at) >= ends[at] for at in full):
                return records, size
    finally:
        reader.close()
    raise RuntimeError(f"{topic} could not be read to its end")
