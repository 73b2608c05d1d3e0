"""A role of a worker, as the engine sees it: who it is on the log, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streams.log.seam import TopicPartition


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
        partitions: Numbers from it on hold no task: nothing is ever written there; None: every partition is a task.
        taken: Topic -> how many of its partitions have had a committed offset; one without it has lost it.
        topic_ids: Topic -> its id when the worker started; positions are of that topic and of no other.
        vital: Topics of which no record may be taken up twice or passed over: what lost its offset is told, never guessed.
    """

    name: str
    group: str
    instance: str | None
    transactional_id: str
    topics: tuple[str, ...]
    own_topic: str
    co_partitioned: bool
    partitions: int | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    vital: frozenset[str] = frozenset()

    def has_lost(self, at: TopicPartition) -> bool:
        """Whether a partition without a committed offset has had one, and must not be read from anywhere else."""
        return at.topic in self.vital and at.partition < self.taken.get(at.topic, 0)


def lost_offset(group: str, at: TopicPartition) -> str:
    """The sentence about a committed offset that is gone."""
    return (
        f"{at.topic}[{at.partition}]: the committed offset of group {group} is gone. It was there: Kafka lets go the offsets of a group that is "
        "stopped for longer than the broker's offsets.retention.minutes (7 days unless set). Read from the start its records would be taken up "
        "again, from the end some would be passed over. Say where to go on, with all workers stopped: `kafka-consumer-groups.sh "
        f"--reset-offsets --group {group} --topic {at.topic}:{at.partition} --to-offset N --execute` (`--to-earliest` takes everything up that is "
        "still kept, `--to-latest` nothing)"
    )
