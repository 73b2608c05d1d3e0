"""A stream into an await, live and suspending: facts in order, window, parking, gates, fan-out, equal outputs (DESIGN 7)."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from schemas import limits
from schemas.envelopes import RequestEnvelope
from schemas.facts import BoundaryCompletionAdmitted, BoundaryDispatchCompleted, BoundaryInteractionDispatched
from state.keys import item_key, unit_key
from state.tables.memory import MemoryStore
from tests.topologies.outside import answer, price

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

NO_LIVE = ("steps.ask.await.live=false",)


def basket(count: int, name: str = "b") -> dict[str, Any]:
    return {"id": name, "lines": [f"s{i}" for i in range(count)]}


def submitted(driver: TopologyTestDriver, count: int) -> tuple[str, list[RequestEnvelope]]:
    execution = driver.submit(basket(count))
    driver.run()
    requests = driver.new_requests()
    assert len(requests) == count
    return execution, requests


def skus(driver: TopologyTestDriver, execution: str) -> list[str]:
    return [receipt["sku"] for receipt in driver.result(execution)]


# --- what happens, in order -----------------------------------------------------------------------------------------------------------


def test_live_facts_in_order(make: Any) -> None:
    """DESIGN 7 'Live', BEHAVIOUR 135: row, then offer, then output; no gate is written on this path."""
    driver = make("items")
    execution, requests = submitted(driver, 2)
    answer(driver, requests[1])
    answer(driver, requests[0])
    assert driver.fact_names(execution) == [
        "RunSubmitted",
        "SegmentAttemptStarted",
        "BoundaryUnitOpened",
        "BoundaryInteractionDispatched",
        "BoundaryInteractionDispatched",
        "SourceEnded",
        "BoundaryCompletionAdmitted",
        "ContinuationCompleted",
        "BoundaryCompletionAdmitted",
        "ContinuationCompleted",
        "ContinuationSegmentCreated",
        "BoundaryUnitClosed",
        "RunSucceeded",
    ]
    unit = driver.rows()[unit_key(f"{execution}.1")]
    assert (unit.dispatched, unit.outputs, unit.completed, unit.dispatch_complete, unit.expected) == (
        2,
        2,
        0,
        False,
        None,
    )


def test_suspending_facts_in_order(make: Any) -> None:
    """DESIGN 7 'Suspending', BEHAVIOUR 107: parked once dispatch is complete; a continuation an item; the parent released once."""
    driver = make("items", sets=NO_LIVE)
    execution, requests = submitted(driver, 2)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    answer(driver, requests[1])
    answer(driver, requests[0])
    assert driver.fact_names(execution) == [
        "RunSubmitted",
        "SegmentAttemptStarted",
        "BoundaryUnitOpened",
        "BoundaryInteractionDispatched",
        "BoundaryInteractionDispatched",
        "SourceEnded",
        "BoundaryDispatchCompleted",
        "SegmentSuspended",
        "ContinuationsSwept",
        "BoundaryCompletionAdmitted",
        "ContinuationSegmentCreated",
        "ContinuationCompleted",
        "BoundaryCompletionAdmitted",
        "ContinuationSegmentCreated",
        "ContinuationCompleted",
        "ContinuationSegmentCreated",
        "BoundaryUnitClosed",
        "RunSucceeded",
    ]
    assert skus(driver, execution) == ["s0", "s1"]
    assert len(driver.records(driver.names.continuations)) == 2


def test_answers_before_parking_are_held_until_the_gates_open(make: Any) -> None:
    """BEHAVIOUR 101 to 103, CASES 52: dispatch is still going on; nothing continues before it is complete and the parent parked."""
    driver = make("items", sets=NO_LIVE)
    count = limits.PULL_ITEMS_MAX * 5 // 2
    execution = driver.submit(basket(count))
    while not (requests := driver.new_requests()):
        driver.step()
    for request in requests:
        driver.complete(request, price(request))
    driver.run()
    names = driver.fact_names(execution)
    admitted = names.index("BoundaryCompletionAdmitted")
    parked = names.index("SegmentSuspended")
    assert admitted < parked < names.index("ContinuationSegmentCreated")
    assert driver.metric("kawait_no_ops_total", reason="early-held") > 0
    (closed,) = [fact for fact in driver.facts(execution) if isinstance(fact, BoundaryDispatchCompleted)]
    before = sum(isinstance(fact, BoundaryCompletionAdmitted) for fact in driver.facts(execution)[:parked])
    assert (closed.expected, closed.completed) == (count, before)
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "SUCCEEDED"
    assert skus(driver, execution) == basket(count)["lines"]


# --- the window ------------------------------------------------------------------------------------------------------------------------


def test_a_live_window_of_two_lets_two_out(make: Any, script: Any) -> None:
    """BEHAVIOUR 131, DESIGN 7 'Live': a slot is freed by an output, and the source is read no further than one item ahead."""
    driver = make("items", sets=("steps.ask.await.live.window=2",))
    execution = driver.submit(basket(5))
    driver.run()
    out: list[RequestEnvelope] = driver.new_requests()
    assert [request.item_index for request in out] == [0, 1]
    assert script.count("line") <= 3
    for index in range(2, 5):
        answer(driver, out.pop(0))
        fresh = driver.new_requests()
        assert [request.item_index for request in fresh] == [index]
        out += fresh
    answer(driver, *out)
    assert skus(driver, execution) == basket(5)["lines"]


def test_an_answered_item_keeps_its_slot_until_its_output_is_stored(make: Any) -> None:
    """BEHAVIOUR 133: in-flight counts what is dispatched without output, so a slow suffix holds the window."""
    driver = make("items", sets=("steps.ask.await.live.window=2",))
    driver.submit(basket(5))
    driver.run()
    first, second = driver.new_requests()
    (pool, *_) = driver.pools
    pool.held = True
    answer_only(driver, first, second)
    assert driver.fact_names().count("BoundaryCompletionAdmitted") == 2
    assert driver.new_requests() == []
    pool.held = False
    driver.run()
    assert len(driver.new_requests()) == 2


def answer_only(driver: TopologyTestDriver, *requests: RequestEnvelope) -> None:
    """Answer while the pool is held: `run` would wait for it."""
    for request in requests:
        driver.complete(request, price(request))
    for _ in range(10):
        driver.step()


# --- parking -----------------------------------------------------------------------------------------------------------------------------


def test_an_idle_live_session_parks_its_unit(make: Any, logged: list[Any]) -> None:
    """DESIGN 7 'Handing over': idle for `live.idle` after the source's end: one transaction parks it; never live again; outputs in order."""
    driver = make("items")
    execution, requests = submitted(driver, 3)
    answer(driver, requests[2])
    driver.advance(9_000)
    assert driver.status(execution) == "RUNNING"
    driver.advance(1_001)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    assert driver.fact_names(execution)[-3:] == ["BoundaryDispatchCompleted", "SegmentSuspended", "ContinuationsSwept"]
    (closed,) = [fact for fact in driver.facts(execution) if isinstance(fact, BoundaryDispatchCompleted)]
    assert (closed.expected, closed.completed) == (3, 1)
    unit = driver.rows()[unit_key(f"{execution}.1")]
    assert (unit.live, unit.outputs, unit.completed) == (False, 1, 1)
    driver.crash()
    answer(driver, requests[0])
    assert driver.rows()[unit_key(f"{execution}.1")].live is False
    answer(driver, requests[1])
    assert driver.status(execution) == "SUCCEEDED"
    assert skus(driver, execution) == ["s0", "s1", "s2"]
    assert driver.fact_names(execution).count("BoundaryDispatchCompleted") == 1
    assert len(driver.records(driver.names.continuations)) == 2


