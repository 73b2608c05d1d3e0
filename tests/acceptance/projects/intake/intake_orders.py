"""What the records of the intake hold."""

from __future__ import annotations

from pydantic import BaseModel


class Order(BaseModel):
    """Something to ask about."""

    id: str
