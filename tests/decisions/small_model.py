"""A world small enough to walk through completely: one execution, its rows, one process that may be lost, an outside party.

`explore(scenario)` takes every event in every order, and checks after each one what must always hold (DESIGN 10). The core decides
everything; this interpreter only performs decisions, as streams.roles.core.task does, and offers the events that may come next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from schemas import codec
from schemas.envelopes import SubmitCommand
from schemas.facts import BoundaryCompletionAdmitted, Fact
from state.execution import ExecutionStatus
from state.folding import encode_row, fold
from state.interaction import InteractionRecord, InteractionStatus
from state.item import ItemRecord, ItemStatus
from tests.decisions.given import (
    DEADLINE,
    EXECUTION,
    INPUT,
    NO,
    NOW,
    TENANT,
    YES,
    DictRows,
    Doing,
    Given,
    answer,
    line,
    lines,
    outcome,
    request,
    segment_completed,
    segment_failed,
)
from topologies.decisions.admission import admit, admit_held
from topologies.decisions.advance import advance
from topologies.decisions.continuation import complete_item, gates_open, item_due, sweep
from topologies.decisions.decision import (
    Append,
    CloseSession,
    Collect,
    DeadLetterExecution,
    DeadLetterItem,
    Decisions,
    EmitContinuation,
    JudgeHeld,
    Offer,
    OpenSession,
    Publish,
    Request,
    RunSegment,
    TellOutcome,
    WriteOutput,
)
from topologies.decisions.dispatch import dispatch_items
from topologies.decisions.ending import cancel
from topologies.decisions.publication import collected, publication_failed, published
from topologies.decisions.retention import forget
from topologies.decisions.submission import input_moved, submit
from topologies.decisions.timeout import expire
from topologies.pipeline.items import SourceItem
from topologies.pipeline.model import Pipeline

Event = tuple[str, Callable[["World"], object]]


@dataclass(frozen=True)
class Scenario:
    """What may happen, and how often.

    Attributes:
        items: Length of the stream; None: a scalar await.
        budget: How often each trouble may come: duplicate, conflict, early, takeover, eviction, cancel, suffix, segment, publish, lost,
            repeat.
        deadlines: Deadlines may pass.
        idles: A live session may run dry and park.
    """

    pipeline: Pipeline
    items: int | None = None
    budget: tuple[tuple[str, int], ...] = ()
    deadlines: bool = False
    idles: bool = False


@dataclass
class World:
    """Everything that is true at one moment; the second half is lost with the process."""

    scenario: Scenario
    budget: dict[str, int]
    rows: DictRows = field(default_factory=DictRows)
    log: tuple[Fact, ...] = ()
    asked: frozenset[int | None] = frozenset()
    answered: frozenset[int | None] = frozenset()
    continuations: tuple[tuple[int, int], ...] = ()
    written: tuple[bytes, ...] = ()
    replies: tuple[str, ...] = ()
    dead: int = 0
    letters: tuple[str, ...] = ()
    """Of items that were left out."""

    running: RunSegment | Publish | Collect | None = None
    session: bool = False
    takes_offers: bool = True
    idle: bool = False
    offered: frozenset[tuple[int, int]] = frozenset()
    disarmed: frozenset[int] = frozenset()
    """Items whose timer rang and led to no fact: it rings again only once the row changes."""

    def copy(self) -> World:
        """A world that may go another way."""
        return replace(self, rows=DictRows(self.rows), budget=dict(self.budget))

    @property
    def key(self) -> Any:
        """Two worlds with the same key have the same future."""
        rows = tuple(sorted((key, encode_row(record)) for key, record in self.rows.items()))
        outside = (
            self.asked,
            self.answered,
            self.continuations,
            tuple(sorted(self.written)),
            self.replies,
            self.dead,
            self.letters,
        )
        local = (self.running, self.session, self.takes_offers, self.idle, self.offered, self.disarmed)
        return rows, outside, local, tuple(sorted(self.budget.items()))

    # --- what is true ---

    @property
    def here(self) -> Given:
        """The rows, by name."""
        return Given(self.scenario.pipeline, self.rows)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return self.scenario.pipeline

    @property
    def is_open(self) -> bool:
        """The execution has not ended."""
        execution = self.here.execution
        return execution is not None and not execution.is_terminal

    @property
    def live(self) -> bool:
        """A local live session takes offers."""
        unit = self.here.unit()
        return self.session and self.takes_offers and unit is not None and unit.live

    @property
    def indexes(self) -> list[int | None]:
        """Items that the outside knows of."""
        return [None] if self.scenario.items is None else list(range(self.scenario.items))

    def interactions(self) -> list[InteractionRecord]:
        """Rows of interactions."""
        return [record for record in self.rows.values() if isinstance(record, InteractionRecord)]

    def item_rows(self) -> list[ItemRecord]:
        """Rows of items."""
        return [record for record in self.rows.values() if isinstance(record, ItemRecord)]

    def local(self) -> Doing:
        """What `advance` is told."""
        answered = sum(row.status is InteractionStatus.COMPLETED for row in self.interactions())
        parks = self.session and (self.idle or not self.takes_offers)
        return Doing(self.running is not None, self.session, answered if parks else None)

    # --- performing ---

    def perform(self, decisions: Decisions) -> None:
        """What streams.roles.core.task does with decisions; held answers are judged after the commit."""
        to_judge: list[int | None] = []
        for decision in decisions:
            match decision:
                case Append(fact):
                    fold(self.rows, fact)
                    self.log += (fact,)
                    self.disarmed -= {getattr(fact, "item_index", None)}
                case Request(_, _, fact):
                    assert fact.item_index not in self.asked, "one request an item"
                    self.asked |= {fact.item_index}
                case EmitContinuation(record):
                    self.continuations = tuple(sorted((*self.continuations, (record.item_index, record.attempt))))
                case WriteOutput(_, payload):
                    self.written += (payload,)
                case TellOutcome(told):
                    self.replies += (told.status,)
                case DeadLetterExecution():
                    self.dead += 1
                case DeadLetterItem():
                    self.letters += (decision.letter_id,)
                case Offer(_, index):
                    assert self.live, "offers go to a live session"
                    item = self.here.item(index)
                    self.offered |= {(index, item.attempt if item else 1)}
                case RunSegment() | Publish() | Collect():
                    assert self.running is None, "one job at a time"
                    self.running = decision
                case JudgeHeld(_, index):
                    to_judge.append(index)
                case OpenSession():
                    self.open_session()
                case CloseSession():
                    self.session, self.idle, self.offered = False, False, frozenset()
                case _:
                    pass
        if not self.is_open:
            self.running = None  # whatever it still gives is dropped
        for index in to_judge:
            self.judge(index)

    def open_session(self) -> None:
        """Open a session over the rows: offer what is answered, judge what is held."""
        assert not self.session, "one session a unit"
        self.session, self.idle = True, False
        for row in self.interactions():
            item = self.here.item(row.item_index or 0)
            waits = item is None or (item.status is ItemStatus.PENDING and item.due_ms is None)
            if self.live and row.status is InteractionStatus.COMPLETED and waits:
                self.offered |= {(row.item_index or 0, item.attempt if item else 1)}
        self.judge_held()

    def judge_held(self) -> None:
        """Judge answers whose step has been reached."""
        for row in self.interactions():
            if row.status is InteractionStatus.PENDING and row.held is not None:
                self.judge(row.item_index)

    def judge(self, index: int | None) -> None:
        """Judge an answer that was held."""
        rows = self.here.standing(index)
        self.perform(admit_held(self.pipeline, answer(index), rows, live=self.live, now_ms=NOW))

    def settle(self) -> None:
        """Advance until there is nothing more to do at once."""
        decisions: Decisions = []
        for _ in range(8):
            execution = self.here.execution
            if execution is None:
                return
            decisions = advance(self.pipeline, execution, self.rows, self.local(), self.local(), now_ms=NOW)
            if not decisions:
                return
            self.perform(decisions)
        raise AssertionError(f"advance never settles: {decisions}")

    # --- events ---

    def events(self) -> Iterator[Event]:
        """Everything that may happen next."""
        if self.here.execution is None:
            yield "submit", _submit
            return
        yield from self._jobs()
        yield from self._source()
        yield from self._answers()
        yield from self._items()
        yield from self._timers()
        yield from self._troubles()

    def _jobs(self) -> Iterator[Event]:
        match self.running:
            case RunSegment(_, first, stop):
                yield "segment done", lambda w: w.finish_segment(stop)
                if self.budget.get("segment"):
                    yield "segment failed", lambda w: w.fail_segment(first)
            case Publish():
                yield "published", lambda w: w.finish_publication()
                if self.budget.get("publish"):
                    yield "publication failed", lambda w: w.fail_publication()
            case Collect():
                yield "collected", lambda w: w.finish_collection()
            case None:
                pass

    def _source(self) -> Iterator[Event]:
        unit = self.here.unit()
        if not self.session or unit is None or unit.source_count is not None or self.scenario.items is None:
            return
        if unit.dispatched < self.scenario.items:
            yield "pull", lambda w: w.pull(ended=False)
        if unit.dispatched >= self.scenario.items - 1:
            yield "pull the last", lambda w: w.pull(ended=True)
        if self.budget.get("segment"):
            yield "source failed", lambda w: w.fail_source()

    def _answers(self) -> Iterator[Event]:
        for index in self.indexes:
            if index in self.asked and index not in self.answered:
                yield f"answer {index}", partial(World.take, index=index, payload=YES)
            if index in self.answered and self.budget.get("duplicate"):
                yield f"duplicate {index}", costing("duplicate", partial(World.take, index=index, payload=YES))
            if index in self.answered and self.budget.get("conflict"):
                yield f"conflict {index}", costing("conflict", partial(World.take, index=index, payload=NO))
            if index not in self.asked | self.answered and self.is_open and self.budget.get("early"):
                yield f"early {index}", costing("early", partial(World.take, index=index, payload=YES))

    def _items(self) -> Iterator[Event]:
        unit = self.here.unit()
        for index, attempt in sorted(self.offered):
            yield f"suffix {index} done", partial(World.finish_offer, offer=(index, attempt))
            if self.budget.get("suffix"):
                yield (
                    f"suffix {index} failed",
                    costing("suffix", partial(World.finish_offer, offer=(index, attempt), error="X")),
                )
        for which in sorted(set(self.continuations)):
            yield f"continued {which}", partial(World.finish_continuation, which=which)
            if self.budget.get("suffix"):
                yield (
                    f"continuation {which} failed",
                    costing("suffix", partial(World.finish_continuation, which=which, error="X")),
                )
            if self.budget.get("repeat"):
                yield (
                    f"continued twice {which}",
                    costing("repeat", partial(World.finish_continuation, which=which, keep=True)),
                )
            if self.budget.get("lost"):
                yield f"continuation {which} lost", costing("lost", partial(World.lose, which=which))
        execution = self.here.execution
        if execution and unit and gates_open(execution, unit) and unit.cursor < (unit.expected or 0):
            yield "sweep", lambda w: w.sweep_one()

    def _timers(self) -> Iterator[Event]:
        execution, unit = self.here.execution, self.here.unit()
        if execution and execution.status is ExecutionStatus.WAIT_RETRY:
            yield "retry due", lambda w: w.retry()
        if unit is None or not unit.is_open:
            return
        for row in self.interactions():
            if row.status is InteractionStatus.PENDING and self.scenario.deadlines:
                yield f"deadline {row.item_index}", partial(World.expire, index=row.item_index)
        for item in self.item_rows():
            which = (item.item_index, item.attempt)
            out = which in self.continuations or which in self.offered
            armed = item.due_ms is not None and item.item_index not in self.disarmed
            if item.status is ItemStatus.PENDING and armed and not out:
                yield f"item {item.item_index} due", partial(World.fire, index=item.item_index)

    def _troubles(self) -> Iterator[Event]:
        if not self.is_open:
            yield from self._afterwards()
            return
        if self.budget.get("cancel"):
            yield "cancel", lambda w: w.spend("cancel").cancel()
        if self.budget.get("takeover"):
            yield "takeover", lambda w: w.spend("takeover").take_over(takes_offers=True)
        if self.budget.get("eviction"):
            yield (
                "takeover by a worker without a free session",
                lambda w: w.spend("eviction").take_over(takes_offers=False),
            )
        unit = self.here.unit()
        if self.scenario.idles and self.live and unit and unit.source_count is not None and not self.offered:
            yield "idle", lambda w: w.run_dry()

    def _afterwards(self) -> Iterator[Event]:
        if self.budget.get("moved"):
            yield "input moved", lambda w: w.spend("moved").move_input()
        if self.budget.get("forgotten"):
            yield "forgotten", lambda w: w.spend("forgotten").forget()

    # --- what each event does ---

    def spend(self, trouble: str) -> World:
        """One trouble less to come."""
        self.budget[trouble] -= 1
        return self

    def move_input(self) -> None:
        """The input object was moved away."""
        self.perform(input_moved(self.here.execution, "/done/a.csv", now_ms=NOW))

    def forget(self) -> None:
        """Retention leaves a stub; that it deletes the other rows is no fact."""
        self.perform(forget([], [self.here.the_execution.execution_id], now_ms=NOW))

    def finish_segment(self, stop: int) -> None:
        """A segment ended."""
        self.running = None
        output = line(0) if stop == len(self.pipeline.steps) else INPUT
        self.perform([Append(segment_completed(stop, output))])

    def fail_segment(self, first: int) -> None:
        """A segment failed; it is tried again."""
        attempt = self.spend("segment").here.the_execution.attempt
        self.running = None
        self.perform([Append(segment_failed(NOW + 100, first, attempt))])

    def fail_source(self) -> None:
        """Reading the source failed; it is read again."""
        execution = self.spend("segment").here.the_execution
        self.perform([CloseSession(execution.await_unit_id or "")])
        self.perform([Append(segment_failed(NOW + 100, execution.step_index, execution.attempt))])

    def finish_publication(self) -> None:
        """The effect is done."""
        self.running = None
        self.perform(published(self.here.the_execution, self.here.unit(), ["a.out"], now_ms=NOW))

    def fail_publication(self) -> None:
        """The effect failed."""
        self.spend("publish").running = None
        execution, unit = self.here.the_execution, self.here.unit()
        self.perform(
            publication_failed(self.pipeline, execution, unit, code="IO", message="full", retryable=True, now_ms=NOW)
        )

    def finish_collection(self) -> None:
        """The result was gathered."""
        self.running = None
        count = self.scenario.items
        whole = self.here.the_execution.input_unit_id is None
        result, many = (line(0), False) if count is None or whole else (lines(count), True)
        execution, unit = self.here.the_execution, self.here.unit()
        self.perform(collected(self.pipeline, execution, unit, result, many=many, now_ms=NOW))

    def pull(self, *, ended: bool) -> None:
        """The session dispatches the next item, or finds the end."""
        execution, unit = self.here.the_execution, self.here.the_unit
        index = unit.dispatched
        items = [SourceItem(request(index), f"key-{index}")] if index < (self.scenario.items or 0) else []
        held = {index} if self.here.interaction(index) is not None else set()
        self.perform(dispatch_items(self.pipeline, execution, unit, index, items, held, ended=ended, now_ms=NOW))

    def take(self, index: int | None, payload: bytes) -> None:
        """An answer comes."""
        self.answered |= {index}
        rows = self.here.standing(index)
        decisions = admit(self.pipeline, answer(index, payload), rows, live=self.live, now_ms=NOW)
        assert decisions, "an answer is never passed over"
        if rows.interaction is not None and rows.interaction.status is InteractionStatus.COMPLETED:
            names = {type(d.fact) if isinstance(d, Append) else type(d) for d in decisions}
            assert BoundaryCompletionAdmitted not in names, "an answer is never admitted twice"
        self.perform(decisions)

    def finish_offer(self, offer: tuple[int, int], error: str | None = None) -> None:
        """The live suffix of one item ended."""
        self.offered -= {offer}
        self._complete(offer, error)

    def finish_continuation(self, which: tuple[int, int], error: str | None = None, *, keep: bool = False) -> None:
        """The continuation agent answered."""
        if not keep:
            self.lose(which)
        self._complete(which, error)

    def lose(self, which: tuple[int, int]) -> None:
        """A continuation record comes to nothing."""
        left = list(self.continuations)
        left.remove(which)
        self.continuations = tuple(left)

    def _complete(self, which: tuple[int, int], error: str | None) -> None:
        index, attempt = which
        item = self.here.item(index)
        result = outcome(index, attempt, error=error)
        self.perform(complete_item(self.pipeline, result, self.here.execution, self.here.unit(), item, now_ms=NOW))

    def sweep_one(self) -> None:
        """One slice of the sweep: one item."""
        execution, unit = self.here.the_execution, self.here.the_unit
        row = self.here.interaction(unit.cursor)
        assert row is not None
        rows = [(row, self.here.item(unit.cursor))]
        now_ms = max([NOW, *(item.due_ms or 0 for item in self.item_rows() if item.item_index in self.disarmed)])
        self.perform(sweep(self.pipeline, execution, unit, rows, unit.cursor + 1, now_ms=now_ms))

    def retry(self) -> None:
        """The time to try again has come."""
        execution = self.here.the_execution
        due_ms = execution.due_ms or NOW
        self.perform(advance(self.pipeline, execution, self.rows, self.local(), self.local(), now_ms=due_ms))

    def expire(self, index: int | None) -> None:
        """A deadline passed."""
        row = self.here.interaction(index)
        decisions = expire(self.pipeline, self.here.execution, self.here.unit(), row, live=self.live, now_ms=DEADLINE)
        self.perform(decisions)

    def fire(self, index: int) -> None:
        """An item's timer is due."""
        item = self.here.item(index)
        assert item is not None
        row, unit, execution = self.here.interaction(index), self.here.unit(), self.here.execution
        now_ms = item.due_ms or NOW
        self.disarmed |= {index}
        self.perform(item_due(self.pipeline, execution, unit, item, row, live=self.live, now_ms=now_ms))

    def cancel(self) -> None:
        """An operator ends it."""
        self.perform(cancel(self.here.execution, self.here.unit(), reason="not wanted", now_ms=NOW))

    def take_over(self, *, takes_offers: bool) -> None:
        """The process is lost; another one goes on from the rows."""
        self.running, self.session, self.idle, self.offered = None, False, False, frozenset()
        self.disarmed = frozenset()
        self.takes_offers = takes_offers

    def run_dry(self) -> None:
        """The session had nothing to do for too long."""
        self.idle = True


