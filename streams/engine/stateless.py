"""The parts of a `streams.engine.task.Task` that need no rows: what ingress and continuation tasks have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from schemas import limits
from streams.engine.task import Entry, Health, Outputs
from streams.log.seam import TopicPartition
from streams.telemetry.metrics import Metrics
from streams.telemetry.tally import Tally


class StatelessTask:
    """The parts of a `streams.engine.task.Task` that need no rows."""

    def __init__(self, inputs: tuple[TopicPartition, ...], metrics: Metrics) -> None:
        self.inputs = inputs
        self.ready: deque[Entry] = deque()
        self.tally = Tally(metrics)
        self.waiting_bytes = 0
        """Of records that are not decided yet."""

    def restore(self, budget_s: float) -> bool:
        """Nothing to restore."""
        del budget_s
        return True

    def start(self) -> None:
        """Nothing to take up."""

    def events(self, room: int) -> list[Entry]:
        """Records in order."""
        taken = [self.ready.popleft() for _ in range(min(room, len(self.ready)))]
        self.waiting_bytes -= sum(entry.record.size for entry in taken if entry.record is not None)
        return taken

    def has_work(self) -> bool:
        """Whether records wait."""
        return bool(self.ready)

    def is_waiting(self) -> bool:
        """Whether records were read and are not decided yet."""
        return bool(self.ready)

    def is_full(self) -> bool:
        """Whether reading should wait."""
        return len(self.ready) > 2 * limits.BATCH_RECORDS_MAX or self.waiting_bytes > limits.INBOX_BYTES_MAX

    def full_inputs(self) -> Sequence[TopicPartition]:
        """Inputs whose reading should pause."""
        return self.inputs if self.is_full() else ()

    def next_due_ms(self) -> int | None:
        """No timers."""
        return None

    def prefetch(self, entries: Sequence[Entry]) -> None:
        """No rows."""

    def settle(self, outputs: Outputs) -> None:
        """Nothing follows."""

    def changes(self) -> Mapping[bytes, bytes | None]:
        """No rows."""
        return {}

    def changelog_of(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """No rows."""
        raise AssertionError(key)

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """The batch is committed: count it."""
        del rows, ends
        self.tally.commit()

    def hand_over(self) -> None:
        """No local work."""

    def drop(self) -> None:
        """The batch did not happen; the loop keeps its events."""
        self.tally.drop()

    def close(self) -> None:
        """Nothing to free."""

    def health(self) -> Health:
        """Nothing waits for an answer here."""
        return Health()
