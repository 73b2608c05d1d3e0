"""Ingress: answers from the outside are filtered early and re-keyed onto `completions`; source records become submissions (DESIGN 4).

Any key, any partition, any producer. What is not JSON or has no address goes to the dead letters, a token that is missing or forged to the
refusals; the core judges token and shape again with the row at hand. Stateless: its only state is how far it has read.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas import codec, limits
from schemas.envelopes import DEFAULT_TENANT, ProviderCompletion, SubmitCommand
from schemas.errors import PoisonRecord, TokenRejected
from schemas.identity import InteractionRef, execution_id
from streams.engine.stateless import StatelessTask
from streams.engine.task import Entry, Outputs
from streams.log.seam import Record, TopicPartition
from streams.roles import dead_letters
from streams.roles.context import RoleContext
from streams.roles.ingress.records import read_answer
from topologies.pipeline.ends import TopicSource, fill_template
from topologies.pipeline.payloads import Misfit
from topologies.pipeline.steps import AwaitStep


class IngressTask(StatelessTask):
    """One partition of a response topic or source topic."""

    def __init__(self, context: RoleContext, inputs: tuple[TopicPartition, ...]) -> None:
        super().__init__(inputs, context.metrics)
        self._ctx = context
        source = context.pipeline.source
        self._source = source if isinstance(source, TopicSource) else None

    def accept(self, records: Sequence[Record]) -> None:
        """Queue records."""
        self.ready += [Entry(self, record, record) for record in records]
        self.waiting_bytes += sum(record.size for record in records)

    def is_full(self) -> bool:
        """Whether reading should wait: of a source earlier, for its records are new work, and answers end what is there."""
        is_source = self._source is not None and self.inputs[0].topic == self._source.topic
        return super().is_full() or (is_source and len(self.ready) > limits.SOURCE_RECORDS_MAX)

    def decide(self, entry: Entry, outputs: Outputs) -> None:
        """Re-key one answer, or submit one record of the source."""
        record: Record = entry.event
        try:
            if self._source is not None and record.topic == self._source.topic:
                self._submit(record, self._source, outputs)
            else:
                self._rekey(record, outputs)
        except PoisonRecord as error:
            self._dead_letter(record, error.reason, str(error), outputs)

    def quarantine(self, entry: Entry, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record that cannot be committed."""
        assert entry.record is not None
        self._dead_letter(entry.record, "not-committable", f"{type(error).__name__}: {error}", outputs)

    def _dead_letter(self, record: Record, reason: str, detail: str, outputs: Outputs) -> None:
        self.tally.count("dead", reason)
        at_ms = self._ctx.clock.now_ms()
        dead_letters.write_record(outputs, self._ctx.names, record, reason=reason, detail=detail, at_ms=at_ms)

    def _submit(self, record: Record, source: TopicSource, outputs: Outputs) -> None:
        """One execution a record; the key template, or else the record's place, makes a repeat a duplicate.

        A topic that was deleted and made again counts its offsets anew: the topic's id is part of the place.
        """
        pipeline = self._ctx.pipeline
        if record.value is None:
            raise PoisonRecord("null-value", "a source record without a value starts nothing")
        try:
            value = source.type.read(record.value)
            payload = source.type.to_json(value)
            place = f"{record.topic}-{record.partition}-{record.offset}"
            if source.key is None:
                key, scope = place, f"{source.topic}:{self._ctx.topic_ids[source.topic]}"
            else:
                key = fill_template(source.key, lambda field: source.type.field_text(value, field))
                scope = source.topic
        except (ValueError, RecursionError) as error:
            raise PoisonRecord("wrong-shape", str(Misfit.of(source.type.name, error))) from error
        identity = execution_id(DEFAULT_TENANT, pipeline.name, f"topic:{scope}:{key}")
        command = SubmitCommand(
            execution_id=identity,
            tenant_id=DEFAULT_TENANT,
            pipeline=pipeline.name,
            submission_key=key,
            input=payload,
            origin="topic",
        )
        self._send_home(command, outputs)

    def _rekey(self, record: Record, outputs: Outputs) -> None:
        completion, ref = read_answer(record)
        step = self._step_of(ref)
        refusal = self._refusal(completion, step)
        if refusal is not None:
            reason, detail = refusal
            self.tally.count("refusal", reason)
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
