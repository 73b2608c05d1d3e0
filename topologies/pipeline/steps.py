"""Steps of a pipeline: the author's functions, and the awaits between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.projection import Projection
from topologies.pipeline.transports import Transport


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
class Skip:
    """`{skip: true}`: an item that expired (`onTimeout`) or failed (`onError`) is left out, the others go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterAndSkip:
    """`onError: {deadLetter: true}`: an item that failed is left out, with a dead letter of its own."""


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
        on_error: What becomes of an item whose last attempt failed here. None: its execution fails once the other items are settled.
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
    on_error: Skip | DeadLetterAndSkip | None = None

    def takes(self, item: Any) -> bool:
        """Whether the item is for this step; otherwise it goes on to the next one."""
        return self.accepts is None or self.accepts.accepts(item)


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
        answer_type: What the outside party sends: the completion type when a projector follows, else the output.
        on_timeout: None: an expired item fails the execution.
        line: Line of the step in the file.
        itemised: One interaction an item: ONE_TO_ONE reached by a stream (BEHAVIOUR F21).
        suffix_stop: Where item continuations end, exclusive: the next aggregate step, or the end (BEHAVIOUR F29).
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
    answer_type: PayloadType
    on_timeout: Skip | Value | None
    remind_after_ms: int | None
    assignee: str | None
    group: str | None
    budget: Budget | None
    line: int
    itemised: bool = False
    suffix_stop: int = 0

    @property
    def needs_token(self) -> bool:
        """Whether an answer without a valid resume token is refused."""
        return self.strategy == "signedResumeToken"


Step = RunStep | AwaitStep


def streams_into(steps: Sequence[Step], index: int) -> bool:
    """Whether a stream reaches the step: some step before gave many and no later one before it took many to one."""
    streaming = False
    for step in steps[:index]:
        streaming = step.cardinality.gives_many or (streaming and not step.cardinality.takes_many)
    return streaming


def connected(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps of a pipeline, each await knowing what reaches it and what follows it."""
    return tuple(_connected(step, steps) if isinstance(step, AwaitStep) else step for step in steps)


def _connected(step: AwaitStep, steps: Sequence[Step]) -> AwaitStep:
    is_one = step.cardinality is Cardinality.ONE_TO_ONE
    later = (after.index for after in steps[step.index + 1 :] if after.cardinality.takes_many)
    return replace(step, itemised=is_one and streams_into(steps, step.index), suffix_stop=next(later, len(steps)))
