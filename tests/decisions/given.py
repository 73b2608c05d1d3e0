"""Given these facts, when this happens, then these decisions follow: the words of the decision tests.

`given(pipeline, *facts)` folds facts into rows; `.when(decide)` asks the core; `.then(*decisions)` compares and folds what was appended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from schemas import facts
from schemas.envelopes import ContinuationCompletion, ProviderCompletion
from schemas.facts import Fact
from schemas.identity import interaction_id, parse_interaction_id
from state.execution import ExecutionRecord
from state.folding import Row, fold
from state.interaction import InteractionRecord
from state.item import ItemRecord
from state.keys import execution_key, interaction_key, item_key, unit_key
from state.unit import UnitRecord
from topologies.decisions.admission import Answer, Standing
from topologies.decisions.decision import Append, Decision, Decisions
from topologies.pipeline.ends import ObjectOutput, TopicOutput
from topologies.pipeline.model import Pipeline, Retention
from topologies.pipeline.payload_list import join_payloads
from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.projection import Projection
from topologies.pipeline.shapes import Misshapen, Shape, Shaped
from topologies.pipeline.steps import (
    AwaitStep,
    Cardinality,
    DeadLetterAndSkip,
    Retry,
    RunStep,
    Skip,
    Step,
    connected,
)
from topologies.pipeline.transports import KafkaTransport

NOW = 1_000_000
TIMEOUT_MS = 60_000
DEADLINE = NOW + TIMEOUT_MS
EXECUTION = "0d1f2a3b-0000-5000-8000-000000000001"
TENANT = "acme"
AWAIT = 1
"""Index of the await step in most pipelines here."""
UNIT = f"{EXECUTION}.{AWAIT}"


class Order(BaseModel):
    """What is asked."""

    id: str
    amount: Decimal = Decimal(1)


class Verdict(BaseModel):
    """What is answered."""

    ok: bool
    fee: Decimal = Decimal(0)


class Line(BaseModel):
    """What comes out."""

    text: str


ORDER = PayloadType(name="shop:Order", python_type=Order)
VERDICT = PayloadType(name="shop:Verdict", python_type=Verdict)
LINE = PayloadType(name="shop:Line", python_type=Line)

INPUT = b'{"id":"o-1","amount":"1"}'
YES = b'{"ok":true,"fee":"1.0"}'
NO = b'{"ok":false,"fee":"0"}'


def request(index: int) -> bytes:
    """The request of one item."""
    return b'{"id":"o-%d","amount":"1"}' % index


def line(index: int) -> bytes:
    """The output of one item."""
    return b'{"text":"line %d"}' % index


# --- pipelines ---------------------------------------------------------------------------------------------------------------------


def run_step(
    index: int,
    cardinality: Cardinality = Cardinality.ONE_TO_ONE,
    *,
    takes: PayloadType,
    gives: PayloadType,
    attempts: int = 3,
    on_error: Skip | DeadLetterAndSkip | None = None,
) -> RunStep:
    """A run step; its function is never called here."""
    return RunStep(
        index=index,
        step_id=f"run-{index}",
        name=f"Run {index}",
        cardinality=cardinality,
        input=takes,
        output=gives,
        accepts=None,
        function=lambda value: value,
        is_async=False,
        retry=Retry(attempts=attempts, base_ms=100, multiplier=2, cap_ms=1_000),
        call_timeout_ms=1_000,
        line=1,
        on_error=on_error,
    )


def await_step(index: int = AWAIT, **changes: Any) -> AwaitStep:
    """An await step over Kafka without a token."""
    made: dict[str, Any] = {
        "index": index,
        "step_id": f"await-{index}",
        "name": f"Await {index}",
        "cardinality": Cardinality.ONE_TO_ONE,
        "input": ORDER,
        "output": VERDICT,
        "timeout_ms": TIMEOUT_MS,
        "idempotency_key_fields": (),
        "owner": "desk",
        "strategy": "interactionId",
        "request_field": None,
        "response_field": None,
        "transport": KafkaTransport(
            request_topic="requests",
            request_key="interactionId",
            response_topic="answers",
            request_format="json",
            response_format="json",
        ),
        "live": True,
        "window": 8,
        "idle_ms": 1_000,
        "projection": None,
        "on_timeout": None,
        "remind_after_ms": None,
        "assignee": None,
        "group": None,
        "budget": None,
        "line": 1,
    }
    made |= changes
    projection = made["projection"]
    return AwaitStep(**made, answer_type=projection.type if projection else made["output"])


def pipeline_of(*steps: Step, output: ObjectOutput | TopicOutput | None = None) -> Pipeline:
    """A pipeline of these steps."""
    return Pipeline(
        name="shop",
        app="shop",
        steps=connected(steps),
        input_type=ORDER,
        output_type=steps[-1].output,
        source=None,
        output=output,
        partitions=1,
        replication_factor=1,
        tokens=None,
        retention=Retention(facts_ms=1, executions_ms=1, keys_ms=1),
        registry_url=None,
        path=Path("pipeline.yaml"),
        app_dir=Path(),
    )


TO_OBJECT = ObjectOutput(provider="filesystem", location=Path("out"), key="{groupKey}.out", format="csv", group_by=None)
TO_TOPIC = TopicOutput(topic="lines", key=None)


def scalar(output: ObjectOutput | TopicOutput | None = None, **await_changes: Any) -> Pipeline:
    """Prepare, await one answer, write a line."""
    return pipeline_of(
        run_step(0, takes=ORDER, gives=ORDER),
        await_step(**await_changes),
        run_step(2, takes=VERDICT, gives=LINE),
        output=output,
    )


def stream(
    output: ObjectOutput | TopicOutput | None = None,
    *,
    attempts: int = 3,
    on_error: Skip | DeadLetterAndSkip | None = None,
    **await_changes: Any,
) -> Pipeline:
    """Split, await one answer an item, write a line each."""
    return pipeline_of(
        run_step(0, Cardinality.ONE_TO_MANY, takes=ORDER, gives=ORDER),
        await_step(**await_changes),
        run_step(2, takes=VERDICT, gives=LINE, attempts=attempts, on_error=on_error),
        output=output,
    )


def stream_to_total(output: ObjectOutput | TopicOutput | None = None, **await_changes: Any) -> Pipeline:
    """Split, await one answer an item, write a line each, then add them up."""
    return pipeline_of(
        *stream(**await_changes).steps,
        run_step(3, Cardinality.MANY_TO_ONE, takes=LINE, gives=LINE),
        output=output,
    )


PROJECTION = Projection(type=VERDICT, project=lambda _request, answer, _completion: answer, name="shop:Project")

# --- facts -------------------------------------------------------------------------------------------------------------------------


def submitted() -> Fact:
    """The execution was accepted."""
    return facts.RunSubmitted(EXECUTION, NOW, TENANT, "shop", "key-1", INPUT, first_step_id="run-0")


def started(step_index: int = 0, attempt: int = 1) -> Fact:
    """A segment started."""
    return facts.SegmentAttemptStarted(EXECUTION, NOW, step_index, attempt, f"run-{step_index}")


def segment_completed(
    next_step: int = 1, output: bytes = INPUT, *, many: bool = False, next_id: str = f"await-{AWAIT}"
) -> Fact:
    """A segment ended."""
    return facts.SegmentCompleted(EXECUTION, NOW, next_step, output, many, next_id)


def segment_failed(retry_at_ms: int | None, step_index: int = 0, attempt: int = 1) -> Fact:
    """A segment failed."""
    return facts.SegmentAttemptFailed(EXECUTION, NOW, step_index, attempt, "STEP_FAILED", "it broke", retry_at_ms)


def opened(*, itemised: bool, live: bool, index: int = AWAIT) -> Fact:
    """The unit was opened."""
    return facts.BoundaryUnitOpened(EXECUTION, NOW, f"{EXECUTION}.{index}", f"await-{index}", index, itemised, live)


def dispatched(
    item_index: int | None = None,
    *,
    requested: bool = True,
    projector: str | None = None,
    deadline_ms: int = DEADLINE,
    unit_id: str = UNIT,
) -> facts.BoundaryInteractionDispatched:
    """A request was sent."""
    key = f"{EXECUTION}:await-1" + ("" if item_index is None else f":item={item_index}")
    body = INPUT if item_index is None else request(item_index)
    return facts.BoundaryInteractionDispatched(
        EXECUTION, NOW, unit_id, item_index, 1, key, deadline_ms, ORDER.name, VERDICT.name, body, requested, projector
    )


def held(item_index: int | None = None, answer: bytes = YES, at_ms: int = NOW, came_in_ms: int | None = None) -> Fact:
    """An early answer was kept."""
    return facts.BoundaryCompletionHeld(
        EXECUTION, NOW, UNIT, item_index, answer, None, None, at_ms, came_in_ms=came_in_ms
    )


def admitted(
    item_index: int | None = None, completion: bytes = YES, answer: bytes | None = None, at_ms: int = NOW
) -> facts.BoundaryCompletionAdmitted:
    """An answer was accepted."""
    return facts.BoundaryCompletionAdmitted(EXECUTION, NOW, UNIT, item_index, completion, answer, None, at_ms)


def refused(reason: str, item_index: int | None = None, now_ms: int = NOW) -> Fact:
    """An answer was refused."""
    return facts.CompletionRefused(EXECUTION, now_ms, UNIT, item_index, reason)


def timed_out(item_index: int | None = None, resolution: str = "fail", now_ms: int = NOW) -> Fact:
    """A deadline passed."""
    return facts.InteractionTimedOut(EXECUTION, now_ms, UNIT, item_index, resolution)


def source_ended(count: int) -> Fact:
    """The stream ended."""
    return facts.SourceEnded(EXECUTION, NOW, UNIT, count)


def dispatch_completed(expected: int, completed: int = 0) -> Fact:
    """Dispatch was closed."""
    return facts.BoundaryDispatchCompleted(EXECUTION, NOW, UNIT, expected, completed)


def suspended(unit_id: str = UNIT) -> Fact:
    """The execution was parked."""
    return facts.SegmentSuspended(EXECUTION, NOW, unit_id)


def swept(cursor: int) -> Fact:
    """Completed items below the cursor were looked at."""
    return facts.ContinuationsSwept(EXECUTION, NOW, UNIT, cursor)


def continuation_created(
    item_index: int | None,
    next_step: int = 2,
    attempt: int = 1,
    due_ms: int | None = None,
    *,
    next_id: str | None = None,
) -> Fact:
    """A suffix became work; `next_id` is of the execution's own next step, behind which three steps end."""
    if next_id is None:
        next_id = "run-2" if item_index is None and next_step == 2 else ""
    return facts.ContinuationSegmentCreated(EXECUTION, NOW, UNIT, item_index, attempt, next_step, due_ms, next_id)


