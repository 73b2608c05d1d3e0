"""Cells: whether the values of a type can be the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, RootModel

from topologies.pipeline.payloads import Alternative, PayloadType, shown


def no_rows(kind: PayloadType) -> list[str]:
    """What of a type is no row, and which of its fields are no cell, as `Model.field`."""
    return [found for arm in kind.alternatives for found in _no_cells(arm)]


def _no_cells(arm: Alternative) -> Iterator[str]:
    if get_args(arm) or not issubclass(arm, BaseModel) or issubclass(arm, RootModel):
        yield shown(arm)
        return
    schema = arm.model_json_schema(mode="serialization", by_alias=True)
    named = schema.get("$defs", {})
    if "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    for name, field in schema.get("properties", {}).items():
        if _is_nested(field, named):
            yield f"{arm.__name__}.{name}"
    if schema.get("additionalProperties"):
        yield f"{arm.__name__} (any other fields)"


def _is_nested(field: dict[str, Any], named: dict[str, Any]) -> bool:
    """Whether a JSON Schema allows arrays or objects."""
    if "$ref" in field:
        return _is_nested(named[field["$ref"].rpartition("/")[2]], named)
    arms = [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]
    return field.get("type") in ("array", "object") or any(_is_nested(arm, named) for arm in arms)