def test_an_answer_in_the_moment_of_parking_is_counted(make: Any) -> None:
    """DESIGN 7 'Handing over': all counts of the parking transaction come from rows, whatever is on its way into the session."""
    driver = make("items")
    execution, requests = submitted(driver, 3)
    driver.complete(requests[1], price(requests[1]))
    for _ in range(3):
        driver.worker.loops["ingress"].step()
    driver.clock.advance(10_001)
    driver.run()
    driver.advance(10_001)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    facts = driver.facts(execution)
    (at,) = [number for number, fact in enumerate(facts) if isinstance(fact, BoundaryDispatchCompleted)]
    assert facts[at].completed == sum(isinstance(fact, BoundaryCompletionAdmitted) for fact in facts[:at])
    answer(driver, requests[0], requests[2])
    assert skus(driver, execution) == ["s0", "s1", "s2"]


def test_parked_is_quiet(shop: Any, logged: list[Any]) -> None:
    """DESIGN 7, BEHAVIOUR 83, 85: parking is normal: no warning, no error count, no retry, no dead letter, no exception."""
    driver = shop("items", sets=("steps.ask.timeout=PT24H",))
    execution, requests = submitted(driver, 3)
    answer(driver, requests[0])
    for _ in range(30):
        driver.advance(60_000)
    assert driver.status(execution) == "WAITING_EXTERNAL"
    assert [entry for entry in logged if entry["log_level"] not in {"debug", "info"}] == []
    names = driver.fact_names(execution)
    assert not {"SegmentAttemptFailed", "ContinuationAttemptFailed", "RunFailed", "InteractionTimedOut"} & set(names)
    assert driver.dead_letters() == []
    assert driver.refusals() == []
    for role in ("core", "ingress", "continuation"):
        assert driver.metric("kawait_aborts_total", role=role) == 0
    facts = len(driver.facts())
    driver.advance(3_600_000)
    assert len(driver.facts()) == facts, "an hour of waiting writes nothing"
    row = driver.execution(execution)
    assert (row.attempt, row.error_code, row.error_message) == (1, None, None)


