"""What a core task decides: one class a kind of event, in the past tense of what the shell observed."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.envelopes import Command, ContinuationCompletion, ProviderCompletion
from schemas.errors import PoisonRecord
from schemas.identity import InteractionRef, execution_of
from state.keys import execution_of_key
from streams.roles.core.session import Session
from topologies.pipeline.items import SourceItem
from topologies.pipeline.shapes import Shape


@dataclass(frozen=True, slots=True)
class CommandArrived:
    """A command."""

    command: Command


@dataclass(slots=True)
class AnswerArrived:
    """An answer of the outside party.

    Attributes:
        completed_at_ms: When it came in; where nobody says so, when it was appended to `completions`.
        shape: Set where a projector had to run before the batch.
    """

    completion: ProviderCompletion
    ref: InteractionRef
    completed_at_ms: int
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class ContinuationArrived:
    """The continuation agent's outcome of one item."""

    completion: ContinuationCompletion


@dataclass(frozen=True, slots=True)
class StrangeAnswerArrived:
    """An answer whose interaction id is none."""

    completion: ProviderCompletion


@dataclass(frozen=True, slots=True)
class RecordMisplaced:
    """A record of an execution that lives in another partition."""

    home: int


@dataclass(frozen=True, slots=True)
class RecordPoisoned:
    """A record that cannot be decoded."""

    error: PoisonRecord


@dataclass(frozen=True, slots=True)
class ItemsPulled:
    """The source gave its next items."""

    session: Session
    first_index: int
    items: list[SourceItem]
    ended: bool


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The source, or a step before the await, failed."""

    session: Session
    error: BaseException


@dataclass(frozen=True, slots=True)
class ItemsContinued:
    """The live session ran some suffixes."""

    session: Session
    outcomes: list[ContinuationCompletion]


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """A segment ran to its end."""

    execution_id: str
    stop: int
    output: bytes
    many: bool


@dataclass(frozen=True, slots=True)
class SegmentBroke:
    """A segment failed."""

    execution_id: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class OutputPublished:
    """The effect of a publication is done."""

    execution_id: str
    outputs: list[str]


@dataclass(frozen=True, slots=True)
class PublicationBroke:
    """The effect of a publication failed."""

    execution_id: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ResultCollected:
    """The terminal output was gathered from committed rows."""

    execution_id: str
    result: bytes
    many: bool


@dataclass(frozen=True, slots=True)
class LookedAhead:
    """What can be known before the first request was looked at; `error` says what would fail at the end."""

    execution_id: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TimerRang:
    """A row is due."""

    key: bytes


@dataclass(frozen=True, slots=True)
class SweepContinued:
    """The next slice of a parked unit."""

    unit_id: str


@dataclass(frozen=True, slots=True)
class HeldAnswerMet:
    """The step of a held answer was reached."""

    unit_id: str
    item_index: int | None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class RetentionContinued:
    """Rows were found that retention lets go, and executions of which it leaves a stub."""

    keys: list[bytes]
    stubs: list[str]


@dataclass(frozen=True, slots=True)
class ExecutionTouched:
    """Look at this execution again."""

    execution_id: str


CoreEvent = (
    CommandArrived
    | AnswerArrived
    | ContinuationArrived
    | StrangeAnswerArrived
    | RecordMisplaced
    | RecordPoisoned
    | ItemsPulled
    | SourceFailed
    | ItemsContinued
    | SegmentEnded
    | SegmentBroke
    | OutputPublished
    | PublicationBroke
    | ResultCollected
    | LookedAhead
    | TimerRang
    | SweepContinued
    | HeldAnswerMet
    | RetentionContinued
    | ExecutionTouched
)
"""Everything that a core task decides; `streams.roles.core.deciders` has a method for each."""


def execution_id_of(event: CoreEvent) -> str | None:
    """The execution that an event of our own making is about; None: of a record, or of no single execution."""
    match event:
        case ItemsPulled() | SourceFailed() | ItemsContinued():
            return event.session.execution_id
        case SegmentEnded() | SegmentBroke() | OutputPublished() | PublicationBroke() | ResultCollected():
            return event.execution_id
        case ExecutionTouched() | LookedAhead():
            return event.execution_id
        case SweepContinued() | HeldAnswerMet():
            return execution_of(event.unit_id)
        case TimerRang():
            return execution_of_key(event.key)
        case _:
            return None
