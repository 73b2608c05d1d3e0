"""The core task: one partition's executions, units, interactions and items (DESIGN 4 to 7).

    records, pool results, timers  ->  events  ->  topologies.<concern> decides  ->  `_perform` does it over the overlay

The task decides nothing itself: it finds the rows, asks the pure core, folds the facts and queues what is to be written. What starts local
work (offers, segments, sessions, publications) waits in `_after` until the batch is committed. `Local` answers of the pure core come from
here; losing them costs repeated work only.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from connectors.files import identify
from connectors.resume_token import TokenSigner
from schemas import codec, facts, limits
from schemas.envelopes import (
    HEADER_INTERACTION_ID,
    HEADER_RESPONSE_TOPIC,
    HEADER_RESUME_TOKEN,
    CancelCommand,
    Continuation,
    ContinuationCompletion,
    ProviderCompletion,
    RedriveCommand,
    RequestEnvelope,
    SubmitCommand,
    encode_request,
)
from schemas.errors import (
    CallTimeout,
    KawaitError,
    LogUnavailable,
    PeerError,
    PoisonRecord,
    SourceChanged,
    TokenRejected,
)
from schemas.facts import Fact
from schemas.identity import home_partition, interaction_id, parse_interaction_id
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.execution import ExecutionRecord, ExecutionStatus
from state.folding import decode_row, fold
from state.interaction import InteractionRecord, InteractionStatus
from state.item import ItemRecord, ItemStatus
from state.keys import (
    TABLES,
    execution_key,
    interaction_key,
    item_index_of,
    item_key,
    prefix_span,
    span,
    split_key,
    unit_key,
)
from state.table import Store, StoreFactory
from state.unit import UnitRecord
from streams import dead_letters
from streams.changelog import Restore
from streams.events import (
    AnswerArrived,
    CommandArrived,
    ContinuationArrived,
    ExecutionTouched,
    HeldAnswerMet,
    ItemsContinued,
    ItemsPulled,
    OutputPublished,
    PublicationBroke,
    RecordMisplaced,
    RecordPoisoned,
    ResultCollected,
    RetentionContinued,
    SegmentBroke,
    SegmentEnded,
    SourceFailed,
    StrangeAnswerArrived,
    SweepContinued,
    TimerRang,
)
from streams.log import Log, Record, TopicPartition
from streams.loop import Event, Outputs, changelog_positions
from streams.metrics import Metrics
from streams.names import Names
from streams.overlay import Overlay
from streams.pool import Finished, Pool, Ticket
from streams.publishing import collect, item_outputs, publish_object
from streams.segments import Suffix, describe_error, flow, payloads_of, run_segment, run_steps, time_limit_s
from streams.session import Session, SourceStream, check_same_item
from streams.shaping import shape
from streams.timers import TimerIndex, due_of
from topologies import publication
from topologies.admission import Answer, Misshapen, Shape, Standing, admit, admit_held
from topologies.advance import advance, segment_input
from topologies.continuation import complete_item, item_due, sweep
from topologies.decisions import (
    Append,
    CloseSession,
    Collect,
    DeadLetterExecution,
    Decision,
    Duplicate,
    EmitContinuation,
    HoldCompletion,
    NoOp,
    Offer,
    OpenSession,
    Publish,
    Refuse,
    Request,
    RunSegment,
    SendReply,
    WriteOutput,
)
from topologies.dispatch import SourceItem, dispatch_items, idempotency_key
from topologies.ending import cancel, fail
from topologies.pipeline import AwaitStep, KafkaTransport, ObjectOutput, Pipeline, RunStep, TopicOutput, fill_template
from topologies.submission import submit
from topologies.timeout import expire

if TYPE_CHECKING:
    from streams.clock import Clock

logger = structlog.get_logger("kawait.core")

ADVANCES_MAX = 20
"""Rounds of `advance` for one execution in one batch; more means that it does not settle: a bug, not a workload."""

INBOX_MAX = 2 * limits.BATCH_RECORDS_MAX
RETENTION_EVERY_MS = 3_600_000
"""Pause between two passes over the executions for those that `retention.executions` lets go."""

_home = lru_cache(maxsize=4_096)(home_partition)


@dataclass(kw_only=True)
class CoreContext:
    """What all core tasks of a worker share."""

    pipeline: Pipeline
    names: Names
    log: Log
    clock: Clock
    pool: Pool
    stores: StoreFactory
    signer: TokenSigner | None
    metrics: Metrics
    instance: str
    topic_ids: Mapping[str, str]
    consumed: Callable[[TopicPartition], int]
    """How far the consumer has read a partition, past markers."""
    decided: Callable[[TopicPartition], int]
    """How far the partition's records are decided and committed."""
    live_sessions: int = 0
    suffixes: dict[int, Suffix] = field(default_factory=dict)

    def suffix(self, await_index: int) -> Suffix:
        """The compiled suffix of an await step."""
        found = self.suffixes.get(await_index)
        if found is None:
            found = self.suffixes[await_index] = Suffix(self.pipeline, await_index)
        return found


@dataclass(slots=True)
class _Shaping:
    """Answers being projected on the pool, in the order of their records."""

    entries: list[tuple[Record, AnswerArrived]]
    shapes: list[Shape]


@dataclass(slots=True)
class _Chunk:
    """Suffixes being run for a live session."""

    session: Session
    offered: list[tuple[int, int]]  # index, attempt
    items: list[tuple[int, int, bytes]]  # index, attempt, completion: those of `offered` that have one
    results: list[list[bytes] | Exception]
    seconds: float = 0.0
    """What the job itself took; the wait for the loop to notice must not count."""


class TaskClosed(KawaitError):
    """The partition was given up while a job of it ran; the job ends."""


