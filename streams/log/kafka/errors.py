"""From confluent-kafka's errors to ours; no client exception leaves the log seam (DESIGN 9)."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from schemas.errors import (
    LogError,
    LogUnavailable,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
    UsageError,
)

FENCED = frozenset(
    {
        KafkaError._FATAL,  # noqa: SLF001 - librdkafka's local codes start with an underscore
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.PRODUCER_FENCED,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)
"""Codes after which a producer can never write again."""

UNDELIVERED = frozenset(
    {
        KafkaError._INCONSISTENT,  # noqa: SLF001 - "message(s) failed delivery": not within message.timeout.ms
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Codes of a transaction that failed because records did not get through, whatever was in them."""

STATE = KafkaError._STATE  # noqa: SLF001
PARTITION_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001
AUTO_OFFSET_RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
MAX_POLL_EXCEEDED = KafkaError._MAX_POLL_EXCEEDED  # noqa: SLF001
NO_LEADER = KafkaError._NOENT  # noqa: SLF001

_REFUSED = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.POLICY_VIOLATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
    }
)
"""Codes that no waiting cures: the operator must change something."""


def error_of(raised: BaseException | KafkaError) -> Any:
    """The `KafkaError` inside what the client raised; a fatal producer hands it over bare in places (DESIGN 6)."""
    if isinstance(raised, KafkaException) and raised.args and isinstance(raised.args[0], KafkaError):
        return raised.args[0]
    if isinstance(raised, KafkaError):
        return raised
    return KafkaError(KafkaError._FAIL, str(raised))  # noqa: SLF001


def is_fenced(error: Any) -> bool:
    """Whether the producer behind `error` is done for."""
    return bool(error.fatal()) or error.code() in FENCED


def unavailable(raised: BaseException | KafkaError, doing: str, bootstrap: str) -> LogUnavailable | UsageError:
    """What to raise for a call that did not come through: come back later, or change something."""
    error = error_of(raised)
    if error.code() in _REFUSED:
        return UsageError(f"the broker at {bootstrap} refused {doing}: {error.str()}")
    return LogUnavailable(f"no answer from the broker at {bootstrap} for {doing}; is it running? ({error.str()})")


def transaction_error(raised: BaseException | KafkaError, doing: str) -> LogError:
    """What to raise for an error inside a transaction, before its commit."""
    error = error_of(raised)
    text = f"{doing}: {error.str()}"
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(text)
    if not error.txn_requires_abort() and is_fenced(error):
        return ProducerFenced(text)
    if error.code() in UNDELIVERED:  # the broker was away: no fault of the batch, which must not be bisected
        return LogUnavailable(text)
    return TransactionAborted(text)
