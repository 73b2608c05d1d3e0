"""A book of entries, a line each: `account,amount`. Neither the file nor the line is part of an entry."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel

BROKEN = "broken"
"""How accounts begin that nothing can be posted to."""


class Book(BaseModel):
    """One input file."""

    path: str


class Entry(BaseModel):
    """One line of it."""

    account: str
    amount: Decimal


class Posted(BaseModel):
    """One line of the output."""

    account: str
    amount: Decimal
    state: str


class Tagged(BaseModel):
    """What is no row: a list within."""

    account: str
    tags: list[str]


class Total(BaseModel):
    """All entries together."""

    count: int
    amount: Decimal


def read(book: Book) -> Iterator[Entry]:
    """Each line, in order."""
    with Path(book.path).open(encoding="utf-8") as file:
        for text in file:
            account, amount = text.strip().split(",")
            yield Entry(account=account, amount=Decimal(amount))


def post(entry: Entry) -> Posted:
    """Post an entry that was agreed to."""
    if entry.account.startswith(BROKEN):
        raise ValueError(f"{entry.account} cannot be posted to")
    return Posted(account=entry.account, amount=entry.amount, state="posted")


def tag(entry: Entry) -> Tagged:
    """The entry with a list."""
    return Tagged(account=entry.account, tags=["posted"])


def total(entries: list[Entry]) -> Total:
    """All of them."""
    return Total(count=len(entries), amount=sum((entry.amount for entry in entries), Decimal(0)))
