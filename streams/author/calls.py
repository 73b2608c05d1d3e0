"""The author's code of a pipeline, called on bytes (DESIGN 1 'segment', 6 'Bounds').

    project       answers of a step with a projector       ->  shapes
    run_suffixes  completions of an itemised await          ->  outputs or errors, an item each
    open_items    payloads entering a stream's segment      ->  the items of an await, pulled by demand
    run_segment   payloads entering any other segment       ->  its output

`LocalAuthor` runs it on the thread that calls. `streams.author.step_process` keeps one in a process of its own and is called in the same way: Python
computes on one core a process, and the loop that commits should not share its core with the author. Bytes cross, never values, so both give
the same. A call that fills a list fills it as it goes and calls `before_each` before each item: a time limit counts from there, and who overstays
it is the first item without a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from topologies.pipeline.items import SourceItem
from topologies.pipeline.shapes import Shape, Unshaped

BeforeEach = Callable[[], None]
"""Called before each item of a call."""

SuffixResult = list[bytes] | Exception
"""Of one item's suffix: its outputs, or why there are none."""


class StreamRequest(msgspec.Struct, frozen=True):
    """Which stream of items enters an await.

    Attributes:
        first: First step of the segment that makes it.
        await_index: The await.
        payloads: What enters the segment, UTF-8 JSON each.
    """

    execution_id: str
    first: int
    await_index: int
    payloads: list[bytes]


class Items(Protocol):
    """A stream of items, read by demand, by one caller at a time."""

    def pull(self, count: int) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count` and some `limits.JOB_BYTES_MAX`, and whether the stream has ended with them."""

    def close(self) -> None:
        """Nobody will pull any more."""


class Author(Protocol):
    """The author's code of one pipeline; safe to call from many threads."""

    def project(self, answers: Sequence[Unshaped], shapes: list[Shape], before_each: BeforeEach) -> None:
        """Shape answers, appending to `shapes`."""

    def run_suffixes(
        self, await_index: int, completions: Sequence[bytes], outcomes: list[SuffixResult], before_each: BeforeEach
    ) -> None:
        """Run the suffix on each completion, appending to `outcomes`."""

    def open_items(self, asked: StreamRequest) -> Items:
        """The items that enter an await; nothing runs before the first pull."""

    def run_segment(self, first: int, stop: int, payloads: Sequence[bytes], *, many: bool) -> tuple[bytes, bool]:
        """As `streams.author.segments.run_segment`."""
