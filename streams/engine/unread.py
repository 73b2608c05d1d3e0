"""Partitions that nobody reads: found, told, and taken in by joining anew.

A running member hears within seconds that a topic has grown. One that was stopped meanwhile does not: measured, a static member that comes
back is given what it had before, and the group takes the topic's new size for the one that it knows. Its join is only a new count for the
group when the group's leader asks for it; so every member that sees partitions without a reader twice in a row joins again.
"""

from __future__ import annotations

from streams.clock import Clock
from streams.engine.aside import Aside, Asked
from streams.engine.membership import Membership
from streams.engine.role import Role
from streams.log.seam import Log, TopicPartition
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
        """Look now and then; asks beside the loop, joins anew on its thread."""
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
        read = self._log.assigned(self._role.group, ASK_TIMEOUT_S)
        if read is None:  # a rebalance is under way
            return frozenset()
        topics = self._log.topics(self._role.topics, ASK_TIMEOUT_S)
        there = {TopicPartition(name, number) for name, state in topics.items() for number in range(state.partitions)}
        return frozenset(there - read)

    def _take(self, asked: Asked[Unread]) -> None:
        unread = asked.answer_or(frozenset())
        self._metrics.unread(self._role.name, len(unread))
        if unread and unread == self._seen and self.membership is not None:
            self.membership.rejoin(sorted(unread))
            self._look_s = self._clock.monotonic_s() + AFTER_A_JOIN_S
            unread = frozenset()
        self._seen = unread
