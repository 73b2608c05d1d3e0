"""The author's functions fail: retry, time limit, dead letter; before the await, behind it, and behind the aggregate."""

from __future__ import annotations

import json
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from schemas import limits
from schemas.facts import ContinuationAttemptFailed, SegmentAttemptFailed
from streams.author.local import LocalItems
from streams.engine.pool import ThreadPool
from tests.topologies.outside import answer

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}
LINE = {"basket": "b1", "sku": "apple"}


def test_a_step_is_tried_again_on_time(make: Any, script: Any) -> None:
    """BEHAVIOUR F98, DESIGN 7 'Inline calls': base, then doubled; each attempt is a fact; nothing is dead-lettered while one is left."""
    driver = make("scalar")
    script.failures["check", "apple"] = [ValueError("one"), ValueError("two")]
    execution = driver.submit(LINE)
    driver.run()
    assert driver.status(execution) == "WAIT_RETRY"
    driver.advance(999)
    assert script.count("check") == 1
    driver.advance(1)
    driver.advance(1_999)
    assert script.count("check") == 2
    driver.advance(1)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    failed = [fact for fact in driver.facts(execution) if isinstance(fact, SegmentAttemptFailed)]
    assert [(fact.attempt, fact.error_code) for fact in failed] == [(1, "STEP_FAILED"), (2, "STEP_FAILED")]
    assert "ValueError: one" in failed[0].error_message
    assert driver.dead_letters() == []
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"


def test_a_step_that_keeps_failing_is_dead_lettered_once(make: Any, script: Any, logged: list[Any]) -> None:
    """DESIGN 8.8: attempts used up: FAILED and one dead letter that names step, error and input."""
    driver = make("scalar")
    script.failures["check", "apple"] = [ValueError(f"number {number}") for number in range(9)]
    execution = driver.submit(LINE)
    driver.run()
    for _ in range(10):
        driver.advance(60_000)
    assert script.count("check") == 3
    assert driver.fact_names(execution)[-1] == "RunFailed"
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.execution_id, letter.step_id, letter.reason) == (
        "execution",
        execution,
        "check",
        "STEP_FAILED",
    )
    assert "number 2" in letter.detail
    assert json.loads(letter.value or b"") == LINE
    (record,) = driver.records(driver.names.dlq)
    assert dict(record.headers)["kawait-error"] == b"STEP_FAILED"
    assert driver.metric("kawait_dead_letters_total", reason="STEP_FAILED") == 1
    assert [entry for entry in logged if entry["log_level"] in {"error", "critical", "exception"}] == []


def test_an_error_that_no_retry_helps_fails_at_once(make: Any, script: Any) -> None:
    """SURFACE `nonRetryable`: one attempt, subclasses count too."""
    driver = make("scalar", sets=("steps.check.retry.nonRetryable=[LookupError]",))
    script.failures["check", "apple"] = [KeyError("gone")]
    execution = driver.submit(LINE)
    driver.run()
    assert driver.status(execution) == "FAILED"
    assert script.count("check") == 1


def test_a_crash_between_attempts_keeps_the_count(make: Any, script: Any) -> None:
    """BEHAVIOUR 91: attempts are rows; a restart neither forgets nor repeats one."""
    driver = make("scalar")
    script.failures["check", "apple"] = [ValueError(str(number)) for number in range(9)]
    execution = driver.submit(LINE)
    driver.run()
    for _ in range(4):
        driver.crash()
        driver.advance(10_000)
    assert driver.status(execution) == "FAILED"
    assert script.count("check") == 3


def test_a_failing_step_does_not_hold_its_neighbours(make: Any, script: Any) -> None:
    """DESIGN 8.7: executions of one partition go on while one waits for its retry."""
    driver = make("scalar", sets=("kafka.partitions=1",))
    script.failures["check", "apple"] = [ValueError("again")] * 2
    stuck = driver.submit(LINE)
    fine = driver.submit({"basket": "b1", "sku": "pear"})
    driver.run()
    answer(driver, *driver.new_requests())
    assert (driver.status(stuck), driver.status(fine)) == ("WAIT_RETRY", "SUCCEEDED")


# --- the suffix ------------------------------------------------------------------------------------------------------------------------------