class CoreTask:
    """One partition of the core role; a `streams.loop.Task`."""

    def __init__(self, context: CoreContext, partition: int, inputs: tuple[TopicPartition, ...]) -> None:
        self.inputs = inputs
        self.partition = partition
        self._ctx = context
        self._pipeline = context.pipeline
        self._names = context.names
        self._tenant = ""
        self._store: Store = context.stores.open("core", partition)
        self._overlay = Overlay(self._store)
        self._reading = threading.Lock()
        self._closing = False
        self._effects: list[threading.Event] = []
        self._changelogs = {context.names.changelog(table): prefix for prefix, table in TABLES.items()}
        self._changelog_at = {
            ord(prefix): TopicPartition(topic, partition) for topic, prefix in self._changelogs.items()
        }
        self._completions_at = TopicPartition(context.names.completions, partition)
        self._restore = Restore(
            context.log,
            self._store,
            topics=self._changelogs,
            partition=partition,
            clock=context.clock,
            delete_retention_ms=CHANGELOG_DELETE_RETENTION_MS,
            reopen=self._reopen,
        )
        self._timers = TimerIndex()
        self._ready: deque[Event] = deque()
        self._inbox: deque[
            tuple[Record, AnswerArrived | ContinuationArrived | StrangeAnswerArrived | RecordPoisoned | RecordMisplaced]
        ] = deque()
        self._shaping: _Shaping | None = None
        self._sessions: dict[str, Session] = {}
        self._local: set[str] = set()
        self._starting: set[str] = set()
        self._ended: set[str] = set()
        self._opening: set[str] = set()
        self._noting: set[str] = set()
        """Units of which this batch has facts that their sessions learn once it is committed."""
        self._touched: dict[str, None] = {}
        self._after: list[Callable[[], None]] = []
        self._notes: list[tuple[Session, Fact]] = []
        self._offers: list[Offer] = []
        self._sweeping: dict[str, None] = {}
        self._rung: set[bytes] = set()
        self._gate: int | None = None
        self._retention_at = prefix_span("e")[0]
        self._retention_due_ms = context.clock.now_ms() + RETENTION_EVERY_MS
        self._gate_ms = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._tally: defaultdict[type, int] = defaultdict(int)
        self._projects = any(step.projection for step in self._pipeline.await_steps)
        self._perform_by = self._performers()
        self._decide_by = self._deciders()

    # --- life ------------------------------------------------------------------------------------------------------------------------

    def _reopen(self) -> Store:
        """An empty store in place of one that cannot be trusted."""
        self._store.close()
        self._ctx.stores.wipe("core", self.partition)
        self._store = self._ctx.stores.open("core", self.partition)
        self._overlay = Overlay(self._store)
        return self._store

    def restore(self, budget_s: float) -> bool:
        """Follow the changelogs to their end."""
        done = self._restore.step(budget_s)
        self._ctx.metrics.restoring(self.partition, *self._restore.progress())
        if done and self._restore.rebuilt_because:
            logger.info(
                "state rebuilt from the changelog", partition=self.partition, because=self._restore.rebuilt_because
            )
        return done

    def start(self) -> None:
        """Take up what the rows say is open: every open execution is looked at, every timer armed (BEHAVIOUR hole 2)."""
        start, end = prefix_span("e")
        for key, value in self._store.scan(start, end):
            execution: ExecutionRecord = decode_row(key, value)
            if execution.is_terminal:
                continue
            self._timers.arm(key, due_of(execution))
            self._ready.append(Event(self, ExecutionTouched(execution.execution_id)))
            if execution.await_unit_id is not None:
                self._take_up_unit(execution.await_unit_id)

    def _take_up_unit(self, unit_id: str) -> None:
        unit: UnitRecord | None = self._overlay.get(unit_key(unit_id))
        if unit is None or not unit.is_open:
            return
        for table in ("interactions", "items"):
            for key, value in self._store.scan(*span(table, unit_id)):
                row = decode_row(key, value)
                self._timers.arm(key, due_of(row))
                if (
                    isinstance(row, InteractionRecord)
                    and row.status is InteractionStatus.PENDING
                    and row.answer is not None
                ):
                    self._ready.append(Event(self, HeldAnswerMet(unit_id, row.item_index)))
        if unit.dispatch_complete and unit.itemised and unit.cursor < (unit.expected or 0):
            self._sweeping[unit_id] = None

    def close(self) -> None:
        """Give the partition up: wait for effects under way, then close the store."""
        self._closing = True
        for done in self._effects:
            done.wait(limits.SESSION_TIMEOUT_MS / 2000)
        self._ctx.pool.forget(self)
        for session in self._sessions.values():
            session.is_closed = True
            self._ctx.live_sessions -= session.live
        self._sessions.clear()
        self._restore.close()
        self._ctx.metrics.gave_up(self.partition)
        with self._reading:
            self._store.close()

    # --- intake ------------------------------------------------------------------------------------------------------------------------

    def accept(self, records: Sequence[Record]) -> None:
        """Decode records; commands are ready at once, answers of a step with a projector are projected first."""
        for record in records:
            if record.topic == self._names.commands:
                self._ready.append(Event(self, self._read(record), record))
            else:
                self._inbox.append((record, self._read(record)))
        self._shape_next()

    def _read(self, record: Record) -> Any:
        """What a record means."""
        value: Any = None
        try:
            value = self._decoded(record)
            home = _home(value.execution_id, self._pipeline.partitions)
            if home != self.partition:
                return RecordMisplaced(home)
            if isinstance(value, ContinuationCompletion):
                return ContinuationArrived(value)
            if not isinstance(value, ProviderCompletion):
                return CommandArrived(value)
            ref = parse_interaction_id(value.interaction_id)
            return AnswerArrived(value, ref) if ref.execution_id == value.execution_id else StrangeAnswerArrived(value)
        except PoisonRecord as error:
            return RecordPoisoned(error)
        except PeerError:
            return StrangeAnswerArrived(value)

    def _decoded(self, record: Record) -> Any:
        value = codec.decode(record.value)
        if not isinstance(value, self._kinds(record.topic)):
            raise PoisonRecord("wrong-kind", f"a {type(value).__name__} does not belong on {record.topic}")
        return value

    def _kinds(self, topic: str) -> tuple[type, ...]:
        if topic == self._names.commands:
            return (SubmitCommand, CancelCommand, RedriveCommand)
        return (ProviderCompletion, ContinuationCompletion)

    def _shape_next(self) -> None:
        """Move the inbox on, in order; at most one projection job is out, and what follows it waits."""
        while self._inbox and self._shaping is None:
            entries: list[tuple[Record, AnswerArrived]] = []
            while self._inbox and len(entries) < limits.BATCH_RECORDS_MAX:
                record, what = self._inbox[0]
                if self._needs_projector(what):
                    assert isinstance(what, AnswerArrived)
                    entries.append((record, what))
                elif entries:
                    break
                else:
                    self._ready.append(Event(self, what, record))
                self._inbox.popleft()
            if entries:
                self._submit_shaping(_Shaping(entries, []))

    def _needs_projector(self, what: object) -> bool:
        if (
            not self._projects
            or not isinstance(what, AnswerArrived)
            or what.ref.step_index >= len(self._pipeline.steps)
        ):
            return False
        step = self._pipeline.steps[what.ref.step_index]
        return isinstance(step, AwaitStep) and step.projection is not None

    def _submit_shaping(self, shaping: _Shaping) -> None:
        self._shaping = shaping
        self._ctx.pool.submit(
            self, shaping, lambda ticket: self._project(shaping, ticket), limit_s=limits.CALL_TIMEOUT_DEFAULT_MS / 1000
        )

    def _project(self, shaping: _Shaping, ticket: Ticket) -> None:
        """On the pool: shape answers against their committed requests."""
        todo = shaping.entries[len(shaping.shapes) :]
        rows = self._read_rows([interaction_key(answer.ref.unit_id, answer.ref.item_index) for _, answer in todo])
        shapes = shaping.shapes
        for (record, answer), row in zip(todo, rows, strict=True):
            ticket.restart_limit()
            step = self._pipeline.await_step(answer.ref.step_index)
            completion = answer.completion
            shapes.append(
                shape(step, row, completion.payload, actor=completion.actor, recorded_at_ms=record.timestamp_ms)
            )

    def _read_rows(self, keys: list[bytes]) -> list[Any]:
        """On the pool: committed rows."""
        hot = self._overlay.hot.get
        found = [hot(key) for key in keys]
        missing = [key for key, row in zip(keys, found, strict=True) if row is None]
        if not missing:
            return found
        with self._reading:
            if self._closing:
                raise TaskClosed
            values = dict(zip(missing, self._store.get_many(missing), strict=True))
        return [
            row if row is not None else None if (value := values[key]) is None else decode_row(key, value)
            for key, row in zip(keys, found, strict=True)
        ]

    def _shaped(self, shaping: _Shaping, error: BaseException | None) -> None:
        if isinstance(error, TaskClosed):
            return
        shapes = list(shaping.shapes)
        if error is not None and len(shapes) < len(
            shaping.entries
        ):  # the one that overstayed is refused, the rest goes on
            shapes.append(Misshapen(f"projector: {error}"))
            self._submit_shaping(_Shaping(shaping.entries, shapes))
            return
        for (record, answer), made in zip(shaping.entries, shapes, strict=True):
            answer.shape = made
            self._ready.append(Event(self, answer, record))
        self._shaping = None
        self._shape_next()

    # --- events ------------------------------------------------------------------------------------------------------------------------

    def events(self, room: int) -> list[Event]:
        """What can be decided now: records and results in order, then due timers, then slices."""
        batch: list[Event] = []
        while self._ready and len(batch) < room:
            event = self._ready.popleft()
            batch.append(event)
            room -= len(event.what.items) if isinstance(event.what, ItemsPulled) else 0
        self._ring(batch, room - len(batch))
        batch += [Event(self, SweepContinued(unit_id)) for unit_id in self._sweeping]
        if not batch and self._now() >= self._retention_due_ms:
            batch.append(Event(self, RetentionContinued()))
        now_s = self._ctx.clock.monotonic_s()
        for session in self._sessions.values():
            if not session.parking_asked and session.wants_parking(now_s):
                session.parking_asked = True
                batch.append(Event(self, ExecutionTouched(session.execution_id)))
        return batch

    def has_work(self) -> bool:
        """Whether `events` would return something now."""
        if self._ready or self._sweeping:
            return True
        due = self._timers.next_ms()
        if due is not None and due <= self._ctx.clock.now_ms() and (self._gate is None or self._has_passed_gate()):
            return True
        if self._now() >= self._retention_due_ms:
            return True
        now_s = self._ctx.clock.monotonic_s() if self._sessions else 0.0
        return any(not session.parking_asked and session.wants_parking(now_s) for session in self._sessions.values())

    def standing(self) -> tuple[int, float, int]:
        """Open interactions, age in seconds of the oldest of them, window slots taken."""
        now_ms = self._now()
        sent = [
            due_ms - self._pipeline.await_step(int(key.rsplit(b".", 2)[1])).timeout_ms
            for key, due_ms in self._timers.armed(b"i/")
        ]
        age_s = (now_ms - min(sent)) / 1000 if sent else 0.0
        return len(sent), max(age_s, 0.0), sum(session.occupancy for session in self._sessions.values())

    def is_full(self) -> bool:
        """Whether reading should wait."""
        return len(self._inbox) + len(self._ready) > INBOX_MAX

    def next_due_ms(self) -> int | None:
        """When the next timer or idle session is due."""
        now_ms, now_s = self._ctx.clock.now_ms(), self._ctx.clock.monotonic_s()
        idle = [
            at_s
            for session in self._sessions.values()
            if not session.parking_asked and (at_s := session.idle_at_s()) is not None
        ]
        due = [now_ms + int((at_s - now_s) * 1000) + 1 for at_s in idle]
        timer = self._timers.next_ms()
        if timer is not None:
            due.append(max(timer, now_ms + 20) if self._is_gated() else timer)
        return min(due, default=None)

    def _ring(self, batch: list[Event], room: int) -> None:
        """Due timers. A deadline rings only once every answer that was there at the deadline is decided (policy 2)."""
        if room <= 0:
            return
        keys = self._timers.due(self._ctx.clock.now_ms(), room)
        if not keys:
            self._gate = None
            return
        others = [key for key in keys if key[:1] != b"i"]
        deadlines = [key for key in keys if key[:1] == b"i"]
        if deadlines and not self._deadline_gate_open():
            deadlines = []
        # The end was read after those deadlines only that were due then.
        deadlines = [key for key in deadlines if self._timers.is_due(key, self._gate_ms)]
        batch += [Event(self, TimerRang(key)) for key in (*others, *deadlines)]

    def _is_gated(self) -> bool:
        return self._gate is not None

    def _deadline_gate_open(self) -> bool:
        """Whether the consumed position has passed the end of `completions`, read after the deadline."""
        if self._gate is None:
            self._gate_ms = self._now()
            try:
                end = self._ctx.log.end_offsets([self._completions_at], "uncommitted", 1.0)
            except LogUnavailable:
                return False
            self._gate = end[self._completions_at]
        if not self._has_passed_gate():
            return False
        self._gate = None
        return True

    def _has_passed_gate(self) -> bool:
        """Every answer that was there when the gate was set is decided; under steady load later ones may be waiting."""
        assert self._gate is not None
        if self._ctx.decided(self._completions_at) >= self._gate:
            return True
        waiting = self._inbox or self._shaping is not None or self._ready
        return not waiting and self._ctx.consumed(self._completions_at) >= self._gate

    def finished(self, finished: Finished) -> None:
        """A pool job of this task has ended."""
        tag, error = finished.tag, finished.error
        if isinstance(tag, _Shaping):
            self._shaped(tag, error)
        elif isinstance(tag, _Chunk):
            self._chunk_ended(tag, error)
        elif callable(tag):
            tag(finished.result, error)

    def prefetch(self, events: Sequence[Event]) -> None:
        """Read the interactions and items that a batch names in one go."""
        keys: list[bytes] = []
        for _, what, _record in events:
            if isinstance(what, AnswerArrived):
                keys.append(interaction_key(what.ref.unit_id, what.ref.item_index))
            elif isinstance(what, ContinuationArrived):
                keys.append(item_key(what.completion.unit_id, what.completion.item_index))
            elif isinstance(what, ItemsContinued):
                tried = what.session.attempts
                known = [
                    (outcome.item_index in tried, item_key(outcome.unit_id, outcome.item_index))
                    for outcome in what.outcomes
                ]
                keys += [key for was_tried, key in known if was_tried]
                self._overlay.assume_absent(key for was_tried, key in known if not was_tried)
        self._overlay.prefetch(keys)

    # --- deciding ------------------------------------------------------------------------------------------------------------------------

    def _deciders(self) -> dict[type, Callable[[Any, Record | None, Outputs], Iterable[Decision]]]:
        return {
            CommandArrived: self._on_command,
            AnswerArrived: self._on_answer,
            ContinuationArrived: self._on_continuation,
            StrangeAnswerArrived: self._on_strange,
            RecordMisplaced: self._on_misplaced,
            RecordPoisoned: self._on_poison,
            ItemsPulled: self._on_pulled,
            SourceFailed: self._on_source_failed,
            ItemsContinued: self._on_continued,
            SegmentEnded: self._on_segment_ended,
            SegmentBroke: self._on_segment_broke,
            OutputPublished: self._on_published,
            PublicationBroke: self._on_publication_broke,
            ResultCollected: self._on_collected,
            TimerRang: self._on_timer,
            SweepContinued: self._on_sweep,
            HeldAnswerMet: self._on_held,
            ExecutionTouched: self._on_touched,
            RetentionContinued: self._on_retention,
        }

    def decide(self, event: Event, outputs: Outputs) -> None:
        """Decide one event over the overlay."""
        self._note_local_end(event)
        decisions = self._decide_by[type(event.what)](event.what, event.record, outputs)
        self._perform(decisions, outputs, event)

    def _note_local_end(self, event: Event) -> None:
        """Local work counts as running until its result is decided: started again before that, its second result would meet other rows."""
        if isinstance(event.what, _LOCAL_ENDS):
            self._ended.add(event.what.execution_id)

    def settle(self, outputs: Outputs) -> None:
        """Advance every execution that the batch touched until it waits for something."""
        while self._touched:
            execution_id, _ = self._touched.popitem()
            for _round in range(ADVANCES_MAX):
                execution: ExecutionRecord | None = self._overlay.get(execution_key(execution_id))
                if execution is None:
                    break
                decisions = advance(self._pipeline, execution, self._overlay, self, now_ms=self._ctx.clock.now_ms())
                if not decisions:
                    break
                self._perform(decisions, outputs, None)
            else:
                raise AssertionError(f"execution {execution_id} does not settle")
            self._touched.pop(execution_id, None)

    def _execution(self, execution_id: str) -> ExecutionRecord | None:
        found: ExecutionRecord | None = self._overlay.get(execution_key(execution_id))
        return found

    def _unit(self, unit_id: str | None) -> UnitRecord | None:
        found: UnitRecord | None = self._overlay.get(unit_key(unit_id)) if unit_id else None
        return found

    def _takes_offers(self, unit_id: str) -> bool:
        session = self._sessions.get(unit_id)
        return session is not None and session.live

    def _now(self) -> int:
        return self._ctx.clock.now_ms()

    def _on_command(self, what: CommandArrived, record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        command = what.command
        execution = self._execution(command.execution_id)
        self._touched[command.execution_id] = None
        match command:
            case SubmitCommand():
                problem = self._unfit(command)
                if problem is not None and execution is None:
                    self._poison(record, PoisonRecord("wrong-shape", problem), outputs)
                    return []
                return submit(command, execution, now_ms=self._now())
            case CancelCommand():
                unit = self._unit(execution.await_unit_id) if execution else None
                return cancel(execution, unit, reason=command.reason, now_ms=self._now())
            case _:
                self._poison(
                    record, PoisonRecord("unsupported-command", "this release does not redrive executions"), outputs
                )
                return []

    def _unfit(self, command: SubmitCommand) -> str | None:
        """Why the input is none for this pipeline."""
        if command.pipeline != self._pipeline.name:
            return f"it is for pipeline {command.pipeline}, this is {self._pipeline.name}"
        if len(command.input) > limits.PAYLOAD_BYTES_MAX:
            return f"the input has {len(command.input)} bytes; at most {limits.PAYLOAD_BYTES_MAX} (limits.PAYLOAD_BYTES_MAX)"
        try:
            self._pipeline.input_type.validate_json(command.input)
        except ValueError as error:
            return f"not a {self._pipeline.input_type.name}: {error}"[:500]
        return None

    def _on_answer(self, what: AnswerArrived, record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        assert record is not None
        ref = what.ref
        rows = Standing(
            self._execution(ref.execution_id),
            self._unit(ref.unit_id),
            self._overlay.get(interaction_key(ref.unit_id, ref.item_index)),
        )
        answer = self._prepared(what, rows.interaction, record.timestamp_ms)
        self._touch_scalar(ref.execution_id, ref.item_index)
        return admit(self._pipeline, answer, rows, live=self._takes_offers(ref.unit_id), now_ms=self._now())

    def _touch_scalar(self, execution_id: str, item_index: int | None) -> None:
        """An item's answer never advances its parent; a scalar's may."""
        if item_index is None:
            self._touched[execution_id] = None

    def _prepared(self, what: AnswerArrived, row: InteractionRecord | None, recorded_at_ms: int) -> Answer:
        step = self._pipeline.steps[what.ref.step_index] if what.ref.step_index < len(self._pipeline.steps) else None
        completion = what.completion
        made = what.shape
        token_valid: bool | None = None
        if isinstance(step, AwaitStep):
            if made is None:
                made = shape(step, row, completion.payload, actor=completion.actor, recorded_at_ms=recorded_at_ms)
            if completion.resume_token is not None:
                token_valid = row is not None and self._verifies(completion, what.ref.unit_id, row, step.step_id)
        return Answer(completion, what.ref, recorded_at_ms, token_valid, made)

    def _verifies(self, completion: ProviderCompletion, unit_id: str, row: InteractionRecord, step_id: str) -> bool:
        if self._ctx.signer is None:
            return False
        execution = self._execution(unit_id.rsplit(".", 1)[0])
        try:
            self._ctx.signer.verify(
                completion.resume_token,
                tenant_id=execution.tenant_id if execution else "",
                interaction_id=completion.interaction_id,
                correlation_id=completion.interaction_id,
                step_id=step_id,
                deadline_ms=row.deadline_ms,
            )
        except TokenRejected:
            return False
        return True

    def _on_held(self, what: HeldAnswerMet, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        row: InteractionRecord | None = self._overlay.get(interaction_key(what.unit_id, what.item_index))
        if row is None or row.answer is None:
            return [NoOp("held-answer-outlived")]
        execution_id = what.unit_id.rsplit(".", 1)[0]
        ref = parse_interaction_id(interaction_id(what.unit_id, what.item_index))
        completion = ProviderCompletion(execution_id, row.interaction_id, row.answer, actor=row.actor)
        step = self._pipeline.await_step(ref.step_index)
        recorded_at_ms = row.completed_at_ms or row.dispatched_at_ms
        if what.shape is None and step.projection is not None:
            self._after.append(lambda: self._project_held(what))
            return []
        made = what.shape or shape(step, row, row.answer, actor=row.actor, recorded_at_ms=recorded_at_ms)
        answer = Answer(completion, ref, recorded_at_ms, None, made)
        rows = Standing(self._execution(execution_id), self._unit(what.unit_id), row)
        self._touch_scalar(execution_id, what.item_index)
        return admit_held(self._pipeline, answer, rows, live=self._takes_offers(what.unit_id), now_ms=self._now())

    def _project_held(self, what: HeldAnswerMet) -> None:
        """A held answer of a step with a projector is projected on the pool, then judged."""

        def job(_ticket: Ticket) -> Shape:
            (row,) = self._read_rows([interaction_key(what.unit_id, what.item_index)])
            step = self._pipeline.await_step(int(what.unit_id.rsplit(".", 1)[1]))
            return shape(
                step, row, row.answer, actor=row.actor, recorded_at_ms=row.completed_at_ms or row.dispatched_at_ms
            )

        def done(result: Shape | None, error: BaseException | None) -> None:
            made = result if result is not None else Misshapen(f"projector: {error}")
            self._ready.append(Event(self, HeldAnswerMet(what.unit_id, what.item_index, made)))

        self._ctx.pool.submit(self, done, job, limit_s=limits.CALL_TIMEOUT_DEFAULT_MS / 1000)

    def _on_continuation(
        self, what: ContinuationArrived, _record: Record | None, _outputs: Outputs
    ) -> Iterable[Decision]:
        return self._complete_item(what.completion)

    def _complete_item(self, outcome: ContinuationCompletion) -> Iterable[Decision]:
        self._touched[outcome.execution_id] = None
        return complete_item(
            self._pipeline,
            outcome,
            self._execution(outcome.execution_id),
            self._unit(outcome.unit_id),
            self._overlay.get(item_key(outcome.unit_id, outcome.item_index)),
            now_ms=self._now(),
        )

    def _on_continued(self, what: ItemsContinued, _record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        for outcome in what.outcomes:
            self._perform(self._complete_item(outcome), outputs, None)
        return []

    def _on_strange(self, what: StrangeAnswerArrived, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        return [Refuse("unknown", f"{what.completion.interaction_id[:80]!r} is no interaction id", None)]

    def _on_misplaced(self, what: RecordMisplaced, record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        """Forward once, in this transaction, to the partition that the record's own execution id names (DESIGN 4)."""
        assert record is not None
        outputs.add(record.topic, record.value, key=record.key, partition=what.home)
        self._counts["misplaced", record.topic] += 1
        return []

    def _on_poison(self, what: RecordPoisoned, record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        self._poison(record, what.error, outputs)
        return []

    def _poison(self, record: Record | None, error: PoisonRecord, outputs: Outputs) -> None:
        assert record is not None
        dead_letters.write_record(
            outputs, self._names, record, reason=error.reason, detail=str(error), at_ms=self._now()
        )
        self._counts["dead", error.reason] += 1

    def _on_pulled(self, what: ItemsPulled, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        session = what.session
        execution, unit = self._execution(session.execution_id), self._unit(session.unit_id)
        if (
            session.is_closed
            or execution is None
            or unit is None
            or not unit.is_open
            or unit.dispatched != what.first_index
            or execution.status is not ExecutionStatus.RUNNING  # the stream failed in this batch
        ):
            return [NoOp("session-outlived")]
        self._touched[session.execution_id] = None
        too_large = next(
            (
                index
                for index, item in enumerate(what.items, what.first_index)
                if len(item.request) > limits.PAYLOAD_BYTES_MAX
            ),
            None,
        )
        if too_large is not None:
            message = f"item {too_large} is larger than {limits.PAYLOAD_BYTES_MAX} bytes (limits.PAYLOAD_BYTES_MAX)"
            return fail(self._pipeline, execution, unit, code="REQUEST_TOO_LARGE", message=message, now_ms=self._now())
        held: set[int] = set()
        if execution.held:
            keys = {
                index: interaction_key(unit.unit_id, index)
                for index in range(what.first_index, what.first_index + len(what.items))
            }
            held = {index for index, key in keys.items() if self._overlay.get(key) is not None}
        return dispatch_items(
            session.step, execution, unit, what.first_index, what.items, held, ended=what.ended, now_ms=self._now()
        )

    def _on_source_failed(self, what: SourceFailed, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        session = what.session
        if session.is_closed:
            return [NoOp("session-outlived")]
        return [CloseSession(session.unit_id), *self._segment_failed(session.execution_id, what.error)]

    def _segment_failed(self, execution_id: str, error: BaseException) -> list[Decision]:
        execution = self._execution(execution_id)
        if execution is None or execution.is_terminal:
            return [NoOp("segment-outlived")]
        code, message, retryable = describe_error(error)
        unit = self._unit(execution.await_unit_id)
        if execution.step_index == len(self._pipeline.steps):  # the result could not be gathered from what is stored
            return fail(self._pipeline, execution, unit, code=code, message=message, now_ms=self._now())
        if execution.status is not ExecutionStatus.RUNNING:
            return [NoOp("segment-outlived")]
        self._touched[execution_id] = None
        step = self._pipeline.steps[execution.step_index] if execution.step_index < len(self._pipeline.steps) else None
        retry = step.retry if isinstance(step, RunStep) else None
        if not retryable or retry is None or execution.attempt >= retry.attempts:
            return fail(self._pipeline, execution, unit, code=code, message=message, now_ms=self._now())
        retry_at_ms = self._now() + retry.delay_ms(execution.attempt)
        failed = facts.SegmentAttemptFailed(
            execution_id, self._now(), execution.step_index, execution.attempt, code, message[:2000], retry_at_ms
        )
        return [Append(failed)]

    def _on_segment_ended(self, what: SegmentEnded, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        execution = self._execution(what.execution_id)
        if execution is None or execution.status is not ExecutionStatus.RUNNING:
            return [NoOp("segment-outlived")]
        self._touched[what.execution_id] = None
        return [Append(facts.SegmentCompleted(what.execution_id, self._now(), what.stop, what.output, what.many))]

    def _on_segment_broke(self, what: SegmentBroke, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        return self._segment_failed(what.execution_id, what.error)

    def _on_published(self, what: OutputPublished, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        execution = self._execution(what.execution_id)
        if execution is None:
            return [NoOp("publication-outlived")]
        return publication.published(execution, self._unit(execution.await_unit_id), what.outputs, now_ms=self._now())

    def _on_publication_broke(
        self, what: PublicationBroke, _record: Record | None, _outputs: Outputs
    ) -> Iterable[Decision]:
        execution = self._execution(what.execution_id)
        if execution is None:
            return [NoOp("publication-outlived")]
        code, message, retryable = describe_error(what.error)
        self._touched[what.execution_id] = None
        return publication.publication_failed(
            self._pipeline,
            execution,
            self._unit(execution.await_unit_id),
            code=code,
            message=message,
            retryable=retryable,
            now_ms=self._now(),
        )

    def _on_collected(self, what: ResultCollected, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        execution = self._execution(what.execution_id)
        if execution is None or execution.is_terminal:
            return [NoOp("collection-outlived")]
        unit = self._unit(execution.await_unit_id)
        return publication.collected(self._pipeline, execution, unit, what.result, many=what.many, now_ms=self._now())

    def _on_timer(self, what: TimerRang, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        row = self._overlay.get(what.key)
        due_ms = due_of(row) if row is not None else None
        if due_ms is None or due_ms > self._now():
            self._after.append(lambda: self._timers.arm(what.key, due_ms))
            return [NoOp("timer-outlived")]
        if isinstance(row, ExecutionRecord):
            self._touched[row.execution_id] = None
            if (
                row.status is ExecutionStatus.RUNNING
            ):  # a publication that never ended: its job is still out, look again later
                self._after.append(lambda: self._timers.arm(what.key, self._now() + limits.CALL_TIMEOUT_DEFAULT_MS))
            return []
        execution_id = row.unit_id.rsplit(".", 1)[0]
        execution, unit = self._execution(execution_id), self._unit(row.unit_id)
        live = self._takes_offers(row.unit_id)
        self._touched[execution_id] = None
        if unit is None or not unit.is_open:
            self._after.append(lambda: self._timers.arm(what.key, None))
            return [NoOp("timer-outlived")]
        if isinstance(row, InteractionRecord):
            # An answer that waits to be judged was there first; the row is armed again once it is judged.
            if row.answer is not None and row.status is InteractionStatus.PENDING:
                self._after.append(lambda: self._timers.arm(what.key, None))
                return [NoOp("held-answer-first")]
            return expire(self._pipeline, execution, unit, row, live=live, now_ms=self._now())
        interaction = self._overlay.get(interaction_key(row.unit_id, row.item_index))
        decisions = item_due(self._pipeline, execution, unit, row, interaction, live=live, now_ms=self._now())
        if not any(isinstance(decision, Append) for decision in decisions):
            self._after.append(lambda: self._timers.arm(what.key, None))  # offered, or held until the gates open
        return decisions

    def _on_sweep(self, what: SweepContinued, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        unit = self._unit(what.unit_id)
        execution = self._execution(unit.execution_id) if unit else None
        if unit is None or execution is None or not unit.is_open or unit.cursor >= (unit.expected or 0):
            self._after.append(lambda: self._stop_sweeping(what.unit_id))
            return [NoOp("swept")]
        cursor = min(unit.cursor + limits.SLICE_ITEMS, unit.expected or 0)
        keys = [
            (interaction_key(unit.unit_id, index), item_key(unit.unit_id, index))
            for index in range(unit.cursor, cursor)
        ]
        self._overlay.prefetch(key for pair in keys for key in pair)
        rows = [(self._overlay.get(asked), self._overlay.get(done)) for asked, done in keys]
        self._touched[unit.execution_id] = None
        return sweep(
            self._pipeline,
            execution,
            unit,
            [(asked, done) for asked, done in rows if asked is not None],
            cursor,
            now_ms=self._now(),
        )

    def _stop_sweeping(self, unit_id: str) -> None:
        self._sweeping.pop(unit_id, None)

    def _on_retention(self, _what: RetentionContinued, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        """Delete a slice of what ended long ago: an execution's interactions, items and units first, itself last (DESIGN 7)."""
        start, end = prefix_span("e")
        horizon_ms = self._now() - self._pipeline.retention.executions_ms
        doomed: list[bytes] = []
        seen, cursor = 0, self._retention_at
        for key, value in self._store.scan(self._retention_at, end, limits.SLICE_ITEMS):
            execution: ExecutionRecord = decode_row(key, value)
            if execution.is_terminal and execution.updated_at_ms < horizon_ms:
                doomed += self._rows_below(execution.execution_id, limits.SLICE_ITEMS - len(doomed))
                if len(doomed) >= limits.SLICE_ITEMS:
                    break
                doomed.append(key)
            seen, cursor = seen + 1, key + b"\0"
        self._overlay.delete(doomed)
        is_pass_over = seen < limits.SLICE_ITEMS and len(doomed) < limits.SLICE_ITEMS
        due_ms = self._now() + (RETENTION_EVERY_MS if is_pass_over else 0)
        self._after.append(lambda: self._go_on_retaining(start if is_pass_over else cursor, due_ms))
        return []

    def _rows_below(self, execution_id: str, limit: int) -> list[bytes]:
        """At most `limit` keys of an execution's units, interactions and items."""
        units = [f"{execution_id}.{step.index}" for step in self._pipeline.await_steps]
        spans = [span(table, unit_id) for unit_id in units for table in ("interactions", "items")]
        spans += [(unit_key(unit_id), unit_key(unit_id) + b"\0") for unit_id in units]
        found = (key for start, end in spans for key, _ in self._store.scan(start, end, limit))
        return list(islice(found, limit))

    def _go_on_retaining(self, cursor: bytes, due_ms: int) -> None:
        self._retention_at, self._retention_due_ms = cursor, due_ms

    def _on_touched(self, what: ExecutionTouched, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        self._touched[what.execution_id] = None
        return []

    # --- performing ----------------------------------------------------------------------------------------------------------------------

    def _performers(self) -> dict[type, Callable[[Any, Outputs, Event | None], None]]:
        return {
            Append: self._do_append,
            Request: self._do_request,
            EmitContinuation: self._do_emit,
            WriteOutput: self._do_write,
            SendReply: self._do_reply,
            Refuse: self._do_refuse,
            DeadLetterExecution: self._do_dead_letter,
            Offer: self._do_offer,
            RunSegment: self._do_run,
            OpenSession: self._do_open,
            CloseSession: self._do_close,
            Publish: self._do_publish,
            Collect: self._do_collect,
            HoldCompletion: self._do_nothing,
            Duplicate: self._do_nothing,
            NoOp: self._do_nothing,
        }

    def _perform(self, decisions: Iterable[Decision], outputs: Outputs, event: Event | None) -> None:
        performers = self._perform_by
        tally = self._tally
        for decision in decisions:
            kind = type(decision)
            tally[kind] += 1
            performers[kind](decision, outputs, event)

    def _do_append(self, decision: Append, outputs: Outputs, _event: Event | None) -> None:
        fact = decision.fact
        fold(self._overlay, fact)
        outputs.add(self._names.facts, codec.encode(fact), key=fact.execution_id.encode(), partition=self.partition)
        kind = type(fact)
        self._tally[kind] += 1
        hook = _FACT_HOOKS.get(kind)
        if hook is not None:
            hook(self, fact)

    def _do_request(self, decision: Request, outputs: Outputs, _event: Event | None) -> None:
        step, fact = decision.step, decision.fact
        transport = step.transport
        assert isinstance(transport, KafkaTransport)
        iid = interaction_id(fact.unit_id, fact.item_index)
        token = None
        headers = [(HEADER_INTERACTION_ID, iid.encode()), (HEADER_RESPONSE_TOPIC, transport.response_topic.encode())]
        if self._ctx.signer is not None:
            token = self._ctx.signer.sign(
                tenant_id=decision.tenant_id,
                interaction_id=iid,
                correlation_id=iid,
                step_id=step.step_id,
                deadline_ms=fact.deadline_ms,
            )
            headers.append((HEADER_RESUME_TOKEN, token.encode()))
        envelope = RequestEnvelope(
            decision.tenant_id,
            fact.execution_id,
            iid,
            iid,
            step.step_id,
            fact.item_index,
            fact.deadline_ms,
            fact.input_type,
            fact.output_type,
            token,
            fact.idempotency_key,
            msgspec.Raw(fact.request),
        )
        outputs.add(transport.request_topic, encode_request(envelope), key=iid.encode(), headers=headers)

    def _do_emit(self, decision: EmitContinuation, outputs: Outputs, _event: Event | None) -> None:
        continuation: Continuation = decision.continuation
        child = interaction_id(continuation.unit_id, continuation.item_index)
        outputs.add(self._names.continuations, codec.encode(continuation), key=child.encode())

    def _do_write(self, decision: WriteOutput, outputs: Outputs, _event: Event | None) -> None:
        output = self._pipeline.output
        assert isinstance(output, TopicOutput)
        key = decision.execution_id
        if output.key is not None:
            kind = self._pipeline.output_type
            value = kind.validate_json(decision.payload)
            key = fill_template(output.key, lambda field: kind.field_text(value, field))
        outputs.add(output.topic, decision.payload, key=key.encode())

    def _do_reply(self, decision: SendReply, outputs: Outputs, _event: Event | None) -> None:
        outputs.add(self._names.replies, codec.encode(decision.reply), key=decision.reply.execution_id.encode())

    def _do_refuse(self, decision: Refuse, outputs: Outputs, event: Event | None) -> None:
        self._counts["refusal", decision.reason] += 1
        what = event.what if event is not None else None
        if isinstance(what, HeldAnswerMet):
            row = self._overlay.get(interaction_key(what.unit_id, what.item_index))
            completion = ProviderCompletion(
                what.unit_id.rsplit(".", 1)[0], row.interaction_id, row.answer, actor=row.actor
            )
        else:
            assert isinstance(what, (AnswerArrived, StrangeAnswerArrived))
            completion = what.completion
        dead_letters.write_refusal(
            outputs,
            self._names,
            completion,
            decision.step,
            reason=decision.reason,
            detail=decision.detail,
            at_ms=self._now(),
        )

    def _do_dead_letter(self, decision: DeadLetterExecution, outputs: Outputs, _event: Event | None) -> None:
        self._counts["dead", decision.reason] += 1
        dead_letters.write_execution(
            outputs,
            self._names,
            execution_id=decision.execution_id,
            step_id=decision.step_id,
            reason=decision.reason,
            detail=decision.detail,
            value=decision.value,
            at_ms=self._now(),
        )

    def _do_offer(self, decision: Offer, _outputs: Outputs, _event: Event | None) -> None:
        self._offers.append(decision)

    def _do_run(self, decision: RunSegment, _outputs: Outputs, _event: Event | None) -> None:
        self._starting.add(decision.execution_id)
        self._after.append(lambda: self._start_segment(decision))

    def _do_open(self, decision: OpenSession, _outputs: Outputs, _event: Event | None) -> None:
        self._opening.add(decision.unit_id)
        self._after.append(lambda: self._open_session(decision.unit_id))

    def _do_close(self, decision: CloseSession, _outputs: Outputs, _event: Event | None) -> None:
        self._after.append(lambda: self._close_session(decision.unit_id))

    def _do_publish(self, decision: Publish, _outputs: Outputs, _event: Event | None) -> None:
        self._starting.add(decision.execution_id)
        self._after.append(lambda: self._start_publication(decision.execution_id))

    def _do_collect(self, decision: Collect, _outputs: Outputs, _event: Event | None) -> None:
        self._starting.add(decision.execution_id)
        self._after.append(lambda: self._start_collection(decision.execution_id))

    def _do_nothing(self, decision: HoldCompletion | Duplicate | NoOp, _outputs: Outputs, _event: Event | None) -> None:
        reason = getattr(decision, "reason", "")
        if reason:
            self._counts["reason", reason] += 1

    # --- what the pure core asks about this process (topologies.advance.Local) ------------------------------------------------------------

    def is_running(self, execution_id: str) -> bool:
        """A segment, publication or collection of it is on the pool, or will be once this batch is committed; its result may wait."""
        return (execution_id in self._local and execution_id not in self._ended) or execution_id in self._starting

    def has_session(self, unit_id: str) -> bool:
        """A session of it is open, or will be once this batch is committed."""
        return unit_id in self._sessions or unit_id in self._opening

    def parking_count(self, unit_id: str) -> int | None:
        """Items with a stored answer, when parking is all that the session can still do."""
        session = self._sessions.get(unit_id)
        if session is None or not session.wants_parking(self._ctx.clock.monotonic_s()):
            return None
        if unit_id in self._noting:  # something happened in this very batch: the session does not count it yet
            return None
        unit = self._unit(unit_id)
        return unit.outputs + len(session.waiting) if unit is not None else None

    # --- after the commit ----------------------------------------------------------------------------------------------------------------

    def changes(self) -> Mapping[bytes, bytes | None]:
        """Rows the batch changed."""
        return self._overlay.encoded()

    def changelog_of(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """Own partition number, explicitly (DESIGN 4)."""
        return self._changelog_at[key[0]], split_key(key)[1]

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """Make the batch the committed state; timers follow rows."""
        own = {at: offset for at, offset in ends.items() if at.partition == self.partition}
        for key, record in self._overlay.staged.items():
            self._timers.arm(key, due_of(record) if record is not None else None)
        if rows:
            self._overlay.apply(dict(rows), changelog_positions(own, self._ctx.topic_ids, self._now()))
        else:
            self._overlay.drop()
        for kind, count in self._tally.items():
            self._counts["fact" if issubclass(kind, Fact) else "decision", kind.__name__] = count
        self._ctx.metrics.decided(self._counts)
        self._counts.clear()
        self._tally.clear()

    def release(self) -> None:
        """Start what the batch decided."""
        self._local -= self._ended
        self._ended.clear()
        self._tell_sessions()
        after, self._after = self._after, []
        for act in after:
            act()
        self._starting.clear()
        self._opening.clear()
        self._noting.clear()
        for session in list(self._sessions.values()):
            self._pump(session)

    def _tell_sessions(self) -> None:
        """Facts that sessions follow, then what is offered to them; both are committed."""
        now_s = self._ctx.clock.monotonic_s()
        for session, fact in self._notes:
            session.note(fact, now_s)
        for offer in self._offers:
            taker = self._sessions.get(offer.unit_id)
            if taker is not None and taker.live:
                taker.offer(offer.item_index)
        self._notes.clear()
        self._offers.clear()

    def drop(self) -> None:
        """The batch did not happen."""
        self._overlay.drop()
        self._after.clear()
        self._notes.clear()
        self._offers.clear()
        self._ended.clear()
        self._starting.clear()
        self._opening.clear()
        self._noting.clear()
        self._touched.clear()
        self._counts.clear()
        self._tally.clear()

    def quarantine(self, event: Event, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record; fail the execution of an event of our own making."""
        detail = f"{type(error).__name__}: {error}"
        self._note_local_end(event)
        if event.record is not None:
            self._poison(event.record, PoisonRecord("not-committable", detail), outputs)
            return
        what = event.what
        execution_id = getattr(what, "execution_id", None) or getattr(
            getattr(what, "session", None), "execution_id", None
        )
        if execution_id is None and isinstance(what, TimerRang):
            execution_id = what.key[2:].decode().split(".")[0]
        if execution_id is None and hasattr(what, "unit_id"):
            execution_id = what.unit_id.rsplit(".", 1)[0]
        execution = self._execution(execution_id) if execution_id else None
        if execution is None or execution.is_terminal:
            return
        unit = self._unit(execution.await_unit_id)
        self._perform(
            fail(self._pipeline, execution, unit, code="NOT_COMMITTABLE", message=detail, now_ms=self._now()),
            outputs,
            None,
        )

    # --- sessions ------------------------------------------------------------------------------------------------------------------------

    def _note(self, fact: Any) -> None:
        """Tell the session of a fact's unit, once it is committed."""
        session = self._sessions.get(fact.unit_id)
        if session is not None:
            self._noting.add(fact.unit_id)
            self._notes.append((session, fact))

    def _note_dispatched(self, fact: facts.BoundaryInteractionDispatched) -> None:
        self._note(fact)
        if not fact.requested:
            self._after.append(lambda: self._ready.append(Event(self, HeldAnswerMet(fact.unit_id, fact.item_index))))

    def _note_held(self, fact: facts.BoundaryCompletionHeld) -> None:
        """An answer that is kept for an interaction which is there already is judged next."""
        row: InteractionRecord = self._overlay.get(interaction_key(fact.unit_id, fact.item_index))
        if row.status is InteractionStatus.PENDING:
            self._after.append(lambda: self._ready.append(Event(self, HeldAnswerMet(fact.unit_id, fact.item_index))))

    def _note_parked(self, fact: facts.BoundaryDispatchCompleted) -> None:
        unit = self._unit(fact.unit_id)
        if unit is not None and unit.itemised:
            self._after.append(lambda: self._sweeping.setdefault(fact.unit_id, None))

    def _open_session(self, unit_id: str) -> None:
        unit = self._unit(unit_id)
        execution = self._execution(unit.execution_id) if unit else None
        if unit is None or execution is None or not unit.is_open or unit_id in self._sessions:
            return
        step = self._pipeline.await_step(unit.step_index)
        live = unit.live and step.live and self._ctx.live_sessions < limits.LIVE_SESSIONS_MAX
        stream = None if unit.source_count is not None else self._stream(execution, unit)
        session = Session(
            unit, step, stream, first=execution.step_index, live=live, now_s=self._ctx.clock.monotonic_s()
        )
        self._ctx.live_sessions += live
        self._recover(session, unit)
        self._sessions[unit_id] = session
        self._overlay.drop()

    def _recover(self, session: Session, unit: UnitRecord) -> None:
        """Rows to session: items with an output are skipped, answered ones offered at once, dispatched ones awaited (DESIGN 7)."""
        if unit.dispatched == 0:
            return
        now_ms = self._now()
        items: dict[int, ItemRecord] = {}
        done: set[int] = set()
        for key, value in self._store.scan(*span("items", unit.unit_id)):
            item: ItemRecord = decode_row(key, value)
            if item.status is ItemStatus.SUCCEEDED:
                done.add(item.item_index)
            else:
                items[item.item_index] = item
        for key, value in self._store.scan(*span("interactions", unit.unit_id)):
            index = item_index_of(key)
            if index is None or index in done or index >= unit.dispatched:
                continue
            row: InteractionRecord = decode_row(key, value)
            waits = index in items and (items[index].due_ms or 0) > now_ms
            session.recover(index, answered=row.status is InteractionStatus.COMPLETED, waits=waits)
            if index in items:
                session.attempts[index] = items[index].attempt

    def _close_session(self, unit_id: str) -> None:
        session = self._sessions.pop(unit_id, None)
        if session is not None:
            session.is_closed = True
            self._ctx.live_sessions -= session.live

    def _stream(self, execution: ExecutionRecord, unit: UnitRecord) -> SourceStream:
        """The stream entering the unit's await: the source and the steps before it."""
        pipeline, step = self._pipeline, self._pipeline.await_step(unit.step_index)
        first = execution.step_index
        payload = segment_input(execution, self._overlay)
        before = self._unit(execution.input_unit_id)
        skip = unit.dispatched

        def items() -> Iterator[SourceItem]:
            if first == 0:
                check_source(execution)
            kind = pipeline.item_type(first)
            if before is not None and before.itemised:
                payloads = [part for chunk in self._outputs_of(before) for part in chunk]
            else:
                payloads = payloads_of(payload or b"null", many=execution.many)
            values = flow(run_steps(pipeline, first, unit.step_index), map(kind.validate_json, payloads))
            to_json = step.input.to_json
            stored = self._stored_requests(unit.unit_id, skip)
            index = -1
            for index, value in enumerate(values):
                item = SourceItem(to_json(value), idempotency_key(step, execution.execution_id, value, index))
                if index < skip:
                    row = next(stored)
                    check_same_item(
                        index, item, row.request, row.idempotency_key, by_key=bool(step.idempotency_key_fields)
                    )
                else:
                    yield item
            if index + 1 < skip:
                msg = (
                    f"the source has {index + 1} items now; {skip} were dispatched; submit the source once more, under another "
                    "--key, when it is as it should be"
                )
                raise SourceChanged(msg)

        return SourceStream(items)

    def _stored_requests(self, unit_id: str, count: int) -> Iterator[InteractionRecord]:
        """On the pool: the requests that were dispatched, in index order."""
        for first in range(0, count, limits.PUBLISH_CHUNK_ITEMS):
            last = min(first + limits.PUBLISH_CHUNK_ITEMS, count)
            yield from self._read_rows([interaction_key(unit_id, index) for index in range(first, last)])

    def _pump(self, session: Session) -> None:
        """Ask for items while the window has room; run offered suffixes."""
        count = session.room()
        if count > 0:
            session.is_pulling = True
            session.reserved += count
            stream = session.stream
            assert stream is not None
            steps = run_steps(self._pipeline, session.first, session.step.index)

            def pulled(result: tuple[list[SourceItem], bool] | None, error: BaseException | None) -> None:
                session.is_pulling = False
                if error is not None or result is None:
                    session.reserved -= count
                    session.stream = None  # one that failed must not be read on: it would look like one that has ended
                    if not isinstance(error, TaskClosed):
                        self._ready.append(Event(self, SourceFailed(session, error or CallTimeout("no items"))))
                    return
                items, ended = result
                session.reserved -= count - len(items)
                self._ready.append(Event(self, ItemsPulled(session, session.next_index, items, ended)))
                session.next_index += len(items)
                session.is_ended = session.is_ended or ended

            self._ctx.pool.submit(self, pulled, lambda _ticket: stream.pull(count), limit_s=time_limit_s(steps))
        while session.live and session.offers and session.running < session.chunk.jobs_max:
            self._submit_chunk(session)

    def _submit_chunk(self, session: Session) -> None:
        suffix = self._ctx.suffix(session.step.index)
        chunk = _Chunk(session, session.take_offers(), [], [])
        session.running += 1

        def job(ticket: Ticket) -> None:
            """On the pool: payloads are read here, on pull (DESIGN 6 'Bounds')."""
            began_s = self._ctx.clock.monotonic_s()
            rows = self._read_rows([interaction_key(session.unit_id, index) for index, _ in chunk.offered])
            chunk.items += [
                (index, attempt, row.completion)
                for (index, attempt), row in zip(chunk.offered, rows, strict=True)
                if row is not None and row.completion is not None
            ]
            suffix.run_chunk([completion for _, _, completion in chunk.items], chunk.results, ticket)
            chunk.seconds = self._ctx.clock.monotonic_s() - began_s

        self._ctx.pool.submit(self, chunk, job, limit_s=suffix.limit_s)

    def _chunk_ended(self, chunk: _Chunk, error: BaseException | None) -> None:
        session = chunk.session
        session.running -= 1
        if session.is_closed or isinstance(error, TaskClosed):
            return
        results = list(chunk.results)
        if error is not None:  # one overstayed, or the rows could not be read; what did not run is offered again
            if len(results) < len(chunk.items):
                results.append(error if isinstance(error, Exception) else CallTimeout(str(error)))
            ran = {index for index, _, _ in chunk.items[: len(results)]}
            session.offers.extendleft(index for index, _ in reversed(chunk.offered) if index not in ran)
        outcomes = [self._outcome(session, item, result) for item, result in zip(chunk.items, results, strict=False)]
        session.chunk.learn(len(results), chunk.seconds)
        if outcomes:
            self._ready.append(Event(self, ItemsContinued(session, outcomes)))
        self._pump(session)

    def _outcome(
        self, session: Session, item: tuple[int, int, bytes], result: list[bytes] | Exception
    ) -> ContinuationCompletion:
        index, attempt, _ = item
        if isinstance(result, Exception):
            code, message, retryable = describe_error(result)
            return ContinuationCompletion(
                session.execution_id, session.unit_id, index, attempt, [], code, message, retryable
            )
        return ContinuationCompletion(session.execution_id, session.unit_id, index, attempt, result)

    # --- segments and effects --------------------------------------------------------------------------------------------------------------

    def _start_segment(self, decision: RunSegment) -> None:
        execution = self._execution(decision.execution_id)
        if execution is None:
            return
        self._local.add(execution.execution_id)
        inputs = self._segment_inputs(execution)
        unit = self._unit(execution.input_unit_id)
        many = execution.many or (unit is not None and unit.itemised)
        pipeline = self._pipeline

        def job(_ticket: Ticket) -> tuple[bytes, bool]:
            return run_segment(pipeline, decision.first, decision.stop, inputs(), many=many)

        def done(result: tuple[bytes, bool] | None, error: BaseException | None) -> None:
            if result is None:
                if not isinstance(error, TaskClosed):
                    self._ready.append(
                        Event(self, SegmentBroke(execution.execution_id, error or CallTimeout("no result")))
                    )
                return
            self._ready.append(Event(self, SegmentEnded(execution.execution_id, decision.stop, *result)))

        limit_s = time_limit_s(run_steps(pipeline, decision.first, decision.stop))
        self._ctx.pool.submit(self, done, job, limit_s=limit_s)

    def _segment_inputs(self, execution: ExecutionRecord) -> Callable[[], list[bytes]]:
        """Reads, on the pool, the inputs of the segment at `step_index`: the outputs of an itemised unit's items, or what is stored."""
        unit, payload = self._unit(execution.input_unit_id), segment_input(execution, self._overlay)
        if unit is not None and unit.itemised:
            return lambda: [part for chunk in self._outputs_of(unit) for part in chunk]
        return lambda: payloads_of(payload or b"null", many=execution.many)

    def _outputs_of(self, unit: UnitRecord) -> Iterator[list[bytes]]:
        """On the pool: outputs of all items in input order, verified."""
        count = unit.source_count if unit.source_count is not None else unit.expected or 0

        def read(first: int, limit: int) -> list[ItemRecord]:
            rows = self._read_rows([item_key(unit.unit_id, index) for index in range(first, first + limit)])
            return [row for row in rows if row is not None]

        return item_outputs(read, count)

    def _terminal_chunks(
        self, execution: ExecutionRecord, unit: UnitRecord | None, payload: bytes | None
    ) -> Iterator[list[bytes]]:
        """On the pool: the terminal outputs, a slice at a time."""
        if unit is not None and unit.itemised:
            return self._outputs_of(unit)
        return iter([payloads_of(payload or b"null", many=execution.many)])

    def _start_publication(self, execution_id: str) -> None:
        execution = self._execution(execution_id)
        if execution is None or not isinstance(self._pipeline.output, ObjectOutput):
            return
        self._local.add(execution_id)
        unit, payload = self._unit(execution.await_unit_id), segment_input(execution, self._overlay)
        start_by_s = self._ctx.clock.monotonic_s() + limits.SESSION_TIMEOUT_MS / 2000
        effect = threading.Event()
        self._effects = [*(known for known in self._effects if not known.is_set()), effect]

        def check() -> None:
            if self._closing:
                raise TaskClosed

        def job(_ticket: Ticket) -> list[str]:
            try:
                check()
                if self._ctx.clock.monotonic_s() > start_by_s:  # we may be a zombie by now
                    raise CallTimeout("the effect did not start in time after it was prepared")
                chunks = self._terminal_chunks(execution, unit, payload)
                return publish_object(self._pipeline, execution, chunks, instance=self._ctx.instance, check=check)
            finally:
                effect.set()

        def done(result: list[str] | None, error: BaseException | None) -> None:
            if result is None:
                if not isinstance(error, TaskClosed):
                    self._ready.append(Event(self, PublicationBroke(execution_id, error or CallTimeout("no result"))))
                return
            self._ready.append(Event(self, OutputPublished(execution_id, result)))

        self._ctx.pool.submit(self, done, job, limit_s=limits.CALL_TIMEOUT_DEFAULT_MS / 1000)

    def _start_collection(self, execution_id: str) -> None:
        execution = self._execution(execution_id)
        if execution is None:
            return
        self._local.add(execution_id)
        unit, payload = self._unit(execution.await_unit_id), segment_input(execution, self._overlay)
        many = execution.many or (unit is not None and unit.itemised)

        def job(_ticket: Ticket) -> bytes:
            if not many:
                return payload or b"null"
            return collect(self._terminal_chunks(execution, unit, payload))

        def done(result: bytes | None, error: BaseException | None) -> None:
            if result is None:
                if not isinstance(error, TaskClosed):
                    self._ready.append(Event(self, SegmentBroke(execution_id, error or CallTimeout("no result"))))
                return
            self._ready.append(Event(self, ResultCollected(execution_id, result, many)))

        self._ctx.pool.submit(self, done, job, limit_s=limits.CALL_TIMEOUT_DEFAULT_MS / 1000)


_LOCAL_ENDS = (SegmentEnded, SegmentBroke, OutputPublished, PublicationBroke, ResultCollected)
"""Events that end local work of an execution."""

_FACT_HOOKS: Mapping[type[Fact], Callable[[CoreTask, Any], None]] = {
    facts.BoundaryInteractionDispatched: CoreTask._note_dispatched,  # noqa: SLF001 - the class's own table
    facts.BoundaryCompletionAdmitted: CoreTask._note,  # noqa: SLF001
    facts.ContinuationCompleted: CoreTask._note,  # noqa: SLF001
    facts.ContinuationAttemptFailed: CoreTask._note,  # noqa: SLF001
    facts.ContinuationSegmentCreated: CoreTask._note,  # noqa: SLF001
    facts.InteractionTimedOut: CoreTask._note,  # noqa: SLF001
    facts.SourceEnded: CoreTask._note,  # noqa: SLF001
    facts.BoundaryCompletionHeld: CoreTask._note_held,  # noqa: SLF001
    facts.BoundaryDispatchCompleted: CoreTask._note_parked,  # noqa: SLF001
}
"""Facts that local work follows once they are committed."""


def check_source(execution: ExecutionRecord) -> None:
    """The object must still be what was submitted: size first, then sha256 (DESIGN 7).

    Raises:
        SourceChanged: it is not.
    """
    if execution.source_sha256 is None:
        return
    path = Path(msgspec.json.decode(execution.input)["path"])
    identity = identify(path)
    if identity.size != execution.source_size or identity.sha256 != execution.source_sha256:
        msg = (
            f"{path} is not the object that was submitted ({identity.size} bytes now, {execution.source_size} then); the "
            "new content is another execution: submit it"
        )
        raise SourceChanged(msg)
