"""What all core tasks of a worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connectors.resume_token import TokenSigner
from schemas.names import Names
from state.tables.store import StoreFactory
from streams.author.calls import Author
from streams.engine.pool import Pool
from streams.log.seam import Log, TopicPartition
from streams.telemetry.metrics import Metrics
from topologies.pipeline.model import Pipeline

if TYPE_CHECKING:
    from streams.clock import Clock


@dataclass(kw_only=True)
class CoreContext:
    """What all core tasks of a worker share."""

    pipeline: Pipeline
    names: Names
    log: Log
    clock: Clock
    pool: Pool
    stores: StoreFactory
    signer: TokenSigner | None
    metrics: Metrics
    instance: str
    topic_ids: Mapping[str, str]
    consumed: Callable[[TopicPartition], int]
    """How far the consumer has read a partition, past markers."""
    decided: Callable[[TopicPartition], int]
    """How far the partition's records are decided and committed."""
    author: Author
    live_sessions: int = 0
    """Over all tasks; at most `limits.LIVE_SESSIONS_MAX`."""
