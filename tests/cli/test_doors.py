"""Doors over a memory log: submitting, waiting for the outcome, answering."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.errors import LogUnavailable, PeerError, UsageError
from streams.doors.answers import AnswerCommand, send_answer
from streams.doors.outcomes import Outcomes, submit_command
from streams.doors.submissions import command_of, encode_value, send
from streams.testing.driver import TopologyTestDriver

ORDER = {"orderId": "7"}


def submitted(driver: TopologyTestDriver, key: str | None = None) -> str:
    command = command_of(driver.pipeline, ORDER, key=key)
    return submit_command(driver.pipeline, driver.log, command).execution_id


def answered(driver: TopologyTestDriver, *, approved: bool) -> None:
    for request in driver.new_requests():
        answer = AnswerCommand(request.interaction_id, encode_value({"approved": approved}), actor="ann")
        send_answer(driver.pipeline, driver.log, answer)
    driver.run()


def test_a_submission_that_nobody_waits_for_has_no_status(driver: TopologyTestDriver) -> None:
    outcome = submit_command(driver.pipeline, driver.log, command_of(driver.pipeline, ORDER))
    assert outcome.status is None
    driver.run()
    assert driver.status(outcome.execution_id) == "WAITING_EXTERNAL"


def test_an_outcome_is_heard_once_the_answer_is_in(driver: TopologyTestDriver) -> None:
    with Outcomes(driver.log, driver.pipeline.app, clock=driver.clock) as outcomes:
        execution = submitted(driver)
        driver.run()
        answered(driver, approved=True)
        outcome = outcomes.wait([execution], timeout_s=1)[execution]
    assert outcome.succeeded
    assert outcome.result == {"text": "yes"}


def test_a_failure_is_an_outcome_with_its_reason(driver: TopologyTestDriver) -> None:
    with Outcomes(driver.log, driver.pipeline.app, clock=driver.clock) as outcomes:
        execution = submitted(driver)
        driver.run()
        answered(driver, approved=False)
        outcome = outcomes.wait([execution], timeout_s=1)[execution]
    assert outcome.status == "FAILED"
    assert "we write no letters of refusal" in (outcome.error_message or "")


def test_a_second_submitter_hears_how_the_first_one_ended(driver: TopologyTestDriver) -> None:
    execution = submitted(driver, key="k")
    driver.run()
    answered(driver, approved=True)
    with Outcomes(driver.log, driver.pipeline.app, clock=driver.clock) as outcomes:
        again = msgspec.structs.replace(command_of(driver.pipeline, ORDER, key="k"), reply_id="r1")
        send(driver.pipeline, driver.log.plain_producer(), again, timeout_s=1)
        driver.run()
        outcome = outcomes.wait([execution], timeout_s=1)[execution]
    assert outcome.duplicate
    assert outcome.result == {"text": "yes"}


def test_waiting_ends_with_what_was_last_heard(driver: TopologyTestDriver) -> None:
    with Outcomes(driver.log, driver.pipeline.app, clock=driver.clock) as outcomes:
        execution = submitted(driver)
        driver.run()
        with pytest.raises(LogUnavailable, match=rf"{execution} has not ended within 5 s .*kawait status {execution}"):
            outcomes.wait([execution], timeout_s=5, on_turn=lambda _: driver.clock.advance(3_000))


def test_without_a_key_the_content_is_the_key(driver: TopologyTestDriver) -> None:
    assert submitted(driver) == submitted(driver)
    assert submitted(driver) != submitted(driver, key="other")


def test_a_file_goes_by_itself(driver: TopologyTestDriver, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        command_of(driver.pipeline, ORDER, file=tmp_path / "a.csv")
    with pytest.raises(UsageError, match=r"a\.csv cannot be read: no such file"):
        command_of(driver.pipeline, file=tmp_path / "a.csv")


def test_a_payload_of_another_type_is_refused_before_it_is_sent(driver: TopologyTestDriver) -> None:
    with pytest.raises(UsageError, match="not a shop:Order"):
        command_of(driver.pipeline, {"order": 1})


def test_an_answer_is_checked_before_it_is_sent(driver: TopologyTestDriver) -> None:
    execution = submitted(driver)
    with pytest.raises(UsageError, match="not a shop:Decision"):
        send_answer(driver.pipeline, driver.log, AnswerCommand(f"{execution}.0.u", b"{}"))
    with pytest.raises(UsageError, match="names step 1, which is no await step"):
        send_answer(driver.pipeline, driver.log, AnswerCommand(f"{execution}.1.u", b'{"approved": true}'))
    with pytest.raises(PeerError):
        send_answer(driver.pipeline, driver.log, AnswerCommand("nonsense", b'{"approved": true}'))


def test_an_app_without_topics_says_how_to_make_them(driver: TopologyTestDriver) -> None:
    with pytest.raises(UsageError, match=r"other\.replies does not exist.*kawait topics"):
        Outcomes(driver.log, "other", clock=driver.clock)


def test_a_model_and_bytes_and_plain_values_are_all_json(driver: TopologyTestDriver) -> None:
    model = driver.pipeline.input_type.validate_json(b'{"orderId": "7"}')
    assert encode_value(model) == encode_value(ORDER) == encode_value(b'{"orderId":"7"}')
