"""Settings of every Kafka client the runtime makes, in one place, with the reason for each (DESIGN 6).

A user's own settings (`security.protocol`, `sasl.*`, `ssl.*`, buffer sizes) pass through, except those that exactly-once rests on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from schemas.errors import UsageError
from schemas.limits import RECORD_BYTES_MAX, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS

Settings = dict[str, str | int | float | bool]

client_logger = logging.getLogger("kawait.librdkafka")
"""Where the client writes what it would else print on stderr, fatal lines even at `log_level` 0; errors reach us in calls and callbacks."""

_CLIENT: Settings = {
    "client.id": "kawait",
    "log_level": 0,  # errors arrive in `error_cb` and in calls; librdkafka's own stderr lines repeat them
    "retry.backoff.ms": 5,  # the default of 100 ms doubles the time of a small transaction
    "retry.backoff.max.ms": 500,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "message.max.bytes": RECORD_BYTES_MAX,
    "allow.auto.create.topics": False,  # a missing topic is a mistake to report, never to hide (CASES 86)
}

_CONSUMER: Settings = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # never skip silently (CASES 65, 67)
    "enable.auto.commit": False,  # offsets are committed by the transaction that used them
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # the only honest sign of the end (DESIGN 6, Restore)
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 20,
    "fetch.queue.backoff.ms": 5,  # the default of 1 s stalls a reader whose local queue was full for a moment
    "queued.max.messages.kbytes": 32 * 1024,
    "queued.min.messages": 20_000,
}

_GROUP: Settings = {
    "group.protocol": "classic",  # KIP-848 refuses a restart under the same instance id for 42 s
    "partition.assignment.strategy": "range",  # co-partitioned topics give one member the same numbers
    "session.timeout.ms": SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": 1_000,
    "max.poll.interval.ms": 60_000,
    "topic.metadata.refresh.interval.ms": 5_000,  # a partition that is added is read within seconds; the default is 5 min
    "fetch.wait.max.ms": 50,  # bounds how long a partition just resumed waits for the fetch under way
}

_READER: Settings = {
    "fetch.wait.max.ms": 10,
}

_PRODUCER: Settings = {
    "partitioner": "murmur2_random",  # Java's; librdkafka's default is CRC32
    "compression.type": "lz4",
    "linger.ms": 5,  # lets batches grow while a transaction is decided; the commit's flush does not wait for it
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 128 * 1024,
    "enable.idempotence": True,
}

_TRANSACTIONAL: Settings = {
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    "message.timeout.ms": TRANSACTION_TIMEOUT_MS - 500,  # librdkafka refuses more than the transaction timeout
}

_PLAIN: Settings = {
    "linger.ms": 0,
    "message.timeout.ms": 10_000,
}

RESERVED = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "isolation.level",
        "message.timeout.ms",
        "partition.assignment.strategy",
        "partitioner",
        "session.timeout.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Settings that a user cannot move: the guarantees rest on them."""


class KafkaSettings:
    """Makes the settings of each kind of client.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: The user's own librdkafka settings.

    Raises:
        UsageError: `config` names a reserved setting.
    """

    def __init__(self, bootstrap: str, config: Mapping[str, str] | None = None) -> None:
        self.bootstrap = bootstrap
        self._user = dict(config or {})
        held = sorted(RESERVED & self._user.keys())
        if held:
            msg = f"kafka settings {', '.join(held)} are set by the runtime, which rests on them; remove them"
            raise UsageError(msg)

    def admin(self) -> Settings:
        """Settings of the admin client."""
        return self._of({name: value for name, value in _CLIENT.items() if name != "message.max.bytes"})

    def group_consumer(self, group: str, instance: str | None) -> Settings:
        """Settings of a group member; `instance` makes it static."""
        settings = self._of(_CLIENT, _CONSUMER, _GROUP)
        settings["group.id"] = group
        if instance is not None:
            settings["group.instance.id"] = instance
        return settings

    def reader(self, isolation: str) -> Settings:
        """Settings of a reader outside any group; `isolation` is librdkafka's word for it."""
        settings = self._of(_CLIENT, _CONSUMER, _READER)
        # The client insists on a group id; a reader never joins one nor commits.
        return {**settings, "group.id": "kawait-reader", "isolation.level": isolation}

    def producer(self, transactional_id: str) -> Settings:
        """Settings of a transactional producer."""
        return {**self._of(_CLIENT, _PRODUCER, _TRANSACTIONAL), "transactional.id": transactional_id}

    def plain_producer(self) -> Settings:
        """Settings of a producer for single records."""
        return self._of(_CLIENT, _PRODUCER, _PLAIN)

    def _of(self, *layers: Settings) -> Settings:
        merged: Settings = {"bootstrap.servers": self.bootstrap}
        for layer in layers:
            merged.update(layer)
        merged.update(self._user)
        return merged