def costing(trouble: str, happen: Callable[[World], object]) -> Callable[[World], None]:
    """The same event, at the price of one trouble."""

    def run(world: World) -> None:
        world.spend(trouble)
        happen(world)

    return run


def _submit(world: World) -> None:
    command = SubmitCommand(EXECUTION, TENANT, "shop", "key-1", INPUT)
    world.perform(submit(world.pipeline, command, world.here.execution, now_ms=NOW))


# --- what must always hold -----------------------------------------------------------------------------------------------------------------


def check(world: World) -> None:
    """The invariants of DESIGN 10 that one execution shows."""
    admissions = Counter(
        (fact.unit_id, fact.item_index) for fact in world.log if isinstance(fact, BoundaryCompletionAdmitted)
    )
    assert all(count == 1 for count in admissions.values()), "one admitted completion an interaction"
    unit, execution = world.here.unit(), world.here.execution
    if unit is not None:
        ends = Counter(item.status for item in world.item_rows())
        left_out, given_up = ends[ItemStatus.SKIPPED], ends[ItemStatus.FAILED]
        done = ends[ItemStatus.SUCCEEDED] + left_out
        assert unit.outputs == done <= unit.dispatched, "outputs never exceed dispatched"
        assert (unit.skipped, unit.failed, len(unit.failures)) == (left_out, given_up, given_up)
        letters = sorted(item.letter_id for item in world.item_rows() if item.letter_id)
        assert sorted(world.letters) == letters, "one letter for each item that was left out with one"
        assert unit.completed <= unit.dispatched
        for item in world.item_rows():
            row = world.here.interaction(item.item_index)
            assert row is not None
            assert row.status in {InteractionStatus.COMPLETED, InteractionStatus.TIMED_OUT}, (
                "an output follows a stored answer"
            )
        assert unit.expected in {None, unit.dispatched}
        if unit.live:
            assert (unit.completed, unit.expected, unit.dispatch_complete) == (0, None, False), "live moves no gate"
    assert len(set(world.written)) == len(world.written), "each output is written once"
    if execution is None:
        return
    if execution.is_terminal:
        assert unit is None or not unit.is_open, "a terminal execution leaves nothing open"
        assert not world.session
        assert world.replies == (execution.status,), "whoever waits is told once"
        assert world.dead == (execution.status is ExecutionStatus.FAILED)
    else:
        assert (world.replies, world.dead) == ((), 0)
        check_waits(world)


