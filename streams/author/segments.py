"""Segments: run the author's functions between two boundaries, on typed values (DESIGN 1 and 7).

Values are validated by the type of the step that made them; an item of another union arm passes a branch by. Async functions run on the
pool thread's own event loop; the items of a chunk run concurrently there, so that a slow remote call does not add up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from schemas import limits
from schemas.errors import KawaitError, StepError
from streams.engine.pool import run_async
from topologies.pipeline.model import Cardinality, Pipeline, RunStep
from topologies.pipeline.payload_list import join_payloads, split_payloads


class StepFailed(StepError):
    """The author's function raised.

    Attributes:
        code: Of a `StepError` its own; WRONG_OUTPUT for a value of another type; else STEP_FAILED.
        retryable: What the step's `retry` and the error say.
    """

    def __init__(self, step: RunStep, error: Exception) -> None:
        self.code = _code(error)
        own = getattr(error, "retryable", True) if isinstance(error, StepError) else True
        self.retryable = own and step.retry.is_retryable(error)
        super().__init__(f"step {step.step_id}: {type(error).__name__}: {error}")


class AggregateTooLarge(StepError):
    """More items than an aggregate may hold."""

    code = "AGGREGATE_TOO_LARGE"
    retryable = False


class OutputTooLarge(StepError):
    """A step's output is larger than a record may be."""

    code = "OUTPUT_TOO_LARGE"
    retryable = False


def _code(error: Exception) -> str:
    if isinstance(error, StepError):
        return error.code
    return "WRONG_OUTPUT" if isinstance(error, ValidationError) else "STEP_FAILED"


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
            msg = (
                f"step {step.step_id} takes more than {limits.AGGREGATE_ITEMS_MAX} items as one list (limits.AGGREGATE_ITEMS_MAX); "
                "split the flow into smaller awaits, or hand off to another pipeline by a checkpoint"
            )
            raise AggregateTooLarge(msg)
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
    streams = (many or pipeline.streams_into(first)) and not any(step.cardinality.takes_many for step in steps)
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


def payloads_of(data: bytes, *, many: bool) -> list[bytes]:
    """The inputs in a stored segment input."""
    return split_payloads(data) if many else [data]


# --- suffixes ------------------------------------------------------------------------------------------------------------------------


def suffix_limit_s(pipeline: Pipeline, await_index: int) -> float:
    """How long one item may take through the suffix of an await."""
    return time_limit_s(run_steps(pipeline, await_index + 1, pipeline.suffix_stop(await_index)))


class Suffix:
    """The steps after an itemised await, up to the next aggregate or the end: one item in, 0..n outputs out."""

    def __init__(self, pipeline: Pipeline, await_index: int) -> None:
        stop = pipeline.suffix_stop(await_index)
        self.steps = run_steps(pipeline, await_index + 1, stop)
        self._read: Callable[[bytes], Any] = pipeline.await_step(await_index).output.validate_json
        self._write: Callable[[Any], bytes] = pipeline.item_type(stop).to_json
        self._is_async = any(step.is_async for step in self.steps)
        self._is_straight = all(step.cardinality is Cardinality.ONE_TO_ONE and not step.is_async for step in self.steps)
        self._calls = [
            (step, step.accepts.accepts if step.accepts else None, step.function, step.output.validate)
            for step in self.steps
        ]

    def run_chunk(
        self, completions: Sequence[bytes], results: list[list[bytes] | Exception], starts: Callable[[], None]
    ) -> None:
        """Run items one after another (concurrently where a step is async), appending each one's outputs or error to `results`.

        `starts` is called before each.
        """
        if self._is_async:
            results += run_async(self._run_together(completions))
            return
        for completion in completions:
            starts()
            results.append(self.run(completion))

    def run(self, completion: bytes) -> list[bytes] | Exception:
        """Run one item."""
        try:
            if self._is_straight:
                return [self._bounded(self._write(self._run_straight(self._read(completion))))]
            return [self._bounded(self._write(value)) for value in flow(self.steps, [self._read(completion)])]
        except Exception as error:
            return error

    def _run_straight(self, value: Any) -> Any:
        """One value in, one out: the common case without the machinery of streams."""
        for step, accepts, function, validate in self._calls:
            if accepts is None or accepts(value):
                try:
                    made = function(value)
                except Exception as error:
                    raise StepFailed(step, error) from error
                try:
                    value = validate(made)
                except ValueError as error:
                    raise StepFailed(step, error) from error
        return value

    @staticmethod
    def _bounded(payload: bytes) -> bytes:
        if len(payload) > limits.PAYLOAD_BYTES_MAX:
            msg = f"an output has {len(payload)} bytes; at most {limits.PAYLOAD_BYTES_MAX} can be kept (limits.PAYLOAD_BYTES_MAX)"
            raise OutputTooLarge(msg)
        return payload

    async def _run_together(self, completions: Sequence[bytes]) -> list[list[bytes] | Exception]:
        return list(await asyncio.gather(*(self._run_async(completion) for completion in completions)))

    async def _run_async(self, completion: bytes) -> list[bytes] | Exception:
        try:
            values = [self._read(completion)]
            for step in self.steps:
                values = [made for value in values for made in await _call(step, value)]
            return [self._bounded(self._write(value)) for value in values]
        except Exception as error:
            return error


async def _call(step: RunStep, value: Any) -> list[Any]:
    """One step of an async suffix."""
    if not step.takes(value):
        return [value]
    if not step.is_async:
        return list(_results(step, value))
    try:
        called: Awaitable[Any] | AsyncIterator[Any] = step.function(value)
        if isinstance(called, AsyncIterator):
            return [_validated(step, item) async for item in called]
        made = await called
    except KawaitError:
        raise
    except Exception as error:
        raise StepFailed(step, error) from error
    return [_validated(step, item) for item in (made if step.cardinality.gives_many else [made])]


def describe_error(error: BaseException) -> tuple[str, str, bool]:
    """An outcome's code, message, and whether another attempt may help."""
    if isinstance(error, StepError):
        return error.code, str(error), error.retryable
    return "STEP_FAILED", f"{type(error).__name__}: {error}", True


class Suffixes:
    """The suffixes of a pipeline's await steps, each compiled once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._compiled: dict[int, Suffix] = {}

    def of(self, await_index: int) -> Suffix:
        """The suffix of an await step."""
        found = self._compiled.get(await_index)
        if found is None:
            found = self._compiled[await_index] = Suffix(self._pipeline, await_index)
        return found
