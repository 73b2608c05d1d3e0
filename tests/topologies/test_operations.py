"""Cancel, invalid submissions, misplaced records, what metrics, logs and dead letters say and what they must never say."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client import generate_latest

from connectors.resume_token import TokenSigner
from schemas import codec
from schemas.envelopes import CancelCommand, ProviderCompletion, RequestEnvelope, SubmitCommand
from schemas.errors import UsageError
from schemas.identity import home_partition
from streams.telemetry import logs
from streams.telemetry.logs import LogFormat
from tests.topologies.outside import SECRET, SIGNED, price

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}
LINE = {"basket": "b1", "sku": "apple"}


def answer(driver: TopologyTestDriver, *requests: RequestEnvelope) -> None:
    for request in requests:
        driver.complete(request, price(request))
        driver.run()


# --- cancel --------------------------------------------------------------------------------------------------------------------------------


def test_cancel_ends_everything_at_once(shop: Any, script: Any) -> None:
    """DESIGN 7 'Finishing', BEHAVIOUR 165, CASES 37: running live or parked; late answers are refused as `cancelled`; no timer rings again."""
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    answer(driver, requests[0])
    driver.cancel(execution, reason="the customer left")
    driver.run()
    assert driver.status(execution) == "CANCELLED"
    assert driver.fact_names(execution)[-2:] == ["BoundaryUnitClosed", "RunCancelled"]
    suffixes = script.count("receipt")
    answer(driver, *requests[1:])
    assert [refusal.reason for refusal in driver.refusals()] == ["cancelled", "cancelled"]
    assert json.loads(driver.refusals()[0].payload) == price(requests[1])
    assert script.count("receipt") == suffixes
    driver.advance(3_600_000)
    driver.crash()
    driver.advance(3_600_000)
    assert driver.fact_names(execution)[-3:] == ["RunCancelled", "CompletionRefused", "CompletionRefused"]
    assert driver.dead_letters() == [], "an operator's word is no failure"
    (reply,) = [reply for reply in driver.replies() if reply.status == "CANCELLED"]
    assert reply.execution_id == execution


def test_cancel_of_a_parked_scalar(make: Any) -> None:
    """BEHAVIOUR 2.3: the same for one question."""
    driver = make("scalar")
    execution = driver.submit(LINE)
    driver.run()
    driver.cancel(execution)
    answer(driver, *driver.new_requests())
    assert driver.status(execution) == "CANCELLED"
    assert [refusal.reason for refusal in driver.refusals()] == ["cancelled"]


def test_cancel_while_the_source_is_being_read(shop: Any) -> None:
    """BEHAVIOUR 144: what is pulled afterwards is not sent."""
    driver = shop("items")
    driver.run()
    driver.hold()
    execution = driver.submit(BASKET)
    for _ in range(5):
        driver.step()
    driver.cancel(execution)
    for _ in range(5):
        driver.step()
    driver.release()
    driver.run()
    assert driver.status(execution) == "CANCELLED"
    assert driver.requests() == []
    driver.send_raw(
        "items.answered",
        json.dumps({"interactionId": f"{execution}.1.0", "responsePayload": {"sku": "a", "price": "1"}}).encode(),
    )
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["cancelled"]


def test_cancel_is_idempotent_and_comes_too_late(make: Any) -> None:
    """BEHAVIOUR 2.3: an execution that ended stays as it is; an unknown one starts nothing."""
    driver = make("scalar", answer=price)
    execution = driver.submit(LINE)
    driver.run()
    before = driver.fact_names()
    driver.cancel(execution)
    driver.cancel("00000000-0000-5000-8000-000000000000")
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.fact_names() == before


def test_cancel_during_a_retry(make: Any, script: Any) -> None:
    """BEHAVIOUR 2.3: no attempt follows."""
    driver = make("scalar")
    script.failures["check", "apple"] = [ValueError("one")] * 9
    execution = driver.submit(LINE)
    driver.run()
    driver.cancel(execution)
    driver.advance(600_000)
    assert script.count("check") == 1
    assert driver.status(execution) == "CANCELLED"


# --- submissions -----------------------------------------------------------------------------------------------------------------------------


def test_an_invalid_input_is_refused_at_the_door(make: Any) -> None:
    """SURFACE `kawait submit`: the door validates; nothing is written."""
    driver = make("scalar")
    with pytest.raises(UsageError, match="not a "):
        driver.submit({"nonsense": 1})
    assert driver.records(driver.names.commands) == []


@pytest.mark.parametrize(
    "command",
    [
        SubmitCommand("11111111-1111-5111-8111-111111111111", "default", "scalar", "k", b"{}"),
        SubmitCommand("11111111-1111-5111-8111-111111111111", "default", "scalar", "k", b"\xff"),
        SubmitCommand("11111111-1111-5111-8111-111111111111", "default", "other", "k", json.dumps(LINE).encode()),
    ],
)
def test_an_invalid_input_that_came_round_the_door_is_poison(make: Any, command: SubmitCommand) -> None:
    """DESIGN 8.7: the core checks again; dead-lettered with its origin, nothing starts, neighbours go on."""
    driver = make("scalar", answer=price)
    driver.send_raw(driver.names.commands, codec.encode(command), key=command.execution_id.encode())
    good = driver.submit(LINE)
    driver.run()
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.reason, letter.origin_topic) == ("record", "wrong-shape", driver.names.commands)
    assert driver.execution(command.execution_id) is None
    assert driver.status(good) == "SUCCEEDED"


def test_garbage_on_every_topic_of_ours(make: Any) -> None:
    """CASES 79, 91: undecodable, null, strange kinds and foreign Avro on commands, completions and continuations: dead letters, and on."""
    driver = make("items", answer=price, sets=("steps.ask.await.live=false",))
    fact = codec.encode(CancelCommand("x", "y"))
    topics = (driver.names.commands, driver.names.completions, driver.names.continuations)
    for topic in topics:
        for value in (
            b"garbage",
            b"",
            None,
            b"\xc3\x01" + b"\0" * 20,
            codec.encode(ProviderCompletion("e", "e.1.0", b"{}"))[:-3],
        ):
            driver.send_raw(topic, value, key=b"k")
    driver.send_raw(driver.names.completions, fact)
    driver.send_raw(driver.names.continuations, fact)
    driver.send_raw(driver.names.commands, codec.encode(ProviderCompletion("e", "e.1.0", b"{}")))
    execution = driver.submit(BASKET)
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    letters = driver.dead_letters()
    assert len(letters) == 18
    assert {letter.origin_topic for letter in letters} == set(topics)
    assert all(letter.kind == "record" and letter.reason for letter in letters)


# --- misplaced -------------------------------------------------------------------------------------------------------------------------------


def test_a_misplaced_record_is_forwarded_once_and_counted(make: Any) -> None:
    """DESIGN 4: home is what the record's own id says; forwarded in the same transaction, then taken there, once."""
    driver = make("items")
    execution = driver.submit(BASKET)
    driver.run()
    (first, *others) = driver.new_requests()
    wrong = 1 - home_partition(execution, 2)
    completion = ProviderCompletion(execution, first.interaction_id, json.dumps(price(first)).encode())
    driver.send_raw(driver.names.completions, codec.encode(completion), key=b"any", partition=wrong)
    driver.run()
    assert len(driver.records(driver.names.completions)) == 2
    assert driver.metric("kawait_misplaced_records_total", topic=driver.names.completions) == 1
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 1
    answer(driver, *others)
    assert driver.status(execution) == "SUCCEEDED"


