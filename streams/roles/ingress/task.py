"""Ingress: answers from the outside are filtered early and re-keyed onto `completions`; source records become submissions (DESIGN 4).

Any key, any partition, any producer. What is not JSON or has no address goes to the dead letters, a token that is missing or forged to the
refusals; the core judges token and shape again with the row at hand. Stateless: its only state is how far it has read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas import codec
from schemas.envelopes import (
    DEFAULT_TENANT,
    ProviderCompletion,
    SubmitCommand,
)
from schemas.errors import PoisonRecord, TokenRejected
from schemas.identity import InteractionRef, execution_id
from streams.engine.stateless import StatelessTask
from streams.engine.task import Event, Outputs
from streams.roles import dead_letters
from topologies.pipeline.ends import TopicSource, fill_template
from topologies.pipeline.steps import AwaitStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from connectors.resume_token import TokenSigner
    from schemas.names import Names
    from streams.clock import Clock
    from streams.log.seam import Record, TopicPartition
    from streams.telemetry.metrics import Metrics
    from topologies.pipeline.model import Pipeline
from streams.roles.ingress.records import read_answer


@dataclass(kw_only=True)
class IngressContext:
    """What all ingress tasks of a worker share."""

    pipeline: Pipeline
    names: Names
    clock: Clock
    signer: TokenSigner | None
    metrics: Metrics


class IngressTask(StatelessTask):
    """One partition of a response topic or source topic."""

    def __init__(self, context: IngressContext, inputs: tuple[TopicPartition, ...]) -> None:
        super().__init__(inputs)
        self._ctx = context
        self._counts: Counter[tuple[str, str]] = Counter()
        source = context.pipeline.source
        self._source = source if isinstance(source, TopicSource) else None

    def accept(self, records: Sequence[Record]) -> None:
        """Queue records."""
        new = tuple.__new__
        self.ready += [new(Event, (self, record, record)) for record in records]  # as Event(...), in half its time
        self.bytes += sum(record.size for record in records)

    def decide(self, event: Event, outputs: Outputs) -> None:
        """Re-key one answer, or submit one record of the source."""
        record: Record = event.what
        try:
            if self._source is not None and record.topic == self._source.topic:
                self._submit(record, self._source, outputs)
            else:
                self._rekey(record, outputs)
        except PoisonRecord as error:
            self._dead_letter(record, error.reason, str(error), outputs)

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """The batch is committed: count it."""
        del rows, ends
        self._ctx.metrics.decided(self._counts)
        self._counts.clear()

    def drop(self) -> None:
        """The batch did not happen."""
        self._counts.clear()

    def quarantine(self, event: Event, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record that cannot be committed."""
        assert event.record is not None
        self._dead_letter(event.record, "not-committable", f"{type(error).__name__}: {error}", outputs)

    def _dead_letter(self, record: Record, reason: str, detail: str, outputs: Outputs) -> None:
        self._counts["dead", reason] += 1
        at_ms = self._ctx.clock.now_ms()
        dead_letters.write_record(outputs, self._ctx.names, record, reason=reason, detail=detail, at_ms=at_ms)

    def _submit(self, record: Record, source: TopicSource, outputs: Outputs) -> None:
        """One execution a record; the key template, or else the record's place, makes a repeat a duplicate."""
        pipeline = self._ctx.pipeline
        if record.value is None:
            raise PoisonRecord("null-value", "a source record without a value starts nothing")
        try:
            value = source.type.validate_json(record.value)
            payload = source.type.to_json(value)
            place = f"{record.topic}-{record.partition}-{record.offset}"
            key = (
                place
                if source.key is None
                else fill_template(source.key, lambda field: source.type.field_text(value, field))
            )
        except (ValueError, RecursionError) as error:
            raise PoisonRecord("wrong-shape", f"not a {source.type.name}: {error}") from error
        identity = execution_id(DEFAULT_TENANT, pipeline.name, f"topic:{source.topic}:{key}")
        command = SubmitCommand(identity, DEFAULT_TENANT, pipeline.name, key, payload)
        self._send_home(command, outputs)

    def _rekey(self, record: Record, outputs: Outputs) -> None:
        completion, ref = read_answer(record)
        step = self._step_of(ref)
        refusal = self._refusal(completion, step)
        if refusal is not None:
            reason, detail = refusal
            self._counts["refusal", reason] += 1
            at_ms = self._ctx.clock.now_ms()
            dead_letters.write_refusal(
                outputs, self._ctx.names, completion, step, reason=reason, detail=detail, at_ms=at_ms
            )
            return
        self._send_home(completion, outputs)

    def _send_home(self, message: SubmitCommand | ProviderCompletion, outputs: Outputs) -> None:
        topic, key, partition = self._ctx.names.home_of(message, self._ctx.pipeline.partitions)
        outputs.add(topic, codec.encode(message), key=key, partition=partition)

    def _refusal(self, completion: ProviderCompletion, step: AwaitStep | None) -> tuple[str, str] | None:
        """What can be said without a row: reason and detail."""
        if step is None:
            return "unknown", f"{completion.interaction_id[:80]!r} is no interaction of this pipeline"
        if completion.resume_token is None and not step.needs_token:
            return None
        if self._ctx.signer is None:
            return "bad-token", "this pipeline has no token keys to judge a token with"
        try:
            self._ctx.signer.verify_signature(completion.resume_token, interaction_id=completion.interaction_id)
        except TokenRejected as error:
            return "bad-token", str(error)
        return None

    def _step_of(self, ref: InteractionRef | None) -> AwaitStep | None:
        steps = self._ctx.pipeline.steps
        step = steps[ref.step_index] if ref is not None and ref.step_index < len(steps) else None
        return step if isinstance(step, AwaitStep) else None
