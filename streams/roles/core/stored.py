"""Stored outputs of an execution, read back in input order, a slice at a time; runs on the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from schemas import limits
from schemas.errors import StepError
from state.item import ItemRecord, ItemStatus
from state.keys import item_key
from state.tables.rows import PartitionRows
from state.unit import UnitRecord
from topologies.pipeline.payload_list import join_payloads, payloads_of

ReadItems = Callable[[int, int], list[ItemRecord]]
"""(first index, limit) -> item rows in index order."""


_SETTLED = (ItemStatus.SUCCEEDED, ItemStatus.SKIPPED)
"""Verified: its outputs are stored, or it has none because it was left out."""


class ItemNotVerified(StepError):
    """An item's stored outcome is not what its execution needs to go on."""

    code = "ITEM_NOT_VERIFIED"
    retryable = False


class ResultTooLarge(StepError):
    """A result that is kept on the execution is too large for a row."""

    code = "RESULT_TOO_LARGE"
    retryable = False


def item_outputs(read_items: ReadItems, count: int) -> Iterator[list[bytes]]:
    """Outputs of all items in input order, a slice at a time.

    Raises:
        ItemNotVerified: an item is missing, or has neither succeeded nor been left out.
    """
    index = 0
    while index < count:
        rows = read_items(index, min(limits.PUBLISH_CHUNK_ITEMS, count - index))
        outputs: list[bytes] = []
        for row in rows:
            if row.item_index != index or row.status not in _SETTLED:
                break
            outputs += row.outputs
            index += 1
        else:
            if rows:
                yield outputs
                continue
        msg = f"item {index} of {count} has no stored outcome; the execution must not go on"
        raise ItemNotVerified(msg)


def collect(chunks: Iterator[list[bytes]]) -> bytes:
    """Outputs as one JSON array, for a pipeline that keeps its result on the execution.

    Raises:
        ResultTooLarge: more than a row may hold.
    """
    payloads: list[bytes] = []
    size = 0
    for chunk in chunks:
        payloads += chunk
        size += sum(map(len, chunk))
        if len(payloads) > limits.AGGREGATE_ITEMS_MAX or size > limits.PAYLOAD_BYTES_MAX:
            msg = (
                f"the result has more than {limits.AGGREGATE_ITEMS_MAX} items or {limits.PAYLOAD_BYTES_MAX} bytes "
                "(limits.AGGREGATE_ITEMS_MAX, limits.PAYLOAD_BYTES_MAX): give the pipeline an `output`"
            )
            raise ResultTooLarge(msg)
    return join_payloads(payloads)


def stored_chunks(
    rows: PartitionRows, unit: UnitRecord | None, payload: bytes | None, *, many: bool
) -> Iterator[list[bytes]]:
    """What is stored, in input order, a slice at a time: verified outputs of an itemised unit's items, else the payload."""
    if unit is None or not unit.itemised:
        return iter([payloads_of(payload or b"null", many=many)])
    count = unit.source_count if unit.source_count is not None else unit.expected or 0
    unit_id = unit.unit_id

    def read(first: int, limit: int) -> list[ItemRecord]:
        found = rows.committed([item_key(unit_id, index) for index in range(first, first + limit)])
        return [row for row in found if row is not None]

    return item_outputs(read, count)


def stored_payloads(rows: PartitionRows, unit: UnitRecord | None, payload: bytes | None, *, many: bool) -> list[bytes]:
    """The same, all at once."""
    return [part for chunk in stored_chunks(rows, unit, payload, many=many) for part in chunk]