def check_waits(world: World) -> None:
    """No silent wait for ever: whatever an open execution waits for has an armed timer, or is being worked on."""
    execution, unit = world.here.the_execution, world.here.unit()
    if world.running is not None or world.session:
        return
    if execution.status is ExecutionStatus.WAIT_RETRY:
        assert execution.due_ms is not None
        return
    assert execution.status is ExecutionStatus.WAITING_EXTERNAL, "an open execution works, retries or is parked"
    assert unit is not None
    assert unit.is_open, "parked at an open unit"
    waits = []
    for row in world.interactions():
        item = world.here.item(row.item_index) if row.item_index is not None else None
        asked = row.status is InteractionStatus.PENDING and row.deadline_ms > 0
        waiting = item is not None and item.status is ItemStatus.PENDING and item.due_ms is not None
        timed = waiting and row.item_index not in world.disarmed
        ahead = row.status is InteractionStatus.COMPLETED and (row.item_index or 0) >= unit.cursor
        unswept = ahead and (item is None or waiting)
        finished = item is not None and item.status is not ItemStatus.PENDING
        assert asked or timed or unswept or finished or row.status is InteractionStatus.HELD, f"nobody wakes {row}"
        waits.append(asked or timed or unswept)
    assert any(waits), "parked for nothing"