# --- how many ------------------------------------------------------------------------------------------------------------------------------


def test_an_empty_stream_succeeds_at_once(shop: Any) -> None:
    """BEHAVIOUR 120, 121, 142, CASES 53, DESIGN 8.5: no request, no wait, an empty list."""
    driver = shop("items")
    execution = driver.submit(basket(0))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution) == []
    assert driver.new_requests() == []
    assert driver.fact_names(execution).count("BoundaryUnitClosed") == 1


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("path", ["live={window: 8192, idle: PT10S}", "live=false"])
def test_five_thousand_items(make: Any, path: str, order: str) -> None:
    """CASES 49, 55: all complete, in input order; a second execution started meanwhile is not blocked."""
    driver = make("items", sets=("kafka.partitions=1", f"steps.ask.await.{path}"))
    big = driver.submit(basket(5_000, "big"))
    driver.step()
    small = driver.submit(basket(1, "small"))
    driver.run()
    waiting = driver.new_requests()
    assert len(waiting) == 5_001
    answer(driver, *[request for request in waiting if request.execution_id == small])
    assert driver.status(small) == "SUCCEEDED"
    mine = [request for request in waiting if request.execution_id == big]
    answer(driver, *(mine if order == "forwards" else reversed(mine)))
    assert driver.status(big) == "SUCCEEDED"
    assert skus(driver, big) == basket(5_000)["lines"]
    names = Counter(driver.fact_names(big))
    assert names["ContinuationCompleted"] == names["BoundaryCompletionAdmitted"] == 5_000


def _work(shop: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[int, int, int]:
    """Rows read from stores, bytes of all changelogs, records of all topics, for one basket answered in small batches."""
    read = 0

    def counted_get(store: MemoryStore, keys: Any, _real: Any = MemoryStore.get_many) -> Any:
        nonlocal read
        read += len(keys)
        return _real(store, keys)

    def counted_scan(store: MemoryStore, *span: Any, _real: Any = MemoryStore.scan) -> Any:
        nonlocal read
        for row in _real(store, *span):
            read += 1
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "get_many", counted_get)
        patch.setattr(MemoryStore, "scan", counted_scan)
        driver = shop("items", sets=("kafka.partitions=1",))
        execution = driver.submit(basket(count))
        driver.run()
        requests = driver.new_requests()
        for first in range(0, count, 20):
            answer(driver, *requests[first : first + 20])
        assert driver.status(execution) == "SUCCEEDED"
    tables = ("executions", "units", "interactions", "items")
    logs = [driver.records(driver.names.changelog(table)) for table in tables]
    size = sum(len(record.value or b"") + len(record.key or b"") for log in logs for record in log)
    return read, size, sum(map(len, logs)) + len(driver.records(driver.names.facts))


