"""Writing: the records that a batch writes for its decisions, besides changelog rows.

    Append               -> facts          the fact, on the task's own partition number
    Request              -> request topic  with a resume token where the pipeline signs
    EmitContinuation     -> continuations  keyed by the item, so that they spread
    WriteOutput          -> output topic
    TellOutcome            -> replies
    Refuse               -> refusals       with the answer it is about
    DeadLetterExecution  -> dlq
    DeadLetterItem       -> dlq            with the request and the answer of its row
    DeadLetterRecord     -> dlq            in the transaction that moves past the record
    Forward              -> its own topic  in the partition that its execution id names (DESIGN 4)

Nothing leaves before the commit: all of it goes into the batch's `Outputs`.
"""

from __future__ import annotations

import msgspec

from schemas import codec
from schemas.envelopes import (
    HEADER_INTERACTION_ID,
    HEADER_RESPONSE_TOPIC,
    HEADER_RESUME_TOKEN,
    ProviderCompletion,
    RequestEnvelope,
    encode_request,
)
from schemas.facts import Fact
from schemas.identity import interaction_id
from state.interaction import kept_completion
from state.tables.overlay import RowView
from streams.engine.task import Entry, Outputs
from streams.log.seam import Record
from streams.roles import dead_letters
from streams.roles.context import CoreContext
from streams.roles.core.events import AnswerArrived, HeldAnswerMet, StrangeAnswerArrived
from streams.roles.core.performing import Perform
from streams.telemetry.tally import Tally
from topologies.decisions.decision import (
    DeadLetterExecution,
    DeadLetterItem,
    DeadLetterRecord,
    EmitContinuation,
    Forward,
    Refuse,
    Request,
    TellOutcome,
    WriteOutput,
)
from topologies.pipeline.ends import TopicOutput, fill_template
from topologies.pipeline.transports import KafkaTransport


