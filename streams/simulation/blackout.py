"""Blackouts of a simulated run: every machine is down for long, and the broker is not as it was when they come back."""

from __future__ import annotations

from random import Random
from typing import Protocol

from schemas.errors import LogUnavailable, OffsetsLost
from schemas.names import Names
from streams.log.memory.log import MemoryLog
from streams.simulation.coverage import Coverage
from streams.simulation.ledger import Ledger
from streams.simulation.machines import group_of, spec_of
from streams.simulation.orders import Orders
from streams.simulation.outside import Outside
from streams.simulation.scenario import Say, Scenario
from streams.simulation.violation import Breach, Violation
from streams.worker.application import inputs_of, take_up, vital_topics


class Machines(Protocol):
    """All machines; a `streams.simulation.fleet.Fleet`."""

    def stop_all(self) -> None:
        """Kill every process, and let its sessions end."""

    def make_whole(self) -> None:
        """Start what is missing of the roles."""


class Blackout:
    """What happens to offsets and topics while nobody is there.

    Attributes:
        is_reread: What was taken over before is taken over once more: an answer may be refused twice.
    """

    def __init__(
        self,
        scenario: Scenario,
        fleet: Machines,
        log: MemoryLog,
        outside: Outside,
        orders: Orders | None,
        ledger: Ledger,
        rng: Random,
        coverage: Coverage,
        say: Say,
    ) -> None:
        self._pipeline = scenario.pipeline
        self._names = Names.of(scenario.pipeline.app)
        self._fleet = fleet
        self._log = log
        self._outside = outside
        self._orders = orders
        self._ledger = ledger
        self._rng = rng
        self._coverage = coverage
        self._say = say
        self.is_reread = False

    def happen(self) -> None:
        """Stop everything, let something happen to the broker, and start again."""
        self._say("--- blackout ---")
        self._fleet.stop_all()
        self._rng.choice((self._lose_offsets, self._lose_offsets, self._make_again))()
        self._fleet.make_whole()

    def _lose_offsets(self) -> None:
        """A group's offsets expire: where records must be taken up once, no worker starts before somebody says where to go on."""
        role = self._rng.choice(sorted(inputs_of(self._pipeline)))
        group = group_of(self._log, self._names.group(role))
        vital = {at: offset for at, offset in group.committed.items() if at.topic in vital_topics(self._pipeline)}
        self._say(f"broker: the offsets of {group.name} expire")
        self._coverage.faults["offsets lost"] += 1
        self.is_reread = self.is_reread or len(vital) < len(group.committed)
        group.committed.clear()
        if vital:
            self._check_refused()
            group.committed.update(vital)

    def _check_refused(self) -> None:
        try:
            take_up(self._pipeline, self._log)
        except (OffsetsLost, LogUnavailable):
            self._coverage.faults["start refused"] += 1
            return
        raise Violation(Breach.LOST_OFFSETS_IGNORED, "a worker starts although it cannot know what it has taken up")

    def _make_again(self) -> None:
        """Somebody deletes a topic of the outside and makes it again."""
        source = (self._orders.source.topic,) if self._orders is not None else ()
        topic = self._rng.choice((*self._pipeline.response_topics, *source, *source))
        self._say(f"broker: {topic} is made again")
        self._coverage.faults["source topic made again" if topic in source else "response topic made again"] += 1
        committed = dict(group_of(self._log, self._names.group("ingress")).committed)
        if topic in source and self._orders is not None:
            self._orders.lose_unread(committed, {fact for (kind, fact) in self._ledger.seen if kind == "RunSubmitted"})
        else:
            self._outside.lose_unread(topic, committed)
        settings = spec_of(self._log, topic)
        self._log.delete_topic(topic)
        self._log.create_topics([settings], 1)
