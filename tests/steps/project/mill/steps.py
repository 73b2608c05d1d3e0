"""Types and functions of the mill."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import BaseModel


class Basket(BaseModel):
    lines: list[str]


class Line(BaseModel):
    sku: str


class Price(BaseModel):
    price: Decimal


class Offer(BaseModel):
    sku: str
    price: Decimal


class Receipt(BaseModel):
    sku: str
    price: Decimal


class Refused(Exception):
    """No other attempt helps."""


def play(function: str, sku: str) -> None:
    """Do what the line says, if it is for this function."""
    name, _, verb = sku.partition(":")
    if name != function:
        return
    match verb:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "refuse":
            raise Refused(f"{sku} is refused")
        case _:
            raise LookupError(sku)


def split(basket: Basket) -> Iterator[Line]:
    for sku in basket.lines:
        play("split", sku)
        yield Line(sku=sku)


def receipt(offer: Offer) -> Receipt:
    play("receipt", offer.sku)
    return Receipt(sku=offer.sku, price=offer.price)


class Joined:
    """Joins the price to the line that was asked about."""

    def project(self, request: Line, completion: Price, metadata: Any) -> Offer:
        play("project", request.sku)
        return Offer(sku=request.sku, price=completion.price)
