"""Taking a partition up on which much is open: reads are counted between two polls of the group, however many threads there are."""

from __future__ import annotations

import pytest

from tests.faults.ground import Outcome, counted_reads, outcome_of, shop

OPEN_WAITS = 12_000
PARKED = 200
TURNS_AFTER = 20
"""Once it is ready: its stream is opened anew then."""


def one_stream_with_many_open_waits() -> Outcome:
    driver = shop("items", sets=("steps.ask.await.live={window: 65536, idle: P1D}", "steps.ask.timeout=P1D"))
    driver.submit({"id": "b", "lines": [f"{number}" for number in range(OPEN_WAITS)]})
    driver.run()
    assert len(driver.requests()) == OPEN_WAITS
    driver.crash()
    most = turns = 0
    with counted_reads(driver.clock) as reads:  # so a slice that ends by the clock ends too
        while turns < TURNS_AFTER:
            turns += driver.worker.is_ready
            before = reads.rows
            driver.step()
            most = max(most, reads.rows - before)
        assert reads.rows >= OPEN_WAITS
    return {"most": most}


def many_parked_executions() -> Outcome:
    driver = shop("scalar", sets=("steps.ask.timeout=P1D",))
    for number in range(PARKED):
        driver.submit({"basket": "b", "sku": f"{number}"})
    driver.run()
    assert len(driver.requests()) == PARKED
    driver.crash()
    with counted_reads() as reads:
        driver.run()
    assert reads.rows >= PARKED
    return {"asked": reads.asked.total()}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: a take-up scans everything in one turn of the loop")
def test_no_turn_of_a_take_up_reads_all_that_is_open() -> None:
    assert outcome_of(one_stream_with_many_open_waits)["most"] <= OPEN_WAITS // 2


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: a take-up wakes every parked execution")
def test_a_take_up_asks_for_no_row_of_a_parked_execution() -> None:
    assert outcome_of(many_parked_executions)["asked"] < PARKED
