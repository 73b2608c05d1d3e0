"""Interaction: one outside request and its answer (BEHAVIOUR 2.1). Record, transition table, `evolve`; pure.

Theory of operation. The row holds the canonical request, both type names and, once admitted, the canonical completion: the row alone
suffices to send again, to list, to project and to resume. An interaction is open only while its unit is open: ask `UnitRecord.is_open`
first; of a unit that ended only refusals are noted, and the first good answer that came too late is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from schemas import facts
from schemas.declaration import FORMAT
from schemas.envelopes import ProviderCompletion
from schemas.facts import Fact
from schemas.identity import execution_of, interaction_id
from state.transition import Transitions, by_status, illegal


class InteractionStatus(StrEnum):
    """Where an interaction stands."""

    HELD = "HELD"
    """An answer is here, its step is not reached."""
    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    TIMED_OUT = "TIMED_OUT"


_S = InteractionStatus
_PENDING, _COMPLETED = _S.PENDING, _S.COMPLETED

TRANSITIONS: Transitions = {
    (None, facts.BoundaryInteractionDispatched): _S.PENDING,
    (None, facts.BoundaryCompletionHeld): _S.HELD,
    (_S.HELD, facts.BoundaryInteractionDispatched): _S.PENDING,
    (_S.PENDING, facts.BoundaryCompletionHeld): _S.PENDING,  # it must be projected before it can be judged
    (_S.PENDING, facts.BoundaryCompletionAdmitted): _S.COMPLETED,
    (_S.PENDING, facts.InteractionTimedOut): _S.TIMED_OUT,
    (_S.TIMED_OUT, facts.BoundaryCompletionAdmitted): _S.COMPLETED,  # the step's `onTimeout: {value: ...}`
    (_S.HELD, facts.CompletionRefused): _S.HELD,
    (_S.PENDING, facts.CompletionRefused): _S.PENDING,
    (_S.COMPLETED, facts.CompletionRefused): _S.COMPLETED,
    (_S.TIMED_OUT, facts.CompletionRefused): _S.TIMED_OUT,
}


class KeptAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An answer that is kept as it came, to be judged later.

    Attributes:
        came_in_ms: When it came in, where the broker says so.
        completed_at_ms: The same, or else when it was appended to `completions`.
        topic, partition, offset: Where it came in.
    """

    answer: bytes
    actor: str | None
    resume_token: str | None
    completed_at_ms: int
    came_in_ms: int | None
    topic: str
    partition: int
    offset: int


class InteractionRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=FORMAT):
    """What is true of an interaction.

    Attributes:
        request: Canonical input, UTF-8 JSON.
        completion: Canonical output, once admitted.
        answer: What the actor sent, where a projector made the completion of it.
        completed_at_ms: When the admitted answer came in.
        timed_out: Its deadline passed (a later answer is late, whatever stands in `completion`).
        refusals: Refusal facts so far.
        requested: Its request was sent; False while a held answer makes it unnecessary.
        held: An answer that came before its request, or before it could be projected; gone once it is judged.
        late: The first good answer that came too late, for a redrive.
        correlation: The business value that names it, where the step maps one.
        delivered_at_ms: When the outside party took the request over, where that is reported.
    """

    unit_id: str
    item_index: int | None
    status: InteractionStatus
    attempt: int = 1
    idempotency_key: str = ""
    dispatched_at_ms: int = 0
    deadline_ms: int = 0
    input_type: str = ""
    output_type: str = ""
    request: bytes = b""
    completion: bytes | None = None
    answer: bytes | None = None
    actor: str | None = None
    completed_at_ms: int | None = None
    timed_out: bool = False
    refusals: int = 0
    projector: str | None = None
    requested: bool = True
    held: KeptAnswer | None = None
    late: KeptAnswer | None = None
    correlation: str | None = None
    assignee: str | None = None
    delivered_at_ms: int | None = None

    @property
    def interaction_id(self) -> str:
        """Its public id."""
        return interaction_id(self.unit_id, self.item_index)


