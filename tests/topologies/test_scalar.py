"""One question, one answer: suspend, resume, crash in between (BEHAVIOUR 5.5)."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.topologies.outside import price

if TYPE_CHECKING:
    from schemas.envelopes import RequestEnvelope
    from streams.testing.driver import TopologyTestDriver

LINE = {"basket": "b1", "sku": "apple"}


def asked(driver: TopologyTestDriver) -> tuple[str, RequestEnvelope]:
    execution = driver.submit(LINE)
    driver.run()
    (request,) = driver.new_requests()
    return execution, request


def test_facts_in_order(make: Any) -> None:
    """BEHAVIOUR 83, 99: parked in the transaction that sends the request; the continuation fact comes before the segment runs on."""
    driver = make("scalar")
    execution, request = asked(driver)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    assert driver.execution(execution).await_unit_id == f"{execution}.1"
    driver.complete(request, price(request))
    driver.run()
    assert driver.fact_names(execution) == [
        "RunSubmitted",
        "SegmentAttemptStarted",
        "SegmentCompleted",
        "BoundaryUnitOpened",
        "BoundaryInteractionDispatched",
        "BoundaryDispatchCompleted",
        "SegmentSuspended",
        "BoundaryCompletionAdmitted",
        "BoundaryUnitClosed",
        "ContinuationSegmentCreated",
        "SegmentAttemptStarted",
        "SegmentCompleted",
        "RunSucceeded",
    ]
    assert driver.result(execution) == {"sku": "apple", "price": "1.50", "text": ""}
    (reply,) = [reply for reply in driver.replies() if reply.status == "SUCCEEDED"]
    assert json.loads(reply.result or b"") == driver.result(execution)


@pytest.mark.parametrize("crash_after", range(1, 20))
def test_a_crash_after_any_turn(make: Any, script: Any, crash_after: int) -> None:
    """BEHAVIOUR 13, 15, 86 to 92: wherever the worker dies, one request, one admission, one result."""
    driver = make("scalar")
    execution = driver.submit(LINE)
    for turn in range(60):
        driver.step()
        for request in driver.new_requests():
            driver.complete(request, price(request))
        if turn in {crash_after, crash_after + 3}:
            driver.crash()
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert len(driver.requests()) == 1
    names = driver.fact_names(execution)
    for fact in (
        "BoundaryUnitOpened",
        "BoundaryInteractionDispatched",
        "BoundaryCompletionAdmitted",
        "BoundaryUnitClosed",
        "RunSucceeded",
    ):
        assert names.count(fact) == 1
    assert script.count("check") <= 2
    assert script.count("receipt") <= 2


def test_every_second_answer_has_its_own_word(make: Any) -> None:
    """CASES 20: duplicate, conflict, late, cancelled, unknown, bad token, wrong shape and malformed are told apart."""
    said: dict[str, list[str]] = {}
    heard: Counter[str] = Counter()
    driver = make("scalar", sets=("steps.ask.await.correlation.strategy=signedResumeToken",))

    def told(what: str) -> None:
        driver.run()
        now = Counter(refusal.reason for refusal in driver.refusals())
        said[what] = list((now - heard).elements())
        heard.update(now - heard)

    execution, request = asked(driver)
    driver.complete(request, price(request), token="x.y")
    told("forged")
    driver.complete(request, {"nonsense": 1})
    told("wrong shape")
    driver.complete(request, price(request))
    driver.run()
    driver.complete(request, price(request, "9.99"))
    told("conflict")
    other = driver.submit({"basket": "b", "sku": "pear"})
    driver.run()
    (late,) = driver.new_requests()
    driver.advance(60_000)
    driver.complete(late, price(late))
    told("late")
    third = driver.submit({"basket": "b", "sku": "plum"})
    driver.run()
    (cancelled,) = driver.new_requests()
    driver.cancel(third)
    driver.run()
    driver.complete(cancelled, price(cancelled))
    told("cancelled")
    driver.send_raw("scalar.answered", b'{"interactionId": "nobody", "responsePayload": 1}')
    told("unknown")
    assert said == {
        "forged": ["bad-token"],
        "wrong shape": ["wrong-shape"],
        "conflict": ["conflict"],
        "late": ["late"],
        "cancelled": ["cancelled"],
        "unknown": ["unknown"],
    }
    before = len(driver.refusals())
    driver.complete(request, price(request))
    driver.run()
    assert len(driver.refusals()) == before, "an equal answer is a duplicate: no refusal"
    assert driver.metric("kawait_decisions_total", decision="Duplicate") == 1
    assert [driver.status(each) for each in (execution, other, third)] == ["SUCCEEDED", "FAILED", "CANCELLED"]


def test_the_await_may_be_all_there_is(make: Any) -> None:
    """BEHAVIOUR 98: the await is first and last; the answer is the result."""
    driver = make("only")
    execution, request = asked(driver)
    driver.crash()
    driver.complete(request, price(request))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution) == price(request)


def test_an_itemised_await_may_be_last(shop: Any) -> None:
    """BEHAVIOUR 98, 128: no suffix to run; answers are the outputs, in input order."""
    driver = shop("last")
    execution = driver.submit({"id": "b1", "lines": ["apple", "pear"]})
    driver.run()
    for request in reversed(driver.new_requests()):
        driver.complete(request, price(request))
        driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert [offer["sku"] for offer in driver.result(execution)] == ["apple", "pear"]


def test_the_same_submission_twice(make: Any) -> None:
    """BEHAVIOUR 196: one execution, one request; also after it ended."""
    driver = make("scalar", answer=price)
    ids = {driver.submit(LINE), driver.submit(LINE)}
    driver.run()
    ids.add(driver.submit(LINE))
    driver.run()
    (execution,) = ids
    assert driver.status(execution) == "SUCCEEDED"
    assert len(driver.requests()) == 1
    assert driver.submit(LINE, key="another") not in ids
