"""Committed offsets that the broker has let go, as it does when the workers were stopped for longer than it keeps them."""

from __future__ import annotations

import json

from tests.faults.ground import (
    DAY_MS,
    HOUR_MS,
    KawaitError,
    Outcome,
    TopologyTestDriver,
    delete_records,
    expire_offsets,
    outcome_of,
    price,
    shop,
)


def _refusal_of_a_restart(driver: TopologyTestDriver) -> str:
    """What a new worker says before it stops; nothing when it goes on."""
    try:
        driver.crash()
        driver.run()
    except KawaitError as error:
        return str(error)
    return ""


def of_a_source_topic() -> Outcome:
    driver = shop("counter", answer=price)
    driver.send_raw("counter.in", json.dumps({"id": "b1", "lines": ["apple", "pear"]}).encode())
    driver.run()
    assert driver.fact_names().count("RunSucceeded") == 1
    driver.advance(7 * DAY_MS)
    driver.advance(3 * HOUR_MS)  # retention lets the execution go
    driver.clock.advance(8 * DAY_MS)
    expire_offsets(driver, "counter.in")
    refusal = _refusal_of_a_restart(driver)
    return {"requests": len(driver.requests()), "refusal": refusal}


def of_commands_that_were_deleted() -> Outcome:
    driver = shop("scalar")
    driver.submit({"basket": "b", "sku": "apple"})
    driver.run()
    driver.submit({"basket": "b", "sku": "pear"})  # the workers are stopped
    driver.clock.advance(8 * DAY_MS)
    delete_records(driver, driver.names.commands)
    expire_offsets(driver, driver.names.commands)
    return {"refusal": _refusal_of_a_restart(driver)}


def test_a_source_topic_is_not_executed_again_when_its_offsets_are_gone() -> None:
    assert outcome_of(of_a_source_topic)["requests"] == 2


def test_a_worker_whose_offsets_are_gone_stops_and_names_the_source_topic() -> None:
    assert "counter.in" in outcome_of(of_a_source_topic)["refusal"]


def test_a_worker_whose_offsets_are_gone_does_not_skip_deleted_commands() -> None:
    assert "scalar.commands" in outcome_of(of_commands_that_were_deleted)["refusal"]
