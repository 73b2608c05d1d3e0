"""A role of a worker, as the engine sees it: who it is on the log, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role of one app instance.

    Attributes:
        name: For logs and metrics.
        group: Consumer group.
        instance: Name of a static member; None: a dynamic one.
        transactional_id: Of its producer; stable, so that a restart fences its predecessor.
        topics: Input topics.
        own_topic: A topic of the application that the role may write.
        co_partitioned: Equal partition numbers of all topics form one task; else each partition is a task.
    """

    name: str
    group: str
    instance: str | None
    transactional_id: str
    topics: tuple[str, ...]
    own_topic: str
    co_partitioned: bool
