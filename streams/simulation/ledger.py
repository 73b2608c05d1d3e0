"""The ledger of a simulated run: folds the committed facts as they come and checks what must hold at every moment (DESIGN 10).

It knows the application by its topics alone, as anybody outside would.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from schemas import codec, facts
from schemas.facts import Fact
from schemas.identity import home_partition, interaction_id
from schemas.names import Names
from state.execution import ExecutionRecord
from state.folding import Row, fold
from state.keys import execution_key, interaction_key, unit_key
from state.transition import IllegalTransition
from state.unit import UnitRecord
from streams.log.memory.log import MemoryLog
from streams.log.seam import Record, TopicPartition
from streams.simulation.scenario import Say, Scenario
from streams.simulation.violation import Breach, Violation

ENDINGS = (facts.RunSucceeded, facts.RunFailed, facts.RunCancelled)
AFTER_THE_END = (facts.CompletionRefused, facts.RunForgotten, facts.InputMoved)


def records_of(log: MemoryLog, topic: str) -> list[Record]:
    """Every committed record that a topic still has."""
    partitions = [TopicPartition(topic, number) for number in range(log.topics([topic], 1)[topic].partitions)]
    reader = log.reader()
    reader.assign(log.start_offsets(partitions, 1))
    return reader.poll(1_000_000, 0)


class Rows:
    """The rows that the facts so far fold to."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, Row] = {}

    def get(self, key: bytes) -> Any:
        """The record, or None."""
        return self.by_key.get(key)

    def put(self, key: bytes, record: Row) -> None:
        """Make `record` the row."""
        self.by_key[key] = record


