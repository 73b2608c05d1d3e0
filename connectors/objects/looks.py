"""Looks: what tells an object from its other states without reading it, and when a look is worth something (DECISIONS 16).

Whoever changes a file changes what `Look` holds: nobody can set `ctime_ns` back. But the clock that stamps files ticks: two changes within one
tick look the same. So what was read between two looks is what lay there if the looks are the same, the first one was taken a tick before the
reading began, and the second one a tick after it ended. Network file systems keep looks for seconds: there a look says less.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

TICK_S: Final = 0.02
"""Longest tick of the clock that stamps files: twice the slowest that Linux is built with."""

HASH_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Look:
    """An object at one moment."""

    size: int
    """Bytes."""
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """Look at a file.

        Raises:
            OSError: It is missing or cannot be looked at.
        """
        stat = os.stat(path)  # noqa: PTH116 - a path as text is not made a Path for each look
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)

    def same(self, other: Look) -> bool:
        """Whether nothing happened to the object between the two."""
        return self == other

    def same_renamed(self, other: Look) -> bool:
        """The same, where the object was renamed in between: that changes its ctime."""
        return (self.size, self.mtime_ns, self.inode) == (other.size, other.mtime_ns, other.inode)

    @property
    def stamp(self) -> str:
        """As text: what a submission says about the object that was looked at."""
        return f"{self.size}:{self.mtime_ns}:{self.ctime_ns}:{self.inode}"


def ticks_left_s(since_s: float) -> float:
    """How long until a look is newer by a tick than `since_s`, a time of `time.monotonic`."""
    return max(0.0, since_s + TICK_S - time.monotonic())


def wait_tick(since_s: float) -> None:
    """Wait until a look is newer by a tick than `since_s`."""
    if left_s := ticks_left_s(since_s):
        time.sleep(left_s)


def read_content(path: Path, before_each: Callable[[], None] = lambda: None) -> tuple[str, int]:
    """A file's sha256 and size, as read; `before_each` is called before each chunk."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while True:
            before_each()
            chunk = file.read(HASH_CHUNK_BYTES)
            if not chunk:
                return digest.hexdigest(), size
            digest.update(chunk)
            size += len(chunk)