def test_work_grows_linearly(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 50, 56: at twice the items at most 2.2 times the rows read, the changelog bytes and the records."""
    once, twice = _work(shop, monkeypatch, 400), _work(shop, monkeypatch, 800)
    for name, small, large in zip(("rows read", "changelog bytes", "records"), once, twice, strict=True):
        assert large <= 2.2 * small, f"{name}: {small} at 400 items, {large} at 800"


def test_the_unit_row_does_not_grow(shop: Any) -> None:
    """CASES 58, DESIGN 7: counters only, never key sets."""
    sizes = []
    for count in (10, 1_000):
        driver = shop("items", sets=("kafka.partitions=1",))
        _, requests = submitted(driver, count)
        answer(driver, *requests[:-1])
        sizes.append(max(len(record.value or b"") for record in driver.records(driver.names.changelog("units"))))
    assert sizes[1] <= sizes[0] + 16


# --- both paths agree ----------------------------------------------------------------------------------------------------------------------


def test_both_paths_give_the_same_outputs(make: Any) -> None:
    """DESIGN 7, BEHAVIOUR 100, 113, 114: nought, one and two outputs an item, answered in three orders, live, parked half-way and suspending."""

    def amount(request: RequestEnvelope) -> str:
        return ("0", "7.5", "100")[(request.item_index or 0) % 3]

    results = []
    for sets in ((), NO_LIVE, ("steps.ask.await.live.idle=PT1S",)):
        for turn in (1, -1):
            driver = make("several", sets=sets)
            execution, requests = submitted(driver, 9)
            for number, request in enumerate(requests[::turn]):
                driver.complete(request, price(request, amount(request)))
                driver.advance(600 if number == 4 else 300)
            results.append((driver.status(execution), driver.result(execution)))
    assert results[0][0] == "SUCCEEDED"
    assert results[0][1]["skus"] == ["s1", "s2", "s2", "s4", "s5", "s5", "s7", "s8", "s8"]
    assert results == [results[0]] * 6


def test_the_aggregate_runs_once_with_everything_in_order(shop: Any, script: Any) -> None:
    """BEHAVIOUR 127, 107: the parent is released once, at the aggregate, and its unit is closed by then."""
    driver = shop("several")
    execution, requests = submitted(driver, 3)
    answer(driver, *requests[:2])
    assert script.count("total") == 0
    answer(driver, requests[2])
    assert script.calls[-1] == ("total", "3")
    assert script.count("total") == 1
    assert driver.result(execution) == {"skus": ["s0", "s1", "s2"], "price": "4.50"}
    names = driver.fact_names(execution)
    assert names[-5:] == [
        "BoundaryUnitClosed",
        "ContinuationSegmentCreated",
        "SegmentAttemptStarted",
        "SegmentCompleted",
        "RunSucceeded",
    ]
    answer(driver, *requests)
    assert script.count("total") == 1
    assert driver.fact_names(execution) == names


def test_an_aggregate_over_an_empty_stream(shop: Any, script: Any) -> None:
    """BEHAVIOUR 120, DESIGN 8.5: the aggregate still runs, over nothing."""
    driver = shop("several")
    execution = driver.submit(basket(0))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.result(execution) == {"skus": [], "price": "0"}


def test_one_request_record_an_item(shop: Any) -> None:
    """DESIGN 7 'Live': exactly one request record per item, with row and fact in one transaction; the envelope is complete."""
    driver = shop("items", sets=("steps.ask.await.correlation.strategy=signedResumeToken",))
    execution, requests = submitted(driver, 3)
    facts = [fact for fact in driver.facts(execution) if isinstance(fact, BoundaryInteractionDispatched)]
    for fact, request in zip(facts, requests, strict=True):
        assert request.interaction_id == request.correlation_id == f"{execution}.1.{fact.item_index}"
        assert (request.tenant_id, request.step_id, request.idempotency_key) == ("default", "ask", fact.idempotency_key)
        assert (request.deadline_epoch_ms, bytes(request.request_payload)) == (fact.deadline_ms, fact.request)
        assert request.resume_token
    for record in driver.records("items.asked"):
        headers = dict(record.headers)
        body = json.loads(record.value or b"")
        assert headers["kawait-interaction-id"] == record.key == body["interactionId"].encode()
        assert headers["kawait-resume-token"] == body["resumeToken"].encode()
        assert headers["kawait-response-topic"] == b"items.answered"


def test_a_repeated_continuation_record_adds_nothing(make: Any) -> None:
    """BEHAVIOUR 104, 105, 111: the record is run twice, its outcome counts once."""
    driver = make("items", sets=NO_LIVE)
    execution, requests = submitted(driver, 2)
    answer(driver, requests[0])
    (record,) = driver.records(driver.names.continuations)
    for _ in range(3):
        driver.send_raw(driver.names.continuations, record.value, key=record.key)
    driver.run()
    unit = driver.rows()[unit_key(f"{execution}.1")]
    assert (unit.outputs, unit.completed) == (1, 1)
    assert driver.fact_names(execution).count("ContinuationCompleted") == 1
    assert driver.metric("kawait_no_ops_total", reason="already-continued") == 3
    assert driver.rows()[item_key(f"{execution}.1", 0)].outputs
    answer(driver, requests[1])
    assert driver.status(execution) == "SUCCEEDED"


def test_a_lost_continuation_record_is_emitted_again(make: Any) -> None:
    """DESIGN 7 'every wait has a deadline', BEHAVIOUR 110: no continuation agent answers; the record is emitted again, then the item fails."""
    driver = make("items", sets=(*NO_LIVE, "steps.ask.timeout=PT240H"))
    execution, requests = submitted(driver, 1)
    agent = driver.worker.loops.pop("continuation")
    answer(driver, requests[0])
    assert len(driver.records(driver.names.continuations)) == 1
    driver.advance(600_000)
    assert len(driver.records(driver.names.continuations)) == 2
    driver.worker.loops["continuation"] = agent
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.fact_names(execution).count("ContinuationCompleted") == 1


def test_without_any_continuation_agent_the_execution_fails_and_says_so(make: Any) -> None:
    """DESIGN 7 'every wait has a deadline', CASES 47: never a silent wait for ever."""
    driver = make("items", sets=(*NO_LIVE, "steps.ask.timeout=PT240H"))
    execution, requests = submitted(driver, 1)
    driver.worker.loops.pop("continuation")
    answer(driver, requests[0])
    for _ in range(40):
        driver.advance(600_000)
    assert driver.status(execution) == "FAILED"
    assert "role `continuation`" in driver.dead_letters()[0].detail
