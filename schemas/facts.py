"""Facts: what happened, in the past tense, never changed (BEHAVIOUR 2.5, DESIGN 5).

`state.folding` turns facts into rows and is the only writer of rows, so the facts topic alone rebuilds every table. A fact therefore
carries what its rows need. Each fact is one Avro record of the facts topic, named as its class; payloads are UTF-8 JSON in bytes.

They hold no reference that could lead back to them, so the garbage collector need not look at them (`gc=False`).

Common fields: `execution_id` (also the record key), `at_ms` (epoch ms of the owner's clock when it was decided).
`unit_id` is `<executionId>.<stepIndex>`; `item_index` counts the items of an itemised unit from 0 and is None for a scalar unit.
"""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True, gc=False):
    """What all facts share."""

    execution_id: str
    at_ms: int


# --- an execution -----------------------------------------------------------------------------------------------------------------


class RunSubmitted(Fact, frozen=True, gc=False):
    """An execution was accepted."""

    tenant_id: str
    pipeline: str
    submission_key: str
    input: bytes
    """First step's input."""
    source_name: str | None = None
    """Object name, where the input is an object."""
    source_size: int | None = None
    source_sha256: str | None = None


class SegmentAttemptStarted(Fact, frozen=True, gc=False):
    """The steps from `step_index` to the next boundary were handed to the worker pool."""

    step_index: int
    attempt: int


class SegmentCompleted(Fact, frozen=True, gc=False):
    """A segment ended; `output` is the input of what follows at `next_step` (`many`: a JSON array of payloads)."""

    next_step: int
    output: bytes
    many: bool = False


class SegmentAttemptFailed(Fact, frozen=True, gc=False):
    """A segment's attempt failed; it is tried again at `retry_at_ms`, or never (None)."""

    step_index: int
    attempt: int
    error_code: str
    error_message: str
    retry_at_ms: int | None


class SegmentSuspended(Fact, frozen=True, gc=False):
    """The execution was parked at a unit (status WAITING_EXTERNAL). Normal control flow."""

    unit_id: str


class ContinuationSegmentCreated(Fact, frozen=True, gc=False):
    """The suffix of a suspended pipeline became work: for one item, or (`item_index` None) for the execution itself."""

    unit_id: str
    item_index: int | None
    attempt: int
    next_step: int
    due_ms: int | None = None
    """When an unanswered item continuation is emitted again."""


class TerminalPublicationPrepared(Fact, frozen=True, gc=False):
    """The effect of publishing the terminal output may start now."""

    publication_id: str
    attempt: int
    due_ms: int
    """When an unanswered effect counts as lost."""


class TerminalPublicationFailed(Fact, frozen=True, gc=False):
    """An attempt to publish failed; it is prepared again at `retry_at_ms`, or never (None)."""

    publication_id: str
    attempt: int
    error_code: str
    error_message: str
    retry_at_ms: int | None


class TerminalPublicationCompleted(Fact, frozen=True, gc=False):
    """The terminal output is where it belongs."""

    publication_id: str
    outputs: list[str]


class RunSucceeded(Fact, frozen=True, gc=False):
    """The execution ended well; nothing of it is open any more."""

    result: bytes | None


class RunFailed(Fact, frozen=True, gc=False):
    """The execution ended badly and was dead-lettered."""

    error_code: str
    error_message: str


class RunCancelled(Fact, frozen=True, gc=False):
    """An operator ended the execution."""

    reason: str


class RunRedriven(Fact, frozen=True, gc=False):
    """A dead-lettered execution was queued again, with its await pointer."""

    attempt: int
    reason: str


# --- a unit ------------------------------------------------------------------------------------------------------------------------


class BoundaryUnitOpened(Fact, frozen=True, gc=False):
    """An execution reached an await step."""

    unit_id: str
    step_id: str
    step_index: int
    itemised: bool
    live: bool
    """Opened with a live session; False: the suspending path from the start."""


class SourceEnded(Fact, frozen=True, gc=False):
    """The stream entering an itemised unit ended after `count` items. From now on recovery never reads the source again."""

    unit_id: str
    count: int


class BoundaryDispatchCompleted(Fact, frozen=True, gc=False):
    """Dispatch of a unit is closed: gate one of the suspending path. `expected` and `completed` are counted from rows."""

    unit_id: str
    expected: int
    completed: int


class ContinuationsSwept(Fact, frozen=True, gc=False):
    """Completions of items below `cursor` were looked at once; later ones emit their continuation themselves."""

    unit_id: str
    cursor: int


class BoundaryUnitClosed(Fact, frozen=True, gc=False):
    """The unit ended, and with it every interaction, timer and slot of it. `outcome` is a unit status."""

    unit_id: str
    outcome: str


# --- an interaction ----------------------------------------------------------------------------------------------------------------


class BoundaryInteractionDispatched(Fact, frozen=True, gc=False):
    """A request left in the same transaction as this fact (`requested` False: a held answer made it unnecessary)."""

    unit_id: str
    item_index: int | None
    attempt: int
    idempotency_key: str
    deadline_ms: int
    input_type: str
    output_type: str
    request: bytes
    requested: bool = True
    projector: str | None = None
    """The only projector that may complete it (BEHAVIOUR F76)."""


class BoundaryCompletionHeld(Fact, frozen=True, gc=False):
    """An answer came before its step was reached; it is judged when the step is (policy 9)."""

    unit_id: str
    item_index: int | None
    answer: bytes
    resume_token: str | None
    actor: str | None
    completed_at_ms: int
    origin_topic: str = ""
    origin_partition: int = -1
    origin_offset: int = -1
    """Where it came in, for who gets it back should it be refused."""


class BoundaryCompletionAdmitted(Fact, frozen=True, gc=False):
    """The answer of an interaction was accepted, once. A *provider completion*."""

    unit_id: str
    item_index: int | None
    completion: bytes
    """Canonical output."""
    answer: bytes | None
    """What the actor sent, as it came, where a projector made the completion of it; else None."""
    actor: str | None
    completed_at_ms: int


class CompletionRefused(Fact, frozen=True, gc=False):
    """An answer for a known interaction was refused; at most `limits.REFUSAL_FACTS_MAX` of an interaction."""

    unit_id: str
    item_index: int | None
    reason: str


class InteractionTimedOut(Fact, frozen=True, gc=False):
    """The deadline passed without an admitted answer. `resolution`: fail, skip or value (the step's `onTimeout`)."""

    unit_id: str
    item_index: int | None
    resolution: str


# --- an item -----------------------------------------------------------------------------------------------------------------------


class ContinuationCompleted(Fact, frozen=True, gc=False):
    """One item's suffix ran and its outputs are stored. A *continuation completion*; never one counter with the provider's."""

    unit_id: str
    item_index: int
    attempt: int
    outputs: list[bytes]


class ContinuationAttemptFailed(Fact, frozen=True, gc=False):
    """One item's suffix failed; it is tried again at `retry_at_ms`, or never (None)."""

    unit_id: str
    item_index: int
    attempt: int
    error_code: str
    error_message: str
    retry_at_ms: int | None


FACTS: tuple[type[Fact], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Fact) and value is not Fact
)
"""Every kind of fact, in the order above."""
