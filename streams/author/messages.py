"""What a worker and its step process say to each other, in msgpack over a socket."""

from __future__ import annotations

from typing import Final

import msgspec

from streams.author.calls import StreamRequest, SuffixResult
from streams.author.errors import describe_error, failed_step_of
from topologies.pipeline.items import SourceItem
from topologies.pipeline.shapes import Shape, Shaped, Unshaped


class StepFailure(msgspec.Struct, frozen=True, tag=True):
    """An item's suffix failed (`streams.author.errors.describe_error`)."""

    code: str
    message: str
    retryable: bool
    step_id: str | None = None


class ProjectCall(msgspec.Struct, frozen=True, tag=True):
    """A call of `Author.project`."""

    answers: list[Unshaped]


class RunSuffixesCall(msgspec.Struct, frozen=True, tag=True):
    """A call of `Author.run_suffixes`."""

    await_index: int
    completions: list[bytes]


class RunSegmentCall(msgspec.Struct, frozen=True, tag=True):
    """A call of `Author.run_segment`."""

    first: int
    stop: int
    payloads: list[bytes]
    many: bool


class PullItemsCall(msgspec.Struct, frozen=True, tag=True):
    """A call of `Items.pull`; `asked` is there the first time only."""

    stream: int
    count: int
    asked: StreamRequest | None


class CloseItemsCall(msgspec.Struct, frozen=True, tag=True):
    """Forget a stream; has no answer."""

    stream: int


ShapeSent = tuple[bytes | None, bytes | None, str | None]
"""completion, answer, detail of `Misshapen`."""


class Some(msgspec.Struct, frozen=True, tag=True):
    """Results of a call that goes on, or its last ones."""

    shapes: list[ShapeSent] = []
    outcomes: list[list[bytes] | StepFailure] = []


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The end of a call with what is left of its results."""

    rest: Some = Some()
    output: bytes = b""
    streams: bool = False
    items: list[SourceItem] = []
    has_ended: bool = False


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The end of a call by an error."""

    rest: Some
    error: StepFailure


StepCall = ProjectCall | RunSuffixesCall | RunSegmentCall | PullItemsCall | CloseItemsCall
StepResponse = Some | Ended | Raised

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(StepCall).decode
decode_response = msgspec.msgpack.Decoder(StepResponse).decode


def shape_sent(shape: Shape) -> ShapeSent:
    """A shape in the form that is sent."""
    return (shape.completion, shape.answer, None) if isinstance(shape, Shaped) else (None, None, shape.detail)


def outcome_sent(outcome: SuffixResult) -> list[bytes] | StepFailure:
    """An outcome in the form that is sent."""
    return outcome if isinstance(outcome, list) else StepFailure(*describe_error(outcome), failed_step_of(outcome))


READY: Final = b"r"
