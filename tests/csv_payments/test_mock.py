"""What the mock provider decides (SURFACE csv-payments, BEHAVIOUR 6.4)."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from streams.demo.provider_answers import PoisonRequest, answer, answered_twice, jhash, rejected
from streams.demo.run import SAMPLE

LARGER_SAMPLE = Path(__file__).parents[1] / "data" / "payments_1k.csv"
REQUEST = {
    "tenantId": "default",
    "executionId": "e",
    "interactionId": "e.1.0",
    "correlationId": "c-7",
    "resumeToken": "token",
    "idempotencyKey": "key",
    "requestPayload": {"csvId": "1", "recipient": "Ann", "amount": "1.00"},
}


@pytest.mark.parametrize(("text", "value"), [("", 0), ("hello", 99162322), ("Aa", 2112), ("BB", 2112), ("😀", 1772899)])
def test_jhash_is_javas_string_hash(text: str, value: int) -> None:
    assert jhash(text) == value


def test_jhash_is_read_as_unsigned() -> None:
    assert jhash("polygenelubricants") == 1 << 31


@pytest.mark.parametrize(("rate", "count"), [(0.08, 8), (0.05, 0)])
def test_twelve_sample_rows(rate: float, count: int) -> None:
    assert sum(rejected(str(row), rate) for row in range(1, 13)) == count


@pytest.mark.parametrize(("rate", "count"), [(0.08, 93), (0.05, 47)])
def test_a_thousand_sample_rows(rate: float, count: int) -> None:
    assert sum(rejected(str(row), rate) for row in range(1, 1001)) == count


@pytest.mark.parametrize(("path", "count"), [(SAMPLE, 8), (LARGER_SAMPLE, 93)], ids=["12", "1k"])
def test_the_sample_files(path: Path, count: int) -> None:
    with path.open(newline="") as file:
        assert sum(rejected(row["ID"], 0.08) for row in csv.DictReader(file)) == count


def test_rates_at_and_beyond_the_ends() -> None:
    assert not any(rejected(str(row), rate) for row in range(50) for rate in (0.0, -1.0, math.nan))
    assert all(rejected(str(row), rate) for row in range(50) for rate in (1.0, 2.0, math.inf))


def test_an_answer_echoes_what_it_must() -> None:
    value = json.loads(answer(json.dumps(REQUEST).encode(), reject_rate=0))
    assert value == {
        "interactionId": "e.1.0",
        "correlationId": "c-7",
        "resumeToken": "token",
        "idempotencyKey": "key",
        "actor": "csv-payments-mock-provider",
        "responsePayload": {
            "status": "Complete",
            "reference": "101",
            "message": "Mock response",
            "fee": "1.01",
            "statusCode": 1000,
        },
    }


def test_a_rejection_keeps_the_code_and_changes_status_and_message() -> None:
    payload = json.loads(answer(json.dumps(REQUEST).encode(), reject_rate=1))["responsePayload"]
    assert payload["status"] == "Rejected"
    assert payload["statusCode"] == 1000


@pytest.mark.parametrize(
    "request_value",
    [
        None,
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"interactionId": "i"}',
        b'{"interactionId": 1, "requestPayload": {}}',
    ],
)
def test_what_is_no_request_is_poison(request_value: bytes | None) -> None:
    with pytest.raises(PoisonRequest):
        answer(request_value)


def test_second_answers_are_drawn_by_the_interaction_id() -> None:
    doubled = [answered_twice(f"e.1.{item}", 0.25) for item in range(4_000)]
    assert doubled == [answered_twice(f"e.1.{item}", 0.25) for item in range(4_000)]
    assert 0.2 < sum(doubled) / len(doubled) < 0.3
