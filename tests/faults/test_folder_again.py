"""A file that stays in the input folder."""

from __future__ import annotations

from pathlib import Path

from tests.faults.ground import DAY_MS, HOUR_MS, Outcome, look_at_input, outcome_of, price, put_file, shop


def still_there_after_retention() -> Outcome:
    basket = put_file("in/basket.txt", "apple pear\n")
    places = (f"input.location={basket.parent}", f"output.location={Path('out').absolute()}")
    driver = shop("files", answer=price, sets=places)
    assert look_at_input(driver) == []
    driver.crash()
    assert look_at_input(driver) == []
    assert len(driver.requests()) == 2, "it is paid once, and no restart on the same day changes that"
    for _ in range(8):
        driver.advance(DAY_MS)
        driver.advance(HOUR_MS)
    driver.crash()
    assert look_at_input(driver) == []
    return {"requests": len(driver.requests()), "executions": driver.fact_names().count("RunSubmitted")}


def test_a_file_that_is_still_there_a_week_after_its_end_is_not_paid_again() -> None:
    assert outcome_of(still_there_after_retention) == {"requests": 2, "executions": 1}
