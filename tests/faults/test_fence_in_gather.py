"""The broker fences a member by its own later join, and it shows in the second poll of a turn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.ground import InstanceFenced, Outcome, TopologyTestDriver, outcome_of, price, restart_with, shop

EXECUTIONS = 200


class FencingLog:
    """The driver's log, whose core consumer is fenced once: by the poll of a turn that is told to be."""

    def __init__(self, driver: TopologyTestDriver) -> None:
        self._log = driver.log
        self.fenced_poll = 0
        """Which poll of a turn; 0: none."""
        self.polls = 0
        """Of this turn."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def group_consumer(self, **what: Any) -> Any:
        consumer = self._log.group_consumer(**what)
        return FencingConsumer(self, consumer) if what["group"].endswith(".core") else consumer


class FencingConsumer:
    def __init__(self, log: FencingLog, consumer: Any) -> None:
        self._log = log
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, records_max: int, timeout_s: float) -> Any:
        self._log.polls += 1
        if self._log.polls == self._log.fenced_poll:
            self._log.fenced_poll = 0
            raise InstanceFenced("fenced by the broker: a later join of this worker")
        return self._consumer.poll(records_max, timeout_s)


def fenced(poll: int) -> Outcome:
    """A busy core, which polls again to let its batch grow, is fenced."""
    driver = shop("scalar", answer=price)
    log: Any = FencingLog(driver)
    restart_with(driver, log=log)
    executions = [driver.submit({"basket": "b", "sku": f"{number}"}) for number in range(EXECUTIONS)]
    while driver.fact_names().count("RunSucceeded") < EXECUTIONS // 2:
        driver.clock.advance(1)
        driver.step()
    executions += [driver.submit({"basket": "late", "sku": f"{number}"}) for number in range(EXECUTIONS)]
    log.fenced_poll = poll
    raised = None
    try:
        for _ in range(1_000):
            log.polls = 0
            driver.clock.advance(1)
            driver.step()
    except InstanceFenced as error:
        raised = str(error)
    return {
        "is fenced": log.fenced_poll == 0,
        "raised": raised,
        "succeeded": sum(driver.status(execution) == "SUCCEEDED" for execution in executions),
    }


def fenced_in_the_second_poll() -> Outcome:
    control = fenced(1)
    assert control == {"is fenced": True, "raised": None, "succeeded": 2 * EXECUTIONS}, control
    return fenced(2)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: a fence seen while gathering is not judged")
def test_a_fence_by_an_own_later_join_ends_no_worker_whichever_poll_sees_it() -> None:
    outcome = outcome_of(fenced_in_the_second_poll)
    assert (outcome["raised"], outcome["succeeded"]) == (None, 2 * EXECUTIONS)
