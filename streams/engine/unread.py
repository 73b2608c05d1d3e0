"""Partitions that nobody reads: found, told, and taken in by joining anew.

A running member hears within seconds that a topic has grown. One that was stopped meanwhile does not: measured, a static member that comes
back is given what it had before, and the group takes the topic's new size for the one that it knows. Its join is only a new count for the
group when the group's leader asks for it; so every member that sees partitions without a reader twice in a row joins again.

The same look finds a topic that was deleted and made again: it would be read from the old one's position, and its records would be taken for
those of the old one. The worker ends, and its next start takes the new topic up.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.errors import TopicMadeAgain
from streams.clock import Clock
from streams.engine.aside import Aside, Asked
from streams.engine.membership import Membership
from streams.engine.role import Role
from streams.log.seam import Log, TopicPartition, TopicState
from streams.telemetry.metrics import Metrics

LOOK_EVERY_S = 10.0
AFTER_A_JOIN_S = 60.0
ASK_TIMEOUT_S = 5.0

Unread = frozenset[TopicPartition]


class UnreadPartitions:
    """The inputs of one role, compared with what its group's members read.

    Attributes:
        membership: Of this worker in the group; set once there is one.
    """

    def __init__(self, role: Role, log: Log, aside: Aside, clock: Clock, metrics: Metrics) -> None:
        self.membership: Membership | None = None
        self._role = role
        self._log = log
        self._aside = aside
        self._clock = clock
        self._metrics = metrics
        self._asked: Asked[Unread] | None = None
        self._seen: Unread = frozenset()
        self._look_s = clock.monotonic_s() + LOOK_EVERY_S

    def turn(self) -> None:
        """Look now and then; asks beside the loop, joins anew on its thread.

        Raises:
            TopicMadeAgain: an input is not the topic any more that this worker has taken up.
        """
        if self._asked is not None:
            if self._asked.is_over:
                asked, self._asked = self._asked, None
                self._take(asked)
        elif self._clock.monotonic_s() >= self._look_s and self._is_member():
            self._look_s = self._clock.monotonic_s() + LOOK_EVERY_S
            self._asked = self._aside.ask(self._look)

    def _is_member(self) -> bool:
        return self.membership is not None and self.membership.metadata is not None

    def _look(self) -> Unread:
        """Beside the loop: what no member reads."""
        topics = self._log.topics(self._role.topics, ASK_TIMEOUT_S)
        self._refuse_made_again(topics)
        read = self._log.assigned(self._role.group, ASK_TIMEOUT_S)
        if read is None:  # a rebalance is under way
            return frozenset()
        there = {TopicPartition(name, number) for name, state in topics.items() for number in range(state.partitions)}
        return frozenset(there - read)

    def _refuse_made_again(self, topics: Mapping[str, TopicState]) -> None:
        for name, state in topics.items():
            if self._role.topic_ids.get(name, state.topic_id) != state.topic_id:
                raise TopicMadeAgain(
                    f"{name} was deleted and made again while this worker ran, so how far it was read says nothing any more. Start the workers "
                    "again: a start takes the new topic up from its beginning, or says why it cannot"
                )

    def _take(self, asked: Asked[Unread]) -> None:
        unread = asked.answer_or(frozenset())
        self._metrics.unread(self._role.name, len(unread))
        if unread and unread == self._seen and self.membership is not None:
            self.membership.rejoin(sorted(unread))
            self._look_s = self._clock.monotonic_s() + AFTER_A_JOIN_S
            unread = frozenset()
        self._seen = unread
