"""Publishing: the effect of a prepared publication, from committed rows only (DESIGN 7 'Finishing').

Runs on the worker pool. Outputs are read in input order, a slice at a time; each must be SUCCEEDED and decode, else nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pydantic import BaseModel

from connectors.objects.publication import ObjectPublications, object_key
from connectors.objects.row_formats import CsvRows, RowFormat
from state.execution import ExecutionRecord
from topologies.pipeline.ends import ObjectOutput
from topologies.pipeline.model import Pipeline


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
