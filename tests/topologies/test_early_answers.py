"""Answers that come before their wait exists (CASES A, DESIGN 8.9): ids are derivable, so nothing stops anybody from being early."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from schemas import limits
from schemas.facts import BoundaryInteractionDispatched

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}
LINE = {"basket": "b1", "sku": "apple"}


def send(driver: TopologyTestDriver, interaction: str, payload: Any, topic: str) -> None:
    driver.send_raw(topic, json.dumps({"interactionId": interaction, "responsePayload": payload}).encode())


def offer(sku: str, price: str = "1.50") -> dict[str, str]:
    return {"sku": sku, "price": price}


def only_accepted(driver: TopologyTestDriver, payload: Any) -> str:
    """An execution that is known, and whose first segment waits for the pool."""
    driver.run()
    driver.hold()
    execution: str = driver.submit(payload)
    for _ in range(5):
        driver.step()
    assert driver.status(execution) == "RUNNING"
    return execution


def let_go(driver: TopologyTestDriver) -> None:
    driver.release()
    driver.run()


def pump(driver: TopologyTestDriver) -> None:
    for _ in range(6):
        driver.step()


def test_an_answer_before_its_question(make: Any) -> None:
    """CASES 1, 4, 14: held, then judged when the step is reached; no request is sent; resumed at once, exactly once."""
    driver = make("scalar")
    execution = only_accepted(driver, LINE)
    send(driver, f"{execution}.1.u", offer("apple"), "scalar.answered")
    pump(driver)
    assert driver.fact_names(execution)[-1] == "BoundaryCompletionHeld"
    assert driver.execution(execution).held == 1
    let_go(driver)
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution)["sku"] == "apple"
    assert driver.requests() == []
    (dispatched,) = [fact for fact in driver.facts(execution) if isinstance(fact, BoundaryInteractionDispatched)]
    assert dispatched.requested is False
    names = driver.fact_names(execution)
    assert names.count("BoundaryCompletionAdmitted") == 1
    assert (
        names.index("BoundaryCompletionHeld")
        < names.index("BoundaryUnitOpened")
        < names.index("BoundaryCompletionAdmitted")
    )


def test_an_answer_before_one_of_many_questions(shop: Any) -> None:
    """CASES 1, 11, DESIGN 8.9: the item is not asked, its neighbours are; outputs in input order."""
    driver = shop("items")
    execution = only_accepted(driver, BASKET)
    send(driver, f"{execution}.1.1", offer("early pear"), "items.answered")
    pump(driver)
    let_go(driver)
    requests = driver.new_requests()
    assert [request.item_index for request in requests] == [0, 2]
    for request in requests:
        driver.complete(request, offer("asked"))
    driver.run()
    assert [receipt["sku"] for receipt in driver.result(execution)] == ["asked", "early pear", "asked"]
    assert driver.refusals() == []


def test_a_crash_keeps_what_is_held(shop: Any) -> None:
    """CASES 1, 2: the held answer is a row; crash before the step, and crash between its dispatch and its judgement."""
    driver = shop("items")
    execution = only_accepted(driver, BASKET)
    send(driver, f"{execution}.1.2", offer("early plum"), "items.answered")
    pump(driver)
    driver.crash()
    while "BoundaryInteractionDispatched" not in driver.fact_names(execution):
        driver.step()
    driver.crash()
    driver.run()
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 1
    for request in driver.requests():
        driver.complete(request, offer("asked"))
    driver.run()
    assert [receipt["sku"] for receipt in driver.result(execution)] == ["asked", "asked", "early plum"]
    assert [request.item_index for request in driver.requests()] == [0, 1]


def test_an_early_answer_that_is_refused_later_says_where_it_came_in(shop: Any, script: Any) -> None:
    """DESIGN 8.7: its projector can judge it only once the request exists; across a crash its owner still finds the record."""
    driver = shop("projected")
    script.failures["project", "pear"] = [ValueError("no such price list")]
    execution = only_accepted(driver, BASKET)
    send(driver, f"{execution}.1.1", {"price": "1.5"}, "projected.answered")
    pump(driver)
    driver.pools[0].run_one(1)  # it is looked at, and there is no request yet; the first job reads the source
    pump(driver)
    assert driver.execution(execution).held == 1
    driver.crash()
    driver.run()
    (refusal,) = driver.refusals()
    (record,) = driver.records("projected.answered")
    assert refusal.reason == "wrong-shape"
    found = (refusal.origin_topic, refusal.origin_partition, refusal.origin_offset)
    assert found == ("projected.answered", record.partition, record.offset)
    for request in driver.new_requests():  # the refused one is asked after all
        driver.complete(request, {"price": "1.5"})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_the_first_early_answer_wins(shop: Any) -> None:
    """CASES 11, DESIGN 8.1: an equal one is a duplicate, another one a conflict, before the step as after it."""
    driver = shop("items")
    execution = only_accepted(driver, BASKET)
    for amount in ("1.50", "1.5", "9.99"):
        send(driver, f"{execution}.1.0", offer("apple", amount), "items.answered")
        pump(driver)
    assert [refusal.reason for refusal in driver.refusals()] == ["conflict"]
    assert driver.execution(execution).held == 1
    let_go(driver)
    for request in driver.new_requests():
        driver.complete(request, offer("asked"))
    driver.run()
    assert driver.result(execution)[0]["price"] == "1.50"


def test_two_answers_back_to_back_for_two_questions_in_a_row(make: Any) -> None:
    """CASES 8: both are produced before the first is processed; both are consumed, in step order."""
    driver = make("sequel")
    execution = only_accepted(driver, LINE)
    send(driver, f"{execution}.3.u", offer("second"), "sequel.answered.again")
    send(driver, f"{execution}.1.u", offer("first"), "sequel.answered")
    pump(driver)
    let_go(driver)
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution)["sku"] == "second"
    assert driver.requests() == []


def test_an_early_answer_of_a_wrong_shape_is_refused_and_the_question_is_sent(make: Any) -> None:
    """DESIGN 8.7, 8.9: refused while it is early, so the request goes out as ever."""
    driver = make("scalar")
    execution = only_accepted(driver, LINE)
    send(driver, f"{execution}.1.u", {"nonsense": 1}, "scalar.answered")
    pump(driver)
    assert [refusal.reason for refusal in driver.refusals()] == ["wrong-shape"]
    let_go(driver)
    (request,) = driver.new_requests()
    driver.complete(request, offer("apple"))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_early_answers_under_tokens_are_forged(shop: Any) -> None:
    """DESIGN 8.3, 8.9: no token was issued yet, so an early answer cannot be right."""
    driver = shop("items", sets=("steps.ask.await.correlation.strategy=signedResumeToken",))
    execution = only_accepted(driver, BASKET)
    send(driver, f"{execution}.1.0", offer("apple"), "items.answered")
    pump(driver)
    assert [refusal.reason for refusal in driver.refusals()] == ["bad-token"]
    assert driver.execution(execution).held == 0


def test_early_answers_are_bounded(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 8.9: so many an execution; those beyond it are refused as `too-early`, and the item is asked as ever."""
    monkeypatch.setattr(limits, "EARLY_HELD_MAX", 2)
    driver = make("items")
    execution = only_accepted(driver, BASKET)
    for index in range(3):
        send(driver, f"{execution}.1.{index}", offer(f"early {index}"), "items.answered")
        pump(driver)
    assert [refusal.reason for refusal in driver.refusals()] == ["too-early"]
    let_go(driver)
    (request,) = driver.new_requests()
    assert request.item_index == 2


def test_an_answer_before_its_submission_is_unknown(make: Any) -> None:
    """CASES 13, DESIGN 8.9: unknown execution: `unknown`, said aloud."""
    other = make("scalar")
    execution = other.submit(LINE)
    driver = make("scalar")
    send(driver, f"{execution}.1.u", offer("apple"), "scalar.answered")
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["unknown"]


def test_an_early_answer_for_an_item_that_never_comes(make: Any) -> None:
    """DESIGN 8.9 'item index in bounds': held while the source is open; it changes nothing when the source ends before it."""
    driver = make("items")
    execution = only_accepted(driver, BASKET)
    send(driver, f"{execution}.1.700", offer("nobody"), "items.answered")
    pump(driver)
    let_go(driver)
    for request in driver.new_requests():
        driver.complete(request, offer("asked"))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert len(driver.result(execution)) == 3
    send(driver, f"{execution}.1.700", offer("nobody"), "items.answered")
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] in (["unknown"], ["conflict"], [])
