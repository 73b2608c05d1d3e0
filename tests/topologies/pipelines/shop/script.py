"""What a test tells the shop's functions to do, and what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

calls: list[tuple[str, str]] = []
"""(function, what it was called for), in order."""

failures: dict[tuple[str, str], list[Exception]] = {}
"""Errors that a function raises for something, one a call; when they are used up it works."""

effects: dict[str, Callable[[Any], Any]] = {}
"""What a function does before anything else."""

lines: dict[str, str | None] = {}
"""What a line of a basket is now: the source has changed since. None: it ends there."""


def play(function: str, subject: str) -> None:
    """Do what the test told this function to do."""
    calls.append((function, subject))
    if function in effects:
        effects[function](subject)
    waiting = failures.get((function, subject))
    if waiting:
        raise waiting.pop(0)


def count(function: str) -> int:
    """How often a function was called."""
    return sum(name == function for name, _ in calls)


def reset() -> None:
    """Forget everything."""
    calls.clear()
    failures.clear()
    effects.clear()
    lines.clear()
