"""Shapes of an answer: as it came, and as the step's types read it."""

from __future__ import annotations

import msgspec


class Shaped(msgspec.Struct, frozen=True, gc=False):
    """A payload of the right type.

    Attributes:
        completion: Canonical output of the step; None while no request exists that a projector could project it with.
        answer: What the actor sent, as it came, where a projector made the completion; else None.
    """

    completion: bytes | None
    answer: bytes | None


class Misshapen(msgspec.Struct, frozen=True, gc=False):
    """A payload that is not of the step's type, or that its projector refused."""

    detail: str


Shape = Shaped | Misshapen


class Unshaped(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it came, with what its shape depends on.

    Attributes:
        request: The interaction's request, where the step's projector is to run; else None.
    """

    step_index: int
    payload: bytes
    request: bytes | None
    interaction_id: str
    actor: str
    recorded_at_ms: int
