"""Calls that hang, of a partition that is given up while they do."""

from __future__ import annotations

import threading
import time

import pytest

from tests.faults.ground import Outcome, SystemClock, ThreadPool, outcome_of

THREADS = 4
CALL_TIMEOUT_S = 0.2
FOREVER_S = 3_600
PATIENCE_S = 2.0


def _result_of_the_next_job(*, is_given_up: bool) -> object:
    """What a job gives, after a call hung on each thread of the pool."""
    pool = ThreadPool(THREADS, SystemClock())
    given_up, owner, hanging = object(), object(), threading.Semaphore(0)

    def hang(_ticket: object) -> None:
        hanging.release()
        time.sleep(FOREVER_S)

    def done(_result: object, _error: object) -> None:
        """Nobody needs it."""

    for _ in range(THREADS):
        pool.submit(given_up, hang, done, limit_s=CALL_TIMEOUT_S)
    for _ in range(THREADS):
        hanging.acquire()
    if is_given_up:
        pool.forget(given_up)
    pool.submit(owner, lambda _ticket: "done", done, limit_s=FOREVER_S)
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        for finished in pool.take():
            if finished.owner is owner:
                return finished.result
        time.sleep(0.01)
    return None


def next_job() -> Outcome:
    assert _result_of_the_next_job(is_given_up=False) == "done"
    return {"result": _result_of_the_next_job(is_given_up=True)}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K6: hung calls of a partition given up end the pool")
def test_hung_calls_of_a_partition_that_was_given_up_leave_the_pool_its_threads() -> None:
    assert outcome_of(next_job)["result"] == "done"