def continued(item_index: int, attempt: int = 1, outputs: list[bytes] | None = None) -> Fact:
    """An item's outputs were stored."""
    made = [line(item_index)] if outputs is None else outputs
    return facts.ContinuationCompleted(EXECUTION, NOW, UNIT, item_index, attempt, made)


def continuation_failed(item_index: int, attempt: int = 1, retry_at_ms: int | None = NOW + 100) -> Fact:
    """An item's suffix failed."""
    return facts.ContinuationAttemptFailed(
        EXECUTION, NOW, UNIT, item_index, attempt, "STEP_FAILED", "it broke", retry_at_ms
    )


def skipped(
    item_index: int,
    code: str = "STEP_FAILED",
    message: str = "it broke",
    *,
    attempt: int = 1,
    letter: str | None = None,
) -> Fact:
    """An item was left out."""
    return facts.ContinuationSkipped(EXECUTION, NOW, UNIT, item_index, attempt, code, message, letter)


def closed(outcome: str = "COMPLETED", unit_id: str = UNIT, now_ms: int = NOW) -> Fact:
    """The unit ended."""
    return facts.BoundaryUnitClosed(EXECUTION, now_ms, unit_id, outcome)


def failed(code: str = "STEP_FAILED") -> Fact:
    """The execution failed."""
    return facts.RunFailed(EXECUTION, NOW, code, "it broke")


