"""Deadlines: who is on time, what an expired interaction does, one winner only (BEHAVIOUR 5.8, DESIGN 8 policies 2 and 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from schemas import limits
from schemas.facts import InteractionTimedOut
from tests.topologies.outside import answer, price

if TYPE_CHECKING:
    from schemas.envelopes import RequestEnvelope
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}
LINE = {"basket": "b1", "sku": "apple"}
MINUTE = 60_000


def started(driver: TopologyTestDriver, payload: Any) -> tuple[str, list[RequestEnvelope]]:
    execution = driver.submit(payload)
    driver.run()
    return execution, driver.new_requests()


def test_a_skipped_item_is_left_out(shop: Any, script: Any) -> None:
    """DESIGN 8.6 `onTimeout: {skip: true}`: the others go on, the item has no output, its late answer is kept and changes nothing."""
    driver = shop("items", sets=("steps.ask.onTimeout={skip: true}",))
    execution, requests = started(driver, BASKET)
    answer(driver, requests[0], requests[2])
    driver.advance(MINUTE)
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == ["apple", "plum"]
    (timed_out,) = [fact for fact in driver.facts(execution) if isinstance(fact, InteractionTimedOut)]
    assert (timed_out.item_index, timed_out.resolution) == (1, "skip")
    assert driver.dead_letters() == []
    answer(driver, requests[1])
    assert [(refusal.reason, refusal.kept) for refusal in driver.refusals()] == [("late", True)]
    assert script.count("receipt") == 2


def test_every_item_skipped_is_an_empty_result(shop: Any) -> None:
    """DESIGN 8.6: skip may leave nothing over; the execution still ends."""
    driver = shop("items", sets=("steps.ask.onTimeout={skip: true}",))
    execution, _ = started(driver, BASKET)
    driver.advance(MINUTE)
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution) == []


def test_an_expired_item_goes_on_with_the_value(shop: Any) -> None:
    """DESIGN 8.6 `onTimeout: {value: ...}`: the value takes the suffix like an answer, a later answer is late, never a conflict."""
    driver = shop("items", sets=('steps.ask.onTimeout={value: {sku: unknown, price: "0"}}',))
    execution, requests = started(driver, BASKET)
    answer(driver, requests[0])
    driver.advance(MINUTE)
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == ["apple", "unknown", "unknown"]
    answer(driver, requests[1])
    driver.complete(requests[2], {"sku": "unknown", "price": "0"})
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["late", "late"]


def test_a_scalar_await_expires_into_its_value(make: Any) -> None:
    """DESIGN 8.6: the same for one question."""
    driver = make("scalar", sets=('steps.ask.onTimeout={value: {sku: unknown, price: "0"}}',))
    execution, requests = started(driver, LINE)
    driver.advance(MINUTE)
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution)["sku"] == "unknown"
    answer(driver, *requests)
    assert [refusal.reason for refusal in driver.refusals()] == ["late"]


def test_a_scalar_await_expires(make: Any) -> None:
    """BEHAVIOUR 152, 156: interaction, unit and execution end in one transaction, facts in this order; the late answer changes nothing."""
    driver = make("scalar")
    execution, requests = started(driver, LINE)
    driver.advance(MINUTE)
    assert driver.fact_names(execution)[-3:] == ["InteractionTimedOut", "BoundaryUnitClosed", "RunFailed"]
    at = [fact.at_ms for fact in driver.facts(execution)[-3:]]
    assert len(set(at)) == 1
    answer(driver, *requests)
    assert driver.status(execution) == "FAILED"
    assert driver.fact_names(execution)[-1] == "CompletionRefused"


@pytest.mark.parametrize("early_ms", [1, 0])
def test_one_millisecond_decides(make: Any, early_ms: int) -> None:
    """BEHAVIOUR 157, 158: before the deadline is on time, at the deadline is late; both observers agree."""
    driver = make("scalar")
    execution, requests = started(driver, LINE)
    driver.clock.advance(MINUTE - early_ms)
    answer(driver, *requests)
    assert driver.status(execution) == ("SUCCEEDED" if early_ms else "FAILED")
    driver.advance(MINUTE)
    names = driver.fact_names(execution)
    assert ("InteractionTimedOut" in names) != ("BoundaryCompletionAdmitted" in names)


def test_alternating_rounds(make: Any) -> None:
    """CASES 31, 32: an expired wait eats no later answer; ten rounds end exactly as scheduled."""
    driver = make("scalar")
    for number in range(10):
        execution = driver.submit({"basket": "b", "sku": f"s{number}"})
        driver.run()
        (request,) = driver.new_requests()
        driver.advance(MINUTE // 2 if number % 2 else MINUTE * 3 // 2)
        answer(driver, request)
        assert driver.status(execution) == ("SUCCEEDED" if number % 2 else "FAILED")
    assert [refusal.reason for refusal in driver.refusals()] == ["late"] * 5


def test_many_deadlines_at_once_ring_once_each(make: Any) -> None:
    """CASES 38, BEHAVIOUR 160: hundreds of executions with one deadline: one expiry and one dead letter each, and answers still get in."""
    driver = make("scalar")
    executions = [driver.submit({"basket": "b", "sku": f"s{number}"}) for number in range(300)]
    driver.run()
    requests = {request.execution_id: request for request in driver.new_requests()}
    driver.clock.advance(MINUTE - 1)
    driver.complete(requests[executions[7]], price(requests[executions[7]]))
    driver.worker.loops["ingress"].step()
    driver.worker.loops["ingress"].step()
    driver.advance(1)
    names = driver.fact_names()
    assert names.count("InteractionTimedOut") == names.count("RunFailed") == 299
    assert driver.status(executions[7]) == "SUCCEEDED"
    assert len(driver.dead_letters()) == 299
    driver.advance(10 * MINUTE)
    assert driver.fact_names() == names


def test_a_sibling_of_an_expired_item_does_not_stay_open(shop: Any) -> None:
    """BEHAVIOUR 161 to 164: one expires, everything of the unit ends: siblings take no answer, no timer rings again, no suffix runs."""
    driver = shop("items")
    execution, requests = started(driver, BASKET)
    answer(driver, requests[0])
    driver.advance(MINUTE)
    facts = driver.fact_names(execution)
    answer(driver, requests[1], requests[2])
    assert [refusal.reason for refusal in driver.refusals()] == ["late", "late"]
    driver.advance(10 * MINUTE)
    driver.crash()
    driver.run()
    driver.advance(10 * MINUTE)
    assert driver.fact_names(execution) == [*facts, "CompletionRefused", "CompletionRefused"]


def test_our_own_backlog_expires_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 8.2: a deadline rings only when everything that was there *after that deadline* is read; one gate is not for all deadlines.

    The worker reads two records at a time. While it works off what was there at the first deadline, an answer for the second one comes in
    time and lies unread when the second deadline passes.
    """
    driver = make("items", sets=("kafka.partitions=1", "steps.ask.timeout=PT1M"))
    first = driver.submit({"id": "first", "lines": ["only"]})
    driver.run()
    driver.clock.advance(10_000)
    second, _ = started(driver, {"id": "second", "lines": list("abcdef")})
    mine = [request for request in driver.requests() if request.execution_id == second]
    monkeypatch.setattr(limits, "BATCH_RECORDS_MAX", 2)
    core, ingress = driver.worker.loops["core"], driver.worker.loops["ingress"]
    driver.clock.advance(40_000)
    for request in mine[:5]:
        driver.complete(request, price(request))
    for _ in range(10):
        ingress.step()
    driver.clock.advance(10_000)  # the first deadline
    core.step()
    driver.clock.advance(9_999)
    driver.complete(mine[5], price(mine[5]))
    for _ in range(5):
        ingress.step()
    driver.clock.advance(1)  # the second
    driver.run()
    assert driver.status(first) == "FAILED"
    assert driver.status(second) == "SUCCEEDED"


def test_a_clock_that_jumps_back_rings_nothing_early(make: Any) -> None:
    """DESIGN 10 'clock jumps': deadlines are wall-clock times; a jump back delays them, a jump forward rings them, once."""
    driver = make("scalar")
    execution, _ = started(driver, LINE)
    now_ms = driver.clock.now_ms()
    driver.clock.jump(now_ms - 3_600_000)
    driver.run()
    driver.advance(MINUTE)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.clock.jump(now_ms + MINUTE)
    driver.run()
    assert driver.fact_names(execution).count("InteractionTimedOut") == 1


def test_a_crash_right_after_expiry_opens_no_new_wait(make: Any) -> None:
    """CASES 46: expiry is stored, the worker dies, the restart goes on from there."""
    driver = make("scalar", sets=('steps.ask.onTimeout={value: {sku: unknown, price: "0"}}',))
    execution, _ = started(driver, LINE)
    driver.clock.advance(MINUTE)
    while "InteractionTimedOut" not in driver.fact_names(execution):
        driver.step()
    driver.crash()
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.fact_names(execution).count("BoundaryUnitOpened") == 1
    assert len(driver.requests()) == 1
