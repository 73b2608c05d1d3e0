"""Submitting, and waiting for the outcome on the `replies` topic, which gets it in the same transaction as the last facts.

Ids are derived, so a door that lost its way may submit again: it is the same execution.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from schemas import codec
from schemas.envelopes import ExecutionOutcome, SubmitCommand
from schemas.errors import LogUnavailable, PoisonRecord
from schemas.names import Names
from state.execution import TERMINAL
from streams.clock import Clock, SystemClock
from streams.doors.submissions import send
from streams.log.seam import Log, TopicPartition
from streams.log.snapshot import partitions_of
from topologies.pipeline.model import Pipeline

STORE_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 600.0
POLL_RECORDS = 500
POLL_S = 0.1

ENDED = frozenset(str(status) for status in TERMINAL)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a submitter knows about an execution.

    Attributes:
        status: None: stored, and nobody waited for more.
        duplicate: The same submission was there before.
        result: The result, decoded from JSON, of a pipeline without an output.
        outputs: Names of what was published.
        items_succeeded, items_skipped: Of the stream that the execution ended with: items whose outputs are stored, and items that were
            left out; None where it ended without one.
    """

    execution_id: str
    status: str | None = None
    duplicate: bool = False
    result: Any = None
    outputs: Sequence[str] = ()
    error_code: str | None = None
    error_message: str | None = None
    items_succeeded: int | None = None
    items_skipped: int | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.status == "SUCCEEDED"


def submit_command(
    pipeline: Pipeline, log: Log, command: SubmitCommand, *, wait: bool = False, timeout_s: float | None = None
) -> Outcome:
    """Store a submission; with `wait`, until the execution has ended.

    Raises:
        LogUnavailable: see `submit`.
    """
    limit_s = timeout_s if timeout_s is not None else WAIT_TIMEOUT_S if wait else STORE_TIMEOUT_S
    producer = log.plain_producer()
    try:
        if not wait:
            send(pipeline, producer, command, timeout_s=limit_s)
            return Outcome(execution_id=command.execution_id)
        with Outcomes(log, pipeline.app, timeout_s=limit_s) as outcomes:
            asking = msgspec.structs.replace(command, reply_id=secrets.token_hex(8))
            send(pipeline, producer, asking, timeout_s=limit_s)
            return outcomes.wait([command.execution_id], timeout_s=limit_s)[command.execution_id]
    finally:
        producer.close()


class Outcomes:
    """Waits for executions on the replies topic, from the moment it was made on: make it before submitting.

    Args:
        timeout_s: For finding the topic and its end.

    Raises:
        LogUnavailable: the broker is away.
        UsageError: the app has no topics.
    """

    def __init__(self, log: Log, app: str, *, timeout_s: float = STORE_TIMEOUT_S, clock: Clock | None = None) -> None:
        topic = Names.of(app).replies
        partitions = [TopicPartition(topic, number) for number in range(partitions_of(log, topic, timeout_s=timeout_s))]
        ends = log.end_offsets(partitions, "uncommitted", timeout_s)
        self._app = app
        self._clock = clock or SystemClock()
        self._reader = log.reader()
        self._reader.assign(ends)
        self._last: dict[str, str] = {}
        """Newest status of executions that have not ended."""

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Free the reader."""
        self.close()

    def close(self) -> None:
        """Free the reader."""
        self._reader.close()

    def heard(self) -> list[ExecutionOutcome]:
        """What was told since the last call, of all executions; waits for no more."""
        found: list[ExecutionOutcome] = []
        while records := self._reader.poll(POLL_RECORDS, POLL_S):
            for record in records:
                with suppress(PoisonRecord):  # a probe of the broker's time; or somebody else wrote into our topic
                    told = codec.decode(record.value)
                    if isinstance(told, ExecutionOutcome):
                        found.append(told)
        return found

    def wait(
        self,
        execution_ids: Iterable[str],
        *,
        timeout_s: float,
        on_turn: Callable[[Mapping[str, Outcome]], None] = lambda _ended: None,
    ) -> dict[str, Outcome]:
        """Wait until all of them have ended.

        Args:
            execution_ids: Which.
            timeout_s: For all of them.
            on_turn: Called several times a second with those that have ended; may raise to give up.

        Raises:
            LogUnavailable: not within `timeout_s`.
        """
        missing = set(execution_ids)
        ended: dict[str, Outcome] = {}
        limit_s = self._clock.monotonic_s() + timeout_s
        while missing:
            for record in self._reader.poll(POLL_RECORDS, POLL_S):
                if not record.value:  # a worker's probe of the broker's time
                    continue
                told = codec.decode(record.value)
                if isinstance(told, ExecutionOutcome) and told.execution_id in missing:
                    self._take(told, ended)
            missing -= ended.keys()
            on_turn(ended)
            if missing and self._clock.monotonic_s() > limit_s:
                name = min(missing)
                raise LogUnavailable(
                    f"execution {name} has not ended within {timeout_s:g} s (last heard: {self._last.get(name, 'nothing')}); it goes on "
                    f"without us: kawait status {name} --app {self._app}"
                )
        return ended

    def _take(self, told: ExecutionOutcome, ended: dict[str, Outcome]) -> None:
        if told.status not in ENDED:
            self._last[told.execution_id] = told.status
            return
        ended[told.execution_id] = Outcome(
            execution_id=told.execution_id,
            status=told.status,
            duplicate=told.duplicate,
            result=None if told.result is None else msgspec.json.decode(told.result),
            outputs=tuple(told.outputs),
            error_code=told.error_code,
            error_message=told.error_message,
            items_succeeded=told.succeeded,
            items_skipped=told.skipped,
        )
