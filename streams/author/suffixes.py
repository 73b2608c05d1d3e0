"""Suffixes: the steps after an itemised await, run for one answered item after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from schemas import limits
from schemas.errors import KawaitError
from streams.author.coroutines import run_async
from streams.author.errors import OutputTooLarge, StepFailed
from streams.author.segments import _results, _validated, flow, run_steps, time_limit_s
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Cardinality, RunStep


def suffix_limit_s(pipeline: Pipeline, await_index: int) -> float:
    """How long one item may take through the suffix of an await."""
    return time_limit_s(run_steps(pipeline, await_index + 1, pipeline.await_step(await_index).suffix_stop))


class Suffix:
    """The steps after an itemised await, up to the next aggregate or the end: one item in, 0..n outputs out."""

    def __init__(self, pipeline: Pipeline, await_index: int) -> None:
        stop = pipeline.await_step(await_index).suffix_stop
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
        self, completions: Sequence[bytes], results: list[list[bytes] | Exception], before_each: Callable[[], None]
    ) -> None:
        """Run items one after another (concurrently where a step is async), appending each one's outputs or error to `results`.

        `before_each` is called before each.
        """
        if self._is_async:
            results += run_async(self._run_together(completions))
            return
        for completion in completions:
            before_each()
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
            raise OutputTooLarge(limits.payload_problem("an output", len(payload)))
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
