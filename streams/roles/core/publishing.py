"""Publishing: the effect of a prepared publication, from committed rows only (DESIGN 7 'Finishing').

Runs on the worker pool. Outputs are read in input order, a slice at a time; each must be SUCCEEDED and decode, else nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath

from pydantic import BaseModel

from connectors.objects.publication import ObjectPublications, name_part, object_key
from connectors.objects.row_formats import CsvRows, JsonLines, RowFormat
from state.execution import ExecutionRecord
from topologies.pipeline.ends import ObjectOutput
from topologies.pipeline.model import Pipeline


def row_format(pipeline: Pipeline) -> RowFormat:
    """How rows of the pipeline's output object are written."""
    output = pipeline.output
    if isinstance(output, ObjectOutput) and output.format == "jsonl":
        return JsonLines()
    return CsvRows(*(arm for arm in pipeline.output_type.arms if issubclass(arm, BaseModel)))


def key_values(execution: ExecutionRecord) -> dict[str, str]:
    """What the name of an output object may be made of, as far as the execution has it (`ends.OBJECT_KEY_FIELDS`).

    The day is that of the submission: the name stays when the execution is taken up again tomorrow.
    """
    submitted = datetime.fromtimestamp(execution.submitted_at_ms / 1000, tz=UTC)
    values = {"executionId": execution.execution_id, "date": submitted.date().isoformat()}
    if execution.source_name is not None:
        name = PurePosixPath(execution.source_name)
        values |= {"inputName": execution.source_name, "inputStem": name.with_name(name.stem).as_posix()}
    return values


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
    rows, values = row_format(pipeline), key_values(execution)
    default_group = ungrouped(execution)
    with ObjectPublications(output.location, instance=instance, attempt=execution.attempt) as publications:
        opened: set[str] = set()

        def write(group: str, payloads: list[bytes]) -> None:
            key = object_key(output.key, {**values, "groupKey": group})
            publication = publications.publication(key)
            if key not in opened:
                opened.add(key)
                publication.write(rows.header)
            publication.write(rows.encode(payloads))

        if output.group_by is None:
            write(default_group, [])
        for chunk in chunks:
            check()
            for group, payloads in _grouped(pipeline, chunk, output.group_by, default_group).items():
                write(group, payloads)
        check()
        return [published.path for published in publications.commit()]


def ungrouped(execution: ExecutionRecord) -> str:
    """The one group of an execution whose output names none."""
    return execution.source_name or execution.execution_id


def _grouped(pipeline: Pipeline, payloads: list[bytes], field: str | None, default: str) -> dict[str, list[bytes]]:
    if field is None:
        return {default: payloads}
    kind = pipeline.output_type
    groups: dict[str, list[bytes]] = {}
    for payload in payloads:
        text = kind.field_text(kind.validate_json(payload), field)
        groups.setdefault(name_part(text), []).append(payload)
    return groups
