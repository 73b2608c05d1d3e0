"""What the mock provider decides, as pure functions: the same payment always gets the same answer (BEHAVIOUR 6.4)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import msgspec

REJECT_RATE_DEFAULT: Final = 0.08
ACTOR: Final = "csv-payments-mock-provider"
RATE_SCALE: Final = 10_000
"""Rates are compared in ten-thousandths."""

_UNSIGNED_32: Final = 0xFFFFFFFF


def jhash(text: str) -> int:
    """Java's `String.hashCode`, read as unsigned: the 31-polynomial over UTF-16 code units, modulo 2**32."""
    if text.isascii():
        units: bytes | list[int] = text.encode()
    else:
        wide = text.encode("utf-16-be", "surrogatepass")
        units = [wide[i] << 8 | wide[i + 1] for i in range(0, len(wide), 2)]
    value = 0
    for unit in units:
        value = (31 * value + unit) & _UNSIGNED_32
    return value


_REJECT_SALT: Final = jhash("provider-reject")
_DUPLICATE_SALT: Final = jhash("provider-duplicate")


def rejected(csv_id: str, rate: float) -> bool:
    """Say whether the payment with this csvId is rejected at this rate (SURFACE csv-payments).

    A rate of zero or below, or NaN, rejects none; a rate of one or above rejects all.
    """
    return _drawn(csv_id, _REJECT_SALT, rate)


def answered_twice(interaction_id: str, probability: float) -> bool:
    """Say whether this request is answered twice: by its id, so that every run doubles the same ones."""
    return _drawn(interaction_id, _DUPLICATE_SALT, probability)


def _drawn(text: str, salt: int, rate: float) -> bool:
    h = (31 * (31 + jhash(text)) + salt) & _UNSIGNED_32
    return h % RATE_SCALE < _share(rate)


@lru_cache(maxsize=16)
def _share(rate: float) -> int:
    """A rate in ten-thousandths, 0 to all of them."""
    return 0 if math.isnan(rate) else round(min(max(rate, 0.0), 1.0) * RATE_SCALE)


class PoisonRequest(ValueError):
    """A record on the request topic that is no payment request; the message says why."""


class Payment(msgspec.Struct):
    """The part of the request payload that the decision needs."""

    csvId: str  # noqa: N815 - the wire name


class PaymentRequest(msgspec.Struct, rename="camel"):
    """The part of the request envelope that the answer needs; other members are skipped undecoded."""

    interaction_id: str
    request_payload: Payment
    correlation_id: str | None = None
    resume_token: str | None = None
    idempotency_key: str | None = None


class PaymentAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """The completion value (SURFACE 'Topics and envelopes')."""

    interaction_id: str
    correlation_id: str | None
    response_payload: msgspec.Raw
    resume_token: str | None = None
    idempotency_key: str | None = None
    actor: str | None = None


APPROVAL: Final = msgspec.Raw(
    b'{"status":"Complete","reference":"101","message":"Mock response","fee":"1.01","statusCode":1000}'
)
REJECTION: Final = msgspec.Raw(
    b'{"status":"Rejected","reference":"101","message":"Payment rejected by the mock provider","fee":"1.01",'
    b'"statusCode":1000}'
)

_decode = msgspec.json.Decoder(PaymentRequest).decode
_encode = msgspec.json.Encoder().encode


def parse(request: bytes | None) -> PaymentRequest:
    """Read a request record's value.

    Raises:
        PoisonRequest: It is null, not JSON, or misses a member that the answer needs.
    """
    if request is None:
        msg = "the value is null"
        raise PoisonRequest(msg)
    try:
        return _decode(request)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PoisonRequest(str(error)) from error


def reply(request: PaymentRequest, *, reject_rate: float = REJECT_RATE_DEFAULT, actor: str = ACTOR) -> bytes:
    """The completion value for a request: the decision, and everything that must be echoed."""
    return _encode(
        PaymentAnswer(
            request.interaction_id,
            request.correlation_id or request.interaction_id,
            REJECTION if rejected(request.request_payload.csvId, reject_rate) else APPROVAL,
            request.resume_token,
            request.idempotency_key,
            actor,
        )
    )


def answer(request: bytes | None, *, reject_rate: float = REJECT_RATE_DEFAULT, actor: str = ACTOR) -> bytes:
    """The completion value for a request record's value.

    Raises:
        PoisonRequest: The value is no payment request.
    """
    return reply(parse(request), reject_rate=reject_rate, actor=actor)
