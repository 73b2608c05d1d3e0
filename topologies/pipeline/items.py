r"""Items that enter an await, and the key under which the outside party may dedupe their requests.

The rule of the keys (rule 2). With declared fields a key is `<step>:<field>=<text>:...`, made of what the request says and of nothing else:
whoever asks for the same again, in whatever file, row or execution, asks under the same key. Two real equal requests of one stream stay two:
the later one adds `:n=2`, the next `:n=3`, counted in the order of the stream. Inserting and removing other items changes nobody's key.

    text     `\` and `:` of a value are written `\\` and `\:`; no value is `<null>`, and a text that says so is `\<null>`
    length   what is longer than `KEY_CHARS_MAX` becomes `<step>:sha256:<hex>`; no field is written like that, since each has its `=`

Without declared fields a key is the execution, the step and the item: it does not outlive the execution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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


class Keys:
    """The keys of one step's requests; made once for a stream, as every item has a key."""

    def __init__(self, step: AwaitStep) -> None:
        self._step_id = step.step_id
        self._fields = fields = step.idempotency_key_fields
        self._input = step.input
        names = [step.step_id, *(f"{field}=" for field in fields)]
        escaped = [name.replace("%", "%%") for name in names]
        self._fill = ":".join([escaped[0], *(f"{name}%s" for name in escaped[1:])]).__mod__
        self._colons = len(fields) + sum(name.count(":") for name in names)

    def of(self, value: Any) -> str:
        """The key of the first request with the declared fields of `value`."""
        key = self._fill(tuple(self._input.field_texts(value, self._fields)))
        if key.count(":") != self._colons or "\\" in key or "<" in key:  # a value may need to be written otherwise
            key = self._fill(tuple(self._input.key_texts(value, self._fields)))
        if len(key) <= KEY_CHARS_MAX:
            return key
        return f"{self._step_id}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def idempotency_key(step: AwaitStep, execution_id: str, value: Any, item_index: int | None) -> str:
    """The provider's key for one request; of the first item with its fields, see `repeated_key`."""
    if step.idempotency_key_fields:
        return Keys(step).of(value)
    item = "" if item_index is None else f":item={item_index}"
    return f"{execution_id}:{step.step_id}{item}"


def repeated_key(key: str, number: int) -> str:
    """The key of the how-many-th item of a stream with equal fields it is, from 1 on."""
    return key if number == 1 else f"{key}:n={number}"


def aggregate_key(step: AwaitStep, execution_id: str, values: Iterable[Any]) -> str:
    """The key of one request about many items: the fields of all of them in order, hashed; other items or another order, another key."""
    if not step.idempotency_key_fields:
        return idempotency_key(step, execution_id, None, None)
    digest, keys = hashlib.sha256(), Keys(step)
    for value in values:
        key = keys.of(value).encode()
        digest.update(len(key).to_bytes(4, "big") + key)  # the length keeps two items apart from one
    return f"{step.step_id}:all:sha256:{digest.hexdigest()}"
