"""Gauges of a worker with many open waits."""

from __future__ import annotations

import pytest

from tests.faults.ground import Outcome, outcome_of, report_gauges, shop, work_of

FEW = 20
MANY = 400


def _work_with_open(waits: int) -> int:
    driver = shop("scalar")
    for number in range(waits):
        driver.submit({"basket": "b", "sku": f"{number}"})
    driver.run()
    work = work_of(lambda: report_gauges(driver.worker.loops["core"], driver.worker))
    assert driver.metric("kawait_open_interactions") == waits
    return work


def work() -> Outcome:
    return {"few": _work_with_open(FEW), "many": _work_with_open(MANY)}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: gauges list all open waits every second")
def test_gauges_cost_the_same_however_many_waits_are_open() -> None:
    outcome = outcome_of(work)
    assert outcome["many"] <= 2 * outcome["few"]