def check_end(world: World) -> None:
    """A run that nothing can follow has ended, and its facts alone make its rows."""
    execution = world.here.execution
    assert execution is not None
    assert execution.is_terminal, f"stuck in {execution.status}"
    if execution.status is ExecutionStatus.SUCCEEDED and world.scenario.items:
        assert len(world.item_rows()) == world.scenario.items
        assert all(item.status in {ItemStatus.SUCCEEDED, ItemStatus.SKIPPED} for item in world.item_rows())
    rows = DictRows()
    for fact in world.log:
        read = codec.decode(codec.encode(fact))
        assert isinstance(read, Fact)
        fold(rows, read)
    assert rows == world.rows, "folding the facts gives the rows"


@dataclass
class Seen:
    """What a walk came across."""

    states: int = 0
    steps: int = 0
    events: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    logs: dict[str, tuple[Fact, ...]] = field(default_factory=dict)


def explore(scenario: Scenario) -> Seen:
    """Take every event in every order, each state once.

    Raises:
        AssertionError: With the events that led there.
    """
    seen = Seen()
    first = World(scenario, dict(scenario.budget))
    known = {first.key: 0}
    came_from: list[set[int]] = [set()]
    ended: list[int] = []
    open_: list[tuple[World, int, tuple[str, ...]]] = [(first, 0, ())]
    while open_:
        world, number, path = open_.pop()
        trail = path
        try:
            events = list(world.events())
            if not events:
                check_end(world)
                status = world.here.the_execution.status
                seen.endings[status] += 1
                seen.logs.setdefault(status, world.log)
                ended.append(number)
            for name, happen in events:
                trail = (*path, name)
                after = world.copy()
                happen(after)
                after.settle()
                check(after)
                seen.steps += 1
                seen.events[name.split(" ", maxsplit=1)[0]] += 1
                key = after.key
                if key not in known:
                    known[key] = len(known)
                    came_from.append(set())
                    open_.append((after, known[key], trail))
                came_from[known[key]].add(number)
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter: {' > '.join(trail)}") from error
    seen.states = len(known)
    check_ways(came_from, ended)
    return seen


def check_ways(came_from: list[set[int]], ended: list[int]) -> None:
    """From every state some way leads to an end: no circle without a way out."""
    reached, open_ = set(ended), list(ended)
    while open_:
        for number in came_from[open_.pop()] - reached:
            reached.add(number)
            open_.append(number)
    assert len(reached) == len(came_from), "a state from which no end is reached"