def test_a_misplaced_submission_starts_at_home(make: Any) -> None:
    """DESIGN 4: commands likewise."""
    driver = make("scalar", answer=price)
    other = make("scalar")
    execution = other.submit(LINE)
    (record,) = other.records(other.names.commands)
    driver.send_raw(driver.names.commands, record.value, partition=1 - record.partition)
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.metric("kawait_misplaced_records_total", topic=driver.names.commands) == 1


# --- what is said, and what is not --------------------------------------------------------------------------------------------------------------


def busy(shop: Any) -> tuple[TopologyTestDriver, list[RequestEnvelope]]:
    """A bit of everything: signed answers good and bad, conflicts, poison, a late one, a dead execution, an open one."""
    driver: TopologyTestDriver = shop("items", sets=SIGNED)
    driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    answer(driver, requests[0])
    driver.complete(requests[0], price(requests[0], "9.99"))
    driver.complete(requests[1], {"nonsense": 1})
    driver.complete(requests[1], price(requests[1]), token=(requests[1].resume_token or "")[:-2] + "xx")
    token = requests[2].resume_token or ""
    named = json.dumps({"interactionId": requests[2].interaction_id, "resumeToken": token})
    driver.send_raw("items.answered", named.encode())  # no payload
    driver.send_raw("items.answered", named.replace("}", ', "responsePayload": null}').encode())
    driver.send_raw("items.answered", named.encode()[:-3])  # cut off
    driver.send_raw("items.answered", named.replace(":", " :  ", 9).encode() + b"x" * 5_000_000)
    echoed = [("kawait-interaction-id", requests[2].interaction_id.encode()), ("kawait-resume-token", token.encode())]
    driver.send_raw("items.answered", json.dumps({"resumeToken": token, "price": 3}).encode(), headers=echoed)
    driver.send_raw("items.answered", token.encode(), key=token.encode())
    driver.complete(requests[2], {"sku": token, "price": "what?"})
    driver.run()
    return driver, requests


