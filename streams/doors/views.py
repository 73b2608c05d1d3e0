"""Views: what an operator asks, read from the topics that hold it (SURFACE `status`, `trace`, `refusals`, `dlq`).

An execution's rows and facts are in its home partition, so a view of one execution reads that partition alone; a view of a whole topic
reads its newest records. Nothing here needs a worker, the pipeline file or a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from schemas import codec
from schemas.envelopes import DeadLetter, Refusal
from schemas.errors import PeerError, PoisonRecord, UsageError
from schemas.facts import Fact
from schemas.identity import home_partition, parse_interaction_id
from schemas.names import Names
from state.execution import ExecutionRecord
from state.folding import decode_row
from state.interaction import InteractionRecord
from state.item import ItemRecord
from state.keys import PREFIXES, interaction_key, item_key, split_key
from state.unit import UnitRecord
from streams.log.seam import Log, TopicPartition
from streams.log.snapshot import partitions_of, read

CLOCK_SKEW_MS = 60_000
"""Facts are looked for from so long before the submission on: record times are the producer's."""

OFFSETS_A_RECORD = 2
"""A transaction adds a marker, which takes an offset too."""

_T = TypeVar("_T", Refusal, DeadLetter)
_R = TypeVar("_R", ExecutionRecord, UnitRecord, InteractionRecord, ItemRecord)


class Target(NamedTuple):
    """What an id names: an execution, or one interaction of it."""

    execution_id: str
    unit_id: str | None = None
    item_index: int | None = None

    @property
    def is_interaction(self) -> bool:
        """Whether it names an interaction."""
        return self.unit_id is not None


class Found(NamedTuple):
    """A record of a topic that people read, and where it is."""

    value: Refusal | DeadLetter
    partition: int
    offset: int

    @property
    def place(self) -> str:
        """How a command names it: `<partition>-<offset>`."""
        return f"{self.partition}-{self.offset}"


class ExecutionView(NamedTuple):
    """An execution and its units, by step."""

    execution: ExecutionRecord
    units: list[UnitRecord]


class InteractionView(NamedTuple):
    """An interaction with the unit that decides whether it is open, and what its suffix made."""

    interaction: InteractionRecord
    unit: UnitRecord | None
    item: ItemRecord | None

    @property
    def status(self) -> str:
        """Its status; a pending one whose unit ended is closed with it (DESIGN 7 'Finishing')."""
        open_ = self.unit is not None and self.unit.is_open
        return str(self.interaction.status) if open_ or self.interaction.status != "PENDING" else "CLOSED"


def target(text: str) -> Target:
    """What an operator's id names.

    Raises:
        UsageError: it is neither an execution id nor an interaction id.
    """
    try:
        ref = parse_interaction_id(text)
    except PeerError:
        if not text or text != text.strip():
            raise UsageError(f"{text!r} is neither an execution id nor an interaction id") from None
        return Target(text)
    return Target(ref.execution_id, ref.unit_id, ref.item_index)


