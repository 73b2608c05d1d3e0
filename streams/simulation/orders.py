"""Orders of a simulated run that come as records of a source topic, where a pipeline has one."""

from __future__ import annotations

from random import Random

from schemas.envelopes import DEFAULT_TENANT, SubmitCommand
from schemas.identity import execution_id
from streams.log.memory.log import MemoryLog
from streams.log.seam import TopicPartition
from streams.simulation.scenario import Say, Scenario
from topologies.pipeline.ends import TopicSource


class Orders:
    """Writes orders, and knows which execution each of them starts.

    Attributes:
        unwritten: Orders that are still to come, by name.
    """

    def __init__(self, scenario: Scenario, log: MemoryLog, rng: Random, say: Say) -> None:
        source = scenario.pipeline.source
        assert isinstance(source, TopicSource)
        self.source = source
        self._scenario = scenario
        self._log = log
        self._rng = rng
        self._say = say
        self._producer = log.plain_producer()
        self.unwritten = list(scenario.orders)
        self._written: dict[TopicPartition, dict[int, tuple[str, str]]] = {}
        """By place in the topic that there is now: order and execution."""

    def write(self) -> None:
        """Write the next order, or one again where that means the same."""
        if self.unwritten:
            name = self.unwritten.pop(0)
        elif self.source.key is not None:
            name = self._rng.choice(sorted(self._scenario.orders))
        else:
            return
        payload, is_lost = self._scenario.orders[name]
        at = TopicPartition(self.source.topic, self._rng.randrange(self._scenario.pipeline.partitions))
        offset = self._log.end_offsets([at], "uncommitted", 1)[at]
        key = name if self.source.key is not None else f"{at.topic}-{at.partition}-{offset}"
        identity = self._identity(key)
        self._say(f"outside: orders {name} at {at.topic}[{at.partition}]@{offset}, that is {identity}")
        self._producer.send(at.topic, payload, partition=at.partition, timeout_s=1)
        self._written.setdefault(at, {})[offset] = name, identity
        pipeline = self._scenario.pipeline.name
        command = SubmitCommand(
            execution_id=identity,
            tenant_id=DEFAULT_TENANT,
            pipeline=pipeline,
            submission_key=key,
            input=payload,
            origin="topic",
        )
        self._scenario.submissions.setdefault(identity, command)
        if is_lost:
            self._scenario.lost_items.add(identity)

    def _identity(self, key: str) -> str:
        """Worked out once more: a place is one in the topic that has this id, for another one counts anew."""
        topic = self.source.topic
        scope = topic if self.source.key is not None else f"{topic}:{self._log.topics([topic], 1)[topic].topic_id}"
        return execution_id(DEFAULT_TENANT, self._scenario.pipeline.name, f"topic:{scope}:{key}")

    def lose_unread(self, committed: dict[TopicPartition, int], started: set[str]) -> None:
        """The topic is gone: what nobody had read is lost, and ordered again."""
        for at, orders in self._written.items():
            for offset, (name, identity) in orders.items():
                if offset >= committed.get(at, 0) and identity not in started:
                    self._scenario.submissions.pop(identity, None)
                    if name not in self.unwritten:
                        self.unwritten.append(name)
        self._written.clear()
