"""An index of many timers."""

from __future__ import annotations

import pytest

from tests.faults.ground import DAY_MS, Outcome, TimerIndex, outcome_of, things_held, work_of

NOW_MS = 1_700_000_000_000
WEEK_MS = 7 * DAY_MS
APART_MS = 100
"""Two timers so far apart are never one."""
FEW = 100
MANY = 10_000


def _held_after_answered(timers: int) -> int:
    """Things held by an index with one timer armed, after so many more were armed and answered."""
    index = TimerIndex()
    index.arm(b"open", NOW_MS + WEEK_MS - APART_MS)
    for number in range(timers):
        index.arm(b"other", NOW_MS + WEEK_MS + number * APART_MS)
        index.arm(b"other", None)
    assert len(index) == 1
    return things_held(index)


def _work_while_none_is_due(timers: int) -> int:
    index = TimerIndex()
    for number in range(timers):
        index.arm(b"%d" % number, NOW_MS + WEEK_MS + number * APART_MS)
    return work_of(lambda: index.due(NOW_MS, 4_000))


def held_and_work() -> Outcome:
    return {
        "held": _held_after_answered(MANY),
        "work": {"few": _work_while_none_is_due(FEW), "many": _work_while_none_is_due(MANY)},
    }


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: timers of answered waits stay until they come up")
def test_timers_of_answered_waits_are_let_go() -> None:
    assert outcome_of(held_and_work)["held"] < MANY // 2


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: asking what is due walks over all that is not")
def test_asking_what_is_due_costs_the_same_however_much_is_not() -> None:
    work = outcome_of(held_and_work)["work"]
    assert work["many"] <= 2 * work["few"]
