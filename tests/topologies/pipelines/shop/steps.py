"""Functions of the shop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from shop import script
from shop.domain import Basket, BasketFile, Line, Offer, Price, Receipt, Total


def split(basket: Basket) -> Iterator[Line]:
    script.play("split", basket.id)
    for sku in basket.lines:
        script.play("line", sku)
        now = script.lines.get(sku, sku)
        if now is None:
            return
        yield Line(basket=basket.id, sku=now)


def read(file: BasketFile) -> Iterator[Line]:
    """One line of the file is one line of the basket."""
    script.play("read", file.name)
    for sku in Path(file.path).read_text().split():
        yield Line(basket=file.name, sku=sku)


def check(line: Line) -> Line:
    script.play("check", line.sku)
    return line


def receipt(offer: Offer) -> Receipt:
    script.play("receipt", offer.sku)
    return Receipt(sku=offer.sku, price=offer.price)


async def receipt_later(offer: Offer) -> Receipt:
    """As `receipt`, by way of an event loop."""
    await asyncio.sleep(0)
    return receipt(offer)


async def split_later(basket: Basket) -> AsyncIterator[Line]:
    """As `split`, by way of an event loop."""
    for line in split(basket):
        await asyncio.sleep(0)
        yield line


def receipts(offer: Offer) -> Iterator[Receipt]:
    """None for a free offer, two for a dear one."""
    script.play("receipts", offer.sku)
    copies = 0 if offer.price == 0 else 2 if offer.price > 99 else 1
    for copy in range(copies):
        yield Receipt(sku=offer.sku, price=offer.price, text=f"copy {copy}")


def again(offer: Offer) -> Line:
    script.play("again", offer.sku)
    return Line(basket=str(offer.price), sku=offer.sku)


def total(receipts: list[Receipt]) -> Total:
    script.play("total", str(len(receipts)))
    return Total(
        skus=[receipt.sku for receipt in receipts], price=sum((receipt.price for receipt in receipts), Decimal(0))
    )


class Joined:
    """Joins the price to the line that was asked about."""

    def project(self, request: Line, completion: Price, metadata: Any) -> Offer:
        script.play("project", request.sku)
        return Offer(sku=f"{request.sku}@{metadata.actor}" if metadata.actor else request.sku, price=completion.price)


class JoinedOtherwise(Joined):
    """The projector of a later release."""
