"""Values through a whole application: what leaves is what was answered, or somebody is told which field was wrong; on every path alike."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from schemas.errors import UsageError

if TYPE_CHECKING:
    from schemas.envelopes import RequestEnvelope
    from streams.testing.driver import TopologyTestDriver

BATCHES, ITEMS = 4, 8


def digits(rng: random.Random) -> str:
    whole = str(rng.randrange(10 ** rng.choice([1, 3, 17, 30])))
    return rng.choice(["", "-"]) + whole + (f".{rng.randrange(10**12):012d}" if rng.random() < 0.7 else "")


def many(rng: random.Random, identity: str) -> str:
    """One payload as JSON text: its decimals are numbers."""
    tags = rng.sample("abcdefgh", 3)
    animal = rng.choice(['{"kind": "cat", "lives": 9}', f'{{"kind": "dog", "weight": {digits(rng)}}}', "null"])
    return (
        f'{{"id": "{identity}", "rate": {rng.uniform(-9, 9)!r}, "price": {digits(rng)}, "prices": [{digits(rng)}, {digits(rng)}], '
        f'"by_name": {{"a": {digits(rng)}, "b": null}}, "big": {rng.randrange(2**200)}, "tags": {json.dumps(tags)}, '
        f'"at": "2024-01-02T03:04:05.678+02:00", "body": "/w==", "animal": {animal}}}'
    )


def meaning(text: str | bytes) -> Any:
    """What a payload means: its decimals as such, whether they are numbers or texts; its set without order."""
    tree = json.loads(text, parse_float=Decimal)
    decimals = [tree["price"], *tree["prices"], tree["by_name"]["a"], (tree["animal"] or {}).get("weight")]
    exact = [None if each is None else Decimal(each) for each in decimals]
    body = tree["body"].replace("/", "_")  # base64, in either alphabet
    return tree["id"], float(tree["rate"]), exact, tree["big"], sorted(tree["tags"]), tree["at"][:23], body


def written(driver: TopologyTestDriver) -> list[Any]:
    return sorted((meaning(record.value or b"") for record in driver.records("values.out")), key=str)


def play(driver: TopologyTestDriver, *, crashes: bool) -> tuple[list[Any], list[Any]]:
    """Send batches, refuse to answer well at first, answer; gives what was meant and what was written."""
    rng = random.Random("values")
    for number in range(BATCHES):
        items = ", ".join(many(rng, f"{number}-{index}") for index in range(ITEMS))
        driver.send_raw("values.in", f'{{"id": "{number}", "items": [{items}]}}'.encode())
    answers = {
        f"{number}-{index}": many(rng, f"{number}-{index}") for number in range(BATCHES) for index in range(ITEMS)
    }
    answered: set[str] = set()
    for _ in range(40):
        driver.run()
        asked: list[RequestEnvelope] = driver.new_requests()
        for request in asked:
            text = answers[json.loads(bytes(request.request_payload))["id"]]
            driver.complete(request, text.replace('"rate": ', '"rate": 1e999, "was": ').encode())
            driver.run()
            driver.complete(request, text.encode())
            answered.add(request.interaction_id)
        if crashes:
            driver.crash()
        driver.advance(20_000)
    assert len(answered) == len(answers)
    refused = [(refusal.reason, "rate" in refusal.detail) for refusal in driver.refusals()]
    assert refused == [("wrong-shape", True)] * len(answers)
    return sorted((meaning(text) for text in answers.values()), key=str), written(driver)


@pytest.mark.parametrize("crashes", [False, True])
def test_what_leaves_is_what_was_answered(shop: Any, *, crashes: bool) -> None:
    """FAULTS K4: digits as sent, floats are numbers, sets in one order; live, suspending, and after crashes alike."""
    meant, left = play(shop("values"), crashes=crashes)
    assert left == meant


def test_what_is_asked_is_what_came_in(shop: Any) -> None:
    """FAULTS K4: the digits of a source record reach the outside party."""
    driver = shop("values")
    text = many(random.Random(1), "one")
    driver.send_raw("values.in", f'{{"id": "1", "items": [{text}]}}'.encode())
    driver.run()
    (request,) = driver.new_requests()
    assert meaning(bytes(request.request_payload)) == meaning(text)


def test_a_step_that_gives_no_number_fails_with_the_name_of_the_field(shop: Any) -> None:
    """FAULTS K4: WRONG_OUTPUT, and nothing is written as null."""
    driver = shop("values")
    driver.send_raw("values.in", b'{"id": "1", "items": [{"id": "spoilt", "rate": 1}]}')
    driver.run()
    (request,) = driver.new_requests()
    driver.complete(request, bytes(request.request_payload))
    driver.run()
    for _ in range(5):
        driver.advance(60_000)
    assert driver.status(request.execution_id) == "FAILED"
    (letter,) = driver.dead_letters()
    assert "WRONG_OUTPUT" in letter.reason + letter.detail
    assert "rate" in letter.detail
    assert driver.records("values.out") == []


def test_a_source_record_with_no_number_is_dead_lettered_with_the_name_of_the_field(shop: Any) -> None:
    driver = shop("values")
    driver.send_raw("values.in", b'{"id": "1", "items": [{"id": "a", "rate": "nan"}]}')
    driver.run()
    (letter,) = driver.dead_letters()
    assert (letter.reason, "items.0.rate" in letter.detail) == ("wrong-shape", True)


def test_equal_payloads_are_one_submission_however_they_are_written(make: Any) -> None:
    """FAULTS K4: 250.0 and 250.00, another order of names and of sets, a default that is left out."""
    driver = make("values", sets=("input=null",))
    ids = {
        driver.submit(text)
        for text in (
            b'{"id": "1", "items": [{"id": "a", "price": 250.0, "tags": ["x", "y"], "by_name": {"a": "1", "b": "2"}}]}',
            b'{"items": [{"tags": ["y", "x"], "price": "250.00", "by_name": {"b": 2.0, "a": 1}, "id": "a", "rate": null}], "id": "1"}',
            b'{"id": "1", "items": [{"id": "a", "price": 2.5e2, "tags": ["x", "y", "x"], "by_name": {"a": 1.0, "b": 2}}]}',
        )
    }
    assert len(ids) == 1
    other = b'{"id": "1", "items": [{"id": "a", "price": 12345678901234567.89}]}'
    another = b'{"id": "1", "items": [{"id": "a", "price": 12345678901234567.88}]}'
    assert driver.submit(other) != driver.submit(another)


def test_an_equal_answer_that_is_written_otherwise_is_a_duplicate(shop: Any) -> None:
    driver = shop("values")
    driver.send_raw("values.in", b'{"id": "1", "items": [{"id": "a"}, {"id": "b"}]}')
    driver.run()
    request, _ = driver.new_requests()
    driver.complete(request, b'{"id": "a", "price": 250.0, "tags": ["x", "y"]}')
    driver.complete(request, b'{"tags": ["y", "x"], "id": "a", "price": "250.00"}')
    driver.run()
    assert driver.refusals() == []
    driver.complete(request, b'{"tags": ["y", "x"], "id": "a", "price": "250.01"}')
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["conflict"]


@pytest.mark.parametrize("rate", [float("nan"), float("-inf")])
def test_a_submission_with_no_number_is_refused_with_the_name_of_the_field(make: Any, rate: float) -> None:
    driver = make("values", sets=("input=null",))
    with pytest.raises(UsageError, match=r"items\.0\.rate"):
        driver.submit({"id": "1", "items": [{"id": "a", "rate": rate}]})
    with pytest.raises(UsageError, match=r"items\.0\.rate"):
        driver.submit(b'{"id": "1", "items": [{"id": "a", "rate": 1e999}]}')
