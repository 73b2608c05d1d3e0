"""A worker's clock that is behind the broker's."""

from __future__ import annotations

from tests.faults.ground import MINUTE_MS, Outcome, TopologyTestDriver, outcome_of, price, restart_with, shop


class BehindClock:
    """The driver's clock, as a machine shows it that is two minutes behind; the await waits one."""

    def __init__(self, driver: TopologyTestDriver) -> None:
        self._clock = driver.clock

    def now_ms(self) -> int:
        return self._clock.now_ms() - 2 * MINUTE_MS

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


def answered_at_once() -> Outcome:
    driver = shop("scalar")
    restart_with(driver, clock=BehindClock(driver))
    execution = driver.submit({"basket": "b", "sku": "apple"})
    driver.run()
    (request,) = driver.new_requests()
    driver.complete(request, price(request))
    driver.run()
    return {"status": driver.status(execution), "refused": [refusal.reason for refusal in driver.refusals()]}


def test_an_answer_at_once_is_in_time_though_the_workers_clock_is_behind() -> None:
    assert outcome_of(answered_at_once) == {"status": "SUCCEEDED", "refused": []}
