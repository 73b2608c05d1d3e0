"""Items that enter an await, and the key under which the outside party may dedupe their requests."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from topologies.pipeline.steps import AwaitStep

KEY_CHARS_MAX = 512
"""Longest idempotency key as text; a longer one is replaced by its sha256 (a field may hold 200 kB)."""


class SourceItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One item of the stream entering an itemised unit, ready to be sent."""

    request: bytes
    """Canonical JSON."""
    idempotency_key: str


def idempotency_key(step: AwaitStep, execution_id: str, value: Any, item_index: int | None) -> str:
    """The provider's key for one request (BEHAVIOUR F6): step id, the declared fields in order, `<null>` for an absent one."""
    parts = [step.step_id] if step.idempotency_key_fields else [execution_id, step.step_id]
    fields = step.idempotency_key_fields
    parts += [f"{field}={text}" for field, text in zip(fields, step.input.field_texts(value, fields), strict=True)]
    if item_index is not None:
        parts.append(f"item={item_index}")
    key = ":".join(parts)
    return key if len(key) <= KEY_CHARS_MAX else f"{step.step_id}:sha256={hashlib.sha256(key.encode()).hexdigest()}"