class Views:
    """Views of one application.

    Args:
        log: Where its topics are.
        app: Its name, the topic prefix.
    """

    def __init__(self, log: Log, app: str) -> None:
        self._log = log
        self._names = Names.of(app)
        self._app = app
        self._counts: dict[str, int] = {}

    # --- one execution -------------------------------------------------------------------------------------------------------------

    def execution(self, execution_id: str) -> ExecutionView | None:
        """An execution as it stands; None: unknown, or gone with its retention."""
        rows = self._rows("executions", execution_id, lambda key: key == execution_id.encode(), ExecutionRecord)
        if not rows:
            return None
        prefix = f"{execution_id}.".encode()
        units = self._rows("units", execution_id, lambda key: key.startswith(prefix), UnitRecord)
        return ExecutionView(rows[0], sorted(units, key=lambda unit: unit.step_number))

    def interaction(self, wanted: Target) -> InteractionView | None:
        """An interaction as it stands; None: unknown."""
        assert wanted.unit_id is not None
        unit_id = wanted.unit_id
        _, key = split_key(interaction_key(unit_id, wanted.item_index))
        interactions = self._rows("interactions", wanted.execution_id, lambda found: found == key, InteractionRecord)
        if not interactions:
            return None
        units = self._rows("units", wanted.execution_id, lambda found: found == unit_id.encode(), UnitRecord)
        items: list[ItemRecord] = []
        if wanted.item_index is not None:
            _, item = split_key(item_key(unit_id, wanted.item_index))
            items = self._rows("items", wanted.execution_id, lambda found: found == item, ItemRecord)
        return InteractionView(interactions[0], units[0] if units else None, items[0] if items else None)

    def trace(self, wanted: Target) -> Iterator[Fact]:
        """The facts of an execution, or those about one interaction of it, in the order in which they were committed."""
        view = self.execution(wanted.execution_id)
        known = view.execution if view is not None and not view.execution.forgotten else None
        since_ms = known.submitted_at_ms - CLOCK_SKEW_MS if known is not None else None
        key = wanted.execution_id.encode()
        for record in read(self._log, [self._home(self._names.facts, wanted.execution_id)], since_ms=since_ms):
            if record.key != key:
                continue
            fact = codec.decode(record.value)
            if isinstance(fact, Fact) and _is_about(fact, wanted):
                yield fact

    def _rows(self, table: str, execution_id: str, wanted: Callable[[bytes], bool], kind: type[_R]) -> list[_R]:
        """The newest rows of a table that are wanted; one partition is read."""
        found: dict[bytes, bytes] = {}
        for record in read(self._log, [self._home(self._names.changelog(table), execution_id)]):
            if record.key is None or not wanted(record.key):
                continue
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.value
        prefix = f"{PREFIXES[table]}/".encode()
        rows = [decode_row(prefix + key, value) for key, value in found.items()]
        return [row for row in rows if isinstance(row, kind)]

    def _home(self, topic: str, execution_id: str) -> TopicPartition:
        return TopicPartition(topic, home_partition(execution_id, self._count(topic)))

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = partitions_of(self._log, topic)
        return self._counts[topic]

    # --- what needs somebody -------------------------------------------------------------------------------------------------------

    def refusals(self, *, limit: int, reason: str | None = None, since_ms: int | None = None) -> list[Found]:
        """The newest refused answers, oldest first."""
        return self._newest(self._names.refusals, Refusal, limit=limit, reason=reason, since_ms=since_ms)

    def dead_letters(self, *, limit: int, reason: str | None = None, since_ms: int | None = None) -> list[Found]:
        """The newest dead letters, oldest first."""
        return self._newest(self._names.dlq, DeadLetter, limit=limit, reason=reason, since_ms=since_ms)

    def dead_letter(self, name: str) -> Found | None:
        """One dead letter: by its place, by its own id, by an item's interaction, or by the execution that died (the newest of it)."""
        place = _place(name, self._count(self._names.dlq))
        if place is not None:
            partition, offset = place
            at = TopicPartition(self._names.dlq, partition)
            end = self._log.end_offsets([at], "committed", 10.0)[at]
            found = self._found(DeadLetter, [at], last=max(0, end - offset))
            return next((letter for letter in found if letter.offset == offset), None)
        every = self._found(DeadLetter, self._all(self._names.dlq))
        return max(
            (letter for letter in every if isinstance(letter.value, DeadLetter) and _is_named(letter.value, name)),
            key=lambda letter: letter.value.at_ms,
            default=None,
        )

    def _newest(
        self, topic: str, kind: type[_T], *, limit: int, reason: str | None, since_ms: int | None
    ) -> list[Found]:
        last = OFFSETS_A_RECORD * limit if reason is None else None
        found = [
            record
            for record in self._found(kind, self._all(topic), since_ms=since_ms, last=last)
            if reason is None or record.value.reason == reason
        ]
        found.sort(key=lambda record: (record.value.at_ms, record.partition, record.offset))
        return found[-limit:] if limit else []

    def _found(
        self, kind: type[_T], partitions: list[TopicPartition], *, since_ms: int | None = None, last: int | None = None
    ) -> Iterator[Found]:
        for record in read(self._log, partitions, since_ms=since_ms, last=last):
            try:
                value: msgspec.Struct = codec.decode(record.value)
            except PoisonRecord:
                continue  # somebody else wrote into our topic; it is no news about an answer
            if isinstance(value, kind):
                yield Found(value, record.partition, record.offset)

    def _all(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self._count(topic))]


def _is_named(letter: DeadLetter, name: str) -> bool:
    if letter.kind == "item":
        return name in (letter.letter_id, letter.interaction_id)
    return letter.execution_id == name


def _place(name: str, partitions: int) -> tuple[int, int] | None:
    partition, dash, offset = name.partition("-")
    if dash and partition.isdecimal() and offset.isdecimal() and int(partition) < partitions:
        return int(partition), int(offset)
    return None


def _is_about(fact: Fact, wanted: Target) -> bool:
    if not wanted.is_interaction:
        return True
    return getattr(fact, "unit_id", None) == wanted.unit_id and getattr(fact, "item_index", -1) == wanted.item_index
