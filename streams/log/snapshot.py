"""Reading topics as they are now: from some offset to the end that was there when the reading began, and no further.

No group, no commit: a reader leaves no trace. Ends are read_committed, so an open transaction is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from schemas.errors import LogUnavailable, UsageError
from streams.clock import Clock, SystemClock
from streams.log.seam import Log, Record, TopicPartition

CALL_TIMEOUT_S = 10.0
POLL_RECORDS = 2_000
POLL_S = 0.5
STALL_S_MAX = 30.0
"""A reading that gets nothing for so long is given up."""


def partitions_of(log: Log, topic: str, *, timeout_s: float = CALL_TIMEOUT_S) -> int:
    """How many partitions a topic has.

    Raises:
        UsageError: there is no such topic.
        LogUnavailable: the broker is away.
    """
    state = log.topics([topic], timeout_s).get(topic)
    if state is None:
        raise UsageError(
            f"topic {topic} does not exist: is the app name right? `kawait topics PIPELINE` creates its topics"
        )
    return state.partitions


def read(
    log: Log,
    partitions: Sequence[TopicPartition],
    *,
    since_ms: int | None = None,
    last: int | None = None,
    clock: Clock | None = None,
) -> Iterator[Record]:
    """Records of some partitions up to their present ends, each partition in order.

    Args:
        log: Where they are.
        partitions: Which.
        since_ms: Leave out what is older (by the records' timestamps).
        last: Only about so many of the newest offsets of each partition.
        clock: For the stall.

    Raises:
        LogUnavailable: the broker is away, or nothing came for `STALL_S_MAX`.
    """
    ends = log.end_offsets(partitions, "committed", CALL_TIMEOUT_S)
    starts = log.start_offsets(partitions, CALL_TIMEOUT_S)
    if since_ms is not None:
        later = log.offsets_at(partitions, since_ms, CALL_TIMEOUT_S)
        starts = {at: max(start, later[at]) for at, start in starts.items()}
    if last is not None:
        starts = {at: max(start, ends[at] - last) for at, start in starts.items()}
    yield from _read(log, {at: start for at, start in starts.items() if start < ends[at]}, ends, clock or SystemClock())


def _read(
    log: Log, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], clock: Clock
) -> Iterator[Record]:
    if not starts:
        return
    reader = log.reader()
    try:
        reader.assign(starts)
        moved_s = clock.monotonic_s()
        while any(reader.position(at) < ends[at] for at in starts):
            records = reader.poll(POLL_RECORDS, POLL_S)
            if records:
                moved_s = clock.monotonic_s()
            elif clock.monotonic_s() - moved_s > STALL_S_MAX:
                raise LogUnavailable(
                    f"nothing came from {next(iter(starts)).topic} for {STALL_S_MAX:g} s; is the broker there?"
                )
            for record in records:
                if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    yield record
    finally:
        reader.close()
