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
    release: str = ""
    """Release of the application that decides the execution, to its end."""
    first_step_id: str = ""
    origin: str = "person"
    """Who submitted it: `object`, `topic`, `checkpoint` or `person`."""
    source_name: str | None = None
    """Object name, where the input is an object."""
    source_size: int | None = None
    source_sha256: str | None = None
    source_path: str | None = None
    source_stamp: str | None = None
    """What told the object from its other states when it was submitted (size, times, inode)."""
    reply_id: str | None = None
    door: int | None = None
    """Who waits for the outcome, and the partition of replies where."""
    root_execution_id: str | None = None
    parent_interaction_id: str | None = None
    """Of a child: the execution at the top, and the item's interaction that its end answers."""


class SegmentAttemptStarted(Fact, frozen=True, gc=False):
    """The steps from `step_index` to the next boundary were handed to the worker pool."""

    step_index: int
    attempt: int
    step_id: str = ""


class SegmentCompleted(Fact, frozen=True, gc=False):
    """A segment ended; `output` is the input of what follows at `next_step` (`many`: a JSON array of payloads)."""

    next_step: int
    output: bytes
    many: bool = False
    next_step_id: str = ""
    """Empty behind the last step."""


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
    next_step_id: str = ""
    """Of an execution that resumes; empty behind the last step, and for an item."""


class TerminalPublicationPrepared(Fact, frozen=True, gc=False):
    """The effect of publishing the terminal output may start now."""

    publication_id: str
    attempt: int
    due_ms: int
    """When an unanswered effect counts as lost."""
    supplement: int = 0
    """From 1: a publication that adds what was left out of an earlier one."""


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
    actor: str | None = None


class RunRedriven(Fact, frozen=True, gc=False):
    """A dead-lettered execution was queued again, with its await pointer."""

    attempt: int
    reason: str
    actor: str | None = None
    items: list[int] = []
    """The items that are done again; none named: whatever failed."""
    resend: bool = False
    """Requests without an answer were sent again."""
    publication: bool = False
    """Only the publication is done again."""


class RunForgotten(Fact, frozen=True, gc=False):
    """Retention let go what ran and kept that it ran: of the execution's row only id, status and end are left."""


class InputMoved(Fact, frozen=True, gc=False):
    """The input object was moved away after the execution's end; empty `moved_to`: it was deleted."""

    moved_to: str


# --- a unit ------------------------------------------------------------------------------------------------------------------------


class BoundaryUnitOpened(Fact, frozen=True, gc=False):
    """An execution reached an await step."""

    unit_id: str
    step_id: str
    step_number: int
    """The number of the step id in this application, never given to another: today its place in the pipeline."""
    itemised: bool
    live: bool
    """Opened with a live session; False: the suspending path from the start."""
    release: str = ""
    cardinality: str = "ONE_TO_ONE"
    key_rule: int = 2
    """The rule by which idempotency keys of the unit are made (`topologies.pipeline.items`)."""


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
    correlation: str | None = None
    """The business value that names it, where the step maps one; None: its own id does."""
    assignee: str | None = None


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
    came_in_ms: int | None = None
    """When it came in, where the broker says so; None: no time may be compared (DECISIONS 6)."""


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
    """When it came in; where nobody says so, when it was appended to `completions`."""


class CompletionRefused(Fact, frozen=True, gc=False):
    """An answer for a known interaction was refused; at most `limits.REFUSAL_FACTS_MAX` of an interaction.

    The first late one of a unit that can be redriven is kept on the row: then the fields from `kept_answer` on are set.
    """

    unit_id: str
    item_index: int | None
    reason: str
    kept_answer: bytes | None = None
    resume_token: str | None = None
    actor: str | None = None
    completed_at_ms: int = 0
    came_in_ms: int | None = None
    origin_topic: str = ""
    origin_partition: int = -1
    origin_offset: int = -1


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


class ContinuationSkipped(Fact, frozen=True, gc=False):
    """One item was left out, as its step says (`onError`, `onTimeout`). A *continuation completion*, never a provider's."""

    unit_id: str
    item_index: int
    attempt: int
    error_code: str
    error_message: str
    letter_id: str | None = None
    """Its dead letter, where the step asks for one."""


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
