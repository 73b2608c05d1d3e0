"""Decisions: what to do, in the imperative, returned by the core and performed by one table (`streams.core.CoreTask`).

A decision's class name is its metric label and its trace word. Order matters: a decision may rely on the facts appended before it.
Those marked *after commit* start local work and are performed only once the transaction is committed (DESIGN 6, step 7).
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.envelopes import Continuation, Reply
from schemas.facts import BoundaryInteractionDispatched, Fact
from topologies.pipeline import AwaitStep


@dataclass(frozen=True, slots=True)
class Append:
    """Fold the fact into its rows and write it to the facts topic."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Request:
    """Send the request of an interaction that was dispatched in this transaction."""

    step: AwaitStep
    tenant_id: str
    fact: BoundaryInteractionDispatched


@dataclass(frozen=True, slots=True)
class EmitContinuation:
    """Write a continuation record: any instance may run this item's suffix."""

    continuation: Continuation


@dataclass(frozen=True, slots=True)
class WriteOutput:
    """Write one terminal output to the output topic."""

    execution_id: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class SendReply:
    """Tell whoever waits for this execution."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Refuse:
    """Write the answer to the refusals topic.

    Attributes:
        reason: unknown, late, conflict, cancelled, bad-token, wrong-shape or too-early.
    """

    reason: str
    detail: str
    step: AwaitStep | None


@dataclass(frozen=True, slots=True)
class DeadLetterExecution:
    """Write a dead execution to the dead-letter topic."""

    execution_id: str
    step_id: str | None
    reason: str
    detail: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Offer:
    """After commit: give an admitted completion to the live session of its unit."""

    unit_id: str
    item_index: int


@dataclass(frozen=True, slots=True)
class RunSegment:
    """After commit: run the steps `first` up to, not including, `stop` on the worker pool."""

    execution_id: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class OpenSession:
    """After commit: read the source by demand and dispatch its items."""

    execution_id: str
    unit_id: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    """After commit: forget the local session of a unit, if there is one."""

    unit_id: str


@dataclass(frozen=True, slots=True)
class Publish:
    """After commit: do the effect of a prepared publication."""

    execution_id: str
    publication_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Collect:
    """After commit: gather item outputs into the execution's result, for a pipeline without an output."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class HoldCompletion:
    """The completion is stored; its gates are not open yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An equal second answer: success for the sender, no progress."""


@dataclass(frozen=True, slots=True)
class NoOp:
    """Nothing follows; `reason` in kebab-case."""

    reason: str


Decision = (
    Append
    | Request
    | EmitContinuation
    | WriteOutput
    | SendReply
    | Refuse
    | DeadLetterExecution
    | Offer
    | RunSegment
    | OpenSession
    | CloseSession
    | Publish
    | Collect
    | HoldCompletion
    | Duplicate
    | NoOp
)

Decisions = list[Decision]
