"""The outside party misbehaves in every way we know; each time the outcome is the one that DESIGN 8 names, and good neighbours go on."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from schemas import codec, limits
from schemas.envelopes import ProviderCompletion, RequestEnvelope
from tests.topologies.outside import SIGNED, price

if TYPE_CHECKING:
    from collections.abc import Callable

    from streams.log.seam import Record
    from streams.testing.driver import TopologyTestDriver

BASKET = {"id": "b1", "lines": ["apple", "pear", "plum"]}
ANSWERED = "items.answered"


@pytest.fixture
def asked(shop: Any) -> tuple[TopologyTestDriver, str, list[RequestEnvelope]]:
    """Three requests are out, signed, nobody has answered."""
    driver = shop("items", sets=SIGNED)
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    assert [request.item_index for request in requests] == [0, 1, 2]
    return driver, execution, requests


def finish(
    driver: TopologyTestDriver, execution: str, requests: list[RequestEnvelope], *, skus: str = "apple pear plum"
) -> None:
    """Good answers to these requests end the execution well, with everything in input order."""
    for request in requests:
        driver.complete(request, price(request))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED", driver.execution(execution)
    assert [receipt["sku"] for receipt in driver.result(execution)] == skus.split()
    names = Counter(driver.fact_names(execution))
    assert (
        names["BoundaryCompletionAdmitted"]
        == names["ContinuationCompleted"]
        == names["BoundaryInteractionDispatched"]
        == 3
    )
    assert driver.dead_letters() == [letter for letter in driver.dead_letters() if letter.kind == "record"]


def headers(record: Record) -> dict[str, bytes | None]:
    return dict(record.headers)


def origin(record: Record) -> tuple[str, str, str]:
    found = headers(record)
    return tuple((found[f"kawait-{name}"] or b"").decode() for name in ("topic", "partition", "offset"))  # type: ignore[return-value]


def envelope(request: RequestEnvelope, payload: Any, **changes: Any) -> bytes:
    made = {
        "interactionId": request.interaction_id,
        "resumeToken": request.resume_token,
        "responsePayload": payload,
        **changes,
    }
    return json.dumps({name: value for name, value in made.items() if value is not ...}).encode()


# --- twice, out of order, another answer ---------------------------------------------------------------------------------------------


def test_the_same_answer_twice_is_one_answer(asked: Any) -> None:
    """BEHAVIOUR 28, CASES 19: a duplicate is no progress, no fact, no refusal; only a metric counts it."""
    driver, execution, requests = asked
    for _ in range(2):
        driver.complete(requests[1], price(requests[1]))
        driver.run()
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 1
    assert driver.refusals() == []
    assert driver.metric("kawait_decisions_total", decision="Duplicate") == 1
    finish(driver, execution, [requests[0], requests[2]])


def test_two_spellings_of_one_value_are_one_answer(asked: Any) -> None:
    """BEHAVIOUR 28, DESIGN 8.1: equal means the same value, however it is written."""
    driver, execution, requests = asked
    driver.complete(requests[0], {"sku": "apple", "price": "1.50"})
    driver.complete(requests[0], {"price": 1.5, "sku": "apple"})
    driver.run()
    assert driver.refusals() == []
    finish(driver, execution, requests[1:])


def test_out_of_order_answers_come_out_in_input_order(asked: Any) -> None:
    """BEHAVIOUR 100: answers 2, 0, 1 give outputs 0, 1, 2."""
    driver, execution, requests = asked
    finish(driver, execution, [requests[2], requests[0], requests[1]])


def test_a_different_second_answer_is_a_conflict_and_the_first_stays(asked: Any) -> None:
    """BEHAVIOUR 29, CASES 26, DESIGN 8.1: first value kept, `conflict` with payload, owner and origin in the refusals, one fact."""
    driver, execution, requests = asked
    driver.complete(requests[1], price(requests[1]))
    driver.run()
    driver.complete(requests[1], price(requests[1], "9.99"))
    driver.run()
    (refusal,) = driver.refusals()
    assert (refusal.reason, refusal.step_id, refusal.owner) == ("conflict", "ask", "shop-desk")
    assert (refusal.execution_id, refusal.interaction_id) == (execution, requests[1].interaction_id)
    assert json.loads(refusal.payload)["price"] == "9.99"
    (record,) = driver.records(driver.names.refusals)
    assert headers(record)["kawait-error"] == b"conflict"
    assert origin(record) == (refusal.origin_topic, str(refusal.origin_partition), str(refusal.origin_offset))
    assert refusal.origin_topic == ANSWERED
    assert driver.fact_names(execution).count("CompletionRefused") == 1
    finish(driver, execution, [requests[0], requests[2]])
    assert driver.result(execution)[1]["price"] == "1.50"


def test_the_facts_of_a_stubborn_provider_are_bounded(asked: Any) -> None:
    """DESIGN 8.1: at most ten refusal facts an interaction; every refusal is in the topic."""
    driver, execution, requests = asked
    driver.complete(requests[0], price(requests[0]))
    for cents in range(20):
        driver.complete(requests[0], price(requests[0], f"7.{cents:02}"))
    driver.run()
    assert driver.fact_names(execution).count("CompletionRefused") == limits.REFUSAL_FACTS_MAX == 10
    assert [refusal.reason for refusal in driver.refusals()] == ["conflict"] * 20
    finish(driver, execution, requests[1:])


# --- tokens --------------------------------------------------------------------------------------------------------------------------


def _tampered(token: str) -> str:
    return token[:-1] + ("A" if token[-1] != "A" else "B")


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(lambda mine, _other: _tampered(mine), id="tampered-signature"),
        pytest.param(lambda mine, _other: ("B" if mine[0] != "B" else "C") + mine[1:], id="tampered-claims"),
        pytest.param(lambda _mine, other: other, id="of-another-item"),
        pytest.param(lambda mine, _other: mine.split(".")[0], id="one-part"),
        pytest.param(lambda mine, _other: f"{mine}.x", id="three-parts"),
        pytest.param(lambda _mine, _other: "", id="blank"),
        pytest.param(lambda _mine, _other: ..., id="missing"),
    ],
)
def test_an_answer_without_proof_is_refused_and_the_item_stays_open(
    asked: Any, token: Callable[[str, str], Any]
) -> None:
    """BEHAVIOUR 55, 58, 59, 63, CASES 95, DESIGN 8.3: refused, no fact, row untouched; the good answer is admitted afterwards."""
    driver, execution, requests = asked
    driver.send_raw(
        ANSWERED,
        envelope(
            requests[1], price(requests[1]), resumeToken=token(requests[1].resume_token, requests[0].resume_token)
        ),
    )
    driver.run()
    (refusal,) = driver.refusals()
    assert (refusal.reason, refusal.owner) == ("bad-token", "shop-desk")
    assert "CompletionRefused" not in driver.fact_names(execution)
    assert driver.metric("kawait_refusals_total", reason="bad-token") == 1
    finish(driver, execution, requests)


def test_a_token_that_went_round_the_ingress_is_judged_by_the_core_too(asked: Any) -> None:
    """DESIGN 4, 8.3: the core judges the token itself; a record written to `completions` directly gains nothing."""
    driver, execution, requests = asked
    forged = ProviderCompletion(
        execution, requests[1].interaction_id, b'{"sku":"pear","price":"0.01"}', requests[0].resume_token
    )
    driver.send_raw(driver.names.completions, codec.encode(forged), key=execution.encode())
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["bad-token"]
    finish(driver, execution, requests)


# --- garbage -------------------------------------------------------------------------------------------------------------------------

POISON: dict[str, tuple[bytes | None, str]] = {
    "garbage": (b"\x00\xff garbage", "not-json"),
    "truncated": (b'{"interactionId": "x", ', "not-json"),
    "empty": (b"", "not-json"),
    "null-value": (None, "null-value"),
    "json-null": (b"null", "missing-fields"),
    "no-fields": (b'{"hello": 1}', "missing-fields"),
    "no-payload": (b'{"interactionId": "x"}', "missing-fields"),
    "a-list": (b"[1, 2]", "missing-fields"),
    "wrong-member": (b'{"interactionId": "x", "actor": 5, "responsePayload": {}}', "wrong-member"),
    "too-large": (b'{"x": "' + b"y" * 5_000_000 + b'"}', "too-large"),
    "deep": (b'{"x":' * 100_000, "not-json"),
    "deep-list": (b"[" * 100_000, "missing-fields"),
}


@pytest.mark.parametrize("kind", POISON)
def test_poison_goes_to_the_dead_letters_and_its_neighbours_go_on(asked: Any, kind: str) -> None:
    """CASES 79, 80, 88, 91, BEHAVIOUR 46, 47, DESIGN 8.7: good, bad, good in one partition; the bad one is kept with reason and origin."""
    driver, execution, requests = asked
    value, reason = POISON[kind]
    driver.send_raw(ANSWERED, envelope(requests[0], price(requests[0])), partition=1)
    driver.send_raw(ANSWERED, value, partition=1, key=b"a key")
    driver.send_raw(ANSWERED, envelope(requests[1], price(requests[1])), partition=1)
    driver.run()
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.reason, letter.key) == ("record", reason, b"a key")
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == (
        ANSWERED,
        1,
        2,
    )  # a marker follows each record
    assert letter.value_length == len(value or b"")
    assert len(letter.value or b"") <= limits.DEAD_LETTER_BYTES_MAX
    (record,) = driver.records(driver.names.dlq)
    assert headers(record)["kawait-error"] == reason.encode()
    assert origin(record) == (ANSWERED, "1", "2")
    assert driver.metric("kawait_dead_letters_total", reason=reason) == 1
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 2
    assert driver.refusals() == []
    finish(driver, execution, requests[2:])


def test_a_null_answer_in_a_good_envelope_is_poison(asked: Any) -> None:
    """BEHAVIOUR 46: `responsePayload: null` answers nothing."""
    driver, execution, requests = asked
    driver.send_raw(ANSWERED, envelope(requests[0], None))
    driver.run()
    assert [letter.reason for letter in driver.dead_letters()] == ["missing-fields"]
    finish(driver, execution, requests)


@pytest.mark.parametrize(
    "payload", [{"sku": "pear"}, {"sku": "pear", "price": "dear"}, [], "pear", 7, {"sku": 1, "price": None}], ids=repr
)
def test_a_wrong_shape_is_refused_and_the_item_stays_open(asked: Any, payload: Any) -> None:
    """BEHAVIOUR 76, DESIGN 8.7: judged at admission, never stored; the refusal says what is wrong, without a fact."""
    driver, execution, requests = asked
    driver.complete(requests[1], payload)
    driver.run()
    (refusal,) = driver.refusals()
    assert (refusal.reason, refusal.owner, refusal.step_id) == ("wrong-shape", "shop-desk", "ask")
    assert "Offer" in refusal.detail
    assert json.loads(refusal.payload) == payload
    assert driver.dead_letters() == []
    finish(driver, execution, requests)


# --- who is meant --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "named",
    [
        "nobody",
        "{execution}.7.0",
        "{execution}.1.u",
        "{execution}.0.0",
        "{stranger}.1.0",
        "{execution}.1.99",
        "9" * 5000,
    ],
)
def test_an_answer_for_nobody_is_refused_as_unknown(shop: Any, named: str) -> None:
    """BEHAVIOUR 36 to 39, CASES 13: unknown is said aloud, in the refusals and a metric; no fact, nothing else happens."""
    driver = shop("items")
    execution = driver.submit(BASKET)
    driver.run()
    requests = driver.new_requests()
    stranger = "00000000-0000-5000-8000-000000000000"
    interaction = named.format(execution=execution, stranger=stranger)
    facts = driver.fact_names()
    driver.send_raw(
        ANSWERED, json.dumps({"interactionId": interaction, "responsePayload": price(requests[0])}).encode()
    )
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["unknown"]
    assert driver.fact_names() == facts
    assert driver.metric("kawait_refusals_total", reason="unknown") == 1
    finish(driver, execution, requests)


def test_an_answer_of_another_tenant_is_unknown(asked: Any) -> None:
    """BEHAVIOUR 41, CASES 25: another tenant's name opens nothing and learns nothing."""
    driver, execution, requests = asked
    driver.send_raw(ANSWERED, envelope(requests[0], price(requests[0]), tenantId="another"))
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["unknown"]
    finish(driver, execution, requests)


