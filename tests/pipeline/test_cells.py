"""Cells: which types are rows of a table, and which of their fields are none."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, PlainSerializer, RootModel

from topologies.pipeline.cells import no_rows
from topologies.pipeline.payloads import PayloadType


class Colour(Enum):
    RED = "red"


class Flat(BaseModel):
    kind: Literal["flat"] = "flat"
    id: UUID
    amount: Decimal | None = None
    colour: Colour = Colour.RED


class Nested(BaseModel):
    kind: Literal["nested"] = "nested"
    tags: list[str]
    pair: tuple[int, int] | None = None
    inner: Flat
    by_name: dict[str, int] = Field(default={}, alias="byName")
    joined: Annotated[list[str], PlainSerializer(" ".join, return_type=str)] = []
    text: str


class Whole(RootModel[Decimal]):
    """A number that is the whole payload."""


class OpenModel(BaseModel, extra="allow"):
    id: str


@pytest.mark.parametrize(
    ("python_type", "expected"),
    [
        (Flat, []),
        (Nested, ["Nested.tags", "Nested.pair", "Nested.inner", "Nested.byName", "Nested.joined"]),
        (Flat | Nested, ["Nested.tags", "Nested.pair", "Nested.inner", "Nested.byName", "Nested.joined"]),
        (list[Flat], ["list[Flat]"]),
        (Whole, ["Whole"]),
        (OpenModel, ["OpenModel (any other fields)"]),
    ],
)
def test_what_is_no_row_is_named(python_type: Any, expected: list[str]) -> None:
    assert no_rows(PayloadType(name="m:T", python_type=python_type)) == expected
