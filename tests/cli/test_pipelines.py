"""`check`, `describe` and `topics`, and the wrong uses of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from schemas.topics import external_topic
from streams.testing.driver import TopologyTestDriver

Run = Callable[..., Result]


def test_a_valid_pipeline_is_said_to_be(run: Run, pipeline: Path) -> None:
    keyed = run("check", pipeline, "--set", "steps.ask-manager.idempotencyKeyFields=[orderId]")
    assert (keyed.exit_code, keyed.stdout) == (0, f"{pipeline} is valid: approvals, 2 steps, 1 await\n")


def test_keys_that_do_not_survive_a_resubmission_are_noted(run: Run, pipeline: Path) -> None:
    """No mistake: nothing fails, and machines are told nothing."""
    result = run("check", pipeline)
    assert result.exit_code == 0
    valid, note = result.stdout.splitlines()
    assert valid.endswith("1 await")
    assert note.startswith("note: step ask-manager has no idempotencyKeyFields: ")
    assert run("check", pipeline, "--json").stdout == ""


def test_every_problem_is_told_at_once_with_its_line(run: Run, pipeline: Path) -> None:
    pipeline.write_text(pipeline.read_text().replace("PT1H", "soon").replace("shop:write", "shop:read"))
    result = run("check", pipeline)
    assert result.exit_code == 1
    assert "2 problems" in result.stderr
    assert f"{pipeline}:8: " in result.stderr
    assert f"{pipeline}:12: " in result.stderr
    assert "Traceback" not in result.output
    machine = run("check", pipeline, "--json")
    assert machine.exit_code == 1
    assert [json.loads(line)["line"] for line in machine.stdout.splitlines()] == [8, 12]


def test_set_changes_what_is_checked(run: Run, pipeline: Path) -> None:
    assert run("check", pipeline, "--set", "steps.ask-manager.timeout=never").exit_code == 1


def test_describe_prints_steps_and_topics(run: Run, pipeline: Path) -> None:
    shown = run("describe", pipeline, "--app", "copy").stdout
    assert "ask-manager" in shown
    assert "copy.asked" in shown
    assert run("describe", pipeline, "--mermaid").stdout.startswith("flowchart TD\n")


def test_topics_are_created_once(run: Run, pipeline: Path, driver: TopologyTestDriver) -> None:
    first = run("topics", pipeline, "--app", "copy", "--json")
    second = run("topics", pipeline, "--app", "copy", "--json")
    assert len(json.loads(first.stdout)["created"]) == json.loads(first.stdout)["verified"] == 15
    assert json.loads(second.stdout)["created"] == []


def test_a_response_topic_with_its_senders_times_is_told(run: Run, pipeline: Path, driver: TopologyTestDriver) -> None:
    """It will do, but nobody knows then when an answer came in."""
    (topic,) = driver.pipeline.response_topics
    assert "LogAppendTime" not in run("topics", pipeline).stdout
    driver.log.delete_topic(topic)
    driver.log.create_topics([external_topic(topic, partitions=1, replication_factor=1)], 1)
    told = run("topics", pipeline)
    assert told.exit_code == 0
    assert f"not as it would be made: {topic} has message.timestamp.type=CreateTime" in told.stdout
    assert len(json.loads(run("topics", pipeline, "--json").stdout)["remarks"]) == 1


def test_topics_that_do_not_fit_are_refused_with_what_to_do(
    run: Run, pipeline: Path, driver: TopologyTestDriver
) -> None:
    result = run("topics", pipeline, "--set", "kafka.partitions=4")
    assert result.exit_code == 1
    assert "approvals.commands has 3 partitions, not 4" in result.stderr


def test_a_plan_needs_no_broker(run: Run, pipeline: Path) -> None:
    result = run("topics", pipeline, "--plan")
    assert result.exit_code == 0
    assert "approvals.facts" in result.stdout
    commands = run("topics", pipeline, "--format", "kafka-topics").stdout.splitlines()
    assert len(commands) == 15
    assert all("--create" in command for command in commands)
    resources = list(yaml.safe_load_all(run("topics", pipeline, "--plan", "--format", "strimzi").stdout))
    assert {resource["kind"] for resource in resources} == {"KafkaTopic"}
    assert resources[0]["spec"]["partitions"] == 3


def test_permissions_come_in_every_format(run: Run, pipeline: Path) -> None:
    shown = run("topics", pipeline, "--acls").stdout
    assert "approvals.answered" in shown
    commands = run("topics", pipeline, "--acls", "--format", "kafka-topics").stdout.splitlines()
    assert any("--transactional-id approvals." in command for command in commands)
    users = list(yaml.safe_load_all(run("topics", pipeline, "--acls", "--format", "strimzi").stdout))
    assert {user["metadata"]["name"] for user in users} >= {"approvals-worker", "approvals-operator"}
    provider = next(user for user in users if user["metadata"]["name"] == "approvals-provider")
    assert {rule["resource"]["name"] for rule in provider["spec"]["authorization"]["acls"]} == {
        "approvals.asked",
        "approvals.answered",
        "approvals-provider",
    }


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "PIPELINE"],
        ["submit", "PIPELINE", "--payload", "{}", "--input", "PIPELINE"],
        ["submit", "PIPELINE", "--payload", "{}", "--timeout", "0"],
        ["worker", "PIPELINE", "--roles", "core,dancing"],
        ["worker", "PIPELINE", "--admin-port", "99999"],
        ["demo", "--rows", "3", "--input", "PIPELINE"],
        ["demo", "--kafka", "--bootstrap", "here:1"],
        ["demo", "--reject-rate", "2"],
        ["dance"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str], run: Run, pipeline: Path) -> None:
    result = run(*[str(pipeline) if word == "PIPELINE" else word for word in words])
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_submit_prints_the_id(run: Run, pipeline: Path, driver: TopologyTestDriver, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"orderId": "7"}')
    plain = run("submit", pipeline, "--payload", '{"orderId": "7"}')
    from_file = run("submit", pipeline, "--payload", f"@{tmp_path / 'order.json'}", "--json")
    from_stdin = run("submit", pipeline, "--payload", "-", input='{"orderId": "7"}')
    assert plain.exit_code == 0
    assert plain.stdout == from_stdin.stdout
    assert json.loads(from_file.stdout) == {"executionId": plain.stdout.strip()}
    driver.run()
    assert driver.status(plain.stdout.strip()) == "WAITING_EXTERNAL"


def test_submit_refuses_what_is_not_of_the_input_type(run: Run, pipeline: Path, driver: TopologyTestDriver) -> None:
    result = run("submit", pipeline, "--payload", "[]")
    assert result.exit_code == 1
    assert "not a shop:Order" in result.stderr


def test_a_flag_can_come_from_the_environment(run: Run, pipeline: Path) -> None:
    assert (
        "pipeline approvals, app from-outside" in run("describe", pipeline, env={"KAWAIT_APP": "from-outside"}).stdout
    )
