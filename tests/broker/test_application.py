"""The application topic on a real Kafka: first offsets, lost offsets, topics made again, partitions that are added."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from schemas.errors import OffsetsLost, StartRefused, TopicMadeAgain
from schemas.names import Names
from streams.clock import SystemClock
from streams.engine.aside import AsideThread
from streams.engine.membership import Membership
from streams.engine.role import Role
from streams.engine.unread import UnreadPartitions
from streams.log.kafka.log import KafkaLog
from streams.log.seam import TopicPartition
from streams.telemetry.metrics import Metrics
from streams.worker.application import take_up
from streams.worker.topics import ensure_topics
from tests.contracts.members import Bench, wait_until
from topologies.pipeline.model import Pipeline
from topologies.reading.loading import load_pipeline

pytestmark = pytest.mark.broker

COUNTER = Path(__file__).parents[1] / "topologies" / "pipelines" / "counter.yaml"
ENVIRON = {"KAWAIT_TOKEN_K1": "k" * 32}


@pytest.fixture
def log(bootstrap: str) -> KafkaLog:
    return KafkaLog(bootstrap)


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def bench(log: KafkaLog) -> Iterator[Bench]:
    made = Bench(log, uuid.uuid4().hex[:8])
    yield made
    made.close()


@pytest.fixture
def app() -> str:
    return f"application-{uuid.uuid4().hex[:8]}"


def counter(app: str, *, partitions: int = 2) -> Pipeline:
    return load_pipeline(COUNTER, environ=ENVIRON, overrides=(f"app={app}", f"kafka.partitions={partitions}"))


def committed(log: KafkaLog, app: str, topic: str) -> list[int | None]:
    partitions = [TopicPartition(topic, number) for number in range(2)]
    found = log.group_offsets(Names.of(app).group("ingress"), partitions, 10, stable=True)
    return [found[at] for at in partitions]


def again(log: KafkaLog, admin: AdminClient, pipeline: Pipeline, topic: str) -> None:
    """Delete a topic and make it again."""
    before = log.topics([topic], 10)[topic].topic_id
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in log.topics([topic], 10), "the topic is gone")
    ensure_topics(pipeline, log)
    assert log.topics([topic], 10)[topic].topic_id != before


def test_the_first_start_commits_where_it_begins_and_the_second_changes_nothing(log: KafkaLog, app: str) -> None:
    pipeline = counter(app)
    ensure_topics(pipeline, log)
    first = take_up(pipeline, log)
    assert committed(log, app, f"{app}.in") == [0, 0]
    application = TopicPartition(f"{app}.application", 0)
    end = log.end_offsets([application], "committed", 10)
    assert take_up(pipeline, log) == first
    assert log.end_offsets([application], "committed", 10) == end


def test_lost_offsets_of_a_source_topic_stop_a_start(log: KafkaLog, admin: AdminClient, app: str) -> None:
    pipeline = counter(app)
    ensure_topics(pipeline, log)
    take_up(pipeline, log)
    for role in ("core", "ingress", "continuation"):
        group = Names.of(app).group(role)
        admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(OffsetsLost, match="--reset-offsets"):
        take_up(pipeline, log)


def test_a_source_topic_that_was_made_again_begins_at_its_start(log: KafkaLog, admin: AdminClient, app: str) -> None:
    pipeline = counter(app)
    source = f"{app}.in"
    ensure_topics(pipeline, log)
    before = take_up(pipeline, log)
    again(log, admin, pipeline, source)
    after = take_up(pipeline, log)
    assert after.topic_ids[source] != before.topic_ids[source]
    assert committed(log, app, source) == [0, 0]
    assert take_up(pipeline, log) == after


def test_a_member_that_runs_finds_that_its_topic_was_made_again(
    log: KafkaLog, bench: Bench, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: it goes on in the new topic from its position in the old one, and is told nothing."""
    monkeypatch.setattr("streams.engine.unread.LOOK_EVERY_S", 0.2)
    topic = bench.topic("again", partitions=1)
    before = log.topics([topic], 10)[topic].topic_id
    member = bench.member([topic], instance="one")
    wait_until(lambda: member.owns([TopicPartition(topic, 0)]), "the one partition")
    clock, aside, group = SystemClock(), AsideThread(), bench.name("g")
    role = Role(
        name="ingress",
        group=group,
        instance="one",
        transactional_id=group,
        topics=(topic,),
        own_topic=topic,
        co_partitioned=False,
        topic_ids={topic: before},
    )
    unread = UnreadPartitions(role, log, aside, clock, Metrics())
    unread.membership = Membership(role, log, rebalance=member, clock=clock, wait=lambda _seconds: None)
    unread.membership.consumer, unread.membership.metadata = member.consumer, member.metadata
    unread.turn()

    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in log.topics([topic], 10), "the topic is gone")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    def finds_out() -> bool:
        try:
            unread.turn()
        except TopicMadeAgain:
            return True
        return False

    wait_until(finds_out, "that it is another topic")
    aside.close()


