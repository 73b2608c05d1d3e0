"""The two protocols behind which an outside party lives: what comes in, and what goes out.

Both are pulled by the shell: a connector starts no loop of its own, decides nothing and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

Arrival = TypeVar("Arrival", covariant=True)  # noqa: PLC0105 - what a connector brings in
Departure = TypeVar("Departure", contravariant=True)  # noqa: PLC0105 - what a connector takes out


class Ingress(Protocol[Arrival]):
    """Brings in what the outside has for us."""

    def receive(self, now_ms: int) -> Sequence[Arrival]:
        """Return what is there now; the same thing may be returned again, so its key must not depend on when."""

    def close(self) -> None:
        """Let go of connections and files."""


class Egress(Protocol[Departure]):
    """Takes out what was decided."""

    def send(self, departure: Departure) -> None:
        """Hand one thing to the outside, and return when it has it; at-least-once, under a stable id."""

    def close(self) -> None:
        """Let go of connections and files."""