@pytest.mark.parametrize("key", [None, b"another", b"\x00\xff"])
@pytest.mark.parametrize("partition", [0, 1])
def test_any_key_and_any_partition_will_do(asked: Any, key: bytes | None, partition: int) -> None:
    """DESIGN 4: home is taken from the record, not from its key: no key, another key, another partitioner."""
    driver, execution, requests = asked
    for request in requests:
        driver.send_raw(ANSWERED, envelope(request, price(request)), key=key, partition=partition)
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert driver.refusals() == []
    assert driver.metric("kawait_misplaced_records_total", topic=driver.names.completions) == 0


def test_a_bare_answer_with_the_echoed_headers_is_taken(asked: Any) -> None:
    """SURFACE 'Topics and envelopes': a business value alone, with the request's two headers."""
    driver, execution, requests = asked
    for request in requests:
        echoed = [
            ("kawait-interaction-id", request.interaction_id.encode()),
            ("kawait-resume-token", (request.resume_token or "").encode()),
        ]
        driver.send_raw(ANSWERED, json.dumps(price(request)).encode(), headers=[*echoed, ("x-own", b"\xff")])
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"


def test_an_answer_may_name_its_correlation_id(asked: Any) -> None:
    """BEHAVIOUR 34: `correlationId` alone resolves too."""
    driver, execution, requests = asked
    driver.send_raw(
        ANSWERED, envelope(requests[0], price(requests[0]), interactionId=..., correlationId=requests[0].correlation_id)
    )
    driver.run()
    assert driver.fact_names(execution).count("BoundaryCompletionAdmitted") == 1
    finish(driver, execution, requests[1:])


