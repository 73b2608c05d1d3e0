"""What a number of simulated runs have exercised, counted: a fault that never comes proves nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

ROLES_BY_WEIGHT = ("core", "core", "core", "ingress", "continuation")
"""Roles as often as something happens to them."""

STEPS = 7
"""Numbered steps of a commit (`streams.engine.loop`)."""


@dataclass(slots=True)
class Coverage:
    """Counts of one run, or of several.

    Attributes:
        kills: By role and numbered step of the commit.
        stalls: As `kills`.
        pauses: By role: steps in which reading was paused, because enough waits to be decided.
        outcomes: How executions ended.
        shapes: Which pipelines were run.
    """

    kills: Counter[tuple[str, int]] = field(default_factory=Counter)
    stalls: Counter[tuple[str, int]] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        """Count another run."""
        for name in self.__slots__:
            getattr(self, name).update(getattr(other, name))
