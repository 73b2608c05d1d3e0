"""A call that never returns is left behind; every other one is as if it were made here."""

from __future__ import annotations

import threading

import pytest

from streams.log.kafka.bounded_call import CallThread, NeverReturned


def test_a_call_is_made_and_its_error_raised() -> None:
    calls = CallThread("calls")
    made: list[int] = []
    calls.start(lambda: made.append(1)).join(5)
    calls.start(lambda: made.append(2)).join(5)
    assert made == [1, 2]
    with pytest.raises(ZeroDivisionError):
        calls.start(lambda: 1 / 0).join(5)
    calls.close()


def test_a_call_that_never_returns_is_left_behind() -> None:
    calls, hold = CallThread("calls"), threading.Event()
    with pytest.raises(NeverReturned):
        calls.start(hold.wait).join(0.05)
    hold.set()
    calls.close()
