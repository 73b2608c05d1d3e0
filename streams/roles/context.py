"""What the tasks of a worker share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.resume_token import TokenSigner
from schemas.names import Names
from state.tables.rows import MakeOverlay
from state.tables.store import StoreFactory
from streams.author.calls import Author
from streams.clock import BrokerClock
from streams.engine.looks import Looks
from streams.engine.pool import Pool
from streams.log.seam import Log
from streams.telemetry.metrics import Metrics
from topologies.pipeline.model import Pipeline


def signer_of(pipeline: Pipeline) -> TokenSigner | None:
    """Who signs and verifies the pipeline's resume tokens."""
    if pipeline.tokens is None:
        return None
    return TokenSigner(active=pipeline.tokens.active, keys=pipeline.tokens.keys)


@dataclass(kw_only=True)
class RoleContext:
    """What the tasks of every role share.

    Attributes:
        topic_ids: Of every topic of the pipeline, by name; another one after a topic was deleted and made again.
    """

    pipeline: Pipeline
    names: Names
    clock: BrokerClock
    signer: TokenSigner | None
    metrics: Metrics
    author: Author
    topic_ids: Mapping[str, str]


@dataclass(kw_only=True)
class CoreContext(RoleContext):
    """What the core tasks share besides.

    Attributes:
        looks: How far the log goes and is taken over, asked beside the work.
        pace_s: Shortest time between two such questions of a task.
        live_sessions: Over all tasks; at most `limits.LIVE_SESSIONS_MAX`.
    """

    log: Log
    looks: Looks
    pace_s: float
    pool: Pool
    stores: StoreFactory
    instance: str
    make_overlay: MakeOverlay
    live_sessions: int = 0
