"""The proof that what is read of an object is what was submitted (DECISIONS 16); for the pool.

Theory of operation. The author's functions read the object by its path, when they like; we only look. Content and look belong together from `begin`
on: nothing that changes the object later leaves its look as it was (`connectors.objects.looks` says why, and where that is weaker). So items that
were read before a look that is a tick newer, and the same, are those of the submitted object.

    begin   a look, a tick, the whole checksum                 what lies there is what was submitted, if later looks are the same
    items   read -> a tick -> the same look -> handed out      meanwhile the next ones are read, so no time is lost
    finish  the whole checksum, the same look                  only then has the source ended
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from connectors.objects.looks import Look, read_content, ticks_left_s, wait_tick
from schemas import limits
from schemas.errors import SourceChanged
from state.execution import ExecutionRecord
from streams.author.calls import BeforeEach, Items
from topologies.pipeline.items import SourceItem

AHEAD_ITEMS = 256
"""Items read at a time while a look must wait."""
AHEAD_BYTES_MAX = 1 << 20
"""Where reading ahead ends."""


class SourceTouched(SourceChanged):
    """The source was touched while it was read, and is what was submitted all the same: it is read once more."""

    retryable = True


class SourceProof:
    """What is known of one execution's object while it is read."""

    def __init__(self, execution: ExecutionRecord) -> None:
        path = execution.source_path or msgspec.json.decode(execution.input)["path"]
        self._path = Path(path)
        self._size = execution.source_size
        self._sha256 = execution.source_sha256
        self._stamp = execution.source_stamp
        self._look: Look | None = None

    @classmethod
    def of(cls, execution: ExecutionRecord, first: int) -> SourceProof | None:
        """The proof of what the steps from `first` on read; None where that is no object."""
        return cls(execution) if first == 0 and execution.source_sha256 is not None else None

    def begin(self, before_each: BeforeEach) -> None:
        """Nothing is read yet: the object must be what was submitted.

        Raises:
            SourceChanged: it is not.
            OSError: it cannot be read.
        """
        self._look = Look.of(self._path)
        if self._look.stamp != self._stamp:  # else whoever submitted it has waited for the tick
            wait_tick(time.monotonic())
        self._compare_content(before_each)

    @contextmanager
    def reading(self, before_each: BeforeEach) -> Iterator[None]:
        """The object is being read: what fails after it changed fails because of that.

        Raises:
            SourceChanged: it changed, and reading it failed.
        """
        try:
            yield
        except Exception:
            self.compare(time.monotonic(), before_each)
            raise

    def compare(self, read_until_s: float, before_each: BeforeEach) -> None:
        """What was read up to then (by `time.monotonic`) is of the submitted object.

        Raises:
            SourceChanged: it may not be.
        """
        assert self._look is not None
        before_each()  # the wait is ours, not a call's
        wait_tick(read_until_s)
        if not Look.of(self._path).same(self._look):
            self._compare_content(before_each)
            raise SourceTouched(f"{self._path} was touched while it was read")

    def finish(self, read_until_s: float, before_each: BeforeEach) -> None:
        """Everything is read: the object must be what was submitted still.

        Raises:
            SourceChanged: it is not.
        """
        self._compare_content(before_each)
        self.compare(read_until_s, before_each)

    def _compare_content(self, before_each: BeforeEach) -> None:
        sha256, size = read_content(self._path, before_each)
        if (size, sha256) != (self._size, self._sha256):
            msg = (
                f"{self._path} is not the object that was submitted ({size} bytes now, {self._size} then); the "
                "new content is another execution: submit it"
            )
            raise SourceChanged(msg)


class ProvenItems:
    """Items of an object, handed out once it is certain that they stand in what was submitted.

    Each pull reads as many as it hands out. Where it must wait for the tick, it reads ahead instead, so that later pulls find theirs old enough.
    """

    def __init__(self, items: Items, proof: SourceProof) -> None:
        self._items = items
        self._proof = proof
        self._ahead: deque[tuple[list[SourceItem], float]] = deque()
        """Items that were read at once, and by when."""
        self._count = 0
        """Of items ahead."""
        self._read_until_s = 0.0
        self._has_ended = False

    def pull(self, count: int, before_each: BeforeEach) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count`, and whether the stream has ended with them.

        Raises:
            SourceChanged: they may not be of the submitted object.
        """
        self._read_on(count, before_each)
        count = min(count, self._count)
        until_s = self._read_by_s(count)
        while ticks_left_s(until_s) and self._may_read_ahead():
            self._read_on(AHEAD_ITEMS, before_each)
        is_last = self._has_ended and count == self._count
        if is_last:
            self._proof.finish(self._read_until_s, before_each)
        else:
            self._proof.compare(until_s, before_each)
        return self._take(count), is_last

    def _may_read_ahead(self) -> bool:
        if self._has_ended or self._count >= limits.PULL_ITEMS_MAX:
            return False
        return sum(len(item.request) for some, _ in self._ahead for item in some) < AHEAD_BYTES_MAX

    def _read_on(self, count: int, before_each: BeforeEach) -> None:
        if self._has_ended:
            return
        before_each()
        with self._proof.reading(before_each):
            items, self._has_ended = self._items.pull(count)
        self._read_until_s = time.monotonic()
        if items:
            self._ahead.append((items, self._read_until_s))
            self._count += len(items)

    def _read_by_s(self, count: int) -> float:
        """When the first `count` items ahead had been read."""
        for some, until_s in self._ahead:
            count -= len(some)
            if count <= 0:
                return until_s
        return self._read_until_s

    def _take(self, count: int) -> list[SourceItem]:
        taken: list[SourceItem] = []
        self._count -= count
        while len(taken) < count:
            some, until_s = self._ahead.popleft()
            wanted = count - len(taken)
            if wanted < len(some):
                self._ahead.appendleft((some[wanted:], until_s))
            taken += some[:wanted]
        return taken
