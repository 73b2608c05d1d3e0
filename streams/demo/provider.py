"""The mock payment provider: an outside party of its own that answers payment requests over Kafka (SURFACE csv-payments).

It is at-least-once on purpose, as most providers are: answers are flushed before the request offsets are committed, so
a crash repeats answers and never loses one. Admission on the other side makes the repeats harmless.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from streams.demo.provider_answers import (
    ACTOR,
    REJECT_RATE_DEFAULT,
    PaymentRequest,
    PoisonRequest,
    answered_twice,
    parse,
    reply,
)

REQUEST_TOPIC_DEFAULT: Final = "csv-payments.payment.requests"
RESPONSE_TOPIC_DEFAULT: Final = "csv-payments.payment.results"
GROUP_DEFAULT: Final = "csv-payments-provider"
HEADER_RESPONSE_TOPIC: Final = "kawait-response-topic"
HEADER_TRACEPARENT: Final = "traceparent"

BATCH_REQUESTS_MAX: Final = 2_000
PENDING_REQUESTS_MAX: Final = 10_000
"""Requests held for their time when answers are slowed down; more stay on the topic."""
BURST_PAUSE_S: Final = 0.25
POLL_S: Final = 0.1
"""Longest wait for a request; bounds how long a stop takes."""
COMMIT_EVERY_S: Final = 0.1
"""Offsets are committed at most so often: a commit for each single request would cost more than its answer."""
CATCH_UP_S: Final = 0.1
"""Longest idle time that a rate makes up for."""
STOP_FLUSH_S: Final = 10.0

logger = logging.getLogger(__name__)


class ProviderFailed(RuntimeError):
    """The provider cannot go on: an answer could not be delivered."""


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """How the provider connects and behaves."""

    bootstrap: str
    request_topic: str = REQUEST_TOPIC_DEFAULT
    response_topic: str = RESPONSE_TOPIC_DEFAULT
    """Used for a request without the header `kawait-response-topic`."""
    group_id: str = GROUP_DEFAULT
    reject_rate: float = REJECT_RATE_DEFAULT
    """Share of payments that are rejected, by csvId: 0 to 1."""
    rate_per_s: float | None = None
    """Answers a second at most."""
    delay_ms: int = 0
    """Time between a request's arrival and its answer; requests wait side by side."""
    burst: int | None = None
    """Answers in a row before a pause of `BURST_PAUSE_S`."""
    duplicate: float = 0.0
    """Share of requests that are answered twice, by interaction id: 0 to 1."""
    actor: str = ACTOR
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further librdkafka properties of consumer and producer (SASL, TLS)."""


class Pace:
    """How many answers may leave now; time is handed in. Without a rate and a burst: all of them."""

    def __init__(self, *, rate_per_s: float | None = None, burst: int | None = None) -> None:
        self._rate_per_s = rate_per_s if rate_per_s and rate_per_s > 0 else None
        self._burst = burst if burst and burst > 0 else None
        self._credit = 1.0
        self._credited_s: float | None = None
        self._in_row = 0
        self._paused_until_s = 0.0

    def grant(self, wanted: int, now_s: float) -> int:
        """How many of the wanted answers may leave now, and count them as sent."""
        if now_s < self._paused_until_s:
            return 0
        granted = wanted
        if self._rate_per_s is not None:
            passed_s = 0.0 if self._credited_s is None else now_s - self._credited_s
            self._credit = min(self._credit + passed_s * self._rate_per_s, max(1.0, self._rate_per_s * CATCH_UP_S))
            self._credited_s = now_s
            granted = min(granted, int(self._credit))
        if self._burst is not None:
            granted = min(granted, self._burst - self._in_row)
            self._in_row += granted
            if self._in_row == self._burst:
                self._in_row, self._paused_until_s = 0, now_s + BURST_PAUSE_S
        self._credit -= granted if self._rate_per_s is not None else 0
        return granted

    def wait_s(self, now_s: float) -> float:
        """The seconds until at least one answer may leave."""
        wait_s = max(0.0, self._paused_until_s - now_s)
        if self._rate_per_s is not None and self._credit < 1:
            wait_s = max(wait_s, (1 - self._credit) / self._rate_per_s)
        return wait_s


class PaymentProvider:
    """Consumes requests, decides, answers. One thread; `run` ends soon after the stop event is set."""

    def __init__(self, settings: ProviderSettings, *, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._pace = Pace(rate_per_s=settings.rate_per_s, burst=settings.burst)
        self._pending: deque[tuple[float, Message]] = deque()
        self._answered: dict[tuple[str, int], int] = {}
        self._committed_s = 0.0
        self._paused = False
        self._failure: KafkaError | None = None
        self.answers = 0
        """Answers sent, second copies included."""
        self.poison = 0
        """Records skipped because they are no payment requests."""
        self._producer = Producer(self._producer_properties(), logger=logger)
        self._consumer = Consumer(self._consumer_properties(), logger=logger)

    def _consumer_properties(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self._settings.bootstrap,
            "group.id": self._settings.group_id,
            # An aborted transaction's requests were never sent as far as anybody should know.
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 2_000,
            # The request topic may be made after us; the default would look again after five minutes.
            "topic.metadata.refresh.interval.ms": 2_000,
            "allow.auto.create.topics": False,
            "error_cb": _log_error,
            **self._settings.kafka,
        }

    def _producer_properties(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self._settings.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "message.timeout.ms": 0,  # an answer is never given up: a broker that is away comes back
            "retry.backoff.ms": 20,
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "error_cb": _log_error,
            **self._settings.kafka,
        }

    def run(self) -> None:
        """Answer requests until the stop event is set.

        Raises:
            ProviderFailed: An answer could not be delivered; its request is answered again after a restart.
        """
        self._consumer.subscribe([self._settings.request_topic], on_revoke=self._on_revoke, on_lost=self._on_lost)
        logger.info("provider answers %s", self._settings.request_topic)
        try:
            while not self._stop.is_set():
                self._turn()
        finally:
            self._consumer.close()  # revokes, and with that commits
            self._producer.flush(STOP_FLUSH_S)

    def _turn(self) -> None:
        """Read what is there, answer what is due, commit what was answered."""
        now_s = time.monotonic()
        arrived = self._read(self._patience_s(now_s))
        now_s = time.monotonic()
        due_s = now_s + self._settings.delay_ms / 1000
        self._pending.extend((due_s, message) for message in arrived)
        ready = self._take_due(now_s)
        if ready:
            self._answer(ready)
        if self._answered and (not arrived or now_s - self._committed_s >= COMMIT_EVERY_S):
            self._commit(asynchronous=True)
            self._committed_s = now_s

    def _patience_s(self, now_s: float) -> float:
        """How long reading may wait: until the first pending answer is due."""
        if not self._pending:
            return POLL_S
        return min(POLL_S, max(self._pending[0][0] - now_s, self._pace.wait_s(now_s), 0.0))

    def _read(self, wait_s: float) -> list[Message]:
        """Poll one, then drain: `consume(n, timeout)` would wait for n records or the whole timeout (DESIGN 6)."""
        self._hold_back()
        first = self._consumer.poll(wait_s)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(BATCH_REQUESTS_MAX - 1, 0)]
        return [message for message in messages if not _is_error(message)]

    def _hold_back(self) -> None:
        """Pause the partitions while too much is pending; polling goes on, so the group keeps us."""
        full = len(self._pending) >= PENDING_REQUESTS_MAX
        if full:
            self._consumer.pause(self._consumer.assignment())
        elif self._paused:
            self._consumer.resume(self._consumer.assignment())
        self._paused = full

    def _take_due(self, now_s: float) -> list[Message]:
        pending = self._pending
        if not pending or pending[0][0] > now_s:
            return []
        due = len(pending) if pending[-1][0] <= now_s else sum(1 for due_s, _ in pending if due_s <= now_s)
        granted = self._pace.grant(min(due, BATCH_REQUESTS_MAX), now_s)
        return [pending.popleft()[1] for _ in range(granted)]

    def _answer(self, messages: Sequence[Message]) -> None:
        """Send the answers and wait until the broker has them; only then do their offsets count as answered."""
        settings, produce = self._settings, self._producer.produce
        for message in messages:
            try:
                request = parse(message.value())
            except PoisonRequest as error:
                self._skip(message, error)
                continue
            topic, headers = self._destination(message)
            value = reply(request, reject_rate=settings.reject_rate, actor=settings.actor)
            for _ in range(self._copies(request)):
                produce(topic, value, key=request.interaction_id, headers=headers)
                self.answers += 1
        self._flush()
        for message in messages:
            self._answered[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1

    def _copies(self, request: PaymentRequest) -> int:
        probability = self._settings.duplicate
        return 2 if probability > 0 and answered_twice(request.interaction_id, probability) else 1

    def _destination(self, message: Message) -> tuple[str, list[tuple[str, str | bytes | None]]]:
        """The answer's topic and headers: the request names the first, the trace goes back as it came."""
        topic = self._settings.response_topic
        headers: list[tuple[str, str | bytes | None]] = []
        sent: Any = message.headers() or ()
        for name, value in sent:
            if name == HEADER_RESPONSE_TOPIC and value:
                topic = value.decode() if isinstance(value, bytes) else str(value)
            elif name == HEADER_TRACEPARENT:
                headers.append((name, value))
        return topic, headers

    def _skip(self, message: Message, error: PoisonRequest) -> None:
        self.poison += 1
        logger.warning(
            "skipped a record that is no payment request: %s[%s]@%s: %s",
            message.topic(),
            message.partition(),
            message.offset(),
            error,
        )

    def _flush(self) -> None:
        while self._producer.flush(POLL_S) > 0 and self._failure is None:
            if self._stop.is_set():
                break
        if self._failure is not None:
            msg = f"an answer was not delivered: {self._failure.str()}"
            raise ProviderFailed(msg)

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failure = error

    def _commit(self, *, asynchronous: bool) -> None:
        offsets = [TopicPartition(topic, partition, at) for (topic, partition), at in self._answered.items()]
        self._answered.clear()
        try:
            if asynchronous:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:  # the same requests are answered again: at-least-once
            logger.info("request offsets were not committed: %s", error)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what was answered and forget what was not: its new owner will answer it."""
        if self._answered and self._failure is None:
            self._commit(asynchronous=False)
        self._on_lost(_consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {(partition.topic, partition.partition) for partition in partitions}
        kept = ((due_s, m) for due_s, m in self._pending if (m.topic(), m.partition()) not in gone)
        self._pending = deque(kept)
        for key in gone:
            self._answered.pop(key, None)


def run_provider(settings: ProviderSettings, stop: threading.Event) -> PaymentProvider:
    """Run a provider in this thread until the stop event is set; return it, for its counts.

    Raises:
        ProviderFailed: An answer could not be delivered.
    """
    provider = PaymentProvider(settings, stop=stop)
    provider.run()
    return provider


def _is_error(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    logger.warning("provider waits: %s", error.str())
    return True


def _log_error(error: KafkaError) -> None:
    logger.log(logging.ERROR if error.fatal() else logging.INFO, "provider: %s", error.str())
