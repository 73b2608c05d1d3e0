"""The author's code on the thread that calls it (`streams.author.calls`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from schemas import limits
from streams.author.calls import BeforeEach, Items, StreamRequest, SuffixResult
from streams.author.key_counts import KeyBudget, KeyCounts
from streams.author.segments import flow, run_segment, run_steps
from streams.author.shaping import shape
from streams.author.suffixes import Suffixes
from topologies.pipeline.items import Keys, SourceItem, idempotency_key, repeated_key
from topologies.pipeline.model import Pipeline
from topologies.pipeline.shapes import Shape, Unshaped


class LocalItems:
    """A stream of items with one item of lookahead: the last dispatch knows that it is the last."""

    def __init__(self, items: Iterator[SourceItem]) -> None:
        self._items = items
        self._ahead: SourceItem | None = None
        self._is_begun = False

    def pull(self, count: int) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count`, and whether the stream has ended with them."""
        if not self._is_begun:
            self._is_begun = True
            self._ahead = next(self._items, None)
        pulled: list[SourceItem] = []
        size = 0
        while self._ahead is not None and len(pulled) < count and size < limits.JOB_BYTES_MAX:
            pulled.append(self._ahead)
            size += len(self._ahead.request)
            self._ahead = next(self._items, None)
        return pulled, self._ahead is None

    def close(self) -> None:
        """Let go what the stream keeps, as soon as a pull under way is over."""
        self._items = iter(())


class LocalAuthor:
    """An `Author` on the calling thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._suffixes = Suffixes(pipeline)
        self._budget = KeyBudget()
        self._awaits = {step.index: step for step in pipeline.await_steps}

    def project(self, answers: Sequence[Unshaped], shapes: list[Shape], before_each: BeforeEach) -> None:
        """Shape answers, appending to `shapes`."""
        for answer in answers:
            before_each()
            shapes.append(shape(self._awaits[answer.step_index], answer))

    def run_suffixes(
        self, await_index: int, completions: Sequence[bytes], outcomes: list[SuffixResult], before_each: BeforeEach
    ) -> None:
        """Run the suffix on each completion, appending to `outcomes`."""
        self._suffixes.of(await_index).run_chunk(completions, outcomes, before_each)

    def open_items(self, asked: StreamRequest) -> Items:
        """The items that enter an await."""
        return LocalItems(self._items(asked))

    def _items(self, asked: StreamRequest) -> Iterator[SourceItem]:
        pipeline = self._pipeline
        step = pipeline.await_step(asked.await_index)
        kind = pipeline.item_type(asked.first)
        steps = run_steps(pipeline, asked.first, asked.await_index)
        to_json = step.input.to_json
        values = enumerate(flow(steps, map(kind.validate_json, asked.payloads)))
        if not step.idempotency_key_fields:
            for index, value in values:
                yield SourceItem(to_json(value), idempotency_key(step, asked.execution_id, value, index))
            return
        key_of = Keys(step).of
        with closing(KeyCounts(self._budget)) as counts:
            for _, value in values:
                key = key_of(value)
                number = counts.number(key)
                yield SourceItem(to_json(value), key if number == 1 else repeated_key(key, number))

    def run_segment(self, first: int, stop: int, payloads: Sequence[bytes], *, many: bool) -> tuple[bytes, bool]:
        """As `streams.author.segments.run_segment`."""
        return run_segment(self._pipeline, first, stop, payloads, many=many)
