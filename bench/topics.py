"""Topics of a measured application as anybody can read them: with a plain Kafka client, and with the schema files of its tree as data."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from fastavro.schema import fingerprint, to_parsing_canonical_form

from streams.log.kafka.connection import Connection

TIMEOUT_S = 20.0
POLL_S = 1.0
POLL_RECORDS = 5_000
MARKER = b"\xc3\x01"
"""Avro single-object encoding starts with it; the fingerprint of the schema follows, 8 bytes, little-endian."""
HEADER_BYTES = 10


class TopicsFailed(RuntimeError):
    """A topic could not be read to its end, or holds what no schema of its tree explains."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One committed record, with its own timestamp."""

    key: bytes
    value: bytes
    at_ms: int
    partition: int = 0


class Topics:
    """Reads what is committed in topics; close it."""

    def __init__(self, connection: Connection) -> None:
        self._consumer = Consumer(
            {
                **connection.config,
                "bootstrap.servers": connection.bootstrap,
                "group.id": "kawait-bench-topics",  # never joined: partitions are assigned by hand
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
            }
        )

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def offsets(self, prefix: str) -> dict[str, int]:
        """Offsets used in every topic of that prefix: records, and a marker for each transaction in each partition that it wrote."""
        found = self._consumer.list_topics(timeout=TIMEOUT_S).topics
        names = sorted(name for name in found if name.startswith(prefix))
        return {name: sum(self._end(at) for at in self._partitions(name)) for name in names}

    def records(self, topic: str) -> list[Record]:
        """Every committed record of a topic.

        Raises:
            TopicsFailed: its end was not reached in time.
        """
        partitions = self._partitions(topic)
        ends = {at.partition: end for at in partitions if (end := self._end(at))}
        self._consumer.assign([KafkaPartition(topic, number, 0) for number in ends])
        found: list[Record] = []
        quiet_s = 0.0
        while not all(self._is_read(topic, number, end) for number, end in ends.items()):
            messages = self._consumer.consume(POLL_RECORDS, POLL_S)
            quiet_s = 0.0 if messages else quiet_s + POLL_S
            if quiet_s > TIMEOUT_S:
                raise TopicsFailed(f"the end of {topic} was not reached")
            for message in messages:
                if message.error() is None:
                    key, value = message.key() or b"", message.value() or b""
                    at_ms, partition = message.timestamp()[1], message.partition() or 0
                    found.append(Record(key=key, value=value, at_ms=at_ms, partition=partition))
        self._consumer.unassign()
        return found

    def _is_read(self, topic: str, number: int, end: int) -> bool:
        (at,) = self._consumer.position([KafkaPartition(topic, number)])
        return at.offset >= end

    def _partitions(self, topic: str) -> list[KafkaPartition]:
        found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return [KafkaPartition(topic, number) for number in found]

    def _end(self, at: KafkaPartition) -> int:
        offsets: tuple[int, int] = self._consumer.get_watermark_offsets(at, timeout=TIMEOUT_S)
        return offsets[1]


class Schemas:
    """Reads the facts and envelopes of a tree by its own Avro schemas."""

    def __init__(self, root: Path) -> None:
        files = sorted(path for path in root.glob("**/schemas/avro/*.avsc") if ".venv" not in path.parts)
        if not files:
            raise TopicsFailed(f"{root} has no schemas")
        self._by_mark: dict[bytes, Any] = {}
        for path in files:
            schema = json.loads(path.read_text(encoding="utf-8"))
            text = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
            self._by_mark[MARKER + bytes.fromhex(text)] = fastavro.parse_schema(schema)

    def decode(self, value: bytes) -> tuple[str, dict[str, Any]]:
        """Name and fields of one value.

        Raises:
            TopicsFailed: no schema of the tree has its fingerprint.
        """
        schema = self._by_mark.get(value[:HEADER_BYTES])
        if schema is None:
            raise TopicsFailed(f"no schema of this tree has the fingerprint {value[2:HEADER_BYTES].hex()}")
        fields: Any = fastavro.schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schema, None)
        return str(schema["name"]).rpartition(".")[2], fields


def remove_topics_and_groups(connection: Connection, topic_prefix: str, group_prefix: str) -> None:
    """Remove what an application made on a broker, as far as it is there."""
    admin = AdminClient({**connection.config, "bootstrap.servers": connection.bootstrap, "log_level": 3})
    with suppress(KafkaException):
        topics = [name for name in admin.list_topics(timeout=TIMEOUT_S).topics if name.startswith(topic_prefix)]
        groups = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S).valid
        names = [group.group_id for group in groups if group.group_id.startswith(group_prefix)]
        _wait(admin.delete_topics(topics, operation_timeout=TIMEOUT_S) if topics else {})
        _wait(admin.delete_consumer_groups(names, request_timeout=TIMEOUT_S) if names else {})


def _wait(futures: Mapping[str, Future[Any]]) -> None:
    for future in futures.values():
        with suppress(KafkaException, TimeoutError):
            future.result(TIMEOUT_S)


def milliseconds_between(starts: Mapping[int, int], ends: Mapping[int, int], first: int) -> list[float]:
    """How long each item took, from item `first` on.

    Raises:
        TopicsFailed: one of them has no end.
    """
    missing = starts.keys() - ends.keys()
    if missing:
        raise TopicsFailed(f"{len(missing)} of {len(starts)} items have no end")
    return [float(ends[item] - starts[item]) for item in sorted(starts) if item >= first]