class Writer:
    """What one task writes. The tally takes what is refused, dead-lettered and forwarded."""

    def __init__(self, context: CoreContext, batch: RowView, partition: int, tally: Tally) -> None:
        self._ctx = context
        self._names = context.names
        self._batch = batch
        self._partition = partition
        self._tally = tally
        self._sign = context.signer.sign if context.signer is not None else None
        self._response_headers = {
            step.index: (HEADER_RESPONSE_TOPIC, step.transport.response_topic.encode())
            for step in context.pipeline.await_steps
            if isinstance(step.transport, KafkaTransport)
        }

    def performers(self) -> dict[type, Perform]:
        """The decisions that are performed by writing alone."""
        return {
            Request: self.request,
            EmitContinuation: self.continuation,
            WriteOutput: self.output,
            TellOutcome: self.reply,
            Refuse: self.refusal,
            DeadLetterExecution: self.dead_execution,
            DeadLetterItem: self.dead_item,
            DeadLetterRecord: self.dead_record,
            Forward: self.forward,
        }

    def fact(self, fact: Fact, outputs: Outputs) -> None:
        """A fact goes to the task's own partition number, explicitly (DESIGN 4)."""
        value = codec.encode(fact)
        outputs.put((self._names.facts, value, fact.execution_id.encode(), self._partition, None), len(value))

    def request(self, decision: Request, outputs: Outputs, _entry: Entry | None) -> None:
        """The request of one interaction: one record for each item and attempt."""
        step, fact = decision.step, decision.fact
        transport = step.transport
        assert isinstance(transport, KafkaTransport)
        iid = interaction_id(fact.unit_id, fact.item_index)
        key = iid.encode()
        token = None
        headers = [(HEADER_INTERACTION_ID, key), self._response_headers[step.index]]
        if self._sign is not None:
            token = self._sign(
                tenant_id=decision.tenant_id,
                interaction_id=iid,
                correlation_id=iid,
                step_id=step.step_id,
                deadline_ms=fact.deadline_ms,
            )
            headers.append((HEADER_RESUME_TOKEN, token.encode()))
        envelope = RequestEnvelope(
            tenant_id=decision.tenant_id,
            execution_id=fact.execution_id,
            interaction_id=iid,
            correlation_id=iid,
            step_id=step.step_id,
            item_index=fact.item_index,
            deadline_epoch_ms=fact.deadline_ms,
            input_type=fact.input_type,
            output_type=fact.output_type,
            resume_token=token,
            idempotency_key=fact.idempotency_key,
            request_payload=msgspec.Raw(fact.request),
        )
        value = encode_request(envelope)
        outputs.put((transport.request_topic, value, key, None, headers), len(value))

    def continuation(self, decision: EmitContinuation, outputs: Outputs, _entry: Entry | None) -> None:
        """A continuation record, keyed by its item."""
        continuation = decision.continuation
        child = interaction_id(continuation.unit_id, continuation.item_index)
        outputs.add(self._names.continuations, codec.encode(continuation), key=child.encode())

    def output(self, decision: WriteOutput, outputs: Outputs, _entry: Entry | None) -> None:
        """One terminal output."""
        pipeline = self._ctx.pipeline
        output = pipeline.output
        assert isinstance(output, TopicOutput)
        key = decision.execution_id
        if output.key is not None:
            kind = pipeline.output_type
            value = kind.validate_json(decision.payload)
            key = fill_template(output.key, lambda field: kind.field_text(value, field))
        outputs.add(output.topic, decision.payload, key=key.encode())

    def reply(self, decision: TellOutcome, outputs: Outputs, _entry: Entry | None) -> None:
        """The outcome, for the door that waits for it."""
        outputs.add(
            self._names.replies,
            codec.encode(decision.outcome),
            key=(decision.outcome.reply_id or decision.outcome.execution_id).encode(),
        )

    def refusal(self, decision: Refuse, outputs: Outputs, entry: Entry | None) -> None:
        """A refused answer, with the reason."""
        self._tally.count("refusal", decision.reason)
        dead_letters.write_refusal(
            outputs,
            self._names,
            self._refused(entry),
            decision.step,
            reason=decision.reason,
            detail=decision.detail,
            kept=decision.kept,
            at_ms=self._ctx.clock.now_ms(),
        )

    def _refused(self, entry: Entry | None) -> ProviderCompletion:
        event = entry.event if entry is not None else None
        if isinstance(event, HeldAnswerMet):
            row = self._batch.interaction(event.unit_id, event.item_index)
            assert row is not None
            assert row.held is not None
            return kept_completion(row, row.held)
        assert isinstance(event, (AnswerArrived, StrangeAnswerArrived))
        return event.completion

    def dead_execution(self, decision: DeadLetterExecution, outputs: Outputs, _entry: Entry | None) -> None:
        """An execution that failed for good."""
        self._tally.count("dead", decision.reason)
        dead_letters.write_execution(
            outputs,
            self._names,
            execution_id=decision.execution_id,
            step_id=decision.step_id,
            reason=decision.reason,
            detail=decision.detail,
            value=decision.value,
            at_ms=self._ctx.clock.now_ms(),
        )

    def dead_item(self, decision: DeadLetterItem, outputs: Outputs, _entry: Entry | None) -> None:
        """An item that was left out."""
        self._tally.count("dead", decision.reason)
        row = self._batch.interaction(decision.unit_id, decision.item_index)
        assert row is not None
        dead_letters.write_item(
            outputs,
            self._names,
            row,
            tenant_id=decision.tenant_id,
            step_id=decision.step_id,
            letter_id=decision.letter_id,
            reason=decision.reason,
            detail=decision.detail,
            at_ms=self._ctx.clock.now_ms(),
        )

    def dead_record(self, decision: DeadLetterRecord, outputs: Outputs, entry: Entry | None) -> None:
        """A record that can never be what its topic carries."""
        assert entry is not None
        assert entry.record is not None
        self._tally.count("dead", decision.reason)
        dead_letters.write_record(
            outputs,
            self._names,
            entry.record,
            reason=decision.reason,
            detail=decision.detail,
            at_ms=self._ctx.clock.now_ms(),
        )

    def forward(self, decision: Forward, outputs: Outputs, entry: Entry | None) -> None:
        """A record goes on, once, in this transaction, to the partition where its execution lives."""
        assert entry is not None
        record: Record | None = entry.record
        assert record is not None
        outputs.add(record.topic, record.value, key=record.key, partition=decision.partition)
        self._tally.count("misplaced", record.topic)
