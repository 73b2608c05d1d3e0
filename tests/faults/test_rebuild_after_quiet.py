"""A restart of a worker whose state is true and complete, after quiet hours."""

from __future__ import annotations

from unittest import mock

from tests.faults.ground import HOUR_MS, Outcome, TopologyTestDriver, outcome_of, price, shop


def _worked() -> TopologyTestDriver:
    driver = shop("items", answer=price)
    driver.submit({"id": "b", "lines": ["apple", "pear"]})
    driver.run()
    return driver


def _stores_wiped_by_a_restart(driver: TopologyTestDriver) -> int:
    with mock.patch.object(driver.stores, "wipe", wraps=driver.stores.wipe) as wipe:
        driver.crash()
        driver.run()
    return wipe.call_count


def _after_quiet(hours: int) -> int:
    driver = _worked()
    driver.clock.advance(hours * HOUR_MS)
    return _stores_wiped_by_a_restart(driver)


def _after_a_busy_day_with_a_quiet_table() -> int:
    driver = _worked()
    for hour in range(14):
        driver.clock.advance(HOUR_MS)
        driver.submit({"id": f"empty-{hour}", "lines": []})  # writes executions and units only
        driver.run()
    return _stores_wiped_by_a_restart(driver)


def wiped() -> Outcome:
    assert _after_quiet(hours=11) == 0
    return {"quiet": _after_quiet(hours=13), "busy": _after_a_busy_day_with_a_quiet_table()}


def test_a_restart_after_thirteen_quiet_hours_goes_on_from_its_disk() -> None:
    assert outcome_of(wiped)["quiet"] == 0


def test_a_restart_of_a_busy_worker_goes_on_from_its_disk_though_one_table_was_quiet() -> None:
    assert outcome_of(wiped)["busy"] == 0
