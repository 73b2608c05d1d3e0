"""A projector joins what the outside party may say to what was asked (BEHAVIOUR 5.4)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from streams.testing.driver import TopologyTestDriver
from streams.testing.inline_pool import InlinePool
from tests.topologies.outside import SECRET
from topologies.reading.loading import load_pipeline

if TYPE_CHECKING:
    from schemas.envelopes import RequestEnvelope

BASKET = {"id": "b1", "lines": ["apple", "pear"]}


def asked(shop: Any) -> tuple[TopologyTestDriver, str, list[RequestEnvelope]]:
    driver = shop("projected")
    execution = driver.submit(BASKET)
    driver.run()
    return driver, execution, driver.new_requests()


def test_the_stored_request_is_what_the_answer_is_joined_to(shop: Any) -> None:
    """BEHAVIOUR 66, S3: the actor echoes nothing, and may say who it is."""
    driver, execution, requests = asked(shop)
    for number, request in enumerate(requests):
        answer = {"interactionId": request.interaction_id, "actor": "ann", "responsePayload": {"price": f"{number}.5"}}
        driver.send_raw("projected.answered", json.dumps(answer).encode())
    driver.run()
    assert [(receipt["sku"], receipt["price"]) for receipt in driver.result(execution)] == [
        ("apple@ann", "0.5"),
        ("pear@ann", "1.5"),
    ]


def test_a_projector_that_raises_leaves_the_item_open(shop: Any, script: Any) -> None:
    """BEHAVIOUR 67, DESIGN 8.7: refused as wrong-shape with the error; a later good answer is admitted."""
    driver, execution, requests = asked(shop)
    script.failures["project", "apple"] = [ValueError("no such price list")]
    for _ in range(2):
        for request in requests:
            driver.complete(request, {"price": "1.5"})
        driver.run()
    (refusal,) = driver.refusals()
    assert (refusal.reason, refusal.owner) == ("wrong-shape", "shop-desk")
    assert "no such price list" in refusal.detail
    assert json.loads(refusal.payload) == {"price": "1.5"}
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 2


def test_the_projector_runs_once_and_its_value_stays(shop: Any, script: Any) -> None:
    """BEHAVIOUR 72, 73, HOLE 24: crash after admission: the stored value is used; a duplicate does not run it again."""
    driver, execution, requests = asked(shop)
    driver.complete(requests[0], {"price": "1.5"})
    driver.run()
    driver.crash()
    driver.complete(requests[0], {"price": "1.50"})
    driver.run()
    assert script.calls.count(("project", "apple")) == 1
    assert driver.refusals() == []
    driver.complete(requests[1], {"price": "1.5"})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_an_actor_may_not_give_the_whole_output(shop: Any) -> None:
    """BEHAVIOUR 66, 76: the answer is judged by the completion type; what it says besides is not trusted."""
    driver, execution, requests = asked(shop)
    driver.complete(requests[0], {"sku": "gold bar", "price": "1.5"})
    driver.complete(requests[1], {"sku": "gold bar"})
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["wrong-shape"]
    driver.complete(requests[1], {"price": "1.5"})
    driver.run()
    assert [receipt["sku"] for receipt in driver.result(execution)] == BASKET["lines"]


def _restarted_with(driver: TopologyTestDriver, *sets: str) -> None:
    """The worker comes back with another release of the pipeline."""
    pipeline = driver.pipeline
    driver.pipeline = load_pipeline(pipeline.path, environ={"KAWAIT_TOKEN_K1": SECRET}, overrides=sets)
    driver.crash()


def test_another_projector_after_a_restart_may_not_complete_it(shop: Any, live: bool) -> None:
    """BEHAVIOUR 69, F76: refused naming the pinned projector, the row unchanged; the right release admits it."""
    path = () if live else ("steps.ask.await.live=false",)
    driver, execution, requests = asked(shop)
    _restarted_with(driver, *path, "steps.ask.await.completion.projector=shop.steps:JoinedOtherwise")
    driver.complete(requests[0], {"price": "1.5"})
    driver.run()
    (refusal,) = driver.refusals()
    assert refusal.reason == "wrong-shape"
    assert "shop.steps:Joined" in refusal.detail
    assert "BoundaryCompletionAdmitted" not in driver.fact_names(execution)
    _restarted_with(driver, *path)
    for request in requests:
        driver.complete(request, {"price": "1.5"})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def early(make: Any, basket: dict[str, Any]) -> tuple[TopologyTestDriver, str, InlinePool]:
    """The source is not pulled yet, and an answer for its first item waits to be shaped."""
    driver = make("projected")
    driver.run()
    pool = driver.pools[0]
    pool.held = True
    execution = driver.submit(basket)
    for _ in range(5):
        driver.step()
    answer = {"interactionId": f"{execution}.1.0", "responsePayload": {"price": "7"}}
    driver.send_raw("projected.answered", json.dumps(answer).encode())
    for _ in range(5):
        driver.step()
    return driver, execution, pool


def run_behind_the_source(driver: TopologyTestDriver, pool: InlinePool) -> None:
    """Run what waits behind the first job, the source's pull."""
    for _ in range(5):
        if len(pool.jobs) > 1:
            pool.run_one(1)
        driver.step()
    assert driver.fact_names()[-1] == "BoundaryCompletionHeld"


