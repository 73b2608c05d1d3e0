"""An answer that came in time, while the workers were stopped."""

from __future__ import annotations

from tests.faults.ground import Outcome, outcome_of, price, shop

IN_TIME_MS = 10_000
PAST_THE_DEADLINE_MS = 60_000
TURNS = 50


def _answered_while_stopped(first_role: str) -> Outcome:
    driver = shop("scalar")
    execution = driver.submit({"basket": "b", "sku": "apple"})
    driver.run()
    (request,) = driver.new_requests()
    driver.clock.advance(IN_TIME_MS)
    driver.complete(request, price(request))
    driver.clock.advance(PAST_THE_DEADLINE_MS)
    driver.crash()
    for _ in range(TURNS):
        driver.worker.loops[first_role].step()
    driver.run()
    for _ in range(5):
        driver.advance(1_000)
    return {"status": driver.status(execution), "refused": [refusal.reason for refusal in driver.refusals()]}


def core_is_back_first() -> Outcome:
    return _answered_while_stopped("core")


def ingress_is_back_first() -> Outcome:
    return _answered_while_stopped("ingress")


def test_an_answer_in_time_counts_when_the_core_is_back_before_ingress() -> None:
    assert outcome_of(core_is_back_first) == {"status": "SUCCEEDED", "refused": []}


def test_an_answer_in_time_counts_when_ingress_is_back_first() -> None:
    assert outcome_of(ingress_is_back_first) == {"status": "SUCCEEDED", "refused": []}
