"""Writing to Kafka: the transactional producer of a task loop and the plain one of a door (DESIGN 6, steps 3 to 5)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from schemas.errors import (
    CommitUnknown,
    LogError,
    LogUnavailable,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
)
from schemas.limits import TRANSACTION_TIMEOUT_MS
from streams.log.kafka.bounded_call import Call, CallThread, NeverReturned
from streams.log.kafka.consumer import ErrorSink
from streams.log.kafka.errors import FENCED, STATE, UNDELIVERED, error_of, is_fenced, transaction_error, unavailable
from streams.log.kafka.settings import KafkaSettings, client_logger
from streams.log.seam import TopicPartition

_ANY_PARTITION = -1
_QUEUE_WAIT_S = 0.01
_ABORT_TIMEOUT_S = TRANSACTION_TIMEOUT_MS / 1000
_GRACE_S = 2.0
"""How much longer than its own limit a call of the client may take."""
_ENDING = "Failed to end transaction"
"""How librdkafka's text starts when the commit itself, not what went before it, failed."""


class KafkaProducer:
    """A `streams.log.seam.Producer` on Kafka."""

    def __init__(self, settings: KafkaSettings, transactional_id: str, note: ErrorSink) -> None:
        self._bootstrap = settings.bootstrap
        self._id = transactional_id
        self._note = note
        self._settings = {**settings.producer(transactional_id), "error_cb": self._on_error}
        self._client = Producer(self._settings, logger=client_logger)
        self._send = self._client.produce
        self._calls = CallThread(f"kawait-offsets-{transactional_id}")
        self._ready = False
        self._torn = False  # a record was lost on the way: the client's sequence numbers have a hole
        self._open = False
        self._aborting = False  # the broker has not confirmed the end of a dropped transaction yet
        self._fenced = False
        self._sending: Call | None = None  # the consumed positions, on their way
        self._failure: LogError | None = None  # why the open transaction must not be committed

    def _on_error(self, error: KafkaError) -> None:
        self._note(error.str())
        if error.fatal():
            self._fenced = True

    def init(self, timeout_s: float) -> None:
        """Take the transactional id."""
        try:
            self._client.init_transactions(timeout_s)
        except KafkaException as raised:
            error = error_of(raised)
            if is_fenced(error):
                self._fenced = True
                raise ProducerFenced(f"transactional id {self._id!r}: {error.str()}") from raised
            raise unavailable(error, f"transactional id {self._id!r}", self._bootstrap) from raised
        self._ready = True

    def holds_id(self, topic: str, timeout_s: float) -> bool:
        """Whether no newer producer has taken the id; only a record that is really sent gets an answer."""
        try:
            self.begin()
            self.produce(topic, b"")
            left = self._client.flush(timeout_s)
            self.abort()
        except ProducerFenced:
            return False
        except KafkaException as raised:  # a fatal client raises from `flush`
            if is_fenced(error_of(raised)):
                self._fenced = True
                return False
            raise unavailable(raised, f"transactional id {self._id!r}", self._bootstrap) from raised
        if left:
            raise LogUnavailable(f"no answer from the broker at {self._bootstrap} about transactional id {self._id!r}")
        return not self._fenced

    def begin(self) -> None:
        """Open a transaction."""
        if self._aborting:
            self._end_aborted()
        if self._torn:
            self._renew()
        try:
            self._client.begin_transaction()
        except KafkaException as raised:
            raise self._failed(raised, "begin") from raised
        self._open, self._failure = True, None

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        on_offset: Callable[[int], None] | None = None,
    ) -> None:
        """Add one record to the transaction.

        The client takes a transaction's other records even after it refused one; what was refused here therefore also
        fails `commit`.
        """
        number = _ANY_PARTITION if partition is None else partition
        more: dict[str, Any] = {}
        if headers:
            more["headers"] = list(headers)
        if on_offset is not None:
            more["on_delivery"] = _report_to(on_offset)
        while True:
            try:
                self._send(topic, value, key, number, **more)
            except BufferError:  # the local queue is full: let deliveries make room (CASES 83)
                self._client.poll(_QUEUE_WAIT_S)
            except KafkaException as raised:
                if error_of(raised).code() == STATE:  # an earlier record of the transaction failed; commit says why
                    self.commit(_ABORT_TIMEOUT_S)
                self._failure = self._failed(raised, f"a record for {topic}[{partition}]")
                raise self._failure from raised
            else:
                return

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: object) -> None:
        """Make the consumed positions part of the transaction.

        Raises:
            ValueError: a negative offset; the client would take it, commit nothing and fence nothing (DESIGN 6).
        """
        if any(offset < 0 for offset in offsets.values()):
            raise ValueError(f"offsets must not be negative: {dict(offsets)}")
        if not offsets:
            return
        # Measured: this one call waits without a limit of its own, and for ever where the coordinator's connection goes at the wrong moment.
        positions = [ClientPartition(at.topic, at.partition, offset) for at, offset in offsets.items()]
        self._sending = self._calls.start(partial(self._send_positions, positions, metadata))

    def _send_positions(self, positions: list[ClientPartition], metadata: Any) -> None:
        """On a thread of its own: a transaction's records can be written meanwhile."""
        end_s = time.monotonic() + _ABORT_TIMEOUT_S
        while True:
            try:
                self._client.send_offsets_to_transaction(positions, metadata, max(0.1, end_s - time.monotonic()))
            except KafkaException as raised:
                if not error_of(raised).retriable() or time.monotonic() >= end_s:
                    raise
            else:
                return

    def _join_sending(self) -> None:
        """Wait until the consumed positions are sent."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            sending.join(_ABORT_TIMEOUT_S + _GRACE_S)
        except KafkaException as raised:
            self._failure = self._failed(raised, "consumed offsets")
            raise self._failure from raised
        except NeverReturned as raised:
            self._fenced = True
            text = f"{self._id!r}: the client lost the request for its consumed offsets, a new one is needed"
            self._failure = ProducerFenced(text)
            raise self._failure from raised

    def commit(self, timeout_s: float) -> None:
        """End the transaction; retried while the answer may still come."""
        self._join_sending()
        if self._failure is not None:
            raise self._failure
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                self._client.commit_transaction(max(0.1, end_s - time.monotonic()))
            except KafkaException as raised:
                error = error_of(raised)
                if error.retriable() and time.monotonic() < end_s:
                    continue
                self._failure = self._commit_error(error)
                raise self._failure from raised
            else:
                self._open = False
                return

    def _commit_error(self, error: Any) -> LogError:
        """What a failed commit means: certain only when the transaction failed before its end was asked for."""
        text = f"commit of {self._id!r}: {error.str()}"
        if error.txn_requires_abort() and not error.str().startswith(_ENDING):
            self._torn = True
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                return RecordTooLarge(text)
            if error.code() in UNDELIVERED:  # the broker was away: no fault of the batch, which must not be bisected
                return LogUnavailable(f"{text}; is the broker at {self._bootstrap} away, or a topic missing?")
            return TransactionAborted(text)
        self._fenced = True  # whatever it was: only a new producer may find out
        return CommitUnknown(text, fenced=bool(error.fatal()) or error.code() in FENCED)

    def abort(self) -> None:
        """Drop the open transaction; does nothing when none is open."""
        if not self._open:
            return
        self._open = False
        self._aborting = True
        with contextlib.suppress(LogError):  # the client takes one call at a time; what went wrong no longer matters
            self._join_sending()
        with contextlib.suppress(LogUnavailable):  # `begin` tries again
            self._finish_abort()

    def _end_aborted(self) -> None:
        """End a dropped transaction that the broker has not confirmed; measured: after a restart of the broker the client may ask for ever."""
        try:
            self._finish_abort()
        except LogUnavailable as error:
            self._fenced = True
            raise ProducerFenced(f"{error}; a new producer is needed to end the transaction") from error

    def _finish_abort(self) -> None:
        """End the transaction that is being dropped; measured: until that is done the client takes no other call (a broker that restarts)."""
        try:
            self._client.abort_transaction(_ABORT_TIMEOUT_S)
        except KafkaException as raised:
            error = error_of(raised)
            self._note(error.str())
            if is_fenced(error) or not (error.retriable() or error.code() in UNDELIVERED):
                self._fenced = True  # only a new producer may find out
                raise ProducerFenced(f"abort of {self._id!r}: {error.str()}") from raised
            raise unavailable(error, f"the abort of {self._id!r}", self._bootstrap) from raised
        self._aborting, self._failure = False, None
        if self._torn:
            self._renew()

    def _renew(self) -> None:
        """Make a new client under the same id; its caller knows from an abort that the id is still ours.

        Measured: after a record that the broker refused, the client's next transaction on that partition always fails with
        "skipped sequence numbers", as if the fault were in that next batch.
        """
        self._ready = False
        self._client.close()
        self._client = Producer(self._settings, logger=client_logger)
        self._send = self._client.produce
        self.init(_ABORT_TIMEOUT_S)
        self._torn = False

    def close(self) -> None:
        """Free the client; an open transaction is aborted, unless a newer producer owns the id."""
        self._calls.close()
        if self._fenced or not self._ready:
            self._client.purge()  # `close` would try to abort and warn
        else:
            if self._open:
                self.abort()
            self._client.close()
        self._ready = False

    def _failed(self, raised: BaseException, doing: str) -> LogError:
        error = transaction_error(raised, f"{self._id!r}, {doing}")
        if isinstance(error, ProducerFenced):
            self._fenced = True
        return error


def _report_to(on_offset: Callable[[int], None]) -> Callable[[KafkaError | None, Message], None]:
    """A delivery report that passes the offset on; a failed delivery fails the commit anyway."""

    def report(error: KafkaError | None, message: Message) -> None:
        if error is None:
            on_offset(message.offset() or 0)

    return report


class KafkaPlainProducer:
    """A `streams.log.seam.PlainProducer` on Kafka; safe to share between threads."""

    def __init__(self, settings: KafkaSettings, note: ErrorSink) -> None:
        self._bootstrap = settings.bootstrap
        self._note = note
        self._client = Producer({**settings.plain_producer(), "error_cb": self._on_error}, logger=client_logger)

    def _on_error(self, error: KafkaError) -> None:
        self._note(error.str())

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        timeout_s: float = 10.0,
    ) -> int | None:
        """Write one record and wait until it is stored. Returns when the broker appended it, where the topic says so."""
        reports: list[tuple[KafkaError | None, Message]] = []
        end_s = time.monotonic() + timeout_s
        number = _ANY_PARTITION if partition is None else partition
        more: dict[str, Any] = {"headers": list(headers)} if headers else {}
        more["on_delivery"] = lambda error, message: reports.append((error, message))
        while True:
            try:
                self._client.produce(topic, value, key, number, **more)
                break
            except BufferError:
                self._client.poll(_QUEUE_WAIT_S)
            except KafkaException as raised:
                raise self._error(raised, topic) from raised
        while not reports:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise LogUnavailable(f"the broker at {self._bootstrap} did not store the record in {timeout_s:g} s")
            self._client.poll(min(left_s, 0.05))
        error, stored = reports[0]
        if error is not None:
            raise self._error(error, topic)
        kind, at_ms = stored.timestamp()
        return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None

    def _error(self, raised: BaseException | KafkaError, topic: str) -> Exception:
        error = error_of(raised)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordTooLarge(f"a record for {topic}: {error.str()}")
        return unavailable(error, f"a record for {topic}", self._bootstrap)

    def close(self) -> None:
        """Free the client; what a `send` gave up waiting for is dropped."""
        self._client.purge()
        self._client.close()
