"""The two logs and the two stores, each behind one fixture."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from state.tables.memory import MemoryStoreFactory
from state.tables.rocksdb import RocksStoreFactory
from state.tables.store import StoreFactory
from streams.log.kafka.log import KafkaLog
from streams.log.memory.log import MemoryLog
from streams.log.seam import Log, TopicPartition
from tests.contracts.members import Bench

LOGS = ["memory", pytest.param("kafka", marks=pytest.mark.broker)]


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log of either kind."""
    made: Log
    if request.param == "memory":
        made = MemoryLog()
    else:
        made = KafkaLog(request.getfixturevalue("bootstrap"), {"client.id": "contract"})
    yield made
    made.close()


@pytest.fixture
def bench(log: Log) -> Iterator[Bench]:
    """Topics, groups and clients with names of their own; every client is closed in the end."""
    made = Bench(log, uuid.uuid4().hex[:8])
    yield made
    made.close()


@pytest.fixture
def trim(log: Log) -> Callable[[TopicPartition, int], None]:
    """Drop the records below an offset, as retention does."""
    if isinstance(log, MemoryLog):
        return log.trim

    def delete_records(at: TopicPartition, before: int) -> None:
        from confluent_kafka import TopicPartition as ClientPartition

        admin: Any = cast(KafkaLog, log)._admin
        for future in admin.delete_records([ClientPartition(at.topic, at.partition, before)]).values():
            future.result(10)

    return delete_records


@pytest.fixture(params=["memory", "rocks"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """A store factory of either kind."""
    if request.param == "memory":
        yield MemoryStoreFactory()
        return
    made = RocksStoreFactory(tmp_path, "w1")
    yield made
    made.close()
