"""The source of objects: whoever owns partition 0 looks at the input place, and submits what appears there."""

from __future__ import annotations

import threading

import structlog

from connectors.objects.listing import FilesystemSource
from schemas.errors import LogUnavailable
from streams.clock import Clock
from streams.doors.submissions import command_for_object, send
from streams.engine.loop import TransactionalLoop
from streams.log.seam import Log, PlainProducer, TopicPartition
from topologies.pipeline.ends import ObjectSource
from topologies.pipeline.model import Pipeline

logger = structlog.get_logger("kawait.source")

SUBMIT_TIMEOUT_S = 10.0


class ObjectPoller:
    """Submits the objects of a source as they appear.

    The owner of partition 0 of `commands` looks; two lookers would do no harm, as a submission's id follows from the object.
    """

    def __init__(
        self, pipeline: Pipeline, source: ObjectSource, log: Log, clock: Clock, loop: TransactionalLoop
    ) -> None:
        self._pipeline = pipeline
        self._poll_s = source.poll_ms / 1000
        self._log = log
        self._clock = clock
        self._loop = loop
        self._source = FilesystemSource(source.location, source.include)
        self._location = source.location
        self._leader_at = TopicPartition(f"{pipeline.app}.commands", 0)
        self._submitted: set[str] = set()
        self._complained = False

    def run(self, stop: threading.Event, failures: list[BaseException]) -> None:
        """Look until stopped."""
        producer = self._log.plain_producer()
        try:
            while not stop.is_set():
                if self._leader_at in self._loop.tasks:
                    self._look(producer)
                    stop.wait(self._poll_s)
                else:
                    self._submitted.clear()
                    stop.wait(min(self._poll_s, 0.2))
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            producer.close()

    def _look(self, producer: PlainProducer) -> None:
        try:
            found = self._source.receive(self._clock.now_ms())
            self._complained = False
        except OSError as error:
            if not self._complained:
                logger.warning(
                    "the input location cannot be listed",
                    location=str(self._location),
                    detail=error.strerror or str(error),
                )
                self._complained = True
            return
        current = set()
        for identity in found:
            command = command_for_object(self._pipeline, identity)
            current.add(command.execution_id)
            if command.execution_id in self._submitted:
                continue
            try:
                send(self._pipeline, producer, command, timeout_s=SUBMIT_TIMEOUT_S)
            except LogUnavailable as error:
                logger.warning(
                    "an object could not be submitted; the next look tries again",
                    object=identity.name,
                    detail=str(error),
                )
                current.discard(command.execution_id)
                break
            logger.info("object submitted", object=identity.name, execution=command.execution_id)
        self._submitted = current
