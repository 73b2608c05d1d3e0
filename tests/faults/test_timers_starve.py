"""A partition with a backlog of a whole batch, all the time."""

from __future__ import annotations

from tests.faults.ground import Outcome, limits, outcome_of, shop

BATCH = 5
LOADED_S = 200
"""The await waits for a minute."""


def under_steady_load() -> Outcome:
    driver = shop("scalar")
    execution = driver.submit({"basket": "b", "sku": "apple"})
    driver.run()

    def load(records: int) -> None:
        for _ in range(records):
            driver.send_raw(driver.names.completions, b"junk", partition=0)

    load(4 * limits.BATCH_RECORDS_MAX)
    for _ in range(LOADED_S):
        driver.clock.advance(1_000)
        load(limits.BATCH_RECORDS_MAX)
        for loop in driver.worker.loops.values():
            loop.step()
    return {"status": driver.status(execution)}


def test_a_deadline_rings_under_steady_load() -> None:
    assert outcome_of(under_steady_load, BATCH_RECORDS_MAX=BATCH)["status"] == "FAILED"
