"""Projection: a step's output made from the stored request and what the outside party is trusted with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from topologies.pipeline.payloads import PayloadType


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the runtime knows about an answer besides its payload; the third argument of a projector.

    Attributes:
        interaction_id: The interaction that was answered.
        actor: Who answered; empty when nobody said (BEHAVIOUR F75).
        completed_at_ms: The answer's record time, epoch ms.
    """

    interaction_id: str
    actor: str
    completed_at_ms: int

    @property
    def completed_at(self) -> datetime:
        """The answer's record time, UTC."""
        return datetime.fromtimestamp(self.completed_at_ms / 1000, tz=UTC)


class Projector(Protocol):
    """Makes the step's output from the stored request and what the outside party is trusted with.

    A class with a constructor without arguments; `project` is deterministic and without side effects, as its result is stored
    and never made again (seeds/await-boundaries).
    """

    def project(self, request: Any, completion: Any, metadata: Completion, /) -> Any:
        """Give the step's output for the stored `request` and the admitted payload `completion`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """`await.completion`: the outside party answers `type`, the projector makes the step's output of it.

    Attributes:
        project: Bound: (request, answer of `type`, Completion) -> output.
        name: The projector as `module:name`: stored with the interaction, which no other projector may complete (F76).
    """

    type: PayloadType
    project: Callable[[Any, Any, Completion], Any] = field(repr=False)
    name: str
