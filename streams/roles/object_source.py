"""The source of objects: whoever owns partition 0 looks at the input place, submits what appears there, and moves away what is done.

Theory of operation. A `Lister` is one ownership: it knows nothing but what it saw itself. An object that lies there is submitted anew by each
owner; ids are derived and what was done is remembered for `retention.keys`, so it starts nothing again. The answer to the submission tells how its
execution stands, the topic of replies when it ends: an object is moved because its execution *is* over, not because it ended just now.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from connectors.objects.listing import FilesystemSource, Listing, ObjectIdentity
from connectors.objects.looks import read_content
from connectors.objects.moving import Mover, Moving, NameTaken, ObjectChanged
from schemas.envelopes import ExecutionOutcome, NoteInputMoved
from schemas.errors import LogUnavailable, OffsetOutOfRange
from streams.clock import Clock
from streams.doors.outcomes import ENDED, Outcomes
from streams.doors.submissions import command_for_listed, id_of_listed, send
from streams.engine.loop import TransactionalLoop
from streams.log.seam import Log, PlainProducer, TopicPartition
from streams.telemetry.metrics import Metrics
from topologies.pipeline.ends import ObjectSource
from topologies.pipeline.model import Pipeline

logger = structlog.get_logger("kawait.source")

SUBMIT_TIMEOUT_S = 10.0
FOLLOWER_POLL_S_MAX = 0.2
ASK_AGAIN_S = 300.0
"""Whoever waits for an execution that is still open asks how it stands: what was told meanwhile may have been missed."""


class ObjectPoller:
    """Submits the objects of a source as they appear.

    The owner of partition 0 of `commands` looks; two lookers would do no harm, as a submission's id follows from the object.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: ObjectSource,
        log: Log,
        clock: Clock,
        loop: TransactionalLoop,
        metrics: Metrics | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._log = log
        self._clock = clock
        self._loop = loop
        self._metrics = metrics if metrics is not None else Metrics()
        self._leader_at = TopicPartition(f"{pipeline.app}.commands", 0)

    def run(self, stop: threading.Event, failures: list[BaseException]) -> None:
        """Look until stopped."""
        producer = self._log.plain_producer()
        lister: Lister | None = None
        try:
            while not stop.is_set():
                if self._leader_at in self._loop.tasks:
                    if lister is None:
                        lister = Lister(self._pipeline, self._source, self._log, self._clock, producer, self._metrics)
                    lister.look()
                    stop.wait(lister.next_look_s)
                else:
                    if lister is not None:
                        lister.close()
                        lister = None
                    stop.wait(min(self._source.poll_ms / 1_000, FOLLOWER_POLL_S_MAX))
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            if lister is not None:
                lister.close()
            producer.close()


@dataclass(slots=True)
class _Listed:
    """An object that lies there and was submitted."""

    identity: ObjectIdentity
    asked_s: float
    at_first_look: bool
    status: str | None = None
    is_told: bool = False
    """That it was known before."""


