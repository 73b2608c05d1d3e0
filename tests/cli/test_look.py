"""`status`, `trace`, `refusals` and `dlq`, as a person and as a machine see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from streams.doors.views import Views, target
from streams.log.memory.log import MemoryLog
from streams.log.seam import TopicPartition
from streams.testing.driver import TopologyTestDriver

Run = Callable[..., Result]


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def finished(driver: TopologyTestDriver, *, approved: bool = True, order: str = "7") -> str:
    execution = driver.submit({"orderId": order})
    driver.run()
    for request in driver.new_requests():
        driver.complete(request, {"approved": approved})
    driver.run()
    return execution


# --- status ---------------------------------------------------------------------------------------------------------------------------


def test_status_of_a_parked_execution_names_where_it_waits(driver: TopologyTestDriver, run: Run) -> None:
    execution = driver.submit({"orderId": "7"})
    driver.run()
    (found,) = lines(run("status", "--app", "approvals", execution, "--json"))
    assert found["status"] == "WAITING_EXTERNAL"
    assert found["awaitUnitId"] == f"{execution}.0"
    assert [unit["status"] for unit in found["units"]] == ["WAITING_EXTERNAL"]
    shown = run("status", "--app", "approvals", execution).stdout
    assert "WAITING_EXTERNAL" in shown
    assert "ask-manager" in shown


def test_status_of_an_ended_execution_has_its_result(driver: TopologyTestDriver, run: Run, pipeline: Path) -> None:
    execution = finished(driver)
    (found,) = lines(run("status", pipeline, execution, "--json"))
    assert (found["status"], found["result"], found["stepIndex"]) == ("SUCCEEDED", {"text": "yes"}, 2)


def test_status_of_a_failed_execution_says_why(driver: TopologyTestDriver, run: Run, pipeline: Path) -> None:
    execution = finished(driver, approved=False)
    shown = run("status", execution, pipeline).stdout  # either order
    assert "FAILED" in shown
    assert "we write no letters of refusal" in shown


def test_status_of_an_interaction(driver: TopologyTestDriver, run: Run) -> None:
    execution = finished(driver)
    (found,) = lines(run("status", "--app", "approvals", f"{execution}.0.u", "--json"))
    assert (found["status"], found["stepId"]) == ("COMPLETED", "ask-manager")
    assert (found["request"], found["completion"]) == ({"orderId": "7"}, {"approved": True})


def test_a_late_answer_is_kept_and_shown_without_its_token(driver: TopologyTestDriver, run: Run) -> None:
    execution = driver.submit({"orderId": "7"})
    driver.run()
    driver.advance(3_600_001)
    (request,) = driver.new_requests()
    driver.complete(request, {"approved": True})
    driver.run()
    (found,) = lines(run("status", "--app", "approvals", f"{execution}.0.u", "--json"))
    assert found["late"]["answer"] == {"approved": True}
    assert found["late"]["resumeToken"] in {None, "***"}
    assert "late answer" in run("status", "--app", "approvals", f"{execution}.0.u").stdout
    (refused,) = lines(run("refusals", "--app", "approvals", "--json"))
    assert (refused["reason"], refused["kept"]) == ("late", True)


def test_an_interaction_whose_unit_ended_is_not_pending(driver: TopologyTestDriver, run: Run) -> None:
    execution = driver.submit({"orderId": "7"})
    driver.run()
    driver.cancel(execution)
    driver.run()
    (found,) = lines(run("status", "--app", "approvals", f"{execution}.0.u", "--json"))
    assert found["status"] == "CLOSED"


def test_an_unknown_id_is_an_error_and_not_an_empty_answer(driver: TopologyTestDriver, run: Run) -> None:
    for command in ("status", "trace"):
        for name in ("nobody", "nobody.0.u"):
            result = run(command, "--app", "approvals", name)
            assert result.exit_code == 1
            assert "nobody" in result.stderr
            assert result.stdout == ""


def test_an_app_that_is_not_there_is_named(driver: TopologyTestDriver, run: Run) -> None:
    result = run("status", "--app", "nothing", "x")
    assert result.exit_code == 1
    assert "nothing.executions-changelog does not exist" in result.stderr


@pytest.mark.parametrize("words", [[], ["a", "b"], ["a.yaml", "b.yaml"], ["a.yaml", "b.yaml", "c"], ["x"]])
def test_wrong_words_are_wrong_usage(words: list[str], run: Run) -> None:
    assert run("status", *words).exit_code == 2


# --- trace ----------------------------------------------------------------------------------------------------------------------------


def test_trace_prints_the_facts_in_order_with_times(driver: TopologyTestDriver, run: Run) -> None:
    execution = driver.submit({"orderId": "7"})
    driver.run()
    driver.clock.advance(1_500)
    for request in driver.new_requests():
        driver.complete(request, {"approved": True})
    driver.run()
    facts = lines(run("trace", "--app", "approvals", execution, "--json"))
    assert [fact["fact"] for fact in facts] == [type(fact).__name__ for fact in driver.facts(execution)]
    assert facts[0]["fact"] == "RunSubmitted"
    assert facts[-1]["fact"] == "RunSucceeded"
    shown = run("trace", "--app", "approvals", execution).stdout.splitlines()
    assert len(shown) == len(facts)
    assert "+0.000s" in shown[0]
    assert "+1.500s" in shown[-1]
    assert shown[0].startswith("2023-11-14T")


def test_trace_of_an_interaction_has_its_facts_only(driver: TopologyTestDriver, run: Run) -> None:
    execution = finished(driver)
    finished(driver, order="8")
    facts = lines(run("trace", "--app", "approvals", f"{execution}.0.u", "--json"))
    assert [fact["fact"] for fact in facts] == [
        "BoundaryInteractionDispatched",
        "BoundaryCompletionAdmitted",
        "ContinuationSegmentCreated",
    ]
    assert {fact["executionId"] for fact in facts} == {execution}


def test_a_view_of_one_execution_reads_its_partition_alone(
    driver: TopologyTestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = finished(driver)
    for number in range(6):
        finished(driver, order=str(number))
    assigned: list[TopicPartition] = []
    reader_of = MemoryLog.reader

    def watched(log: MemoryLog, **more: Any) -> Any:
        reader = reader_of(log, **more)
        assign = reader.assign

        def noted(positions: Any) -> None:
            assigned.extend(positions)
            assign(positions)

        monkeypatch.setattr(reader, "assign", noted)
        return reader

    monkeypatch.setattr(MemoryLog, "reader", watched)
    views = Views(driver.log, "approvals")
    assert list(views.trace(target(execution)))
    assert len(assigned) == len(set(assigned)) == 3  # the execution's row, its unit's, its facts
    assert len({at.partition for at in assigned}) == 1


# --- refusals and dead letters --------------------------------------------------------------------------------------------------------


def test_refusals_are_listed_with_reason_step_and_owner(driver: TopologyTestDriver, run: Run) -> None:
    execution = driver.submit({"orderId": "7"})
    driver.run()
    (request,) = driver.new_requests()
    driver.complete(request, {"approved": "perhaps"})
    driver.run()
    (found,) = lines(run("refusals", "--app", "approvals", "--json"))
    assert (found["reason"], found["executionId"], found["owner"]) == ("wrong-shape", execution, "sales")
    assert found["payload"] == {"approved": "perhaps"}
    shown = run("refusals", "--app", "approvals").stdout
    assert "wrong-shape" in shown
    assert "sales" in shown


def test_refusals_can_be_narrowed(driver: TopologyTestDriver, run: Run) -> None:
    driver.submit({"orderId": "7"})
    driver.run()
    (request,) = driver.new_requests()
    for answer in ({"approved": "perhaps"}, {"approved": True}, {"approved": False}):
        driver.complete(request, answer)
        driver.run()
    reasons = [found["reason"] for found in lines(run("refusals", "--app", "approvals", "--json"))]
    assert len(reasons) == 2
    assert len(lines(run("refusals", "--app", "approvals", "--json", "--limit", 1))) == 1
    assert [f["reason"] for f in lines(run("refusals", "--app", "approvals", "--json", "--reason", reasons[0]))] == [
        reasons[0]
    ]
    assert lines(run("refusals", "--app", "approvals", "--json", "--since", "2023-11-15T00:00:00Z")) == []
    assert run("refusals", "--app", "approvals", "--since", "soon").exit_code == 2


def test_dead_letters_are_listed_and_shown(driver: TopologyTestDriver, run: Run, pipeline: Path) -> None:
    execution = finished(driver, approved=False)
    driver.send_raw("approvals.answered", b"\xffnot json")
    driver.run()
    found = lines(run("dlq", "list", pipeline, "--json"))
    assert {letter["kind"] for letter in found} == {"execution", "record"}
    by_kind = {letter["kind"]: letter for letter in found}
    by_place = run("dlq", "show", pipeline, by_kind["record"]["id"])
    assert by_place.exit_code == 0
    assert "approvals.answered[" in by_place.stdout
    (by_execution,) = lines(run("dlq", "show", "--app", "approvals", execution, "--json"))
    assert by_execution == by_kind["execution"]
    assert run("dlq", "show", "--app", "approvals", "0-999").exit_code == 1


def test_nothing_to_show_is_said(driver: TopologyTestDriver, run: Run) -> None:
    assert run("refusals", "--app", "approvals").stdout == "no refused answers in approvals\n"
    assert run("dlq", "list", "--app", "approvals").stdout == "no dead letters in approvals\n"