def test_no_reader_of_refusals_and_dead_letters_can_complete_what_is_open(shop: Any, logged: list[Any]) -> None:
    """DESIGN 8.3, brief of `.refusals` and `.dlq` (for everybody to read): a token of an open interaction stands in none of them, nor in
    facts, metrics, replies or logs; what was cut out can still be told from length and sha256 of the whole.
    """
    driver, requests = busy(shop)
    assert {letter.reason for letter in driver.dead_letters()} >= {"missing-fields", "not-json", "too-large"}
    assert {refusal.reason for refusal in driver.refusals()} >= {"conflict", "wrong-shape", "bad-token"}
    names = driver.names
    topics = (names.refusals, names.dlq, names.facts, names.replies, names.commands)
    written = b"".join(
        (record.value or b"") + (record.key or b"") + b"".join(value or b"" for _, value in record.headers)
        for topic in topics
        for record in driver.records(topic)
    )
    said = json.dumps(logged, default=str).encode() + generate_latest(driver.worker.metrics.registry)
    for request in requests:
        token = (request.resume_token or "").encode()
        assert token
        assert token not in written
        assert token not in said


def test_the_secret_is_nowhere(shop: Any, logged: list[Any]) -> None:
    """DESIGN 8.3, SURFACE `tokens`: not in a topic, a row, a log entry, a metric or a printed pipeline."""
    driver, _ = busy(shop)
    every = [
        driver.names.facts,
        driver.names.refusals,
        driver.names.dlq,
        driver.names.commands,
        driver.names.completions,
    ]
    every += [
        driver.names.replies,
        "items.asked",
        *(driver.names.changelog(table) for table in ("executions", "units", "interactions", "items")),
    ]
    for topic in every:
        for record in driver.records(topic):
            assert SECRET.encode() not in (record.value or b"")
    printed = [
        repr(driver.pipeline),
        repr(driver.worker),
        repr(TokenSigner(active="k", keys={"k": SECRET.encode()})),
        json.dumps(logged, default=str),
    ]
    for text in (*printed, generate_latest(driver.worker.metrics.registry).decode()):
        assert SECRET not in text
        assert repr(SECRET.encode()) not in text


def test_labels_never_carry_ids(shop: Any) -> None:
    """Issue 3, BEHAVIOUR F173: every label value is a word of ours, a topic or a number of a partition."""
    driver, requests = busy(shop)
    driver.advance(3_600_000)
    answer(driver, *requests)
    text = generate_latest(driver.worker.metrics.registry).decode()
    labels = set(re.findall(r'(\w+)="([^"]*)"', text))
    assert {name for name, _ in labels} <= {"fact", "decision", "reason", "topic", "role", "partition", "le", "step"}
    for name, value in labels:
        assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}|apple|pear|plum|b1", value), (name, value)
    assert len(labels) < 120


def test_nothing_is_logged_above_info_when_strangers_misbehave(shop: Any, logged: list[Any]) -> None:
    """Issue 3 'structured logs, quiet when all is well': refused and poison answers are in their topics and metrics, not in the logs."""
    busy(shop)
    assert [entry for entry in logged if entry["log_level"] in {"warning", "error", "critical", "exception"}] == []


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_shows_places_and_no_values(capsys: pytest.CaptureFixture[str], log_format: LogFormat) -> None:
    """DESIGN 8.3: an error is logged with its lines, never with what was in its variables: they may be tokens and payloads."""
    before, handlers, level = structlog.get_config(), logging.getLogger().handlers[:], logging.getLogger().level
    logs.configure(log_format=log_format)
    try:
        payload = "hush" * 2  # a traceback shows this line, never what it gave
        try:
            raise ValueError(len(payload))
        except ValueError:
            structlog.get_logger().exception("it broke")
    finally:
        structlog.configure(**before)
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    written = capsys.readouterr().err
    assert "it broke" in written
    assert "ValueError" in written
    assert "hushhush" not in written