def test_an_early_answer_is_projected_when_its_step_is_reached(make: Any, script: Any) -> None:
    """DESIGN 8.9 with a projector: held as it came, projected against the request, on the pool."""
    driver, execution, pool = early(make, BASKET)
    run_behind_the_source(driver, pool)
    pool.held = False
    driver.run()
    (request,) = driver.new_requests()
    assert request.item_index == 1
    driver.complete(request, {"price": "8"})
    driver.run()
    assert [(receipt["sku"], receipt["price"]) for receipt in driver.result(execution)] == [
        ("apple", "7"),
        ("pear", "8"),
    ]
    assert script.calls.count(("project", "apple")) == 1


def test_a_projector_that_refuses_a_held_answer_lets_the_question_go_out(make: Any, script: Any) -> None:
    """DESIGN 8.7, 8.9: the held answer is refused, its request is sent once, a good answer completes it."""
    driver, execution, pool = early(make, {"id": "b1", "lines": ["apple"]})
    run_behind_the_source(driver, pool)
    script.failures["project", "apple"] = [ValueError("no")]
    pool.held = False
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["wrong-shape"]
    (request,) = driver.new_requests()
    for _ in range(3):
        driver.crash()
        driver.run()
    assert len(driver.requests()) == 1
    driver.complete(request, {"price": "8"})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_an_answer_shaped_while_its_request_was_made(make: Any, script: Any) -> None:
    """CASES 2: the look-up saw no request, then the request was dispatched, then the answer is decided: admitted once, nothing sent twice."""
    driver, execution, pool = early(make, {"id": "b1", "lines": ["apple"]})
    assert len(pool.jobs) == 2, "the source's pull, and the shaping of the early answer"
    pool.run_one(1)  # shaped: there is no request yet
    shaped = pool._done.pop()
    pool.run_one(0)  # pulled
    for _ in range(3):
        driver.step()
    assert "BoundaryInteractionDispatched" in driver.fact_names(execution)
    pool._done.append(shaped)
    pool.held = False
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 1
    assert len(driver.requests()) == 1
    assert driver.dead_letters() == []


def test_a_refused_answer_that_overtook_its_request_sends_no_second_one(make: Any, script: Any) -> None:
    """DESIGN 7 'exactly one request record per item': the request of this item did go out, so a refusal has nothing to send."""
    driver, execution, pool = early(make, {"id": "b1", "lines": ["apple"]})
    pool.run_one(1)  # shaped: there is no request yet
    shaped = pool._done.pop()
    pool.run_one(0)  # pulled
    for _ in range(3):
        driver.step()
    script.failures["project", "apple"] = [ValueError("no")]
    pool._done.append(shaped)
    driver.release()
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["wrong-shape"]
    assert len(driver.requests()) == 1
    driver.crash()
    driver.run()
    assert len(driver.requests()) == 1
    driver.complete(driver.requests()[0], {"price": "8"})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
