"""What any producer may write on a response topic, read with the payload left as it came (SURFACE 'Topics and envelopes')."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.envelopes import AnswerEnvelope, RequestEnvelope, decode_answer, encode_request

INTERACTION = "3f0e6a4e-9f6b-5c1a-8a52-0d3c4cf6b7aa.1.512"


def payload_of(answer: AnswerEnvelope) -> bytes:
    assert answer.response_payload is not msgspec.UNSET
    return bytes(answer.response_payload)


# --- answers -----------------------------------------------------------------------------------------------------------------------


def test_a_full_answer() -> None:
    answer = decode_answer(
        b'{"interactionId": "i", "correlationId": "c", "resumeToken": "t", "idempotencyKey": "k", "actor": "a", '
        b'"tenantId": "n", "responsePayload": {"status": "Complete", "fee": "1.01"}}'
    )
    assert answer == AnswerEnvelope("i", "c", "t", "k", "a", "n", answer.response_payload)
    assert payload_of(answer) == b'{"status": "Complete", "fee": "1.01"}'


def test_all_members_but_the_payload_may_be_missing_or_null() -> None:
    nulls = b'{"interactionId": null, "correlationId": null, "resumeToken": null, "idempotencyKey": null, "actor": null, "tenantId": null}'
    assert decode_answer(b"{}") == decode_answer(nulls) == AnswerEnvelope()


def test_a_missing_payload_is_not_a_null_one() -> None:
    assert decode_answer(b'{"interactionId": "i"}').response_payload is msgspec.UNSET
    assert payload_of(decode_answer(b'{"responsePayload": null}')) == b"null"


def test_a_bare_business_value_has_no_payload_member() -> None:
    """Ingress tells by this that the whole value is the payload, named by the echoed headers."""
    bare = decode_answer(b'{"status": "Complete", "reference": "101", "fee": "1.01", "statusCode": 1000}')
    assert bare == AnswerEnvelope()


def test_unknown_members_are_ignored() -> None:
    answer = decode_answer(
        b'{"interactionId": "i", "x": [1, {"y": null}], "interaction_id": "j", "responsePayload": 1}'
    )
    assert (answer.interaction_id, payload_of(answer)) == ("i", b"1")


def test_of_a_doubled_member_the_last_counts() -> None:
    answer = decode_answer(b'{"interactionId": "i", "interactionId": "j", "responsePayload": 1, "responsePayload": 2}')
    assert (answer.interaction_id, payload_of(answer)) == ("j", b"2")


@pytest.mark.parametrize(
    "payload", ["{}", "[]", '""', "0", "-1.50", "true", "1e999", '{"a" :  [1,2 ]}', '"\\u00e9\\n"', '"é 中 🚀"']
)
def test_the_payload_stays_as_it_came(payload: str) -> None:
    assert payload_of(decode_answer(f'{{"responsePayload":  {payload}  , "actor": "a"}}'.encode())) == payload.encode()


def test_numbers_in_the_payload_keep_their_digits() -> None:
    """A payload is never read as floats on its way."""
    digits = b"12345678901234567890.1234567890123456789"
    assert payload_of(decode_answer(b'{"responsePayload": ' + digits + b"}")) == digits


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b'"text"',
        b"not json",
        b"{",
        b'{"interactionId": "i"',
        b'{"interactionId": "i"} x',
        b'{"interactionId": "i",}',
        b"{'interactionId': 'i'}",
        b'{"interactionId": 7}',
        b'{"interactionId": ["i"]}',
        b'{"tenantId": {}}',
        b'{"resumeToken": true}',
        b'{"interactionId": "\xff"}',
        b'{"interactionId": "\\ud800"}',
        b'{"responsePayload": NaN}',
        b'{"responsePayload": {"a": }}',
        b'{"responsePayload": "a\nb"}',
        b"\xef\xbb\xbf{}",
        '{"interactionId": "i"}'.encode("utf-16"),
        b"\xc3\x01\x00",
    ],
)
def test_what_is_no_answer(value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_answer(value)


def test_nesting_without_end_is_an_error_of_its_own() -> None:
    """Readers of answers must catch it beside DecodeError: it is poison too."""
    with pytest.raises(RecursionError):
        decode_answer(b'{"responsePayload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_an_answer_or_a_decode_error(value: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        assert isinstance(decode_answer(value), AnswerEnvelope)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["interactionId", "correlationId", "actor", "tenantId"]), st.text()),
    JSON,
    st.booleans(),
)
def test_any_answer_is_read(members: dict[str, str], payload: Any, ascii_only: bool) -> None:
    answer = decode_answer(json.dumps({**members, "responsePayload": payload}, ensure_ascii=ascii_only).encode())
    assert json.loads(payload_of(answer)) == payload
    assert answer.interaction_id == members.get("interactionId")
    assert answer.correlation_id == members.get("correlationId")
    assert answer.actor == members.get("actor")
    assert answer.tenant_id == members.get("tenantId")


# --- requests ----------------------------------------------------------------------------------------------------------------------


def request(**changed: Any) -> RequestEnvelope:
    values: dict[str, Any] = {
        "tenant_id": "default",
        "execution_id": INTERACTION.split(".", maxsplit=1)[0],
        "interaction_id": INTERACTION,
        "correlation_id": INTERACTION,
        "step_id": "await-payment-provider",
        "item_index": 512,
        "deadline_epoch_ms": 1_764_500_000_000,
        "input_type": "PaymentRecord",
        "output_type": "PaymentStatus",
        "resume_token": "t",
        "idempotency_key": "k",
        "request_payload": msgspec.Raw(b'{"amount": "10.00"}'),
    }
    return RequestEnvelope(**{**values, **changed})


def test_a_request_has_the_members_of_the_surface_in_their_order() -> None:
    value = json.loads(encode_request(request()))
    names = "tenantId executionId interactionId correlationId stepId itemIndex deadlineEpochMs inputType outputType resumeToken"
    assert list(value) == [*names.split(), "idempotencyKey", "requestPayload"]
    assert value["requestPayload"] == {"amount": "10.00"}
    assert value["itemIndex"] == 512


def test_a_request_says_null_rather_than_leaving_a_member_out() -> None:
    value = json.loads(encode_request(request(item_index=None, resume_token=None)))
    assert value["itemIndex"] is None
    assert value["resumeToken"] is None


def test_the_request_payload_goes_out_byte_for_byte() -> None:
    payload = '{"b" :1.10, "a":"é"}'.encode()
    assert payload in encode_request(request(request_payload=msgspec.Raw(payload)))