def evolve(record: InteractionRecord | None, fact: Fact) -> InteractionRecord:
    """The record after `fact`.

    Raises:
        IllegalTransition: `fact` is not possible now; `record` is unchanged.
    """
    status = None if record is None else record.status
    after = _EVOLVE.get((status, type(fact)))
    if after is None:
        raise illegal(status, fact)
    return after(record, fact)


_replace = msgspec.structs.replace


def _dispatched(record: InteractionRecord | None, fact: facts.BoundaryInteractionDispatched) -> InteractionRecord:
    made = InteractionRecord(
        fact.unit_id,
        fact.item_index,
        _PENDING,
        fact.attempt,
        fact.idempotency_key,
        fact.at_ms,
        fact.deadline_ms,
        fact.input_type,
        fact.output_type,
        fact.request,
        projector=fact.projector,
        requested=fact.requested,
        correlation=fact.correlation,
        assignee=fact.assignee,
    )
    if record is None:
        return made
    return _replace(made, refusals=record.refusals, held=record.held)  # a held answer stays until it is judged


def _held(record: InteractionRecord | None, fact: facts.BoundaryCompletionHeld) -> InteractionRecord:
    found = record or InteractionRecord(fact.unit_id, fact.item_index, _S.HELD)
    held = KeptAnswer(
        fact.answer,
        fact.actor,
        fact.resume_token,
        fact.completed_at_ms,
        fact.came_in_ms,
        fact.origin_topic,
        fact.origin_partition,
        fact.origin_offset,
    )
    return _replace(found, held=held)


def _admitted(record: InteractionRecord, fact: facts.BoundaryCompletionAdmitted) -> InteractionRecord:
    return _replace(
        record,
        status=_COMPLETED,
        completion=fact.completion,
        answer=fact.answer,
        actor=fact.actor,
        completed_at_ms=fact.completed_at_ms,
        held=None,
    )


def _refused(record: InteractionRecord, fact: facts.CompletionRefused) -> InteractionRecord:
    refusals = record.refusals + 1
    if fact.kept_answer is not None:
        return _replace(record, refusals=refusals, late=_late(fact, fact.kept_answer))
    judged = record.status is _S.PENDING and fact.reason != "late"  # a held answer was refused: it is not judged again
    if not judged:
        return _replace(record, refusals=refusals)
    return _replace(record, refusals=refusals, requested=True, held=None)


def _late(fact: facts.CompletionRefused, answer: bytes) -> KeptAnswer:
    return KeptAnswer(
        answer,
        fact.actor,
        fact.resume_token,
        fact.completed_at_ms,
        fact.came_in_ms,
        fact.origin_topic,
        fact.origin_partition,
        fact.origin_offset,
    )


def _timed_out(record: InteractionRecord, _fact: facts.InteractionTimedOut) -> InteractionRecord:
    return _replace(record, status=_S.TIMED_OUT, timed_out=True)


_BY_FACT: dict[type[Fact], Callable[[Any, Any], InteractionRecord]] = {
    facts.BoundaryInteractionDispatched: _dispatched,
    facts.BoundaryCompletionHeld: _held,
    facts.BoundaryCompletionAdmitted: _admitted,
    facts.CompletionRefused: _refused,
    facts.InteractionTimedOut: _timed_out,
}

_EVOLVE = by_status(TRANSITIONS, _BY_FACT)


def kept_completion(row: InteractionRecord, kept: KeptAnswer) -> ProviderCompletion:
    """An answer that is kept on a row, as it came."""
    return ProviderCompletion(
        execution_of(row.unit_id),
        row.interaction_id,
        kept.answer,
        resume_token=kept.resume_token,
        actor=kept.actor,
        origin_topic=kept.topic,
        origin_partition=kept.partition,
        origin_offset=kept.offset,
        came_in_ms=kept.came_in_ms,
    )