def cancelled() -> Fact:
    """The execution was cancelled."""
    return facts.RunCancelled(EXECUTION, NOW, "not wanted")


def succeeded(result: bytes | None = None) -> Fact:
    """The execution succeeded."""
    return facts.RunSucceeded(EXECUTION, NOW, result)


def scalar_waiting(**dispatch_changes: Any) -> list[Fact]:
    """A scalar await that is parked, its request sent."""
    return [
        submitted(),
        started(),
        segment_completed(),
        opened(itemised=False, live=False),
        dispatched(**dispatch_changes),
        dispatch_completed(1),
        suspended(),
    ]


def streaming(count: int, *, live: bool, ended: bool = False) -> list[Fact]:
    """A stream with `count` items dispatched."""
    begun = [submitted(), started(), opened(itemised=True, live=live), *(dispatched(index) for index in range(count))]
    return [*begun, source_ended(count)] if ended else begun


def parked(count: int, *, answered: int = 0, cursor: int | None = None) -> list[Fact]:
    """A parked stream with `count` items, the first `answered` answered before parking."""
    early = [admitted(index) for index in range(answered)]
    moved = [] if cursor is None else [swept(cursor)]
    return [
        *streaming(count, live=False),
        *early,
        source_ended(count),
        dispatch_completed(count, answered),
        suspended(),
        *moved,
    ]


# --- given, when, then ---------------------------------------------------------------------------------------------------------------


class DictRows(dict[bytes, Row]):
    """Rows in a dict."""

    def put(self, key: bytes, record: Row) -> None:
        """Make `record` the row."""
        self[key] = record

    def get(self, key: bytes, default: Any = None) -> Any:
        """The record, or None."""
        return super().get(key, default)