def test_equal_keys_of_two_recipients_do_not_meet(shop: Any) -> None:
    """CASES 22, 25, DESIGN 8.4: the same basket in two executions, the same idempotency key in both answers: both are admitted."""
    driver = shop("items")
    one, two = driver.submit(BASKET, key="one"), driver.submit(BASKET, key="two")
    driver.run()
    requests = driver.new_requests()
    assert len(requests) == 6
    for request in requests:
        if request.execution_id == one:
            driver.send_raw(ANSWERED, envelope(request, price(request), idempotencyKey=request.idempotency_key))
    driver.run()
    assert driver.status(one) == "SUCCEEDED"
    assert driver.status(two) in {"RUNNING", "WAITING_EXTERNAL"}
    assert "BoundaryCompletionAdmitted" not in driver.fact_names(two)
    for request in requests:
        if request.execution_id == two:
            driver.send_raw(ANSWERED, envelope(request, price(request), idempotencyKey=request.idempotency_key))
    driver.run()
    assert driver.status(two) == "SUCCEEDED"
    assert driver.refusals() == []


# --- late and never ------------------------------------------------------------------------------------------------------------------


def test_an_answer_after_the_deadline_is_late_and_its_payload_is_kept(asked: Any) -> None:
    """BEHAVIOUR 156, 158, 161, CASES 44, DESIGN 8.2: `late` with payload and owner; the outcome does not change."""
    driver, execution, requests = asked
    driver.complete(requests[0], price(requests[0]))
    driver.run()
    driver.advance(60_000)
    assert driver.status(execution) == "FAILED"
    ended = driver.execution(execution)
    for request, amount in ((requests[1], "1.50"), (requests[0], "9.99"), (requests[0], "1.50")):
        driver.complete(request, price(request, amount))
        driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["late", "conflict"]
    assert driver.refusals()[0].owner == "shop-desk"
    assert json.loads(driver.refusals()[0].payload) == price(requests[1])
    assert driver.execution(execution) == ended


