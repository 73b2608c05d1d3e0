"""Several payloads as one JSON array, without decoding the payloads."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


def join_payloads(payloads: Iterable[bytes]) -> bytes:
    """A JSON array of JSON payloads."""
    return b"[" + b",".join(payloads) + b"]"


def split_payloads(array: bytes) -> list[bytes]:
    """The payloads of a JSON array, each as it stands in it."""
    return [bytes(raw) for raw in _decode(array)]


def payloads_of(data: bytes, *, many: bool) -> list[bytes]:
    """The inputs in a stored segment input."""
    return split_payloads(data) if many else [data]
