"""The pipeline as the engine sees it: validated, bound to the author's types and functions, immutable.

`topologies.reading.loading.load_pipeline` is the only maker; what exists here has passed every check. Times are milliseconds.

Words (DESIGN 1): a *segment* is the run of steps between two boundaries, a boundary is an await step. Types name the items
that flow, never the stream: `ONE_TO_MANY` from `PaymentsFile` to `PaymentRecord` makes a stream of `PaymentRecord`, and
`MANY_TO_ONE` with input `PaymentRecord` is called with a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from topologies.pipeline.ends import Output, Source, TopicOutput, TopicSource
from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.steps import AwaitStep, Step
from topologies.pipeline.transports import KafkaTransport


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
    """How long facts and finished executions are kept.

    Attributes:
        keys_ms: How long it is known that an object or record was done, after its execution's end.
    """

    facts_ms: int
    executions_ms: int
    keys_ms: int


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
        release: Names what of it decides executions; another release decides them otherwise.
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
    release: str = ""

    def step(self, index: int) -> Step:
        """The step at a 0-based index."""
        return self.steps[index]

    def await_step(self, index: int) -> AwaitStep:
        """The await step at an index; an assertion fails when another kind stands there."""
        step = self.steps[index]
        assert isinstance(step, AwaitStep), f"step {index} of {self.name} is no await"
        return step

    def step_id_at(self, index: int) -> str:
        """The id of the step at an index; empty behind the last one."""
        return self.steps[index].step_id if index < len(self.steps) else ""

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
