"""What a provider can do wrong: each answer gets the outcome that DESIGN 8 names, on the live and on the suspending path."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from connectors.resume_token import TokenSigner
from schemas import codec, facts
from schemas.envelopes import HEADER_INTERACTION_ID, HEADER_RESUME_TOKEN, ProviderCompletion
from schemas.limits import DEAD_LETTER_BYTES_MAX
from streams.demo.provider_answers import PaymentRequest, parse, reply
from streams.log.seam import TopicPartition
from tests.acceptance.ground import AWAIT, App, Ground
from tests.acceptance.registry import Checks, line

OWNER = "payments-operations"
LARGE_BYTES = 5 * 1024 * 1024
SUSPENDING = f"{AWAIT}.await.live=false"
SUSPENDING_ROWS = 8_400
"""More than may be unanswered at a time, so that answers come before all items are dispatched."""
PATHS = {"live": (60, (f"{AWAIT}.await.live.window=16",)), "suspending": (SUSPENDING_ROWS, (SUSPENDING,))}

FIRST = ("tampered", "tokenless", "garbage", "null", "large", "array", "misshapen", "unknown")
"""Rows by index: what is sent before the right answer. The right answer of these follows once that is judged."""
TWICE, DIFFERENT, KEYLESS, OTHER_KEY, CRC32, BARE = range(len(FIRST), len(FIRST) + 6)
LAST = len(FIRST) + 6
"""A row that is answered at the very end, so that the execution is open until then."""


class Hostile:
    """A provider under the line's control."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.seen: dict[str, bytes] = {}
        self.requests: dict[int, PaymentRequest] = {}
        self._raw: dict[int, dict[str, Any]] = {}
        settings = {
            "bootstrap.servers": app.bootstrap,
            "message.max.bytes": 2 * LARGE_BYTES,
            "linger.ms": 1,
            "delivery.report.only.error": True,
        }
        self._java = Producer({**settings, "partitioner": "murmur2_random"})
        self._crc32 = Producer({**settings, "partitioner": "consistent_random"})
        self._reader = app.log.reader()
        at = [TopicPartition(app.requests_topic, number) for number in range(app.pipeline.partitions)]
        self._reader.assign(dict.fromkeys(at, 0))

    def take(self, wait_s: float = 0.1) -> list[int]:
        """Requests that came, by item index, the last one first."""
        came: list[int] = []
        for record in self._reader.poll(2_000, wait_s):
            assert record.value is not None
            request = parse(record.value)
            raw = json.loads(record.value)
            self.requests[raw["itemIndex"]], self._raw[raw["itemIndex"]] = request, raw
            came.append(raw["itemIndex"])
        return came[::-1]

    def send(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        crc32: bool = False,
    ) -> None:
        """Write a record to the response topic."""
        producer = self._crc32 if crc32 else self._java
        while True:
            try:
                producer.produce(self.app.results_topic, value, key=key, headers=list(headers))
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def good(self, index: int) -> bytes:
        """The right answer of an item."""
        return reply(self.requests[index], reject_rate=0.08, actor="acceptance")

    def changed(self, index: int, **changes: Any) -> bytes:
        """The right answer with members replaced; None removes one."""
        answer = {**json.loads(self.good(index)), **changes}
        return json.dumps({name: value for name, value in answer.items() if value is not None}).encode()

    def payload(self, index: int) -> dict[str, Any]:
        """The business value of the right answer."""
        found: dict[str, Any] = json.loads(self.good(index))["responsePayload"]
        return found

    def token(self, index: int) -> str:
        """The resume token of an item's request."""
        return str(self._raw[index]["resumeToken"])

    def interaction(self, index: int) -> str:
        """An item's interaction id."""
        return str(self._raw[index]["interactionId"])

    def bad(self, index: int) -> None:
        """Send what comes before the right answer of one of the first rows."""
        token = self.token(index)
        match FIRST[index]:
            case "tampered":
                self.send(self.changed(index, resumeToken=token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")))
            case "tokenless":
                self.send(self.changed(index, resumeToken=None))
            case "garbage":
                self.send(b'{"interactionId": "' + self.interaction(index).encode())
            case "null":
                self.send(None, key=self.interaction(index))
            case "large":
                self.send(self.changed(index, responsePayload={**self.payload(index), "message": "x" * LARGE_BYTES}))
            case "array":
                self.send(b"[1, 2, 3]")
            case "misshapen":
                self.send(self.changed(index, responsePayload={"status": "Complete", "fee": "a lot"}))
            case _:
                self.send(self.changed(index, interactionId="nonsense", correlationId=None, resumeToken=None))
                stranger = f"{uuid.uuid4()}.1.0"
                signer = TokenSigner(active="k1", keys={"k1": self.app.ground.secret.encode()})
                forged = signer.sign(
                    tenant_id="default",
                    interaction_id=stranger,
                    correlation_id=stranger,
                    step_id="await-payment-provider",
                    deadline_ms=int(time.time() * 1000) + 60_000,
                )
                self.send(self.changed(index, interactionId=stranger, correlationId=None, resumeToken=forged))

    def answer(self, index: int) -> None:
        """Send the right answer, in the way of the row."""
        good = self.good(index)
        match index:
            case _ if index == TWICE:
                self.send(good)
                self.send(good)
            case _ if index == OTHER_KEY:
                self.send(good, key="somebody else's key")
            case _ if index == CRC32:
                self.send(good, key=self.interaction(index), crc32=True)
            case _ if index == BARE:
                echoed = (
                    (HEADER_INTERACTION_ID, self.interaction(index).encode()),
                    (HEADER_RESUME_TOKEN, self.token(index).encode()),
                )
                self.send(json.dumps(self.payload(index)).encode(), headers=echoed)
            case _ if index == KEYLESS:
                self.send(good)
            case _:
                self.send(good, key=self.interaction(index))

    def flush(self) -> None:
        """Wait until all is stored."""
        self._java.flush(10)
        self._crc32.flush(10)

    def close(self) -> None:
        """Free the clients."""
        self._reader.close()
        self._java.close()
        self._crc32.close()


EXPECTED_REFUSALS = Counter({"bad-token": 2, "unknown": 2, "wrong-shape": 1, "conflict": 1})
EXPECTED_LETTERS = Counter({"not-json": 1, "null-value": 1, "too-large": 1, "missing-fields": 1})


def _play(app: App, rows: int) -> Hostile:
    """Bad answers first, right ones of everybody else at once; then the right ones of the first rows; then second answers; then the last."""
    provider = Hostile(app)
    seen = 0
    until_s = time.monotonic() + 120
    while seen < rows:
        for index in provider.take():
            seen += 1
            if index < len(FIRST):
                provider.bad(index)
            elif index != LAST:
                provider.answer(index)
        provider.flush()
        if time.monotonic() > until_s:
            raise TimeoutError(f"{seen} of {rows} requests came; {app.last_words()}")
    app.until(
        lambda: len(app.dead_letters()) >= 4 and len(app.refusals()) >= 5,
        "the bad answers to be judged",
        every_s=0.3,
    )
    for index in range(len(FIRST)):
        provider.answer(index)
    provider.flush()
    app.until(lambda: _admitted(app) >= rows - 1, "the right answers to be admitted", every_s=0.3)
    payload = {**provider.payload(DIFFERENT), "message": "another answer"}
    provider.send(provider.changed(DIFFERENT, responsePayload=payload))
    provider.flush()
    app.until(lambda: len(app.refusals()) >= 6, "the different second answer to be judged", every_s=0.3)
    provider.answer(LAST)
    provider.flush()
    return provider


def _admitted(app: App) -> int:
    return sum(isinstance(fact, facts.BoundaryCompletionAdmitted) for fact in app.facts())


@line(
    "answers", "The provider answers wrongly in every way: each answer gets its outcome, good neighbours are unaffected"
)
def hostile(ground: Ground, checks: Checks) -> None:
    """On the live and on the suspending path."""
    for way, (rows, overrides) in PATHS.items():
        path = ground.payments(rows)
        expected = ground.undisturbed([path])
        app = ground.app(f"hostile-{way}", overrides=overrides)
        app.worker()
        execution = app.submit(path)
        provider = _play(app, rows)
        told = app.wait([execution])
        _judge(app, provider, checks, way)
        made = app.output / f"{path.name}.out"
        checks.that(
            f"{way}: twice, out of order, without key, with another key, CRC32, bare with echoed headers: admitted once each",
            told[execution].status == "SUCCEEDED"
            and _admitted(app) == rows
            and made.read_bytes() == expected[made.name],
            f"{told[execution].status}, {_admitted(app)} admissions of {rows} rows",
        )
        provider.close()
        app.close()


def _judge(app: App, provider: Hostile, checks: Checks, way: str) -> None:
    refusals, letters = app.refusals(), app.dead_letters()
    reasons = Counter(refusal.reason for refusal in refusals)
    checks.that(
        f"{way}: tampered, without token, unknown, wrong shape, different second answer: refusals",
        reasons == EXPECTED_REFUSALS,
        dict(reasons),
    )
    known = [refusal for refusal in refusals if refusal.reason in {"bad-token", "wrong-shape", "conflict"}]
    checks.that(
        f"{way}: a refusal names reason, origin, payload, step and owner, and no token",
        all(
            refusal.origin_topic == app.results_topic and refusal.origin_offset >= 0 and refusal.payload
            for refusal in refusals
        )
        and all(refusal.owner == OWNER and refusal.step_id == "await-payment-provider" for refusal in known)
        and not any(provider.token(index).encode() in refusal.payload for refusal in refusals for index in range(LAST)),
        f"{len(refusals)} refusals",
    )
    found = Counter(letter.reason for letter in letters)
    large = [letter for letter in letters if letter.reason == "too-large"]
    checks.that(
        f"{way}: garbage, null, 5 MB, no answer at all: dead letters, the large one cut with length and sha256",
        found == EXPECTED_LETTERS
        and all(letter.origin_topic == app.results_topic for letter in letters)
        and all(
            letter.value_length > LARGE_BYTES
            and letter.value_sha256
            and len(letter.value or b"") <= DEAD_LETTER_BYTES_MAX
            for letter in large
        ),
        dict(found),
    )
    named = [
        {name for name, _ in record.headers}
        for topic in (app.names.refusals, app.names.dlq)
        for record in app.records(topic)
    ]
    wanted = {"kawait-error", "kawait-topic", "kawait-partition", "kawait-offset"}
    checks.that(f"{way}: both with headers of reason and origin", all(wanted <= names for names in named), len(named))
    early = _early(app)
    checks.that(f"{way}: answers came before all items were dispatched", early > 0, f"{early} of them")


def _early(app: App) -> int:
    """Answers admitted before the source had ended."""
    count = 0
    for fact in app.facts():
        if isinstance(fact, facts.SourceEnded):
            return count
        count += isinstance(fact, facts.BoundaryCompletionAdmitted)
    return 0


@line(
    "answers",
    "Never answered, and answered after the deadline: the execution fails and can be looked up, the late answer is refused as late",
)
def never(ground: Ground, checks: Checks) -> None:
    """On both paths, beside a file that is answered in time."""
    for way, (_, overrides) in PATHS.items():
        app = ground.app(f"never-{way}", overrides=(*overrides, f"{AWAIT}.timeout=PT5S"))
        app.worker()
        late, neighbour = (
            ground.payments(20, name="late_20.csv", seed=3),
            ground.payments(20, name="on_time_20.csv", seed=4),
        )
        ids = [app.submit(late), app.submit(neighbour)]
        provider = _Partial(app, silent=ids[0])
        told = app.wait(ids, turn=provider.turn, timeout_s=60)
        failed, paid = told[ids[0]], told[ids[1]]
        letters = [letter for letter in app.dead_letters() if letter.execution_id == ids[0]]
        checks.that(
            f"{way}: never: failed with the await timeout, one dead letter, good neighbour paid",
            failed.status == "FAILED"
            and "TIME" in (failed.error_code or "")
            and len(letters) == 1
            and paid.status == "SUCCEEDED"
            and not (app.output / f"{late.name}.out").exists(),
            f"{failed.status} {failed.error_code}, {len(letters)} dead letter, neighbour {paid.status}",
        )
        provider.answer_late()
        app.until(lambda found=app: found.refusals(), "the late answer to be judged", every_s=0.2)  # type: ignore[misc]
        refusals = app.refusals()
        checks.that(
            f"{way}: after the deadline: refused as late, payload kept for the owner",
            [refusal.reason for refusal in refusals] == ["late"]
            and refusals[0].owner == OWNER
            and b"Mock response" in refusals[0].payload,
            [(refusal.reason, refusal.owner) for refusal in refusals],
        )
        provider.close()
        app.close()


class _Partial:
    """Answers everything but item 7 of one execution."""

    def __init__(self, app: App, *, silent: str) -> None:
        self._app = app
        self._silent = f"{silent}.1.7"
        self._kept: PaymentRequest | None = None
        self._hostile = Hostile(app)
        self._reader = self._hostile._reader
        self.answers = 0

    def turn(self) -> None:
        """Answer what came."""
        for record in self._reader.poll(2_000, 0.05):
            assert record.value is not None
            request = parse(record.value)
            if request.interaction_id == self._silent:
                self._kept = request
                continue
            self._hostile.send(reply(request, reject_rate=0.0, actor="acceptance"))
            self.answers += 1
        self._hostile.flush()

    def answer_late(self) -> None:
        """Answer the one that was kept."""
        assert self._kept is not None
        self._hostile.send(reply(self._kept, reject_rate=0.0, actor="acceptance"))
        self._hostile.flush()

    def close(self) -> None:
        """Free the clients."""
        self._hostile.close()


@line("answers", "Workers stopped past the deadline while answers wait in the completions topic: all admitted")
def backlog(ground: Ground, checks: Checks) -> None:
    """The core is away, ingress is not; a deadline fires only after our own backlog is decided (policy 2)."""
    rows = ground.size(1_000, 300)
    timeout_s = 20
    for way, (_, overrides) in PATHS.items():
        path = ground.payments(rows)
        expected = ground.undisturbed([path])
        own = () if way == "live" else overrides
        app = ground.app(f"backlog-{way}", overrides=(*own, f"{AWAIT}.timeout=PT{timeout_s}S"))
        core = app.worker("core", roles="core,continuation", state_dir=app.folder / "state-core")
        app.worker("ingress", roles="ingress", state_dir=app.folder / "state-ingress")
        execution = app.submit(path)
        app.until(app.source_ended, "all requests", every_s=0.1)
        app.kill(core)
        app.provider()
        app.until(lambda found=app: _waiting(found) >= rows, "answers on the completions topic", every_s=0.2)  # type: ignore[misc]
        deadlines = [fact.deadline_ms for fact in app.facts() if isinstance(fact, facts.BoundaryInteractionDispatched)]
        on_time = sum(record.timestamp_ms < min(deadlines) for record in app.records(app.names.completions))
        time.sleep(max(0.0, max(deadlines) / 1000 + 1.5 - time.time()))
        app.worker("core", roles="core,continuation", state_dir=app.folder / "state-core")
        told = app.wait([execution], timeout_s=60)
        held, figures = app.judge(rows, [path], told, expected)
        checks.that(
            f"{way}: {rows} answers that were there at the deadline",
            held and on_time == rows and not app.refusals(),
            f"{figures}; {on_time} were on time, {len(app.refusals())} refused",
        )
        app.close()


def _waiting(app: App) -> int:
    return sum(
        isinstance(codec.decode(record.value), ProviderCompletion) for record in app.records(app.names.completions)
    )
