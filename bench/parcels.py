"""Parcels of pieces that are asked about one by one: an application for waits of every kind, and the outside party that answers it.

A record of the source topic is a parcel. Whoever asks for the pieces of a silent one gets no answer, and goes on without them at the deadline.
Everything is driven and looked at from outside: the installed command, topics, the groups' offsets.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from bench.installed import Application
from bench.place import Place

MODULE = "bench_parcels"
PARTITIONS = 12
SILENT = "silent"
"""How the ids of parcels begin that nobody answers about."""
READ_RECORDS = 2_000
READ_S = 0.01
WAIT_S = 0.02
TYPES = '''"""Payload types and steps."""

from collections.abc import Iterator

from pydantic import BaseModel


class Parcel(BaseModel):
    id: str
    pieces: int


class Piece(BaseModel):
    parcel: str
    number: int


def unpack(parcel: Parcel) -> Iterator[Piece]:
    for number in range(parcel.pieces):
        yield Piece(parcel=parcel.id, number=number)


def receive(piece: Piece) -> Piece:
    return piece
'''
PIPELINE = f"""\
app: bench-parcels
input: {{from: topic, topic: "{{app}}.parcels", type: "{MODULE}:Parcel", key: "{{id}}"}}
steps:
  - {{name: Unpack, cardinality: ONE_TO_MANY, input: "{MODULE}:Parcel", output: "{MODULE}:Piece", run: "{MODULE}:unpack"}}
  - name: Ask
    kind: await
    input: {MODULE}:Piece
    output: {MODULE}:Piece
    timeout: PT1M
    onTimeout: {{skip: true}}
    await:
      correlation: {{strategy: interactionId}}
      transport: {{type: kafka, request: {{topic: "{{app}}.asked"}}, response: {{topic: "{{app}}.answered"}}}}
  - {{name: Receive, input: "{MODULE}:Piece", output: "{MODULE}:Piece", run: "{MODULE}:receive"}}
output: {{to: topic, topic: "{{app}}.received"}}
kafka: {{partitions: {PARTITIONS}, replicationFactor: 1}}
"""


def write(folder: Path) -> Path:
    """The project; returns its pipeline file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{MODULE}.py").write_text(TYPES, encoding="utf-8")
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    return path.absolute()


def timeout(seconds: float) -> str:
    """The setting of how long an answer is waited for."""
    return f"steps.ask.timeout=PT{seconds:g}S"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the outside party saw it."""

    parcel: str
    execution_id: str
    item: int
    at_ms: int
    """The record's time."""
    deadline_ms: int


class Outside(threading.Thread):
    """Answers every request at once, but those about silent parcels; keeps what it was asked."""

    def __init__(self, application: Application, place: Place) -> None:
        super().__init__(daemon=True)
        self.asked: list[Asked] = []
        self.silent = 0
        """Requests about silent parcels, and of the last of them the execution and the latest deadline."""
        self.execution = ""
        self.last_deadline_ms = 0
        self._app = application.name
        self._stopping = threading.Event()
        common: dict[str, Any] = {**place.connection.config, "bootstrap.servers": place.connection.bootstrap}
        self._producer = Producer({**common, "linger.ms": 1, "partitioner": "murmur2_random"})
        self._consumer = Consumer(
            {
                **common,
                "group.id": "kawait-bench-outside",  # never joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([KafkaPartition(f"{self._app}.asked", number, 0) for number in range(PARTITIONS)])

    def run(self) -> None:
        """Until stopped."""
        while not self._stopping.is_set():
            first = self._consumer.poll(READ_S)
            if first is not None:
                self._answer([first, *self._consumer.consume(READ_RECORDS, 0)])
            self._producer.poll(0)
        self._producer.flush(5)
        self._consumer.close()

    def _answer(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.error() is not None:
                continue
            request = json.loads(message.value() or b"")
            payload = request["requestPayload"]
            seen = Asked(
                parcel=payload["parcel"],
                execution_id=request["executionId"],
                item=payload["number"],
                at_ms=message.timestamp()[1],
                deadline_ms=request["deadlineEpochMs"],
            )
            self.asked.append(seen)
            if seen.parcel.startswith(SILENT):
                self.silent += 1
                self.execution = seen.execution_id
                self.last_deadline_ms = max(self.last_deadline_ms, seen.deadline_ms)
                continue
            answer = json.dumps({"interactionId": request["interactionId"], "responsePayload": payload})
            self._producer.produce(f"{self._app}.answered", answer, key=request["interactionId"])

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self.join()


class Counting:
    """Counts the facts of executions as they come, without a look into them."""

    def __init__(self, application: Application, place: Place) -> None:
        self._found: Counter[bytes] = Counter()
        self._consumer = Consumer(
            {
                **place.connection.config,
                "bootstrap.servers": place.connection.bootstrap,
                "group.id": "kawait-bench-counting",  # never joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([KafkaPartition(f"{application.name}.facts", number, 0) for number in range(PARTITIONS)])

    def of(self, execution_id: str) -> int:
        """Facts of one execution so far."""
        for message in self._consumer.consume(READ_RECORDS, 0):
            if message.error() is None:
                self._found[message.key() or b""] += 1
        return self._found[execution_id.encode()]

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()


class Sender:
    """Writes parcels to the source topic."""

    def __init__(self, application: Application, place: Place) -> None:
        self._topic = f"{application.name}.parcels"
        common: dict[str, Any] = {**place.connection.config, "bootstrap.servers": place.connection.bootstrap}
        self._producer = Producer({**common, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
        self.sent = 0

    def send(self, parcel: str, pieces: int = 1) -> None:
        """One parcel."""
        self._producer.produce(self._topic, json.dumps({"id": parcel, "pieces": pieces}))
        self._producer.poll(0)
        self.sent += 1

    def flush(self) -> None:
        """Wait until all is stored."""
        self._producer.flush(10)

    def steadily(self, rate: Callable[[], float], seconds: float, name: str) -> Iterator[float]:
        """Send so many a second; yields the seconds since the start, some fifty times a second."""
        began_s = time.monotonic()
        owed, number, before_s = 0.0, 0, 0.0
        while (passed_s := time.monotonic() - began_s) < seconds:
            owed += (passed_s - before_s) * rate()
            before_s = passed_s
            while owed >= 1:
                self.send(f"{name}-{number}")
                owed, number = owed - 1, number + 1
            yield passed_s
            time.sleep(WAIT_S)
        self.flush()


@contextmanager
def answering(application: Application, place: Place) -> Iterator[tuple[Sender, Outside]]:
    """A sender, and an outside party at work."""
    outside = Outside(application, place)
    outside.start()
    try:
        yield Sender(application, place), outside
    finally:
        outside.stop()
