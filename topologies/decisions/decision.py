"""Decisions: what to do, in the imperative, returned by the core. Each kind is performed by one part of `streams.roles.core.task.CoreTask`.

A decision's class name is its metric label and its trace word. Order matters: a decision may rely on the facts appended before it.
Those marked *after commit* start local work and are performed only once the transaction is committed (DESIGN 6, step 7).

They are structs because several are made for each awaited row, at a fifth of what a frozen dataclass costs.
"""

from __future__ import annotations

import msgspec

from schemas.envelopes import Continuation, ExecutionOutcome
from schemas.facts import BoundaryInteractionDispatched, Fact
from topologies.pipeline.steps import AwaitStep


class Append(msgspec.Struct, frozen=True, gc=False):
    """Fold the fact into its rows and write it to the facts topic."""

    fact: Fact


class Request(msgspec.Struct, frozen=True, gc=False):
    """Send the request of an interaction that was dispatched in this transaction."""

    step: AwaitStep
    tenant_id: str
    fact: BoundaryInteractionDispatched


class EmitContinuation(msgspec.Struct, frozen=True, gc=False):
    """Write a continuation record: any instance may run this item's suffix."""

    continuation: Continuation


class WriteOutput(msgspec.Struct, frozen=True, gc=False):
    """Write one terminal output to the output topic."""

    execution_id: str
    payload: bytes


class TellOutcome(msgspec.Struct, frozen=True, gc=False):
    """Tell whoever waits for this execution."""

    outcome: ExecutionOutcome


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Write the answer to the refusals topic.

    Attributes:
        reason: unknown, late, conflict, cancelled, bad-token, wrong-key, wrong-shape or too-early.
        kept: It stays on its row, for a redrive.
    """

    reason: str
    detail: str
    step: AwaitStep | None
    kept: bool = False


class DeadLetterExecution(msgspec.Struct, frozen=True, gc=False):
    """Write a dead execution to the dead-letter topic."""

    execution_id: str
    step_id: str | None
    reason: str
    detail: str
    value: bytes


class DeadLetterItem(msgspec.Struct, frozen=True, gc=False):
    """Write an item that was left out to the dead-letter topic, with its request and its answer as their row has them."""

    tenant_id: str
    unit_id: str
    item_index: int
    step_id: str
    letter_id: str
    reason: str
    detail: str


class DeadLetterRecord(msgspec.Struct, frozen=True, gc=False):
    """Write the record that is being decided to the dead-letter topic: it can never be what its topic carries.

    Attributes:
        reason: In kebab case, as in `schemas.errors.PoisonRecord`.
    """

    reason: str
    detail: str


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Write the record that is being decided to the partition where its execution lives (DESIGN 4)."""

    partition: int


class DeleteRows(msgspec.Struct, frozen=True, gc=False):
    """Delete rows that retention lets go, and their changelog records."""

    keys: list[bytes]


class Offer(msgspec.Struct, frozen=True, gc=False):
    """After commit: give an admitted completion to the live session of its unit."""

    unit_id: str
    item_index: int


class JudgeHeld(msgspec.Struct, frozen=True, gc=False):
    """After commit: judge the answer that an interaction holds, projected first where its step says so."""

    unit_id: str
    item_index: int | None


class StartSweep(msgspec.Struct, frozen=True, gc=False):
    """After commit: go over the items of a parked unit, a slice a batch, and emit their continuations."""

    unit_id: str


class EndSweep(msgspec.Struct, frozen=True, gc=False):
    """After commit: every item of the unit was gone over, or nobody waits for them any more."""

    unit_id: str


class RunSegment(msgspec.Struct, frozen=True, gc=False):
    """After commit: run the steps `first` up to, not including, `stop` on the worker pool."""

    execution_id: str
    first: int
    stop: int


class LookAhead(msgspec.Struct, frozen=True, gc=False):
    """After commit: find out what can be known before the first request, which the await step at `boundary` sends."""

    execution_id: str
    boundary: int


class OpenSession(msgspec.Struct, frozen=True, gc=False):
    """After commit: read the source by demand and dispatch its items."""

    execution_id: str
    unit_id: str


class CloseSession(msgspec.Struct, frozen=True, gc=False):
    """After commit: forget the local session of a unit, if there is one."""

    unit_id: str


class Publish(msgspec.Struct, frozen=True, gc=False):
    """After commit: do the effect of a prepared publication."""

    execution_id: str
    publication_id: str
    attempt: int


class Collect(msgspec.Struct, frozen=True, gc=False):
    """After commit: gather item outputs into the execution's result, for a pipeline without an output."""

    execution_id: str


class HoldCompletion(msgspec.Struct, frozen=True, gc=False):
    """The completion is stored; its gates are not open yet."""

    reason: str


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """An equal second answer: success for the sender, no progress."""


class NoOp(msgspec.Struct, frozen=True, gc=False):
    """Nothing follows.

    Attributes:
        reason: In kebab-case.
        detail: What the operator should read in the log; empty: nothing.
    """

    reason: str
    detail: str = ""


Decision = (
    Append
    | Request
    | EmitContinuation
    | WriteOutput
    | TellOutcome
    | Refuse
    | DeadLetterExecution
    | DeadLetterItem
    | DeadLetterRecord
    | Forward
    | DeleteRows
    | Offer
    | JudgeHeld
    | StartSweep
    | EndSweep
    | RunSegment
    | LookAhead
    | OpenSession
    | CloseSession
    | Publish
    | Collect
    | HoldCompletion
    | Duplicate
    | NoOp
)

Decisions = list[Decision]
