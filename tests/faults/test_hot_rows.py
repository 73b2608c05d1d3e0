"""Rows that are kept decoded, of executions that have ended."""

from __future__ import annotations

import pytest

from tests.faults.ground import Outcome, outcome_of, payload_bytes_held, price, shop

EXECUTIONS = 20
PAYLOAD_BYTES = 50_000


def after_all_have_ended() -> Outcome:
    driver = shop("scalar", answer=price)
    executions = [
        driver.submit({"basket": "b", "sku": f"{number}-" + "x" * PAYLOAD_BYTES}) for number in range(EXECUTIONS)
    ]
    driver.run()
    assert {driver.status(execution) for execution in executions} == {"SUCCEEDED"}
    tasks = list(driver.worker.loops["core"].tasks.values())
    assert tasks
    return {"bytes": payload_bytes_held(tasks, PAYLOAD_BYTES)}


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="K8: rows of executions that have ended stay in memory")
def test_payloads_of_executions_that_have_ended_leave_memory() -> None:
    assert outcome_of(after_all_have_ended)["bytes"] <= 2 * PAYLOAD_BYTES
