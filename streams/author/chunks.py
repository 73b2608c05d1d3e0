"""Chunks: items of one await whose author's code runs in one job, and who is to blame when it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from schemas import limits
from schemas.envelopes import ContinuationCompletion
from schemas.errors import CallTimeout
from streams.author.errors import StepProcessEnded, describe_error, failed_step_of

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK_S_SHORT = 0.050
CHUNK_S_LONG = 0.250
"""A chunk of suffixes aims between these: long enough to be worth a thread's turn, short enough to free its slots soon."""

WAITING_ITEM_S = 0.002
"""An item that takes longer is taken to wait for something rather than to compute."""


class ChunkSize:
    """How many items the next suffix job runs, and how many jobs side by side, from how long the last ones took."""

    def __init__(self) -> None:
        self.items = 8
        self.jobs_max = 2

    def one_at_a_time(self) -> None:
        """Whoever ends the step process must be alone in it to be known."""
        self.items = self.jobs_max = 1

    def learn(self, items: int, seconds: float) -> None:
        """Adapt to a chunk that ran."""
        if seconds < CHUNK_S_SHORT and items >= self.items:
            self.items = min(self.items * 2, limits.CHUNK_ITEMS_MAX)
        elif seconds > CHUNK_S_LONG:
            self.items = max(self.items // 2, 1)
        # Functions that compute share one interpreter lock: more threads only get in each other's way. Functions that wait do not.
        self.jobs_max = limits.POOL_THREADS if seconds / max(items, 1) > WAITING_ITEM_S else 2


@dataclass(slots=True, eq=False)
class Chunk(Generic[Item, Result]):
    """Entries whose author's code runs in jobs, one job after the other, until each has a result.

    Theory of operation. The code fills `results` as it goes, so the first entry without a result is the one at which a job broke. Whoever
    overstays is that entry. Whoever ends the step process takes its neighbours along: only an entry that was alone in its job is known to
    have done it, so after such an end the jobs take one entry, and grow again while they go well.

    Attributes:
        job_entries: How many entries the next job takes.
        seconds: What the jobs themselves took; the wait for the loop to notice must not count.
    """

    entries: list[Item]
    job_entries: int
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    _ends: int = 0
    _ends_at: int = 0

    @property
    def left(self) -> int:
        """Entries without a result."""
        return len(self.entries) - len(self.results)

    def next_job(self) -> list[Item]:
        """The entries of the next job."""
        done = len(self.results)
        return self.entries[done : done + self.job_entries]

    def went_well(self) -> None:
        """A job came to its end: the next one may take more."""
        self.job_entries = min(self.job_entries * 2, max(len(self.entries), 1))

    def blame(self, error: BaseException, *, ends_max: int = 1) -> Exception | None:
        """What the first entry without a result is charged with when a job broke; None while nobody is known to be to blame.

        Args:
            error: Of the job.
            ends_max: How often an entry may end the step process, alone in its job, before it is charged.
        """
        self.results = list(self.results)  # a job that overstayed goes on filling the list that it was given
        if not self.left:
            return None
        if isinstance(error, StepProcessEnded):
            was_alone = self.job_entries == 1 or self.left == 1
            self.job_entries = 1
            known = self._ends if self._ends_at == len(self.results) else 0
            self._ends, self._ends_at = known + was_alone, len(self.results)
            if self._ends < ends_max:
                return None
        return error if isinstance(error, Exception) else CallTimeout(str(error))


def completion_of(
    execution_id: str, unit_id: str, item_index: int, attempt: int, result: list[bytes] | Exception
) -> ContinuationCompletion:
    """What the owner of an item is told of one run of its suffix."""
    if isinstance(result, Exception):
        code, message, retryable = describe_error(result)
        return ContinuationCompletion(
            execution_id=execution_id,
            unit_id=unit_id,
            item_index=item_index,
            attempt=attempt,
            outputs=[],
            error_code=code,
            error_message=message,
            retryable=retryable,
            step_id=failed_step_of(result),
        )
    return ContinuationCompletion(
        execution_id=execution_id, unit_id=unit_id, item_index=item_index, attempt=attempt, outputs=result
    )