def test_an_own_topic_that_was_made_again_stops_a_start(log: KafkaLog, admin: AdminClient, app: str) -> None:
    pipeline = counter(app)
    ensure_topics(pipeline, log)
    take_up(pipeline, log)
    again(log, admin, pipeline, f"{app}.items-changelog")
    with pytest.raises(StartRefused, match=f"{app}.items-changelog was deleted and made again"):
        take_up(pipeline, log)


def test_more_partitions_are_refused_after_the_topics_have_grown(log: KafkaLog, admin: AdminClient, app: str) -> None:
    """The advice of a mismatch may not lead to lost executions."""
    pipeline = counter(app)
    ensure_topics(pipeline, log)
    take_up(pipeline, log)
    home = [
        "commands",
        "completions",
        "facts",
        *(f"{table}-changelog" for table in ("executions", "units", "interactions", "items")),
    ]
    grown = [NewPartitions(f"{app}.{suffix}", 4) for suffix in home]
    for done in admin.create_partitions(grown).values():
        done.result(30)
    wait_until(lambda: log.topics([f"{app}.facts"], 10)[f"{app}.facts"].partitions == 4, "the topics have grown")
    take_up(pipeline, log)  # told, and tolerated
    with pytest.raises(StartRefused, match=r"Set kafka\.partitions to 2"):
        take_up(counter(app, partitions=4), log)


def test_a_partition_that_was_added_is_read_after_a_restart_too(
    log: KafkaLog, bench: Bench, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: a running member hears of it; a static one that comes back is given what it had before, until somebody joins anew."""
    topic = bench.topic("growing", partitions=1)
    member = bench.member([topic], instance="one")
    wait_until(lambda: member.poll() is not None and len(member.mine) == 1, "the one partition")
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_until(lambda: member.poll() is not None and len(member.mine) == 2, "the partition that was added")
    member.consumer.close()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    member = bench.member([topic], instance="one")
    wait_until(lambda: member.poll() is not None and len(member.mine) == 2, "what it had before")

    monkeypatch.setattr("streams.engine.unread.LOOK_EVERY_S", 0.2)
    clock, aside, group = SystemClock(), AsideThread(), bench.name("g")
    role = Role(
        name="core",
        group=group,
        instance="one",
        transactional_id=group,
        topics=(topic,),
        own_topic=topic,
        co_partitioned=False,
    )
    unread = UnreadPartitions(role, log, aside, clock, Metrics())
    unread.membership = Membership(role, log, rebalance=member, clock=clock, wait=lambda _seconds: None)
    unread.membership.consumer, unread.membership.metadata = member.consumer, member.metadata

    def has_all() -> bool:
        unread.turn()
        member.poll()
        return len(member.mine) == 3

    wait_until(has_all, "the partition that was added meanwhile")
    aside.close()