def test_one_items_suffix_is_tried_again_and_the_others_go_on(shop: Any, script: Any) -> None:
    """BEHAVIOUR 116, DESIGN 7: the owner keeps attempts and timers, on both paths; outputs in input order, other suffixes run once."""
    driver = shop("items")
    script.failures["receipt", "pear"] = [ValueError("one"), ValueError("two")]
    execution = driver.submit(BASKET)
    driver.run()
    answer(driver, *driver.new_requests())
    assert driver.status(execution) in {"RUNNING", "WAITING_EXTERNAL"}
    driver.advance(1_000)
    assert script.calls.count(("receipt", "pear")) == 2
    driver.advance(2_000)
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == BASKET["lines"]
    assert [script.calls.count(("receipt", sku)) for sku in BASKET["lines"]] == [1, 3, 1]
    failed = [fact for fact in driver.facts(execution) if isinstance(fact, ContinuationAttemptFailed)]
    assert [(fact.item_index, fact.attempt) for fact in failed] == [(1, 1), (1, 2)]
    assert driver.dead_letters() == []


def test_a_retry_outlives_crash_and_parking(make: Any, script: Any) -> None:
    """DESIGN 7 'Handing over': between two attempts the worker dies and the session idles out; the item is still tried on time, once."""
    driver = make("items", sets=("steps.receipt.retry={attempts: 3, base: PT30S}",))
    script.failures["receipt", "pear"] = [ValueError("one")]
    execution = driver.submit(BASKET)
    driver.run()
    answer(driver, *driver.new_requests())
    driver.crash()
    driver.run()
    driver.advance(11_000)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.advance(18_000)
    assert script.calls.count(("receipt", "pear")) == 1
    driver.advance(1_000)
    assert script.calls.count(("receipt", "pear")) == 2
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == BASKET["lines"]


