"""Membership: the clients of one role, and whether they are still ours.

A role is a member of its consumer group under its instance name, and holds a transactional id that no predecessor may write under any more.
The id is taken first, then the group is joined: a newcomer fences its predecessor before it owns anything.

A newer process with our name, or a ghost of our own? Measured: when a static member's session lapses while the broker restarts, the client's
own second join may fence its first one. (Which of the two it was the group cannot tell: its members keep the client id of the one they
replaced.) Two things tell:

  - A newer process takes the role's transactional id before it joins, so who still holds the id was fenced by nobody else.
  - A newer process stays a member, while a ghost is gone after its session timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from schemas import limits
from schemas.errors import InstanceFenced, KawaitError, LogUnavailable, ProducerFenced
from streams.clock import Clock
from streams.engine.role import Role
from streams.log.seam import GroupConsumer, Log, Producer, Rebalance, TopicPartition

logger = structlog.get_logger("kawait.loop")

INIT_TIMEOUT_S = 10.0
ASK_TIMEOUT_S = 2.0
BACK_AFTER_S = 3.0
"""Quiet for so long means that the broker is back."""
AWAY_PAUSE_S = 0.2
FENCED_GRACE_S = 2.5
"""After a fence, poll so long before making a new producer: a newer process with our name shows within one heartbeat (1 s)."""
RIVAL_S_MAX = limits.SESSION_TIMEOUT_MS / 1000 + 5.0
"""A dead member with our name is gone after its session timeout; one that is still there then is alive."""
RIVAL_POLL_S = 0.5


@dataclass
class _Rival:
    """A member that has our instance name, while we have no producer that could tell whose it is."""

    error: InstanceFenced
    until_s: float


class Membership:
    """The consumer and the producer of one role.

    Args:
        rebalance: Is told of partitions.
        wait: Sleeps; a test's clock does not.
    """

    def __init__(
        self, role: Role, log: Log, *, rebalance: Rebalance, clock: Clock, wait: Callable[[float], object]
    ) -> None:
        self.role = role
        self.consumer: GroupConsumer | None = None
        self.producer: Producer | None = None
        self.metadata: object = None
        """Of the group's generation, as it was when partitions were assigned last; used until they are revoked (DESIGN 6)."""
        self._log = log
        self._rebalance = rebalance
        self._clock = clock
        self._wait = wait
        self._fenced_until_s = 0.0
        self._rival: _Rival | None = None
        self._away = False
        self._away_at_s = 0.0

    # --- making and giving up the clients ------------------------------------------------------------------------------------------------

    @property
    def is_in_grace(self) -> bool:
        """Whether a fence is so recent that a new producer might fence the rightful owner: poll first."""
        return self._clock.monotonic_s() < self._fenced_until_s

    def make_producer(self) -> bool:
        """Take the transactional id; whether it was to be had."""
        producer = self._log.producer(self.role.transactional_id)
        try:
            producer.init(INIT_TIMEOUT_S)
        except LogUnavailable as error:
            producer.close()
            self.wait_for_broker(error)
            return False
        except ProducerFenced:
            producer.close()
            self._fenced_until_s = self._clock.monotonic_s() + FENCED_GRACE_S
            return False
        self.producer = producer
        self.note_back()
        return True

    def join(self) -> None:
        """Be a member of the group."""
        if self.consumer is None:
            self.consumer = self._log.group_consumer(
                group=self.role.group, instance=self.role.instance, topics=self.role.topics, rebalance=self._rebalance
            )

    def rejoin(self, unread: Sequence[TopicPartition]) -> None:
        """Join the group once more, because nobody reads some partitions; the next poll gives ours up and takes its share."""
        first = f"{unread[0].topic}[{unread[0].partition}]"
        logger.warning(
            "partitions that nobody reads: joining anew", role=self.role.name, partitions=len(unread), first=first
        )
        if self.consumer is not None:
            self.consumer.rejoin()

    def leave(self) -> None:
        """Give the membership up."""
        if self.consumer is not None:
            self.consumer.close()
            self.consumer = None
        self.metadata = None

    def drop_producer(self, *, fenced: bool = False) -> None:
        """Give the producer up; after a fence no other is made before the grace is over."""
        if self.producer is not None:
            self.producer.close()
            self.producer = None
        self._fenced_until_s = self._clock.monotonic_s() + (FENCED_GRACE_S if fenced else 0.0)

    # --- a newer process with our name, or a ghost of our own ----------------------------------------------------------------------------

    def is_ghost(self, error: InstanceFenced) -> bool:
        """The broker says that our name belongs to another member: whether that was none but ourselves, so that we may leave and join anew.

        False: the broker is away and cannot be asked.

        Raises:
            InstanceFenced: a newer process has this instance name.
        """
        if self.role.instance is None:
            raise error
        if self.producer is None:
            self._rival = _Rival(error, self._clock.monotonic_s() + RIVAL_S_MAX)
            return True
        try:
            if not self.producer.holds_id(self.role.own_topic, ASK_TIMEOUT_S):
                raise error
        except LogUnavailable as away:
            self.wait_for_broker(away)
            return False
        logger.warning("fenced by this worker's own earlier join; joining anew", role=self.role.name, detail=str(error))
        return True

    def has_no_rival(self) -> bool:
        """Whether no other member has our name, so that we may join.

        Raises:
            InstanceFenced: one is still there: a newer process has this instance name.
        """
        rival = self._rival
        if rival is None:
            return True
        assert self.role.instance is not None
        try:
            is_there = self._log.has_member(self.role.group, self.role.instance, ASK_TIMEOUT_S)
        except LogUnavailable as away:
            rival.until_s = self._clock.monotonic_s() + RIVAL_S_MAX  # nobody is a member while the broker is away
            self.wait_for_broker(away)
            return False
        if is_there:
            if self._clock.monotonic_s() > rival.until_s:
                raise rival.error
            self._wait(RIVAL_POLL_S)
            return False
        logger.warning("fenced by a member that is gone; joining anew", role=self.role.name, detail=str(rival.error))
        self._rival = None
        return True

    # --- a broker that is away -----------------------------------------------------------------------------------------------------------

    def wait_for_broker(self, error: KawaitError) -> None:
        """The broker does not answer: say so once, and wait a little."""
        if not self._away:
            logger.warning("waiting for the broker", role=self.role.name, detail=str(error))
        self._away = True
        self._away_at_s = self._clock.monotonic_s()
        self._wait(AWAY_PAUSE_S)

    def note_back(self) -> None:
        """The broker answered. Clients complain about once a second while it is away, and are quiet in between."""
        if self._away and self._clock.monotonic_s() - self._away_at_s > BACK_AFTER_S:
            logger.info("the broker is back", role=self.role.name)
            self._away = False