class Ledger:
    """The committed facts of a run: what happened, and the rows they fold to."""

    def __init__(self, scenario: Scenario, log: MemoryLog, names: Names, say: Say) -> None:
        self.rows = Rows()
        self.facts: list[Fact] = []
        self.admitted: dict[str, facts.BoundaryCompletionAdmitted] = {}
        self.held: dict[str, list[facts.BoundaryCompletionHeld]] = {}
        self.timed_out: dict[str, facts.InteractionTimedOut] = {}
        self.dispatched: dict[str, facts.BoundaryInteractionDispatched] = {}
        self.asked_late: set[str] = set()
        """Interactions whose held answer was refused, so that they are asked after all."""
        self.late_while_open: Counter[str] = Counter()
        """Answers that were refused as late, by interactions that waited for one."""
        self.ended: dict[str, Fact] = {}
        self.seen: Counter[tuple[str, str]] = Counter()
        self._answered: Counter[str] = Counter()
        self._scenario = scenario
        self._names = names
        self._clock = log.clock
        self._say = say
        self._reader = log.reader()
        self._reader.assign({TopicPartition(names.facts, number): 0 for number in range(scenario.pipeline.partitions)})
        self._forgotten: dict[str, ExecutionRecord] = {}
        self._one_session = scenario.bounds.get("LIVE_SESSIONS_MAX", 64) < max(len(scenario.submissions), 3)

    def follow(self) -> None:
        """Take new facts in; raises `Violation`."""
        for record in self._reader.poll(100_000, 0):
            fact = codec.decode(record.value)
            assert isinstance(fact, Fact)
            self._take(fact, record)

    def _take(self, fact: Fact, record: Record) -> None:
        self._say(f"fact [{record.partition}]@{record.offset}: {_text(fact)}")
        if home_partition(fact.execution_id, self._scenario.pipeline.partitions) != record.partition:
            raise Violation(
                Breach.FACT_AWAY_FROM_HOME, f"{fact} is in partition {record.partition}, which is not its home"
            )
        if fact.execution_id in self.ended and not isinstance(fact, AFTER_THE_END):
            raise Violation(Breach.FACT_AFTER_THE_END, f"{fact} after {self.ended[fact.execution_id]}")
        self._once(fact)
        unasked = self._unasked(fact)
        if isinstance(fact, facts.RunForgotten):
            self._forgotten[fact.execution_id] = self.rows.get(execution_key(fact.execution_id))
        try:
            fold(self.rows, fact)
        except IllegalTransition as error:
            raise Violation(Breach.IMPOSSIBLE_TRANSITION, f"the facts do not fold: {error}") from error
        if unasked is not None and self.interaction(unasked).requested:
            self.asked_late.add(unasked)
        self.facts.append(fact)
        if isinstance(fact, facts.RunSubmitted):
            self._scenario.note_submitted(fact)
        unit_id = getattr(fact, "unit_id", None)
        if isinstance(fact, ENDINGS):
            self._check_end(fact)
        elif unit_id is not None:
            self._check_window(unit_id, fact)

    def _unasked(self, fact: Fact) -> str | None:
        """The interaction of a refused answer that has not been asked yet."""
        if not isinstance(fact, facts.CompletionRefused):
            return None
        row = self.rows.get(interaction_key(fact.unit_id, fact.item_index))
        return row.interaction_id if row is not None and not row.requested else None

    def _once(self, fact: Fact) -> None:
        match fact:
            case facts.BoundaryCompletionAdmitted():
                iid = interaction_id(fact.unit_id, fact.item_index)
                timed_out = self.timed_out.get(iid)
                self.admitted[iid] = fact
                self._answered[fact.unit_id] += 1
                if timed_out is not None and timed_out.resolution != "value":
                    raise Violation(Breach.ADMITTED_AFTER_TIMEOUT, f"{fact} was admitted after {timed_out}")
                self._count("admitted", iid)
            case facts.InteractionTimedOut():
                iid = interaction_id(fact.unit_id, fact.item_index)
                self.timed_out[iid] = fact
                self._check_time(fact, self.dispatched[iid].deadline_ms)
                self._answered[fact.unit_id] += fact.resolution == "skip"
                self._count("timed out", iid)
            case facts.ContinuationCompleted():
                self._count("continued", interaction_id(fact.unit_id, fact.item_index))
            case facts.ContinuationSkipped():
                self._count("skipped", interaction_id(fact.unit_id, fact.item_index))
            case facts.BoundaryInteractionDispatched():
                iid = interaction_id(fact.unit_id, fact.item_index)
                self.dispatched[iid] = fact
                self._count("dispatched", iid)
            case facts.CompletionRefused(reason="late"):
                self._note_late(fact)
            case facts.BoundaryCompletionHeld():
                self.held.setdefault(interaction_id(fact.unit_id, fact.item_index), []).append(fact)
            case facts.RunSubmitted() | facts.RunSucceeded() | facts.RunFailed() | facts.RunCancelled():
                self._count(type(fact).__name__, fact.execution_id)
            case facts.SourceEnded() | facts.BoundaryUnitOpened() | facts.BoundaryUnitClosed():
                self._count(type(fact).__name__, fact.unit_id)
            case _:
                pass

    def _check_time(self, fact: facts.InteractionTimedOut, deadline_ms: int) -> None:
        """No deadline rings before the broker's clock has come to it, whatever a machine's clock says."""
        if not self._scenario.jumps and self._clock.now_ms() < deadline_ms:
            raise Violation(Breach.RANG_EARLY, f"{fact}, and the deadline is {deadline_ms}")

    def _note_late(self, fact: facts.CompletionRefused) -> None:
        iid = interaction_id(fact.unit_id, fact.item_index)
        unit: UnitRecord | None = self.rows.get(unit_key(fact.unit_id))
        if unit is not None and unit.is_open and iid not in self.timed_out:
            self.late_while_open[iid] += 1

    def _count(self, happening: str, which: str) -> None:
        self.seen[happening, which] += 1
        if self.seen[happening, which] > 1:
            raise Violation(Breach.HAPPENED_TWICE, f"{which} was {happening} twice")

    def _check_window(self, unit_id: str, fact: Fact) -> None:
        unit: UnitRecord | None = self.rows.get(unit_key(unit_id))
        if unit is None or not unit.itemised or not isinstance(fact, facts.BoundaryInteractionDispatched):
            return
        window = self._scenario.pipeline.await_step(unit.step_number).window
        unanswered = unit.dispatched - self._answered[unit_id]
        open_ = unit.dispatched - unit.settled
        if unanswered > window:
            raise Violation(
                Breach.WINDOW_EXCEEDED, f"{unanswered} unanswered items of unit {unit_id}, the window is {window}"
            )
        if unit.live and not self._one_session and open_ > window:
            raise Violation(
                Breach.WINDOW_EXCEEDED, f"{open_} unresolved items of unit {unit_id}, the window is {window}"
            )

    def _check_end(self, fact: Fact) -> None:
        self.ended[fact.execution_id] = fact
        for step in self._scenario.pipeline.await_steps:
            unit: UnitRecord | None = self.rows.get(unit_key(f"{fact.execution_id}.{step.index}"))
            if unit is not None and unit.is_open:
                raise Violation(Breach.UNIT_LEFT_OPEN, f"{fact} leaves unit {unit.unit_id} open")
            if unit is not None and unit.itemised and isinstance(fact, facts.RunSucceeded):
                wanted = unit.source_count
                if not unit.dispatched == unit.outputs == wanted or unit.failed:
                    raise Violation(Breach.ITEMS_MISSING, f"{fact.execution_id} succeeded with {unit}")

    # --- asked by others ---------------------------------------------------------------------------------------------

    def execution(self, execution_id: str) -> ExecutionRecord | None:
        """What the facts of an execution fold to."""
        record: ExecutionRecord | None = self.rows.get(execution_key(execution_id))
        return record

    def ended_as(self, execution_id: str) -> ExecutionRecord | None:
        """An execution as it ended, also where no more than a stub is left."""
        return self._forgotten.get(execution_id) or self.execution(execution_id)

    def is_over(self) -> bool:
        """Whether every execution has ended."""
        return all(execution_id in self.ended for execution_id in self._scenario.submissions)

    def interaction(self, iid: str) -> Any:
        """What the facts of an interaction fold to."""
        unit_id, _, item = iid.rpartition(".")
        return self.rows.get(interaction_key(unit_id, None if item == "u" else int(item)))

    def open_interactions(self) -> list[str]:
        """Ids of the interactions that were dispatched and have no answer yet."""
        return [iid for iid in self.dispatched if iid not in self.admitted and iid not in self.timed_out]


def _text(fact: Fact) -> str:
    text = str(fact)
    return text if len(text) < 260 else f"{text[:260]}..."
