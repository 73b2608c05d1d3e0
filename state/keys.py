"""Keys of rows: which table, which record, in an order that scans in input order.

    e/<executionId>                 execution          executions-changelog
    u/<executionId>.<step>          unit               units-changelog
    i/<unitId>.<index, 9 digits>    interaction        interactions-changelog     ('u' for a scalar unit's one)
    t/<unitId>.<index, 9 digits>    item               items-changelog

The changelog's record key is the part after the slash.
"""

from __future__ import annotations

from functools import lru_cache

from schemas.identity import UNARY

TABLES = {"e": "executions", "u": "units", "i": "interactions", "t": "items"}
"""Prefix of a row's key -> table name; its changelog topic is `<app>.<table>-changelog`."""

INTERACTIONS = b"i/"
"""What the keys of all interactions begin with."""

KEYS_KEPT = 16_384
"""Keys of interactions and items, each: two windows of the default size. Each is asked for several times while its item is on its way."""

_UNARY = UNARY.encode()

PREFIXES = {table: prefix for prefix, table in TABLES.items()}


@lru_cache(maxsize=4_096)
def execution_key(execution_id: str) -> bytes:
    """Key of an execution's row."""
    return b"e/" + execution_id.encode()


@lru_cache(maxsize=4_096)
def unit_key(unit_id: str) -> bytes:
    """Key of a unit's row."""
    return b"u/" + unit_id.encode()


@lru_cache(maxsize=KEYS_KEPT)
def interaction_key(unit_id: str, item_index: int | None) -> bytes:
    """Key of an interaction's row."""
    return _interactions(unit_id) + (_UNARY if item_index is None else b"%09d" % item_index)


@lru_cache(maxsize=KEYS_KEPT)
def item_key(unit_id: str, item_index: int) -> bytes:
    """Key of an item's row."""
    return _items(unit_id) + b"%09d" % item_index


@lru_cache(maxsize=4_096)
def _interactions(unit_id: str) -> bytes:
    """What the keys of a unit's interactions have in common."""
    return f"i/{unit_id}.".encode()


@lru_cache(maxsize=4_096)
def _items(unit_id: str) -> bytes:
    """What the keys of a unit's items have in common."""
    return f"t/{unit_id}.".encode()


def span(table: str, unit_id: str, first: int = 0) -> tuple[bytes, bytes]:
    """Scan bounds of a unit's interactions or items, from item `first` on (a scalar's 'u' sorts after all digits)."""
    prefix = f"{PREFIXES[table]}/{unit_id}."
    return f"{prefix}{first:09d}".encode(), f"{prefix}~".encode()


def prefix_span(prefix: str) -> tuple[bytes, bytes]:
    """Scan bounds of one whole table."""
    return f"{prefix}/".encode(), f"{prefix}0".encode()  # '0' is the byte after '/'


def split_key(key: bytes) -> tuple[str, bytes]:
    """A row's key as (table name, changelog record key)."""
    return TABLES[chr(key[0])], key[2:]


def execution_of_key(key: bytes) -> str:
    """The execution that a row of any table belongs to."""
    return key[2:].decode().split(".", 1)[0]


def is_interaction(key: bytes) -> bool:
    """Whether the row is an interaction."""
    return key.startswith(INTERACTIONS)


def step_of_key(key: bytes) -> int:
    """The number of the await step that an interaction or item belongs to."""
    return int(key.rsplit(b".", 2)[1])


def table_of(key: bytes) -> str:
    """The table of a row."""
    return TABLES[chr(key[0])]


def item_index_of(key: bytes) -> int | None:
    """The item index in an interaction's or item's key; None for a scalar's."""
    last = key.rsplit(b".", 1)[1]
    return None if last == _UNARY else int(last)
