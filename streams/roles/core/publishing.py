"""Publishing: the effect of a prepared publication, from committed rows only (DESIGN 7 'Finishing').

Runs on the worker pool. Outputs are read in input order, a slice at a time; each must be SUCCEEDED and decode, else nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pydantic import BaseModel

from connectors.objects.files import CsvRows, ObjectPublications, RowFormat, object_key
from schemas import limits
from schemas.errors import StepError
from state.execution import ExecutionRecord
from state.item import ItemRecord, ItemStatus
from topologies.pipeline.model import ObjectOutput, Pipeline
from topologies.pipeline.payload_list import join_payloads

ReadItems = Callable[[int, int], list[ItemRecord]]
"""(first index, limit) -> item rows in index order."""


class ItemNotVerified(StepError):
    """An item's stored outcome is not what a release needs."""

    code = "ITEM_NOT_VERIFIED"
    retryable = False


class ResultTooLarge(StepError):
    """A result that is kept on the execution is too large for a row."""

    code = "RESULT_TOO_LARGE"
    retryable = False


def item_outputs(read_items: ReadItems, count: int) -> Iterator[list[bytes]]:
    """Outputs of all items in input order, a slice at a time.

    Raises:
        ItemNotVerified: an item is missing or has not succeeded.
    """
    index = 0
    while index < count:
        rows = read_items(index, min(limits.PUBLISH_CHUNK_ITEMS, count - index))
        outputs: list[bytes] = []
        for row in rows:
            if row.item_index != index or row.status is not ItemStatus.SUCCEEDED:
                break
            outputs += row.outputs
            index += 1
        else:
            if rows:
                yield outputs
                continue
        msg = f"item {index} of {count} has no stored outcome; the execution must not be released"
        raise ItemNotVerified(msg)


def row_format(pipeline: Pipeline) -> RowFormat:
    """How rows of the pipeline's output object are written."""
    arms = [arm for arm in pipeline.output_type.arms if issubclass(arm, BaseModel)]
    return CsvRows(arms[0])


def publish_object(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    chunks: Iterator[list[bytes]],
    *,
    instance: str,
    check: Callable[[], None],
) -> list[str]:
    """Write the output objects of an execution and make them appear.

    `check` raises when the effect must not go on (the partition was given up, or it started too late).

    Returns:
        Paths of the published objects.
    """
    output = pipeline.output
    assert isinstance(output, ObjectOutput)
    rows = row_format(pipeline)
    default_group = execution.source_name or execution.execution_id
    with ObjectPublications(output.location, instance=instance, attempt=execution.attempt) as publications:
        opened: set[str] = set()

        def write(group: str, payloads: list[bytes]) -> None:
            key = object_key(output.key, {"groupKey": group, "executionId": execution.execution_id})
            publication = publications.publication(key)
            if key not in opened:
                opened.add(key)
                publication.write(rows.header)
            publication.write(rows.encode(payloads))

        if output.group_by is None:
            write(default_group, [])
        for chunk in chunks:
            check()
            for group, payloads in _grouped(chunk, output.group_by, default_group).items():
                write(group, payloads)
        check()
        return [published.path for published in publications.commit()]


def _grouped(payloads: list[bytes], field: str | None, default: str) -> dict[str, list[bytes]]:
    if field is None:
        return {default: payloads}
    groups: dict[str, list[bytes]] = {}
    for payload in payloads:
        value: Any = msgspec.json.decode(payload)
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        groups.setdefault(str(value), []).append(payload)
    return groups


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
