"""The pipeline as the engine sees it: validated, bound to the author's types and functions, immutable.

`topologies.reading.loading.load_pipeline` is the only maker; what exists here has passed every check. Times are milliseconds.

Words (DESIGN 1): a *segment* is the run of steps between two boundaries, a boundary is an await step. Types name the items
that flow, never the stream: `ONE_TO_MANY` from `PaymentsFile` to `PaymentRecord` makes a stream of `PaymentRecord`, and
`MANY_TO_ONE` with input `PaymentRecord` is called with a list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from topologies.pipeline.payloads import PayloadType


class Cardinality(StrEnum):
    """How many items a step takes and gives."""

    ONE_TO_ONE = "ONE_TO_ONE"
    ONE_TO_MANY = "ONE_TO_MANY"
    MANY_TO_ONE = "MANY_TO_ONE"
    MANY_TO_MANY = "MANY_TO_MANY"

    @property
    def takes_many(self) -> bool:
        """Whether the step is an aggregate: it takes the whole stream as one list."""
        return self in (Cardinality.MANY_TO_ONE, Cardinality.MANY_TO_MANY)

    @property
    def gives_many(self) -> bool:
        """Whether a stream follows the step."""
        return self in (Cardinality.ONE_TO_MANY, Cardinality.MANY_TO_MANY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a failed step is tried again.

    Attributes:
        attempts: Runs in all, the first included; at least 1.
        base_ms: Wait after the first failure.
        multiplier: Growth of the wait from failure to failure; at least 1.
        cap_ms: Longest wait.
        non_retryable: Exception class names, plain (`ValueError`) or `module:Name`; subclasses count.
    """

    attempts: int
    base_ms: int
    multiplier: float
    cap_ms: int
    non_retryable: tuple[str, ...] = ()

    def delay_ms(self, attempt: int) -> int:
        """Wait after failure number `attempt` (from 1): base x multiplier^(attempt - 1), at most the cap (BEHAVIOUR F98)."""
        delay = float(self.base_ms)
        for _ in range(attempt - 1):
            if delay >= self.cap_ms or self.multiplier == 1:
                break
            delay *= self.multiplier
        return min(int(delay), self.cap_ms)

    def is_retryable(self, error: BaseException) -> bool:
        """False when the error or one of its base classes is named in `non_retryable`."""
        names = {
            name for kind in type(error).__mro__ for name in (kind.__name__, f"{kind.__module__}:{kind.__qualname__}")
        }
        return names.isdisjoint(self.non_retryable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A step that runs the author's function inside a segment.

    Attributes:
        index: 0-based place in the pipeline.
        step_id: The name in kebab case.
        accepts: The union arms that the step takes; items of other arms pass it by unchanged. None: it takes every item.
        function: Plain or async, one positional argument: the item, or a list of items for an aggregate.
        is_async: The function is a coroutine function.
        call_timeout_ms: Longest run of one call.
        line: Line of the step in the file.
    """

    index: int
    step_id: str
    name: str
    cardinality: Cardinality
    input: PayloadType
    output: PayloadType
    accepts: PayloadType | None
    function: Callable[..., Any] = field(repr=False)
    is_async: bool
    retry: Retry
    call_timeout_ms: int
    line: int

    def takes(self, item: Any) -> bool:
        """Whether the item is for this step; otherwise it goes on to the next one."""
        return self.accepts is None or self.accepts.accepts(item)


PayloadFormat = Literal["json", "avro", "avro-registry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTransport:
    """Requests and answers as records; topic names are complete, `{app}` is filled in."""

    kind: ClassVar[str] = "kafka"
    request_topic: str
    request_key: Literal["interactionId", "correlationId"]
    response_topic: str
    request_format: PayloadFormat
    response_format: PayloadFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionApiTransport:
    """No outward call: the interaction waits in the inbox for somebody to complete it."""

    kind: ClassVar[str] = "interaction-api"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTransport:
    """An HTTP call outward, an HTTP callback inward."""

    kind: ClassVar[str] = "webhook"
    url: str
    method: str
    headers: Mapping[str, str] = field(repr=False)  # may carry a credential
    timeout_ms: int
    callback_base_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsTransport:
    """Two standard queues."""

    kind: ClassVar[str] = "sqs"
    request_queue_url: str
    response_queue_url: str


Transport = KafkaTransport | InteractionApiTransport | WebhookTransport | SqsTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """`onTimeout: {skip: true}`: an expired item is left out, the others go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """`onTimeout: {value: ...}`: an expired item goes on with this answer.

    Attributes:
        json: Canonical JSON of the step's output type.
    """

    json: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the provider bears, over all partitions (policy 10)."""

    unresolved: int | None
    per_second: float | None


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the runtime knows about an answer besides its payload; the third argument of a projector.

    Attributes:
        interaction_id: The interaction that was answered.
        actor: Who answered; empty when nobody said (BEHAVIOUR F75).
        completed_at_ms: The answer's record time, epoch ms.
    """

    interaction_id: str
    actor: str
    completed_at_ms: int

    @property
    def completed_at(self) -> datetime:
        """The answer's record time, UTC."""
        return datetime.fromtimestamp(self.completed_at_ms / 1000, tz=UTC)


class Projector(Protocol):
    """Makes the step's output from the stored request and what the outside party is trusted with.

    A class with a constructor without arguments; `project` is deterministic and without side effects, as its result is stored
    and never made again (seeds/await-boundaries).
    """

    def project(self, request: Any, completion: Any, metadata: Completion, /) -> Any:
        """Give the step's output for the stored `request` and the admitted payload `completion`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """`await.completion`: the outside party answers `type`, the projector makes the step's output of it.

    Attributes:
        project: Bound: (request, answer of `type`, Completion) -> output.
        name: The projector as `module:name`: stored with the interaction, which no other projector may complete (F76).
    """

    type: PayloadType
    project: Callable[[Any, Any, Completion], Any] = field(repr=False)
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitStep:
    """A step that asks an outside party and waits.

    Attributes:
        index: 0-based place in the pipeline.
        step_id: The name in kebab case.
        timeout_ms: From request to deadline; positive.
        idempotency_key_fields: Fields of the input, in declared order, as the author wrote them.
        owner: Who looks after late and refused answers.
        strategy: Under `signedResumeToken` every answer needs the token (policy 3).
        request_field: Business field of the request that correlates, with `response_field` of the answer.
        live: The live window is on.
        window: Most unresolved items of one unit.
        idle_ms: A live session without work for so long after its source's end closes.
        projection: Absent: the outside party answers the output type itself.
        on_timeout: None: an expired item fails the execution.
        line: Line of the step in the file.
    """

    index: int
    step_id: str
    name: str
    cardinality: Cardinality
    input: PayloadType
    output: PayloadType
    timeout_ms: int
    idempotency_key_fields: tuple[str, ...]
    owner: str | None
    strategy: Literal["interactionId", "signedResumeToken"]
    request_field: str | None
    response_field: str | None
    transport: Transport
    live: bool
    window: int
    idle_ms: int
    projection: Projection | None
    on_timeout: Skip | Value | None
    remind_after_ms: int | None
    assignee: str | None
    group: str | None
    budget: Budget | None
    line: int

    @property
    def answer_type(self) -> PayloadType:
        """What the outside party sends: the completion type when a projector follows, else the output."""
        return self.projection.type if self.projection else self.output

    @property
    def needs_token(self) -> bool:
        """Whether an answer without a valid resume token is refused."""
        return self.strategy == "signedResumeToken"


Step = RunStep | AwaitStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSource:
    """One execution an object of a folder or bucket.

    Attributes:
        location: Absolute.
        include: Shell patterns of names; an object matching one of them is read.
        poll_ms: Wait between two listings.
    """

    provider: str
    location: Path
    include: tuple[str, ...]
    poll_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """One execution a record.

    Attributes:
        key: Template of the submission key; None: topic, partition and offset.
    """

    topic: str
    type: PayloadType
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """One execution a publication of another pipeline."""

    publication: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOutput:
    """Outputs gathered into objects.

    Attributes:
        location: Absolute.
        key: Template of the object's name; `{groupKey}` is the group.
        group_by: Field of the output that names the group; None: the input object's name.
    """

    provider: str
    location: Path
    key: str
    format: Literal["csv"]
    group_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutput:
    """Outputs as records, each as it finishes.

    Attributes:
        key: Template of the record key; None: the execution id.
    """

    topic: str
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOutput:
    """Outputs handed to another pipeline, which owns them from there."""

    publication: str
    idempotency_key_fields: tuple[str, ...]


Source = ObjectSource | TopicSource | CheckpointSource
Output = ObjectOutput | TopicOutput | CheckpointOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKeys:
    """The secrets that sign resume tokens; never printed.

    Attributes:
        active: Key id that signs new tokens; the others only verify (policy 3).
        keys: Key id -> secret.
    """

    active: str
    keys: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long facts and finished executions are kept."""

    facts_ms: int
    executions_ms: int


BROKER_DEFAULT = -1
"""`replication_factor` when the file does not say: the broker's `default.replication.factor` decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline that can run.

    Attributes:
        name: Part of every execution id; stays when `--app` makes a copy.
        app: Prefix of topics, groups and transactional ids.
        input_type: What a submission must be: the first step's input.
        output_type: What leaves the last step; a union when branches leave several arms.
        partitions: Of every own topic; fixed for life.
        replication_factor: Of every own topic; `BROKER_DEFAULT` leaves it to the broker.
        tokens: None when no step needs them.
        path: The file, absolute.
        app_dir: Where the author's modules are imported from, absolute.
    """

    name: str
    app: str
    steps: tuple[Step, ...]
    input_type: PayloadType
    output_type: PayloadType
    source: Source | None
    output: Output | None
    partitions: int
    replication_factor: int
    tokens: TokenKeys | None
    retention: Retention
    registry_url: str | None
    path: Path
    app_dir: Path
    _itemised: dict[int, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    _suffix_stops: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def step(self, index: int) -> Step:
        """The step at a 0-based index."""
        return self.steps[index]

    def await_step(self, index: int) -> AwaitStep:
        """The await step at an index; an assertion fails when another kind stands there."""
        step = self.steps[index]
        assert isinstance(step, AwaitStep), f"step {index} of {self.name} is no await"
        return step

    def find_step(self, step_id: str) -> Step | None:
        """The step with this id, None when there is none."""
        return next((step for step in self.steps if step.step_id == step_id), None)

    @property
    def await_steps(self) -> tuple[AwaitStep, ...]:
        """The await steps, in order."""
        return tuple(step for step in self.steps if isinstance(step, AwaitStep))

    def next_await(self, index: int) -> int | None:
        """Index of the first await step at `index` or later; None when the rest of the pipeline runs to its end."""
        return next((step.index for step in self.steps[index:] if isinstance(step, AwaitStep)), None)

    def streams_into(self, index: int) -> bool:
        """Whether a stream reaches the step: some step before gave many and no later one before it took many to one."""
        streaming = False
        for step in self.steps[:index]:
            streaming = step.cardinality.gives_many or (streaming and not step.cardinality.takes_many)
        return streaming

    def is_itemised(self, await_index: int) -> bool:
        """Whether the await makes one interaction an item: ONE_TO_ONE reached by a stream (BEHAVIOUR F21)."""
        found = self._itemised.get(await_index)
        if found is None:  # asked for every answer
            one = self.await_step(await_index).cardinality is Cardinality.ONE_TO_ONE
            found = self._itemised[await_index] = one and self.streams_into(await_index)
        return found

    def suffix_stop(self, await_index: int) -> int:
        """Where item continuations of the await end, exclusive: the next aggregate step, or the end (BEHAVIOUR F29)."""
        found = self._suffix_stops.get(await_index)
        if found is None:  # asked for every continuation
            later = self.steps[await_index + 1 :]
            found = next((step.index for step in later if step.cardinality.takes_many), len(self.steps))
            self._suffix_stops[await_index] = found
        return found

    def item_type(self, index: int) -> PayloadType:
        """The type of what waits at a boundary: the input of the step there, or the pipeline's output at the end.

        Boundaries are index 0, await and aggregate steps, what follows an await, and `len(steps)`. Behind an await it is the
        await's output: the step there may be a branch, which takes only some arms of it.
        """
        if index == len(self.steps):
            return self.output_type
        before = self.steps[index - 1] if index > 0 else None
        return before.output if isinstance(before, AwaitStep) else self.steps[index].input

    @property
    def external_topics(self) -> tuple[str, ...]:
        """Topics that belong to the user's world, each once, in the order of the flow: source, requests, answers, output."""
        source = [self.source.topic] if isinstance(self.source, TopicSource) else []
        transports = [step.transport for step in self.await_steps if isinstance(step.transport, KafkaTransport)]
        asked = [topic for transport in transports for topic in (transport.request_topic, transport.response_topic)]
        output = [self.output.topic] if isinstance(self.output, TopicOutput) else []
        return tuple(dict.fromkeys([*source, *asked, *output]))

    @property
    def response_topics(self) -> tuple[str, ...]:
        """Topics on which answers arrive, each once: what the ingress role reads."""
        transports = (step.transport for step in self.await_steps)
        return tuple(dict.fromkeys(t.response_topic for t in transports if isinstance(t, KafkaTransport)))


def template_fields(template: str) -> tuple[str, ...]:
    """The `{field}` names of a key template, in order.

    Raises:
        ValueError: An unbalanced brace, an empty name, or a format or conversion that templates do not have.
    """
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if not name or form or conversion:
            raise ValueError(f"{template!r} is not a template of text and {{field}} names")
        names.append(name)
    return tuple(names)


def fill_template(template: str, text_of: Callable[[str], str]) -> str:
    """A key template with each `{field}` replaced by `text_of(field)`."""
    parts = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(text_of(name))
    return "".join(parts)
