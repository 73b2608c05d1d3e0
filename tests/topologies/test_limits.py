"""Everything is bounded, and a bound that is met says which one it is (DESIGN 8.11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas import limits

if TYPE_CHECKING:
    import pytest

    from schemas.envelopes import RequestEnvelope
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}


def price(request: RequestEnvelope, sku: str = "") -> dict[str, str]:
    return {"sku": sku or json.loads(bytes(request.request_payload))["sku"], "price": "1.50"}


def died(driver: TopologyTestDriver, execution: str, reason: str, limit: str) -> None:
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert letter.reason == reason
    assert f"limits.{limit}" in letter.detail


def test_an_item_that_is_too_large_to_ask_about(shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 8.11, CASES 88: the item and the limit are named; nothing of that batch is sent."""
    monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 2_000)
    (tmp_path / "b1.txt").write_text("apple\n" + "x" * 1_990)
    driver = shop("files", sets=(f"input.location={tmp_path}", f"output.location={tmp_path / 'out'}"))
    execution = driver.submit(file=tmp_path / "b1.txt")
    driver.run()
    died(driver, execution, "REQUEST_TOO_LARGE", "PAYLOAD_BYTES_MAX")
    assert "item 1" in driver.dead_letters()[0].detail
    assert driver.requests() == []


def test_an_answer_that_is_too_large(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 88: dead letter `too-large` at the door; the item stays open."""
    monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 2_000)
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    driver.complete(requests[0], price(requests[0], "x" * 2_000))
    driver.run()
    assert [letter.reason for letter in driver.dead_letters()] == ["too-large"]
    for request in requests:
        driver.complete(request, price(request))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_an_aggregate_of_too_many(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """BEHAVIOUR 79, DESIGN 7: the limit is named, and the advice to split or hand off."""
    monkeypatch.setattr(limits, "AGGREGATE_ITEMS_MAX", 2)
    driver = shop("several", answer=price)
    execution = driver.submit(BASKET)
    driver.run()
    died(driver, execution, "AGGREGATE_TOO_LARGE", "AGGREGATE_ITEMS_MAX")
    assert "checkpoint" in driver.dead_letters()[0].detail


def test_a_result_of_too_many(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 8.11: a result that does not fit a row asks for an `output`."""
    monkeypatch.setattr(limits, "AGGREGATE_ITEMS_MAX", 2)
    driver = shop("items", answer=price)
    execution = driver.submit(BASKET)
    driver.run()
    died(driver, execution, "RESULT_TOO_LARGE", "AGGREGATE_ITEMS_MAX")
    assert "output" in driver.dead_letters()[0].detail


def test_beyond_the_live_sessions_a_unit_suspends(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 8.11, 7 'when no session is available': the second takes the suspending path, with the same outputs; slots come back."""
    monkeypatch.setattr(limits, "LIVE_SESSIONS_MAX", 1)
    driver = make("items", sets=("kafka.partitions=1",))
    one, two = driver.submit(BASKET, key="one"), driver.submit(BASKET, key="two")
    driver.run()
    assert sorted(driver.status(each) for each in (one, two)) == ["RUNNING", "WAITING_EXTERNAL"]
    requests = driver.new_requests()
    assert len(requests) == 6
    for request in requests:
        driver.complete(request, price(request))
    driver.run()
    assert driver.result(one) == driver.result(two)
    three = driver.submit(BASKET, key="three")
    driver.run()
    assert driver.status(three) == "RUNNING"


def test_async_functions_do_as_plain_ones(shop: Any, script: Any) -> None:
    """SURFACE '`run` names a plain or `async` function': an async source and an async suffix, the same outputs and retries."""
    driver = shop(
        "items", sets=("steps.split.run=shop.steps:split_later", "steps.receipt.run=shop.steps:receipt_later")
    )
    script.failures["receipt", "pear"] = [ValueError("one")]
    execution = driver.submit(BASKET)
    driver.run()
    for request in driver.new_requests():
        driver.complete(request, price(request))
    driver.run()
    driver.advance(1_000)
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == BASKET["lines"]
