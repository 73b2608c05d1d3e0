"""An outside party under a line's control: it sees every request, and answers when and how the line says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from confluent_kafka import Producer

from streams.demo.provider_answers import PaymentAnswer
from streams.log.seam import Record, TopicPartition
from tests.acceptance.ground import App

ACTOR = "acceptance"
READ_RECORDS = 2_000
TRANSACTION_S = 60


class Asked(msgspec.Struct, rename="camel", kw_only=True):
    """A request as it stands on its topic; the payload is kept as it was written."""

    execution_id: str
    interaction_id: str
    item_index: int | None
    deadline_epoch_ms: int
    idempotency_key: str
    resume_token: str | None = None
    request_payload: msgspec.Raw
    at_ms: int = 0
    """The record's time."""

    @property
    def payload(self) -> Any:
        """The value that is asked about."""
        return json.loads(bytes(self.request_payload))


Answer = Callable[[Asked], bytes | None]
"""The JSON that answers a request; None: no answer."""

_decode = msgspec.json.Decoder(Asked).decode
_encode = msgspec.json.Encoder().encode


def asked(record: Record) -> Asked:
    """One request."""
    found = _decode(record.value or b"")
    found.at_ms = record.timestamp_ms
    return found


def requests_of(app: App) -> Iterator[Asked]:
    """Every committed request of an application."""
    return map(asked, app.records(app.requests_topic))


def echo(request: Asked) -> bytes:
    """The value itself, as it was written."""
    return bytes(request.request_payload)


class Outside:
    """Reads the requests of an application and answers them.

    Args:
        answer: What it says.
        transactional: It writes into one transaction, which stays open until `commit`.
    """

    def __init__(self, app: App, answer: Answer = echo, *, transactional: bool = False) -> None:
        self.app = app
        self.asked: list[Asked] = []
        self._answer = answer
        self._reader = app.log.reader()
        self._reader.assign(
            {TopicPartition(app.requests_topic, number): 0 for number in range(app.pipeline.partitions)}
        )
        settings: dict[str, Any] = {"bootstrap.servers": app.bootstrap, "linger.ms": 1, "partitioner": "murmur2_random"}
        if transactional:
            settings |= {
                "transactional.id": f"{app.name}-outside",
                "transaction.timeout.ms": TRANSACTION_S * 1000,
            }
        self._producer = Producer(settings)
        app.at_close.append(self._close)
        if transactional:
            self._producer.init_transactions(10)
            self._producer.begin_transaction()

    def take_all(self, quiet_s: float = 0.5) -> list[Asked]:
        """All requests so far, those of earlier looks among them."""
        while self.take(quiet_s):
            pass
        return self.asked

    def take(self, wait_s: float = 0.1) -> list[Asked]:
        """Requests that came since the last look."""
        came = [asked(record) for record in self._reader.poll(READ_RECORDS, wait_s)]
        self.asked += came
        return came

    def turn(self, wait_s: float = 0.02) -> None:
        """Answer what came."""
        for request in self.take(wait_s):
            value = self._answer(request)
            if value is not None:
                self.send(request, value)
        self._producer.flush(10)

    def answer_all(self, count: int, timeout_s: float = 60) -> None:
        """Go on until so many requests have come, and what is to be said about them is stored.

        Raises:
            TimeoutError: they did not come.
        """
        until_s = time.monotonic() + timeout_s
        while len(self.asked) < count:
            self.turn(0.1)
            if time.monotonic() > until_s:
                raise TimeoutError(f"{len(self.asked)} of {count} requests came; {self.app.last_words()}")

    def send(self, request: Asked, value: bytes) -> None:
        """Write an answer."""
        said = PaymentAnswer(
            interaction_id=request.interaction_id,
            correlation_id=request.interaction_id,
            response_payload=msgspec.Raw(value),
            resume_token=request.resume_token,
            idempotency_key=request.idempotency_key,
            actor=ACTOR,
        )
        while True:
            try:
                self._producer.produce(self.app.results_topic, _encode(said), key=request.interaction_id)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def flush(self) -> None:
        """Wait until all is stored."""
        self._producer.flush(10)

    def commit(self) -> None:
        """End the transaction."""
        self._producer.commit_transaction(10)

    def _close(self) -> None:
        self._reader.close()
        self._producer.close()
