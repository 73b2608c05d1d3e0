"""What the Kafka clients are set to, and what they say when no broker is there (DESIGN 6); needs none."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from schemas import limits
from schemas.errors import LogUnavailable, ProducerFenced, RecordTooLarge, TransactionAborted, UsageError
from schemas.topics import TopicSettings
from streams.log.kafka.errors import error_of, is_fenced, transaction_error, unavailable
from streams.log.kafka.log import KafkaLog
from streams.log.kafka.settings import RESERVED, KafkaSettings
from streams.log.seam import TopicPartition

SETTINGS = KafkaSettings("broker:9092", {"security.protocol": "SSL", "linger.ms": "1"})


@pytest.fixture
def nowhere() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_group_members_use_the_classic_protocol_and_are_static() -> None:
    """Trap: KIP-848 refuses a restart under the same instance id for 42 s."""
    settings = SETTINGS.group_consumer("g", "w1")
    assert settings["group.protocol"] == "classic"
    assert settings["partition.assignment.strategy"] == "range"
    assert settings["group.instance.id"] == "w1"
    assert settings["session.timeout.ms"] == limits.SESSION_TIMEOUT_MS
    assert settings["isolation.level"] == "read_committed"
    assert settings["auto.offset.reset"] == "error"
    assert settings["enable.auto.commit"] is False
    assert "group.instance.id" not in SETTINGS.group_consumer("g", None)


def test_producers_partition_as_java_and_end_within_the_transaction() -> None:
    settings = SETTINGS.producer("p")
    assert settings["partitioner"] == SETTINGS.plain_producer()["partitioner"] == "murmur2_random"
    assert settings["transaction.timeout.ms"] == limits.TRANSACTION_TIMEOUT_MS
    assert int(settings["message.timeout.ms"]) < limits.TRANSACTION_TIMEOUT_MS
    assert settings["message.max.bytes"] == limits.RECORD_BYTES_MAX


def test_the_client_refuses_a_message_timeout_above_the_transactions() -> None:
    """Trap; the reason for our value."""
    with pytest.raises(KafkaException, match=r"message\.timeout\.ms"):
        Producer({**SETTINGS.producer("p"), "security.protocol": "plaintext", "message.timeout.ms": 5_001})


def test_a_users_settings_pass_except_the_ones_we_rest_on() -> None:
    assert SETTINGS.producer("p")["security.protocol"] == "SSL"
    assert SETTINGS.reader("read_committed")["security.protocol"] == "SSL"
    assert SETTINGS.producer("p")["linger.ms"] == "1"
    for name in RESERVED:
        with pytest.raises(UsageError, match=name.replace(".", r"\.")):
            KafkaSettings("broker:9092", {name: "x"})


def test_errors_are_known_as_exception_and_bare() -> None:
    """Trap: errors of a fatal producer are `KafkaError`, not `KafkaException`."""
    bare = KafkaError(KafkaError._FENCED, "gone", True)
    for raised in (bare, KafkaException(bare)):
        assert error_of(raised) is bare
        assert is_fenced(error_of(raised))
        assert isinstance(transaction_error(raised, "begin"), ProducerFenced)
    assert error_of(ValueError("odd")).code() == KafkaError._FAIL


@pytest.mark.parametrize(
    ("code", "requires_abort", "expected"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True, RecordTooLarge),
        (KafkaError.ILLEGAL_GENERATION, True, TransactionAborted),
        (KafkaError.INVALID_PRODUCER_EPOCH, True, TransactionAborted),  # the client can go on after an abort
        (KafkaError.INVALID_PRODUCER_EPOCH, False, ProducerFenced),
        (KafkaError._FATAL, False, ProducerFenced),
    ],
)
def test_errors_inside_a_transaction(code: int, requires_abort: bool, expected: type[Exception]) -> None:
    error = KafkaError(code, "text", False, False, requires_abort)
    assert type(transaction_error(error, "offsets")) is expected


def test_what_waiting_cannot_cure_is_the_operators() -> None:
    refused = unavailable(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "topics", "broker:9092")
    assert isinstance(refused, UsageError)
    assert "broker:9092" in str(refused)
    assert isinstance(unavailable(KafkaError(KafkaError._TIMED_OUT), "topics", "broker:9092"), LogUnavailable)


class Nobody:
    """Owns nothing."""

    def on_assign(self, partitions: object) -> None: ...
    def on_revoke(self, partitions: object) -> None: ...
    def on_lost(self, partitions: object) -> None: ...


def test_a_broker_that_is_not_there_is_named(nowhere: str) -> None:
    log = KafkaLog(nowhere)
    at = TopicPartition("t", 0)
    calls: list[Callable[[], object]] = [
        lambda: log.topics(["t"], 0.3),
        lambda: log.create_topics([TopicSettings("t", 1, 1, {})], 0.3),
        lambda: log.end_offsets([at], "committed", 0.3),
    ]
    for call in calls:
        with pytest.raises(LogUnavailable, match=nowhere):
            call()
    producer = log.producer("p")
    for _ in range(2):
        with pytest.raises(LogUnavailable, match=nowhere):
            producer.init(0.2)
    producer.close()
    plain = log.plain_producer()
    with pytest.raises(LogUnavailable, match=nowhere):
        plain.send("t", b"v", timeout_s=0.3)
    plain.close()


def test_a_poll_without_a_broker_says_so_and_can_go_on(nowhere: str) -> None:
    log = KafkaLog(nowhere)
    member = log.group_consumer(group="g", instance="w1", topics=["t"], rebalance=Nobody())
    reader = log.reader()
    reader.assign({TopicPartition("t", 0): 0})
    for client in (member, reader):
        with pytest.raises(LogUnavailable, match=nowhere):
            client.poll(10, 0.5)
        with contextlib.suppress(LogUnavailable):  # the next attempt may have failed by now
            assert client.poll(10, 0) == []
        client.close()
    assert log.last_error is not None
