"""Planted bugs: all of them, and how one is put in its place for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from streams.simulation import planted_core, planted_items, planted_memory, planted_time
from streams.simulation.planting import Plant

PLANTS: Mapping[str, Plant] = {
    **planted_core.PLANTS,
    **planted_time.PLANTS,
    **planted_memory.PLANTS,
    **planted_items.PLANTS,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug for a while; None plants none."""
    swaps = PLANTS[name].swaps() if name else []
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in swaps]
    try:
        for where, attribute, value in swaps:
            setattr(where, attribute, value)
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)
