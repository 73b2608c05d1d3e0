"""Values of many types."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    weight: Decimal


class Many(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    id: str
    rate: float | None = None
    price: Decimal = Decimal(0)
    prices: list[Decimal] = []
    by_name: dict[str, Decimal | None] = {}
    big: int = 0
    tags: set[str] = set()
    at: datetime | None = None
    body: bytes = b""
    animal: Cat | Dog | None = None


class Batch(BaseModel):
    id: str
    items: list[Many]


SPOILT = "spoilt"
"""An item with this id leaves the last step with a rate that is no number."""


def split(batch: Batch) -> Iterator[Many]:
    yield from batch.items


def keep(value: Many) -> Many:
    return value.model_copy(update={"rate": float("nan")}) if value.id.startswith(SPOILT) else value
