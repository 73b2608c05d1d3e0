"""Payload types of the shop."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel


class Basket(BaseModel):
    id: str
    lines: list[str]


class BasketFile(BaseModel):
    path: str
    name: str = ""


class Line(BaseModel):
    basket: str
    sku: str


class Price(BaseModel):
    """All that the outside party owns."""

    price: Decimal


class Offer(BaseModel):
    sku: str
    price: Decimal


class Receipt(BaseModel):
    sku: str
    price: Decimal
    text: str = ""


class Total(BaseModel):
    skus: list[str]
    price: Decimal
