"""Items that fail or expire behind an await: they stop nobody, and `onError` leaves them out (DECISIONS 8 and 9, FAULTS K9)."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from schemas.envelopes import DeadLetter
from schemas.facts import BoundaryDispatchCompleted, ContinuationSkipped
from schemas.identity import interaction_id, letter_id
from state.item import ItemStatus
from state.keys import item_key, unit_key
from state.unit import UnitRecord
from tests.topologies.outside import answer, price

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum", "quince"]}
LETTER = ("steps.receipt.onError={deadLetter: true}",)
SKIP = ("steps.receipt.onError={skip: true}",)


def never(script: Any, *subjects: str, function: str = "receipt") -> None:
    """Let a function fail for these, however often it is tried."""
    for subject in subjects:
        script.failures[function, subject] = [ValueError(f"no {subject} today") for _ in range(99)]


def waited(driver: TopologyTestDriver) -> None:
    """Let all retries happen."""
    for _ in range(6):
        driver.advance(5_000)


def answered(driver: TopologyTestDriver, execution: str) -> None:
    """Answer whatever is asked until the execution has ended or waits for something else."""
    for _ in range(20):
        driver.run()
        requests = driver.new_requests()
        if not requests:
            break
        answer(driver, *requests)
        waited(driver)
    assert driver.execution(execution) is not None


def unit_of(driver: TopologyTestDriver, execution: str) -> UnitRecord:
    unit = driver.rows()[unit_key(f"{execution}.1")]
    assert isinstance(unit, UnitRecord)
    return unit


def skus(driver: TopologyTestDriver, execution: str) -> list[str]:
    return [receipt["sku"] for receipt in driver.result(execution)]


def item_letters(driver: TopologyTestDriver) -> list[DeadLetter]:
    return [letter for letter in driver.dead_letters() if letter.kind == "item"]


# --- failed ------------------------------------------------------------------------------------------------------------------------------


def test_the_others_are_asked_answered_and_stored_before_the_execution_fails(shop: Any, script: Any) -> None:
    driver = shop("items")
    never(script, "apple", "plum")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    answer(driver, *requests[:3])
    waited(driver)
    assert driver.status(execution) in {"RUNNING", "WAITING_EXTERNAL"}, (
        "pear is done, apple and plum failed, quince is open"
    )
    assert driver.dead_letters() == []
    unit = unit_of(driver, execution)
    assert (unit.is_open, unit.outputs, unit.failed) == (True, 1, 2)
    answer(driver, requests[3])
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.reason) == ("execution", "AWAIT_ITEM_CONTINUATION_FAILED")
    assert letter.detail.startswith("2 of 4 items failed: item ")
    for index, sku in ((0, "apple"), (2, "plum")):
        assert f"item {index}: STEP_FAILED: step receipt: ValueError: no {sku} today" in letter.detail
    assert driver.fact_names(execution)[-2:] == ["BoundaryUnitClosed", "RunFailed"]
    rows = driver.rows()
    statuses = [rows[item_key(f"{execution}.1", index)].status for index in range(4)]
    assert statuses == [ItemStatus.FAILED, ItemStatus.SUCCEEDED] * 2, "all of it stays, for whoever does it again"
    (told,) = [reply for reply in driver.replies() if reply.status == "FAILED"]
    assert (told.succeeded, told.skipped) == (2, 0)


def test_a_failed_item_frees_its_slot(make: Any, script: Any) -> None:
    """Else a window that is full of failed items would never read on."""
    driver = make("items", sets=("steps.ask.await.live.window=1",))
    never(script, *BASKET["lines"])
    execution = driver.submit(BASKET)
    answered(driver, execution)
    assert [request.item_index for request in driver.requests()] == [0, 1, 2, 3]
    assert driver.status(execution) == "FAILED"
    assert len(driver.dead_letters()) == 1


def test_an_expired_item_ends_the_execution_at_once_whatever_has_failed(shop: Any, script: Any) -> None:
    driver = shop("items")
    never(script, "apple")
    execution = driver.submit(BASKET)
    driver.run()
    answer(driver, driver.new_requests()[0])
    waited(driver)
    driver.advance(60_000)
    row = driver.execution(execution)
    assert row is not None
    assert (row.status, row.error_code) == ("FAILED", "AWAIT_TIMEOUT")


# --- left out ----------------------------------------------------------------------------------------------------------------------------


def test_an_item_that_fails_is_left_out_with_a_letter_that_has_all_of_it(shop: Any, script: Any) -> None:
    driver = shop("items", sets=LETTER)
    never(script, "pear")
    execution = driver.submit(BASKET)
    answered(driver, execution)
    assert driver.status(execution) == "SUCCEEDED"
    assert skus(driver, execution) == ["apple", "plum", "quince"]
    assert script.calls.count(("receipt", "pear")) == 3, "after the last attempt"
    (letter,) = driver.dead_letters()
    iid = interaction_id(f"{execution}.1", 1)
    assert (letter.kind, letter.reason, letter.step_id) == ("item", "STEP_FAILED", "receipt")
    assert (letter.execution_id, letter.interaction_id, letter.item_index) == (execution, iid, 1)
    assert (letter.tenant_id, letter.letter_id) == ("default", letter_id(iid, 3))
    assert "no pear today" in letter.detail
    assert letter.value is not None
    assert json.loads(letter.value) == {
        "request": {"basket": "b1", "sku": "pear"},
        "completion": {"sku": "pear", "price": "1.50"},
    }
    assert (letter.value_length, letter.value_sha256) == (len(letter.value), hashlib.sha256(letter.value).hexdigest())
    item = driver.rows()[item_key(f"{execution}.1", 1)]
    assert (item.status, item.error_code, item.letter_id) == (ItemStatus.SKIPPED, "STEP_FAILED", letter.letter_id)
    (told,) = [reply for reply in driver.replies() if reply.status == "SUCCEEDED"]
    assert (told.succeeded, told.skipped) == (3, 1)
    unit = unit_of(driver, execution)
    assert (unit.succeeded, unit.skipped, unit.failed) == (3, 1, 0)


def test_an_item_may_be_left_out_without_a_letter(shop: Any, script: Any) -> None:
    driver = shop("items", sets=SKIP)
    never(script, "pear", "quince")
    execution = driver.submit(BASKET)
    answered(driver, execution)
    assert skus(driver, execution) == ["apple", "plum"]
    assert driver.dead_letters() == []
    skipped = [fact for fact in driver.facts(execution) if isinstance(fact, ContinuationSkipped)]
    assert {(fact.item_index, fact.error_code, fact.letter_id) for fact in skipped} == {
        (1, "STEP_FAILED", None),
        (3, "STEP_FAILED", None),
    }


def test_a_stream_that_loses_every_item_ends_well_and_empty(shop: Any, script: Any) -> None:
    driver = shop("items", sets=(*LETTER, "steps.ask.await.live={window: 2}"))
    never(script, *BASKET["lines"])
    execution = driver.submit(BASKET)
    answered(driver, execution)
    assert (driver.status(execution), driver.result(execution)) == ("SUCCEEDED", [])
    assert sorted(letter.item_index or 0 for letter in item_letters(driver)) == [0, 1, 2, 3]


def answered_with_crashes(driver: TopologyTestDriver, crash_after: int) -> str:
    """Answer everything that is asked while the worker dies three times, the first time after so many turns."""
    execution = driver.submit(BASKET)
    for turn in range(1, 70):
        driver.step()
        for request in driver.new_requests():
            driver.complete(request, price(request))
        if turn % 9 == 0:
            driver.clock.advance(2_500)
        if turn in {crash_after, crash_after + 7, crash_after + 16}:
            driver.crash()
    waited(driver)
    return execution


@pytest.mark.parametrize("crash_after", range(1, 40, 2))
@pytest.mark.parametrize("path", ["live={window: 2, idle: PT10S}", "live=false"])
def test_a_crash_after_any_turn_makes_no_second_letter(make: Any, script: Any, path: str, crash_after: int) -> None:
    driver = make("items", sets=(*LETTER, f"steps.ask.await.{path}"))
    never(script, "apple", "plum")
    execution = answered_with_crashes(driver, crash_after)
    assert driver.status(execution) == "SUCCEEDED"
    assert skus(driver, execution) == ["pear", "quince"]
    assert sorted(letter.item_index or 0 for letter in driver.dead_letters()) == [0, 2]
    assert driver.fact_names(execution).count("ContinuationSkipped") == 2
    assert len(driver.requests()) == 4


@pytest.mark.parametrize("crash_after", range(1, 40, 3))
def test_a_crash_after_any_turn_fails_the_execution_once(shop: Any, script: Any, crash_after: int) -> None:
    driver = shop("items")
    never(script, "apple", "plum")
    execution = answered_with_crashes(driver, crash_after)
    assert driver.status(execution) == "FAILED"
    assert [letter.kind for letter in driver.dead_letters()] == ["execution"]
    assert unit_of(driver, execution).failed == 2


@pytest.mark.parametrize("crash", [False, True])
def test_parking_counts_answers_and_not_what_was_left_out_without_one(make: Any, script: Any, crash: bool) -> None:
    driver = make(
        "items", sets=("steps.ask.onTimeout={skip: true}", "steps.ask.await.live={window: 3, idle: PT25S}", *SKIP)
    )
    never(script, "pear")
    execution = driver.submit(BASKET)
    driver.run()
    driver.advance(30_000)
    requests = driver.new_requests()
    answer(driver, *requests[:2])  # apple is stored, pear fails, quince is asked; plum will expire
    waited(driver)
    if crash:
        driver.crash()
        driver.run()
    driver.advance(25_001)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    (closed,) = [fact for fact in driver.facts(execution) if isinstance(fact, BoundaryDispatchCompleted)]
    assert (closed.expected, closed.completed) == (4, 2)
    unit = unit_of(driver, execution)
    assert (unit.succeeded, unit.skipped, unit.outputs) == (1, 2, 3)
    assert unit.completed == 2
    (quince,) = driver.new_requests()
    answer(driver, quince)
    assert skus(driver, execution) == ["apple", "quince"]


def test_an_aggregate_gets_the_list_without_what_was_left_out(shop: Any, script: Any) -> None:
    driver = shop("several", sets=("steps.receipts.onError={deadLetter: true}",))
    never(script, "pear", function="receipts")
    execution = driver.submit(BASKET)
    answered(driver, execution)
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution)["skus"] == ["apple", "plum", "quince"]
    assert [letter.item_index for letter in driver.dead_letters()] == [1]


def test_an_output_topic_gets_nothing_for_what_was_left_out(shop: Any, script: Any) -> None:
    driver = shop("counter", sets=LETTER)
    never(script, "pear")
    execution = driver.submit(BASKET)
    answered(driver, execution)
    assert driver.status(execution) == "SUCCEEDED"
    written = {json.loads(record.value or b"")["sku"] for record in driver.records("counter.out")}
    assert written == {"apple", "plum", "quince"}