class Lister:
    """One ownership of the input place."""

    def __init__(
        self,
        pipeline: Pipeline,
        source: ObjectSource,
        log: Log,
        clock: Clock,
        producer: PlainProducer,
        metrics: Metrics,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._log = log
        self._clock = clock
        self._producer = producer
        self._metrics = metrics
        self._reply_id = secrets.token_hex(8)
        self._outcomes: Outcomes | None = None
        self._mover = Mover(source.location, source.ready_suffix, self._note_moved)
        places = (place for place in (source.done, source.failed) if place is not None)
        self._folder = FilesystemSource(
            source.location,
            source.include,
            settle_ms=source.settle_ms,
            ready_suffix=source.ready_suffix,
            skipped=places,
        )
        self._listed: dict[str, _Listed] = {}
        """By execution."""
        self._is_first_look = True
        self._said: set[tuple[str, ...]] = set()
        """What was logged and still holds."""
        self.next_look_s = source.poll_ms / 1_000

    def close(self) -> None:
        """Another process looks now."""
        if self._outcomes is not None:
            self._outcomes.close()
        self._metrics.input_missing.set(0)

    def look(self) -> None:
        """Submit what is new, move away what is done."""
        try:
            self._heed_outcomes()
            listing = self._list()
            if listing is not None:
                self._tell(listing)
                for moving in listing.moving:
                    self._finish(moving)
                self._submit_all(listing.objects)
                for listed in self._listed.items():
                    self._take_away(*listed)
        except LogUnavailable as error:
            logger.warning(
                "the broker does not answer the input's lister; the next look tries again", detail=str(error)
            )

    def _list(self) -> Listing | None:
        now_ms = int(self._clock.monotonic_s() * 1_000)
        forgotten_ms = self._clock.now_ms() - self._pipeline.retention.keys_ms
        try:
            listing = self._folder.look(now_ms, unchanged_since_ns=forgotten_ms * 1_000_000)
        except OSError as error:
            self._metrics.input_missing.set(1)
            self.next_look_s = self._source.poll_ms / 1_000
            if self._is_news("missing"):
                logger.error(
                    "the input location cannot be listed: nothing is taken from it until it is back",
                    location=str(self._source.location),
                    detail=error.strerror or str(error),
                )
            return None
        self._metrics.input_missing.set(0)
        self._said.discard(("missing",))
        waits_ms = min(self._source.poll_ms, self._source.settle_ms) if listing.unsettled else self._source.poll_ms
        self.next_look_s = waits_ms / 1_000
        return listing

    # --- submitting ----------------------------------------------------------------------------------------------------------------------

    def _submit_all(self, objects: Iterable[ObjectIdentity]) -> None:
        before, self._listed = self._listed, {}
        try:
            for identity in objects:
                execution_id = id_of_listed(self._pipeline, identity)
                known = before.get(execution_id)
                if known is not None:
                    known.identity = identity
                    self._listed[execution_id] = known
                    if not self._waits_for_too_long(known):
                        continue
                self._submit(execution_id, identity)
            self._is_first_look = False
        except LogUnavailable:
            self._listed = {**before, **self._listed}
            raise

    def _submit(self, execution_id: str, identity: ObjectIdentity) -> None:
        now_s = self._clock.monotonic_s()
        send(
            self._pipeline,
            self._producer,
            command_for_listed(self._pipeline, identity, reply_id=self._reply_id),
            timeout_s=SUBMIT_TIMEOUT_S,
        )
        known = self._listed.get(execution_id)
        if known is not None:
            known.asked_s = now_s
            return
        self._listed[execution_id] = _Listed(identity, now_s, self._is_first_look)
        logger.info("object submitted", object=identity.name, execution=execution_id)

    def _waits_for_too_long(self, known: _Listed) -> bool:
        is_open = self._source.after != "keep" and known.status not in ENDED
        return is_open and self._clock.monotonic_s() - known.asked_s >= ASK_AGAIN_S

    def _heed_outcomes(self) -> None:
        if self._outcomes is None:
            self._outcomes = Outcomes(self._log, self._pipeline.app, timeout_s=SUBMIT_TIMEOUT_S)
        known_before = 0
        for outcome in self._heard(self._outcomes):
            listed = self._listed.get(outcome.execution_id)
            if listed is None:
                continue
            listed.status = outcome.status
            if not outcome.duplicate or outcome.reply_id != self._reply_id or listed.is_told:
                continue
            listed.is_told = True
            known_before += listed.at_first_look
            if not listed.at_first_look:
                logger.warning(
                    "an object is one that was submitted before: it starts nothing again",
                    object=listed.identity.name,
                    execution=outcome.execution_id,
                    status=outcome.status,
                )
        if known_before:
            logger.info("objects that were submitted before lie in the input location still", count=known_before)

    def _heard(self, outcomes: Outcomes) -> list[ExecutionOutcome]:
        """What was told; when that was deleted unread, whoever is open is asked again."""
        try:
            return outcomes.heard()
        except OffsetOutOfRange:
            outcomes.close()
            self._outcomes = None
            for listed in self._listed.values():
                listed.asked_s = -ASK_AGAIN_S
            return []

    # --- what somebody should know -------------------------------------------------------------------------------------------------------

    def _is_news(self, *what: str) -> bool:
        is_news = what not in self._said
        self._said.add(what)
        return is_news

    def _tell(self, listing: Listing) -> None:
        """Each thing once, for as long as it holds."""
        for unreadable in listing.unreadable:
            if self._is_news("unreadable", unreadable.path, unreadable.reason):
                logger.warning("an object cannot be read", object=unreadable.path, detail=unreadable.reason)
        passed_over = [name for name in listing.passed_over if self._is_news("passed over", name)]
        if passed_over:
            logger.warning("no pattern of input.include takes these files", files=", ".join(passed_over))
        for path in listing.unready:
            if self._is_news("unready", path):
                logger.warning(
                    "an object has waited for its ready file for long",
                    object=path,
                    ready_file=f"{path}{self._source.ready_suffix}",
                )
        for path in listing.outdated:
            if self._is_news("outdated", path):
                logger.warning(
                    "an object did not change for longer than retention.keys: nobody knows whether it was done, so it is not submitted",
                    object=path,
                    to_start_it=f"kawait submit {self._pipeline.path} --input {path}",
                )
        hold = {
            *(("unreadable", unreadable.path, unreadable.reason) for unreadable in listing.unreadable),
            *(("passed over", name) for name in listing.passed_over),
            *(("unready", path) for path in listing.unready),
            *(("outdated", path) for path in listing.outdated),
        }
        self._said = {what for what in self._said if what in hold or what[0] == "moving"}

    # --- moving away ---------------------------------------------------------------------------------------------------------------------

    def _note_moved(self, execution_id: str, path: str) -> None:
        send(self._pipeline, self._producer, NoteInputMoved(execution_id, path), timeout_s=SUBMIT_TIMEOUT_S)

    def _goes(self, *, failed: bool) -> bool:
        """Whether an object whose execution ended so leaves the location."""
        after = self._source.after
        return after == "move" or (after == "delete" and (not failed or self._source.failed is not None))

    def _take_away(self, execution_id: str, listed: _Listed) -> None:
        failed = listed.status != "SUCCEEDED"
        look = listed.identity.look
        if listed.status not in ENDED or not self._goes(failed=failed) or look is None:
            return
        path = Path(listed.identity.path)
        try:
            self._mover.take_away(path, look, execution_id, self._place(failed=failed), failed=failed)
            logger.info("object moved away", object=listed.identity.name, execution=execution_id)
        except ObjectChanged:
            logger.info("an object changed before it was moved away: it stays, as a new one", object=str(path))
        except (NameTaken, OSError) as error:
            self._complain(path, error)

    def _place(self, *, failed: bool) -> Path | None:
        return self._source.failed if failed else self._source.done

    def _finish(self, moving: Moving) -> None:
        """Go on with what an earlier owner began."""
        place = self._place(failed=moving.failed)
        try:
            if self._mover.is_ready_file(moving):
                self._mover.finish_lonely_ready(moving, place)
            elif self._goes(failed=moving.failed) and self._is_what_ran(moving):
                self._mover.finish(moving, place)
                logger.info("object moved away", object=moving.name, execution=moving.execution_id)
            else:
                self._mover.put_back(moving)
        except FileNotFoundError:
            return  # somebody else was faster
        except (NameTaken, OSError) as error:
            self._complain(moving.original, error)

    def _is_what_ran(self, moving: Moving) -> bool:
        sha256, size = read_content(moving.path)
        ran = ObjectIdentity(moving.name, str(moving.original), size, sha256)
        return id_of_listed(self._pipeline, ran) == moving.execution_id

    def _complain(self, path: Path, error: NameTaken | OSError) -> None:
        detail = (
            "it is another object than the one that ran, and its name is taken: both stay"
            if isinstance(error, NameTaken)
            else f"{error.strerror or error} ({error.filename2 or error.filename or path})"
        )
        if self._is_news("moving", str(path), detail):
            logger.warning("an object cannot be moved away; the next look tries again", object=str(path), detail=detail)