def test_an_answer_that_never_comes_fails_the_execution_once(asked: Any) -> None:
    """BEHAVIOUR 152, 161, CASES 38, DESIGN 8.6: one expiry, unit and execution end together, one dead letter that names step and item."""
    driver, execution, requests = asked
    driver.complete(requests[1], price(requests[1]))
    driver.run()
    driver.advance(59_999)
    assert driver.status(execution) in {"RUNNING", "WAITING_EXTERNAL"}
    driver.advance(1)
    driver.advance(600_000)
    names = driver.fact_names(execution)
    assert names[-3:] == ["InteractionTimedOut", "BoundaryUnitClosed", "RunFailed"]
    assert names.count("InteractionTimedOut") == 1
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.reason, letter.execution_id, letter.step_id) == (
        "execution",
        "AWAIT_TIMEOUT",
        execution,
        "ask",
    )
    (reply,) = [reply for reply in driver.replies() if reply.status == "FAILED"]
    assert reply.error_code == "AWAIT_TIMEOUT"


def test_answers_that_wait_for_stopped_workers_are_on_time(asked: Any) -> None:
    """DESIGN 8.2: the answer's time on `completions` counts; our own backlog expires nothing, crash included."""
    driver, execution, requests = asked
    for request in requests:
        driver.complete(request, price(request))
    ingress = driver.worker.loops["ingress"]
    for _ in range(5):
        ingress.step()
    assert len(driver.records(driver.names.completions)) == 3
    driver.clock.advance(3_600_000)
    driver.crash()
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert "InteractionTimedOut" not in driver.fact_names(execution)
    assert driver.refusals() == []


