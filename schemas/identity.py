"""Ids are derived, never drawn, and an id says where its record lives (DESIGN 4).

    executionId   = uuid5(namespace, tenant, pipeline name and submission key, NUL between them)
    unitId        = <executionId>.<stepIndex>
    interactionId = <unitId>.<itemIndex, or 'u' for the one interaction of a scalar unit>

Everything internal is keyed by execution id, so any of these ids routes itself: `home_partition`.
"""

from __future__ import annotations

import uuid
from functools import lru_cache

import msgspec

from schemas.errors import PeerError

NAMESPACE = uuid.UUID("8c9a4f0e-6a3d-5d0a-9d0e-6b61776d6974")
"""Namespace of every uuid5 the runtime derives; part of the format, never to change."""

UNARY = "u"
"""Last part of the interaction id of a unit with one interaction."""

ID_CHARS_MAX = 512
"""Longest interaction id that is read."""

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995


def execution_id(tenant: str, pipeline: str, submission_key: str) -> str:
    """Derive the id of the execution that a submission key names; the same key is the same execution."""
    return str(uuid.uuid5(NAMESPACE, f"{tenant}\0{pipeline}\0{submission_key}"))


def unit_id(execution: str, step_index: int) -> str:
    """The unit of one await step of one execution."""
    return f"{execution}.{step_index}"


def interaction_id(unit: str, item_index: int | None) -> str:
    """The interaction of one item of a unit, or its only one (`None`)."""
    return f"{unit}.{UNARY if item_index is None else item_index}"


def letter_id(interaction: str, attempt: int) -> str:
    """The dead letter of one item that failed for good at this attempt; the same again is the same letter."""
    return str(uuid.uuid5(NAMESPACE, f"letter\0{interaction}\0{attempt}"))


def execution_of(unit: str) -> str:
    """The execution that a unit belongs to."""
    return _parts(unit)[0]


def step_of(unit: str) -> int:
    """The number of the await step that a unit is of."""
    return _parts(unit)[1]


@lru_cache(maxsize=4_096)
def _parts(unit: str) -> tuple[str, int]:
    """A unit id of our own making, taken apart; all interactions of a unit ask for it."""
    execution, _, step = unit.rpartition(".")
    return execution, int(step)


class InteractionRef(msgspec.Struct, frozen=True, gc=False):
    """An interaction id taken apart."""

    execution_id: str
    step_index: int
    item_index: int | None
    unit_id: str


def parse_interaction_id(text: str) -> InteractionRef:
    """Take an interaction id apart.

    Raises:
        PeerError: `text` is not of the form `<executionId>.<stepIndex>.<itemIndex or u>`.
    """
    unit, _, item = text.rpartition(".")
    known = _parse_unit_id(unit) if len(text) <= ID_CHARS_MAX else None
    index = None if item == UNARY else _parse_index(item)
    if known is None or index == -1:
        msg = f"not an interaction id: {text[:80]!r}"
        raise PeerError(msg)
    execution, step, unit = known
    return InteractionRef(execution, step, index, unit)


@lru_cache(maxsize=4_096)
def _parse_unit_id(text: str) -> tuple[str, int, str] | None:
    """Execution, step and the id itself; None: it is no unit id. The interactions of a unit share it, so most look-ups are hits."""
    execution, _, step = text.rpartition(".")
    index = _parse_index(step)
    return (execution, index, text) if execution and index >= 0 else None


@lru_cache(maxsize=16_384)
def _parse_index(text: str) -> int:
    """An index, or -1. Only the canonical decimal form, so that two spellings never name one record."""
    is_index = len(text) <= 9 and text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")
    return int(text) if is_index else -1


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 as the Java client computes it, as an unsigned 32-bit number."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=4_096)
def home_partition(execution: str, partitions: int) -> int:
    """The partition that owns an execution: Java's default partitioner over the execution id. Kept: each row of an execution asks."""
    return (murmur2(execution.encode()) & 0x7FFFFFFF) % partitions
