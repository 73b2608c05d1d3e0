"""Restore: one partition's store is brought up to what its changelogs say before the task may work (DESIGN 6, Restore).

    settle    wait until no transaction is open on any changelog: the last stable offset is the high watermark, and that is the end
    choose    go on from the stored positions, or, when they cannot be trusted, from the log start with an empty store
    read      to the end by position, never by a last record: markers, aborted records and compaction leave none (CASES 61, 62)

Nothing here waits: `step` does what its budget allows and is called again, so other partitions and the poll go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from schemas import limits
from schemas.errors import LogUnavailable, OffsetOutOfRange
from state.tables.store import ChangelogPosition, Store
from streams.clock import Clock
from streams.log.seam import Log, PartitionReader, Record, TopicPartition

_CALL_TIMEOUT_S = 1.0
"""Wait for one answer about topics or offsets; a broker that is away costs this much of a step."""

_POLL_S = 0.02
"""Wait for records within a step."""

Phase = Literal["settle", "choose", "read", "done"]


class Restore:
    """The restore of one partition's store. Start it once the group's committed offsets are stable (`committed` answered).

    The order matters: a transaction of the former owner that got its offsets in is over by then, and one that did not can no longer
    commit, so nothing is added below the end found here.

    Args:
        log: Where the changelogs are.
        store: The store as it was opened.
        topics: Changelog topic -> prefix of its table's row keys (`state.keys.TABLES`).
        partition: The partition number of all of them.
        clock: For the age of stored positions.
        delete_retention_ms: `delete.retention.ms` of the changelogs; a store that is behind by more than half of it may have
            missed deletes that compaction dropped.
        reopen: Wipes the store and returns an empty one in its place.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        *,
        topics: Mapping[str, str],
        partition: int,
        clock: Clock,
        delete_retention_ms: int,
        reopen: Callable[[], Store],
    ) -> None:
        self.store = store
        """The store being restored; another object after a rebuild."""
        self.phase: Phase = "settle"
        self.waiting_for = ""
        """Why the restore does not move, for logs; empty when it does."""
        self.rebuilt_because = ""
        """Why the stored positions were not used; empty when they were."""
        self._log = log
        self._clock = clock
        self._reopen = reopen
        self._age_ms_max = delete_retention_ms // 2
        self._prefixes = {topic: f"{prefix}/".encode() for topic, prefix in topics.items()}
        self._at = {topic: TopicPartition(topic, partition) for topic in topics}
        self._topic_ids: dict[str, str] = {}
        self._begin: dict[TopicPartition, int] = {}
        self._end: dict[TopicPartition, int] = {}
        self._position: dict[TopicPartition, int] = {}
        self._reader: PartitionReader | None = None

    def step(self, budget_s: float) -> bool:
        """Go on for about `budget_s`; True when the store is true up to the end of its changelogs."""
        end_s = self._clock.monotonic_s() + budget_s
        self.waiting_for = ""
        try:
            if self.phase == "settle" and not self._settle():
                return False
            if self.phase == "choose":
                self._choose()
            while self.phase == "read" and self._read() and self._clock.monotonic_s() < end_s:
                pass
        except LogUnavailable as error:
            self.waiting_for = str(error)
        except OffsetOutOfRange as error:  # the log start moved past us (CASES 65)
            self._rebuild(str(error))
            self.phase = "settle"
        return self.phase == "done"

    def progress(self) -> tuple[int, int]:
        """Offsets followed so far, and in all; (0, 0) until the ends are known."""
        done = sum(self._position[at] - begin for at, begin in self._begin.items())
        return done, sum(max(self._end[at], self._position[at]) - begin for at, begin in self._begin.items())

    def close(self) -> None:
        """Stop reading, at the end or because the partition was given up; the store stays open."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _settle(self) -> bool:
        """Find the end of every changelog; False while a transaction is open on one."""
        states = self._log.topics(list(self._at), _CALL_TIMEOUT_S)
        missing = sorted(self._at.keys() - states.keys())
        if missing:
            self.waiting_for = f"topics {', '.join(missing)} to be created (`kawait topics`)"
            return False
        self._topic_ids = {topic: state.topic_id for topic, state in states.items()}
        partitions = list(self._at.values())
        ends = self._log.end_offsets(partitions, "uncommitted", _CALL_TIMEOUT_S)
        stable = self._log.end_offsets(partitions, "committed", _CALL_TIMEOUT_S)
        unstable = [at for at in partitions if stable[at] != ends[at]]
        if unstable:
            self.waiting_for = f"the open transaction on {unstable[0].topic}[{unstable[0].partition}] to end"
            return False
        self._end = ends
        self.phase = "choose"
        return True

    def _choose(self) -> None:
        """Decide where to read from."""
        starts = self._log.start_offsets(list(self._at.values()), _CALL_TIMEOUT_S)
        stored = self.store.positions()
        distrust = self._distrust(stored, starts)
        if distrust:
            self._rebuild(distrust)
            stored = {}
        self._begin = {
            at: stored[topic].offset if topic in stored else min(starts[at], self._end[at])
            for topic, at in self._at.items()
        }
        self._position = dict(self._begin)
        behind = {at: begin for at, begin in self._begin.items() if begin < self._end[at]}
        if behind:
            self._reader = self._log.reader(isolation="committed")
            self._reader.assign(behind)
        self.phase = "read"

    def _distrust(self, stored: Mapping[str, ChangelogPosition], starts: Mapping[TopicPartition, int]) -> str:
        """Why the store cannot be used as it is; empty when it can. A topic without position has no rows in the store."""
        now_ms = self._clock.now_ms()
        for topic, position in stored.items():
            at = self._at.get(topic)
            if at is None:
                return f"the store follows {topic}, which is none of its changelogs"
            where, start, end = f"{topic}[{at.partition}]", starts[at], self._end[at]
            if position.topic_id != self._topic_ids[topic]:
                return f"{where} is another topic now (id {self._topic_ids[topic]}, not {position.topic_id})"
            if not start <= position.offset <= end:
                return f"the stored position {position.offset} of {where} is not within {start} to {end}"
            if position.offset < end and now_ms - position.time_ms > self._age_ms_max:
                return f"the stored position of {where} is {now_ms - position.time_ms} ms old"
        return ""

    def _rebuild(self, why: str) -> None:
        self.close()
        self.rebuilt_because = why
        self.store = self._reopen()

    def _read(self) -> bool:
        """Apply one chunk; True when there may be more right now."""
        records: list[Record] = []
        if self._reader is not None:
            records = self._reader.poll(limits.RESTORE_RECORDS, _POLL_S)
            moved = {at: self._reader.position(at) for at in self._begin if self._begin[at] < self._end[at]}
            touched = {record.topic for record in records}
            self._position.update(moved)
            if records:
                self.store.apply(self._rows(records), self._positions_of(touched))
        if any(position < self._end[at] for at, position in self._position.items()):
            return False
        self.close()
        self.store.apply(
            {}, self._positions_of(self._at)
        )  # markers at the end count as followed, and the age starts anew
        self.phase = "done"
        return False

    def _rows(self, records: list[Record]) -> dict[bytes, bytes | None]:
        prefixes = self._prefixes
        return {prefixes[topic] + key: value for topic, _, _, _, key, value, *_ in records if key is not None}

    def _positions_of(self, topics: Mapping[str, object] | set[str]) -> dict[str, ChangelogPosition]:
        now_ms = self._clock.now_ms()
        return {
            topic: ChangelogPosition(self._topic_ids[topic], self._position[self._at[topic]], now_ms)
            for topic in topics
        }


def changelog_positions(
    ends: Mapping[TopicPartition, int], topic_ids: Mapping[str, str], now_ms: int
) -> dict[str, ChangelogPosition]:
    """Changelog positions to store with a committed batch's rows: behind the last record, and the commit marker that follows it.

    What else might stand where the marker is expected is a record of a zombie, which never counts. So a quiet changelog is followed to its
    end, and its position does not grow old.
    """
    return {at.topic: ChangelogPosition(topic_ids[at.topic], offset + 2, now_ms) for at, offset in ends.items()}
