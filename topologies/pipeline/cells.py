"""Cells: whether the values of a type can be the rows of a table."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from topologies.pipeline.lossless import unwrapped
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
    declared = {info.serialization_alias or name: info.annotation for name, info in arm.model_fields.items()}
    for name, field in schema.get("properties", {}).items():
        if _is_nested(field, named) or _is_container(declared.get(name)):
            yield f"{arm.__name__}.{name}"
    if schema.get("additionalProperties"):
        yield f"{arm.__name__} (any other fields)"


def _is_container(annotation: Any) -> bool:
    """Whether a type is declared as a container, whatever a serializer makes of it: a format knows the declaration only."""
    bare = unwrapped(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        return any(map(_is_container, get_args(bare)))
    kind = get_origin(bare) or bare
    return isinstance(kind, type) and issubclass(kind, (list, tuple, set, frozenset, dict, BaseModel))


def _is_nested(field: dict[str, Any], named: dict[str, Any]) -> bool:
    """Whether a JSON Schema allows arrays or objects."""
    if "$ref" in field:
        return _is_nested(named[field["$ref"].rpartition("/")[2]], named)
    arms = [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]
    return field.get("type") in ("array", "object") or any(_is_nested(arm, named) for arm in arms)
