"""The test driver: a whole application in one process, without Kafka, with time moved by hand (DESIGN 9).

    driver = TopologyTestDriver("pipeline.yaml", answer=lambda request: {"approved": True})
    execution = driver.submit({"orderId": "1"})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"

Everything runs on the calling thread, in a fixed order. A crash is an input: `driver.crash()` throws the worker's memory away and keeps
what was committed, as kill -9 would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from connectors.objects.listing import identify
from schemas import codec
from schemas.envelopes import (
    CancelCommand,
    DeadLetter,
    ExecutionOutcome,
    Refusal,
    RequestEnvelope,
    SubmitCommand,
)
from schemas.facts import Fact
from schemas.identity import home_partition
from schemas.names import Names
from state.execution import ExecutionRecord
from state.folding import decode_row
from state.keys import PREFIXES, execution_key
from state.tables.memory import MemoryStoreFactory
from state.tables.overlay import CheckedOverlay
from streams.clock import ManualClock
from streams.doors.submissions import command_for_object, command_for_payload, encode_value, send
from streams.engine.aside import AtOnce
from streams.engine.pool import Pool
from streams.log.memory.log import MemoryLog
from streams.log.seam import Record, TopicPartition
from streams.testing.inline_pool import InlinePool
from streams.worker.application import take_up
from streams.worker.assembly import ROLES, Assembly, Worker
from streams.worker.topics import ensure_topics
from topologies.pipeline.model import Pipeline
from topologies.pipeline.transports import KafkaTransport
from topologies.reading.loading import load_pipeline

STEPS_MAX = 100_000
QUIET_STEPS = 3

Answer = Callable[[RequestEnvelope], Any]


class TopologyTestDriver:
    """One application on an in-memory log.

    Args:
        pipeline: A loaded pipeline, or the path of its file.
        answer: What the outside party answers to each request; None: nothing, answer by hand with `complete`.
        overrides: As `--set`.
        environ: Environment of `${NAME}` values.
    """

    def __init__(
        self,
        pipeline: Pipeline | str | Path,
        *,
        answer: Answer | None = None,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        instance: str = "driver",
    ) -> None:
        self.clock = ManualClock()
        self.pipeline = (
            pipeline
            if isinstance(pipeline, Pipeline)
            else load_pipeline(Path(pipeline), environ=environ or {}, overrides=overrides)
        )
        self.log = MemoryLog(clock=self.clock)
        self.stores = MemoryStoreFactory()
        self.names = Names.of(self.pipeline.app)
        self._answer = answer
        self._instance = instance
        self._read: dict[TopicPartition, int] = {}
        self._doors = self.log.plain_producer()
        ensure_topics(self.pipeline, self.log)
        self.worker = self._start()

    def _start(self) -> Worker:
        return Assembly(
            pipeline=self.pipeline,
            log=self.log,
            clock=self.clock,
            stores=self.stores,
            instance=self._instance,
            static=True,
            taken_up=take_up(self.pipeline, self.log),
            roles=ROLES,
            make_pool=self._make_pool,
            make_overlay=CheckedOverlay,
            aside=AtOnce(),
            pace_s=0.0,
        ).build()

    def _make_pool(self) -> Pool:
        return InlinePool(self.clock)

    # --- inputs ------------------------------------------------------------------------------------------------------------------------

    def submit(self, value: Any = None, *, file: str | Path | None = None, key: str | None = None) -> str:
        """Submit a payload (anything JSON can say, or a pydantic model) or a file; returns the execution id."""
        if file is not None:
            command = command_for_object(self.pipeline, identify(file))
        else:
            command = command_for_payload(self.pipeline, encode_value(value), key=key)
        return self._send(command)

    def _send(self, command: SubmitCommand) -> str:
        send(self.pipeline, self._doors, command, timeout_s=1)
        return command.execution_id

    def cancel(self, execution_id: str, *, reason: str = "test") -> None:
        """Cancel an execution."""
        send(self.pipeline, self._doors, CancelCommand(execution_id, reason), timeout_s=1)

    def complete(
        self, request: RequestEnvelope, value: Any, *, token: str | None = None, topic: str | None = None
    ) -> None:
        """Answer one request as the outside party would, with the request's token unless another is given."""
        envelope = {
            "interactionId": request.interaction_id,
            "resumeToken": token if token is not None else request.resume_token,
            "responsePayload": msgspec.Raw(encode_value(value)),
        }
        self.send_raw(topic or self._response_topic(request.step_id), msgspec.json.encode(envelope))

    def send_raw(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Write any record to any topic, as a stranger could."""
        producer = self.log.producer("driver-outside")
        producer.init(1)
        producer.begin()
        producer.produce(topic, value, key=key, partition=partition, headers=headers)
        producer.commit(1)
        producer.close()

    def _response_topic(self, step_id: str) -> str:
        step = self.pipeline.find_step(step_id)
        transport = getattr(step, "transport", None)
        assert isinstance(transport, KafkaTransport), f"step {step_id} has no response topic"
        return transport.response_topic

    # --- running -----------------------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn of every loop and of the outside party; True when something happened."""
        moved = [loop.step() for loop in self.worker.loops.values()]
        return (
            self._answer_new()
            or any(moved)
            or any(pool.is_busy and not pool.held for pool in self.pools)
            or not self.worker.is_ready
        )

    def run(self) -> None:
        """Run until nothing happens any more without time passing."""
        quiet = 0
        for _ in range(STEPS_MAX):
            quiet = 0 if self.step() else quiet + 1
            if quiet >= QUIET_STEPS:
                return
        raise AssertionError("the application does not come to rest")

    def advance(self, by_ms: int) -> None:
        """Let time pass, then run."""
        self.clock.advance(by_ms)
        self.run()

    @property
    def pools(self) -> list[InlinePool]:
        """Where the author's functions run: the core's pool, then the continuation agent's."""
        return [pool for pool in self.worker.pools if isinstance(pool, InlinePool)]

    def hold(self) -> None:
        """Hold the author's functions back, so that something else can happen first; `run` then runs everything but them."""
        for pool in self.pools:
            pool.held = True

    def release(self) -> None:
        """Let them run again."""
        for pool in self.pools:
            pool.held = False

    def crash(self) -> None:
        """Kill the worker between two steps and start it again: memory is lost, what was committed is not."""
        for pool in self.worker.pools:
            pool.close()
        self.worker = self._start()

    def close(self) -> None:
        """Stop."""
        self.worker.close()

    # --- the outside party -------------------------------------------------------------------------------------------------------------

    def _answer_new(self) -> bool:
        if self._answer is None:
            return False
        requests = self.new_requests()
        for request in requests:
            value = self._answer(request)
            if value is not None:
                self.complete(request, value)
        return bool(requests)

    def new_requests(self) -> list[RequestEnvelope]:
        """Requests sent since the last call, over all steps, by step and item."""
        return _in_order(record for topic in self._request_topics() for record in self._since(topic))

    def requests(self) -> list[RequestEnvelope]:
        """Every request ever sent, by step and item."""
        return _in_order(record for topic in self._request_topics() for record in self.records(topic))

    def _request_topics(self) -> list[str]:
        transports = (step.transport for step in self.pipeline.await_steps)
        return sorted({transport.request_topic for transport in transports if isinstance(transport, KafkaTransport)})

    def _since(self, topic: str) -> list[Record]:
        count = self.log.topics([topic], 1)[topic].partitions
        partitions = [TopicPartition(topic, number) for number in range(count)]
        reader = self.log.reader()
        reader.assign({at: self._read.get(at, 0) for at in partitions})
        records = reader.poll(STEPS_MAX, 0)
        for at in partitions:
            self._read[at] = reader.position(at)
        reader.close()
        return records

    # --- what came of it -----------------------------------------------------------------------------------------------------------------

    def records(self, topic: str) -> list[Record]:
        """Every committed record of a topic, by partition and offset."""
        count = self.log.topics([topic], 1)[topic].partitions
        reader = self.log.reader()
        reader.assign({TopicPartition(topic, number): 0 for number in range(count)})
        found = reader.poll(10 * STEPS_MAX, 0)
        reader.close()
        return found

    def facts(self, execution_id: str | None = None) -> list[Fact]:
        """Facts of one execution in commit order, or of all (then in commit order within each execution only)."""
        decoded = [codec.decode(record.value) for record in self.records(self.names.facts)]
        return [fact for fact in decoded if isinstance(fact, Fact) and execution_id in (None, fact.execution_id)]

    def fact_names(self, execution_id: str | None = None) -> list[str]:
        """Names of the facts in commit order: how a test says what happened, and in which order."""
        return [type(fact).__name__ for fact in self.facts(execution_id)]

    def execution(self, execution_id: str) -> ExecutionRecord | None:
        """The execution's row."""
        key = execution_key(execution_id)
        store = self.stores.look("core", home_partition(execution_id, self.pipeline.partitions))
        (value,) = store.get_many([key])
        return None if value is None else decode_row(key, value)

    def status(self, execution_id: str) -> str | None:
        """The execution's status."""
        execution = self.execution(execution_id)
        return None if execution is None else str(execution.status)

    def result(self, execution_id: str) -> Any:
        """The execution's result, decoded from JSON."""
        execution = self.execution(execution_id)
        return None if execution is None or execution.result is None else msgspec.json.decode(execution.result)

    def refusals(self) -> list[Refusal]:
        """Refused answers."""
        return [
            value
            for record in self.records(self.names.refusals)
            if isinstance(value := codec.decode(record.value), Refusal)
        ]

    def dead_letters(self) -> list[DeadLetter]:
        """Dead letters."""
        return [
            value
            for record in self.records(self.names.dlq)
            if isinstance(value := codec.decode(record.value), DeadLetter)
        ]

    def replies(self) -> list[ExecutionOutcome]:
        """Outcomes as waiting doors see them."""
        return [
            value
            for record in self.records(self.names.replies)
            if record.value and isinstance(value := codec.decode(record.value), ExecutionOutcome)
        ]

    def metric(self, name: str, **labels: str) -> float:
        """A counter or gauge of the worker that runs now (it starts at zero after a crash)."""
        return self.worker.metrics.registry.get_sample_value(name, labels) or 0.0

    def rows(self) -> dict[bytes, Any]:
        """Every row of every table, decoded."""
        found: dict[bytes, Any] = {}
        for partition in range(self.pipeline.partitions):
            store = self.stores.look("core", partition)
            for prefix in PREFIXES.values():
                for key, value in store.scan(f"{prefix}/".encode(), f"{prefix}0".encode()):
                    found[key] = decode_row(key, value)
        return found


_decode_request = msgspec.json.Decoder(RequestEnvelope).decode


def _in_order(records: Iterable[Record]) -> list[RequestEnvelope]:
    """Requests as a reader expects them: partitions are read in turns, so their records come mixed."""
    found = [_decode_request(record.value or b"") for record in records]
    return sorted(found, key=lambda request: (request.execution_id, request.step_id, request.item_index or 0))
