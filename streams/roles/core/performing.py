"""Performing: which part of a core task does what a decision says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streams.engine.task import Entry, Outputs

Perform = Callable[[Any, Outputs, Entry | None], None]
"""Performs one kind of decision; the entry is what it was decided for, None when it follows from a row."""


def merged(*tables: Mapping[type, Perform]) -> dict[type, Perform]:
    """One table of all; each kind of decision has one performer."""
    found: dict[type, Perform] = {}
    for table in tables:
        doubles = found.keys() & table.keys()
        assert not doubles, f"two performers for {', '.join(sorted(kind.__name__ for kind in doubles))}"
        found |= table
    return found
