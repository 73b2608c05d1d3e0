"""What the command line says of items that failed or were left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from streams.cli import options
from streams.testing.driver import TopologyTestDriver

Run = Callable[..., Result]

PIPELINE = """
app: payments
steps:
  - {name: Split, cardinality: ONE_TO_MANY, input: "pay:File", output: "pay:Payment", run: "pay:split"}
  - name: Ask
    kind: await
    input: pay:Payment
    output: pay:Paid
    timeout: PT1H
    idempotencyKeyFields: [id]
    await: {transport: {type: kafka, request: {topic: "{app}.asked"}, response: {topic: "{app}.answered"}}}
  - {name: Write, input: "pay:Paid", output: "pay:Paid", run: "pay:write", retry: {attempts: 1}, onError: {deadLetter: true}}
kafka: {partitions: 2}
"""

PAY = """
from pydantic import BaseModel

class File(BaseModel):
    ids: list[str]

class Payment(BaseModel):
    id: str

class Paid(BaseModel):
    id: str

def split(file):
    return [Payment(id=id) for id in file.ids]

def write(paid):
    if paid.id.startswith("bad"):
        raise ValueError("bad is not written")
    return paid
"""


@pytest.fixture
def pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TopologyTestDriver]]:
    """An application of its own, whose log the commands look at."""
    (tmp_path / "pay.py").write_text(PAY)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    made: list[TopologyTestDriver] = []

    def driver() -> TopologyTestDriver:
        made.append(
            TopologyTestDriver(
                tmp_path / "pipeline.yaml",
                answer=lambda request: json.loads(bytes(request.request_payload)),
            )
        )
        monkeypatch.setattr(options, "open_log", lambda *_args, **_options: made[-1].log)
        return made[-1]

    yield driver
    for each in made:
        each.close()


def shown(run: Run, *arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_status_counts_what_succeeded_and_what_was_left_out(pay: Callable[..., TopologyTestDriver], run: Run) -> None:
    driver = pay()
    execution = driver.submit({"ids": ["a", "bad", "c"]})
    driver.run()
    (found,) = shown(run, "status", "--app", "payments", execution)
    assert (found["status"], found["succeeded"], found["skipped"], found["failed"]) == ("SUCCEEDED", 2, 1, 0)
    assert "2 succeeded, 1 skipped" in run("status", "--app", "payments", execution).stdout


def test_status_counts_what_failed(pay: Callable[..., TopologyTestDriver], run: Run, tmp_path: Path) -> None:
    text = (tmp_path / "pipeline.yaml").read_text()
    (tmp_path / "pipeline.yaml").write_text(text.replace(", onError: {deadLetter: true}", ""))
    driver = pay()
    execution = driver.submit({"ids": ["a", "bad"]})
    driver.run()
    shown_text = run("status", "--app", "payments", execution).stdout
    assert "1 succeeded, 1 failed" in shown_text
    assert "1 of 2 items failed: item 1: STEP_FAILED" in shown_text


def test_the_letter_of_an_item_is_found_by_its_interaction_and_by_its_own_id(
    pay: Callable[..., TopologyTestDriver], run: Run
) -> None:
    driver = pay()
    execution = driver.submit({"ids": ["a", "bad", "c"]})
    driver.run()
    (listed,) = shown(run, "dlq", "list", "--app", "payments")
    iid = f"{execution}.1.1"
    assert (listed["kind"], listed["reason"], listed["interactionId"]) == ("item", "STEP_FAILED", iid)
    for name in (iid, listed["letterId"], listed["id"]):
        assert shown(run, "dlq", "show", "--app", "payments", name) == [listed]
    text = run("dlq", "show", "--app", "payments", iid).stdout
    assert "bad is not written" in text
    assert run("dlq", "show", "--app", "payments", execution).exit_code == 1, "the execution did not die"
    (item,) = shown(run, "status", "--app", "payments", iid)
    assert (item["item"]["status"], item["item"]["letterId"]) == ("SKIPPED", listed["letterId"])
