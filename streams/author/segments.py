"""Segments: run the author's functions between two boundaries, on typed values (DESIGN 1 and 7).

Values are validated by the type of the step that made them; an item of another union arm passes a branch by. Async functions run on the
pool thread's own event loop; the items of a chunk run concurrently there, so that a slow remote call does not add up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from schemas import limits
from streams.author.coroutines import run_async
from streams.author.errors import AggregateTooLarge, OutputTooLarge, StepFailed
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payload_list import join_payloads
from topologies.pipeline.steps import Cardinality, RunStep, streams_into


def run_steps(pipeline: Pipeline, first: int, stop: int) -> tuple[RunStep, ...]:
    """The run steps of a segment."""
    steps = pipeline.steps[first:stop]
    return tuple(step for step in steps if isinstance(step, RunStep))


def time_limit_s(steps: Iterable[RunStep]) -> float:
    """How long one item may take through these steps."""
    return sum(step.call_timeout_ms for step in steps) / 1000 or limits.CALL_TIMEOUT_DEFAULT_MS / 1000


# --- streams ---------------------------------------------------------------------------------------------------------------------


def flow(steps: Sequence[RunStep], values: Iterable[Any]) -> Iterator[Any]:
    """Send values through steps, lazily where no aggregate stands in the way."""
    stream: Iterator[Any] = iter(values)
    for step in steps:
        stream = _through(step, stream)
    return stream


def _through(step: RunStep, values: Iterator[Any]) -> Iterator[Any]:
    """Values through one step. Errors of earlier steps pass unchanged; this step's own are wrapped."""
    if step.cardinality.takes_many:
        yield from _results(step, _gather(step, values))
        return
    for value in values:
        if step.takes(value):
            yield from _results(step, value)
        else:
            yield value


def _gather(step: RunStep, values: Iterator[Any]) -> list[Any]:
    gathered: list[Any] = []
    for value in values:
        if len(gathered) == limits.AGGREGATE_ITEMS_MAX:
            raise AggregateTooLarge.of(step.step_id)
        gathered.append(value)
    return gathered


def _results(step: RunStep, value: Any) -> Iterator[Any]:
    """What one call gives, validated."""
    try:
        made = step.function(value)
        if step.is_async:
            made = run_async(made)
    except Exception as error:
        raise StepFailed(step, error) from error
    if not step.cardinality.gives_many:
        yield _validated(step, made)
        return
    stream = _iterate(made) if isinstance(made, AsyncIterator) else iter(made)
    while True:
        try:
            item = next(stream)
        except StopIteration:
            return
        except Exception as error:
            raise StepFailed(step, error) from error
        yield _validated(step, item)


def _validated(step: RunStep, value: Any) -> Any:
    try:
        return step.output.validate(value)
    except (ValidationError, ValueError) as error:
        raise StepFailed(step, error) from error


def _iterate(made: AsyncIterator[Any]) -> Iterator[Any]:
    """An async iterator, one item at a time, on this thread's event loop."""
    while True:
        try:
            yield run_async(_next(made))
        except StopAsyncIteration:
            return


async def _next(made: AsyncIterator[Any]) -> Any:
    return await anext(made)


# --- whole segments ----------------------------------------------------------------------------------------------------------------


def run_segment(
    pipeline: Pipeline, first: int, stop: int, payloads: Sequence[bytes], *, many: bool
) -> tuple[bytes, bool]:
    """Run the steps `first` up to, not including, `stop` on `payloads`: one input, or (`many`) the items of a list.

    Returns:
        Canonical JSON, and whether it is an array of payloads.
    """
    steps = run_steps(pipeline, first, stop)
    kind = pipeline.item_type(first)
    values = flow(steps, [kind.validate_json(payload) for payload in payloads])
    out = pipeline.item_type(stop)
    streams = (many or streams_into(pipeline.steps, first)) and not any(step.cardinality.takes_many for step in steps)
    streams = streams or _ends_streaming(steps)
    outputs: list[bytes] = []
    size = 0
    for value in values:
        outputs.append(out.to_json(value))
        size += len(outputs[-1])
        if len(outputs) > limits.AGGREGATE_ITEMS_MAX or size > limits.PAYLOAD_BYTES_MAX:
            msg = (
                f"the segment gave {len(outputs)} items of {size} bytes; at most {limits.AGGREGATE_ITEMS_MAX} items and "
                f"{limits.PAYLOAD_BYTES_MAX} bytes can be kept (limits.AGGREGATE_ITEMS_MAX, limits.PAYLOAD_BYTES_MAX): split the flow, "
                "or hand off to another pipeline by a checkpoint"
            )
            raise OutputTooLarge(msg)
    return (join_payloads(outputs), True) if streams else (outputs[0], False)


def _ends_streaming(steps: Sequence[RunStep]) -> bool:
    streaming = False
    for step in steps:
        streaming = step.cardinality.gives_many or (streaming and step.cardinality is not Cardinality.MANY_TO_ONE)
    return streaming