def test_a_retry_that_fell_due_while_the_worker_was_down_counts_once(
    make: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the timer rings after the batch that opens the session, both offer the item; the second outcome meets the row of the first."""
    monkeypatch.setattr(limits, "BATCH_RECORDS_MAX", 1)
    driver = make("items", sets=("steps.receipt.retry={attempts: 3, base: PT5S}",))
    script.failures["receipt", "pear"] = [ValueError("one")]
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    answer(driver, *requests[:2])
    driver.hold()
    driver.clock.advance(6_000)
    driver.crash()
    driver.hold()
    for _ in range(5):  # the session opens, then the timer rings
        driver.step()
    run_jobs_one_by_one(driver)
    assert script.calls.count(("receipt", "pear")) == 3
    assert driver.fact_names(execution).count("ContinuationCompleted") == 2
    driver.release()
    answer(driver, *requests[2:])
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.dead_letters() == []


def run_jobs_one_by_one(driver: TopologyTestDriver) -> None:
    """Each job of the pool ends, and its result is committed, before the next one is run."""
    for _ in range(100):
        driver.step()
        pool = next((pool for pool in driver.pools if pool.jobs), None)
        if pool is not None:
            pool.run_one()


def test_a_suffix_that_keeps_failing_fails_the_parent_once(shop: Any, script: Any) -> None:
    """BEHAVIOUR 117, DESIGN 8.8: one dead letter, of the root, once the siblings are stored; the unit is closed."""
    driver = shop("items")
    script.failures["receipt", "pear"] = [ValueError(str(number)) for number in range(9)]
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    answer(driver, *requests)
    for _ in range(5):
        driver.advance(5_000)
    assert driver.status(execution) == "FAILED"
    assert script.calls.count(("receipt", "pear")) == 3
    assert driver.fact_names(execution)[-3:] == ["ContinuationAttemptFailed", "BoundaryUnitClosed", "RunFailed"]
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.reason, letter.execution_id) == (
        "execution",
        "AWAIT_ITEM_CONTINUATION_FAILED",
        execution,
    )
    assert "item 1" in letter.detail
    driver.advance(600_000)
    assert driver.status(execution) == "FAILED"


def test_a_suffix_error_that_no_retry_helps(shop: Any, script: Any) -> None:
    """SURFACE `nonRetryable` behind the await: one attempt."""
    driver = shop("items")
    script.failures["receipt", "pear"] = [KeyError("gone")]
    execution = driver.submit(BASKET)
    driver.run()
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "FAILED"
    assert script.calls.count(("receipt", "pear")) == 1


def test_the_source_fails_half_way_and_goes_on(shop: Any, script: Any) -> None:
    """BEHAVIOUR 124, 143, HOLE 4: a new attempt compares and skips what is out, asks only the rest, and completes."""
    driver = shop("items", sets=("kafka.partitions=1",))
    script.failures["line", "s1500"] = [OSError("disk")]
    execution = driver.submit({"id": "b", "lines": [f"s{number}" for number in range(2_000)]})
    driver.run()
    for _ in range(3):
        answer(driver, *driver.new_requests())
    assert driver.status(execution) == "WAIT_RETRY"
    driver.advance(1_000)
    for _ in range(4):
        answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert len(driver.requests()) == 2_000
    assert len(driver.result(execution)) == 2_000


def test_the_aggregate_is_tried_again_with_the_same_items(shop: Any, script: Any) -> None:
    """BEHAVIOUR 93: the pointer to the unit stays, so the retry sees the same outputs."""
    driver = shop("several")
    script.failures["total", "3"] = [ValueError("one")]
    execution = driver.submit(BASKET)
    driver.run()
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "WAIT_RETRY"
    driver.crash()
    driver.advance(1_000)
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution)["skus"] == BASKET["lines"]
    assert script.count("total") == 2


def test_a_segment_after_a_scalar_answer_is_tried_again(make: Any, script: Any) -> None:
    """BEHAVIOUR 93, 91: the answer is loaded again from its row; it is not asked again."""
    driver = make("scalar")
    script.failures["receipt", "apple"] = [ValueError("one")]
    execution = driver.submit(LINE)
    driver.run()
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "WAIT_RETRY"
    driver.crash()
    driver.advance(1_000)
    assert driver.status(execution) == "SUCCEEDED"
    assert len(driver.requests()) == 1


def test_a_call_that_overstays_is_given_up(make: Any, script: Any) -> None:
    """SURFACE `callTimeout`, DESIGN 6: the real pool gives the call up and reports CALL_TIMEOUT; its late result is dropped."""
    driver = make("scalar", sets=("steps.check.callTimeout=PT5S", "steps.check.retry.attempts=1"))
    let_go, entered = Event(), Event()

    def stay(_sku: str) -> None:
        entered.set()
        let_go.wait(10)

    script.effects["check"] = stay
    driver.run()
    pool = ThreadPool(1, driver.clock)
    loop = driver.worker.loops["core"]
    loop._pool = pool
    for task in set(loop.tasks.values()):
        task.agenda._pool = pool
    driver.worker.pools[0] = pool
    execution = driver.submit(LINE)
    for _ in range(50):
        driver.step()
        if entered.is_set():
            break
    assert entered.wait(5)
    driver.clock.advance(5_001)
    for _ in range(20):
        driver.step()
    assert driver.status(execution) == "FAILED"
    assert driver.dead_letters()[0].reason == "CALL_TIMEOUT"
    let_go.set()


def test_two_questions_in_a_row(make: Any) -> None:
    """BEHAVIOUR 95, 96: two units, the second opened when the first is done; a repeated first answer does not touch the second."""
    driver = make("sequel")
    execution = driver.submit(LINE)
    driver.run()
    (first,) = driver.new_requests()
    answer(driver, first)
    (second,) = driver.new_requests()
    assert (first.step_id, second.step_id) == ("ask", "ask-again")
    assert first.interaction_id != second.interaction_id
    answer(driver, first)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    driver.crash()
    answer(driver, second)
    assert driver.status(execution) == "SUCCEEDED"
    names = driver.fact_names(execution)
    assert names.count("BoundaryUnitOpened") == names.count("BoundaryUnitClosed") == 2
    assert driver.refusals() == []


def test_a_stream_that_failed_is_closed(make: Any, script: Any, monkeypatch: Any) -> None:
    """Each attempt opens its own; what a failed one holds is freed with it."""
    closed: list[object] = []

    def close(items: LocalItems) -> None:
        closed.append(items)

    monkeypatch.setattr(LocalItems, "close", close)
    driver = make("items")
    script.failures["line", "apple"] = [ValueError("torn"), ValueError("torn again")]
    driver.submit(BASKET)
    driver.run()
    assert len(closed) == 1
    driver.advance(1_000)
    assert len(closed) == 2