def test_an_answer_at_the_deadline_is_late(asked: Any) -> None:
    """BEHAVIOUR 158: on time is before the deadline."""
    driver, execution, requests = asked
    driver.clock.advance(60_000)
    driver.complete(requests[0], price(requests[0]))
    driver.run()
    assert driver.status(execution) == "FAILED"
    assert [refusal.reason for refusal in driver.refusals()] == ["late"]
    assert "BoundaryCompletionAdmitted" not in driver.fact_names(execution)


# --- before all items were dispatched ---------------------------------------------------------------------------------------------------


def test_answers_before_the_source_ended_count_once(shop: Any) -> None:
    """BEHAVIOUR 101, CASES 52: answers while most items are unsent; the join waits for all of them, and the window's worth is out at a time."""
    driver = shop("items")
    execution = driver.submit({"id": "b", "lines": [f"s{i}" for i in range(2_500)]})
    answered = 0
    while driver.step() or answered == 0:
        requests = driver.new_requests()
        for request in requests:
            driver.complete(request, price(request))
        answered += len(requests)
        if 0 < answered < 2_500:
            assert driver.status(execution) == "RUNNING"
    driver.run()
    assert answered == 2_500
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == [f"s{i}" for i in range(2_500)]
    assert driver.refusals() == []


def test_of_a_header_that_comes_twice_the_last_one_counts(asked: Any) -> None:
    driver, execution, requests = asked
    for request in requests:
        token = (request.resume_token or "").encode()
        echoed = [
            ("kawait-interaction-id", b"x"),
            ("kawait-interaction-id", request.interaction_id.encode()),
            ("kawait-resume-token", b"forged"),
            ("kawait-resume-token", token),
        ]
        driver.send_raw(ANSWERED, json.dumps(price(request)).encode(), headers=echoed)
    finish(driver, execution, [])
