"""A task, as the loop sees it: one partition's work, the events it has, and what a batch of them writes.

The loop owns polling, the transaction and its errors; a task owns what records mean, its rows, its timers and its local work, and never
touches the log. The order in which the loop calls it is that of `streams.engine.loop.TransactionalLoop._transact`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from streams.log.seam import Record, TopicPartition


class Entry(NamedTuple):
    """One event for a task to decide. `record` is set where its position moves with this event."""

    task: Task
    event: Any
    record: Record | None = None


class Poisoned(NamedTuple):
    """Stands for an entry that cannot be committed."""

    entry: Entry
    error: Exception


class Health(NamedTuple):
    """How much a task has on its hands.

    Attributes:
        open: Requests without an answer.
        oldest_s: Age of the oldest of them.
        occupied: Window slots taken.
        held: Due deadlines held back for long.
    """

    open: int = 0
    oldest_s: float = 0.0
    occupied: int = 0
    held: int = 0


class Positions(Protocol):
    """How far the loop has come on its inputs."""

    def consumed(self, at: TopicPartition) -> int:
        """How far the consumer has read a partition, past markers."""

    def decided(self, at: TopicPartition) -> int:
        """How far the partition's records are decided and committed; -1 before the task runs."""


OutRecord = tuple[str, bytes | None, bytes | None, int | None, Sequence[tuple[str, bytes]] | None]
"""One record that the batch writes: topic, value, key, partition (None: by murmur2 of the key), headers."""


class Outputs:
    """What a batch writes besides changelog rows."""

    def __init__(self) -> None:
        self.records: list[OutRecord] = []
        self.size = 0

    def add(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Write one more record."""
        self.put((topic, value, key, partition, headers), len(value or b""))

    def put(self, record: OutRecord, size: int) -> None:
        """Write one more record, with a value of `size` bytes; the short way for what each row writes."""
        self.records.append(record)
        self.size += size


class Task(Protocol):
    """The work of one partition of one role."""

    inputs: tuple[TopicPartition, ...]
    """Partitions whose positions it moves."""

    def restore(self, budget_s: float) -> bool:
        """Go on restoring; True when its rows are true up to the end of its changelogs."""

    def start(self) -> None:
        """Restored, positions known: take up what the rows say is open."""

    def accept(self, records: Sequence[Record]) -> None:
        """Records of its inputs, in order."""

    def events(self, room: int) -> list[Entry]:
        """What can be decided now: at most `room` events, and one more for each unit that is swept or to be parked."""

    def has_work(self) -> bool:
        """Whether `events` would return something."""

    def is_waiting(self) -> bool:
        """Whether anything that was read waits to be decided."""

    def full_inputs(self) -> Sequence[TopicPartition]:
        """Inputs whose reading should pause."""

    def next_due_ms(self) -> int | None:
        """When its next timer is due."""

    def prefetch(self, entries: Sequence[Entry]) -> None:
        """Read the rows that these events name."""

    def decide(self, entry: Entry, outputs: Outputs) -> None:
        """Decide one event over the overlay."""

    def settle(self, outputs: Outputs) -> None:
        """Decide what follows for everything that the batch touched."""

    def changes(self) -> Mapping[bytes, bytes | None]:
        """Rows the batch changed, encoded; None: deleted."""

    def changelog_of(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """The changelog partition and record key of a row; the first byte of a key names its table, and so the partition."""

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """The batch is committed: make its rows the state. `ends`: last changelog offsets written."""

    def hand_over(self) -> None:
        """The rows are applied: start local work that the batch decided."""

    def drop(self) -> None:
        """The batch did not happen: forget its decisions."""

    def quarantine(self, entry: Entry, error: Exception, outputs: Outputs) -> None:
        """This event can never be committed: dead-letter it."""

    def close(self) -> None:
        """Stop; wait for effects under way."""

    def health(self) -> Health:
        """How much it has on its hands; asked now and then, for gauges."""


class MakeTask(Protocol):
    """Makes tasks."""

    def __call__(self, partition: int, inputs: tuple[TopicPartition, ...], positions: Positions) -> Task:
        """The task of a partition number, its inputs and the loop's positions."""