@dataclass
class Doing:
    """What this process does, as `advance` is told."""

    running: bool = False
    session: bool = False
    parking: int | None = None
    looked: bool = True

    def has_looked(self, execution_id: str) -> bool:
        """A look ahead has just ended."""
        return self.looked

    def is_running(self, execution_id: str) -> bool:
        """A segment is on the pool."""
        return self.running

    def has(self, unit_id: str) -> bool:
        """A session reads the source."""
        return self.session

    def parking_count(self, unit: UnitRecord) -> int | None:
        """Set when the session can only park."""
        return self.parking


IDLE = Doing()


@dataclass
class Given:
    """Rows that follow from facts."""

    pipeline: Pipeline
    rows: DictRows = field(default_factory=DictRows)

    def facts(self, *more: Fact) -> Given:
        """Fold more facts."""
        for fact in more:
            fold(self.rows, fact)
        return self

    @property
    def execution(self) -> ExecutionRecord | None:
        """The execution's row."""
        found: ExecutionRecord | None = self.rows.get(execution_key(EXECUTION))
        return found

    @property
    def the_execution(self) -> ExecutionRecord:
        """The execution's row, which is there."""
        assert self.execution is not None
        return self.execution

    def unit(self, unit_id: str = UNIT) -> UnitRecord | None:
        """The unit's row."""
        found: UnitRecord | None = self.rows.get(unit_key(unit_id))
        return found

    @property
    def the_unit(self) -> UnitRecord:
        """The unit's row, which is there."""
        unit = self.unit()
        assert unit is not None
        return unit

    def interaction(self, item_index: int | None = None) -> InteractionRecord | None:
        """An interaction's row."""
        found: InteractionRecord | None = self.rows.get(interaction_key(UNIT, item_index))
        return found

    def item(self, item_index: int) -> ItemRecord | None:
        """An item's row."""
        found: ItemRecord | None = self.rows.get(item_key(UNIT, item_index))
        return found

    def standing(self, item_index: int | None = None) -> Standing:
        """The rows that an answer meets."""
        return Standing(self.execution, self.unit(), self.interaction(item_index))

    def when(self, decide: Callable[[Given], Decisions]) -> Then:
        """Ask the core."""
        return Then(self, decide(self))


@dataclass
class Then:
    """What the core decided."""

    given: Given
    decisions: Decisions

    def then(self, *expected: Decision) -> Given:
        """Exactly these decisions, in this order; their facts can be folded, all of them."""
        assert self.decisions == list(expected)
        return self.given.facts(*self.appended)

    @property
    def appended(self) -> list[Fact]:
        """The facts among the decisions."""
        return [decision.fact for decision in self.decisions if isinstance(decision, Append)]

    @property
    def names(self) -> list[str]:
        """What happens, as words: facts by their own name, other decisions by theirs."""
        return [
            type(decision.fact).__name__ if isinstance(decision, Append) else type(decision).__name__
            for decision in self.decisions
        ]

    def folded(self) -> Given:
        """The rows after the decisions."""
        return self.given.facts(*self.appended)


def given(pipeline: Pipeline, *given_facts: Fact) -> Given:
    """Rows that follow from these facts."""
    return Given(pipeline).facts(*given_facts)


def shaped(payload: bytes) -> Shape:
    """The payload, read by the answer's type, as the shell does without a projector."""
    try:
        return Shaped(VERDICT.to_json(VERDICT.validate_json(payload)), None)
    except ValueError:
        return Misshapen("not a shop:Verdict")


def answer(
    item_index: int | None = None,
    payload: bytes = YES,
    *,
    at_ms: int = NOW,
    stamped: bool = True,
    token_valid: bool | None = None,
    tenant_id: str | None = None,
    shape: Shape | None = None,
    unit_id: str = UNIT,
    key: str | None = None,
) -> Answer:
    """An answer as the shell hands it in; `stamped`: the broker says when it came in."""
    name = interaction_id(unit_id, item_index)
    came_in_ms = at_ms if stamped else None
    return Answer(
        ProviderCompletion(EXECUTION, name, payload, tenant_id=tenant_id, came_in_ms=came_in_ms, idempotency_key=key),
        parse_interaction_id(name),
        at_ms,
        token_valid,
        shape or shaped(payload),
    )


def outcome(
    item_index: int, attempt: int = 1, *, error: str | None = None, retryable: bool = True
) -> ContinuationCompletion:
    """The outcome of one item's suffix."""
    outputs = [] if error else [line(item_index)]
    return ContinuationCompletion(EXECUTION, UNIT, item_index, attempt, outputs, error, error and "it broke", retryable)


def lines(count: int) -> bytes:
    """The outputs of so many items as one list."""
    return join_payloads(line(index) for index in range(count))
