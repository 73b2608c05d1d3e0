"""The outside party of a simulated run: answers late, twice, differently, in any order, forged, early or never.

Every answer that is sent is kept with where it was written, because each must have an outcome: admitted, the same as what was admitted,
held, refused or dead-lettered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import msgspec

from schemas.envelopes import RequestEnvelope
from schemas.identity import interaction_id, unit_id
from streams.clock import SkewedClock
from streams.log.memory.log import MemoryLog
from streams.log.memory.producer import MemoryProducer
from streams.log.seam import Record, TopicPartition
from streams.simulation.scenario import Say, Scenario
from topologies.pipeline.steps import AwaitStep
from topologies.pipeline.transports import KafkaTransport

_decode_request = msgspec.json.Decoder(RequestEnvelope).decode

SENDERS_TIMES_MS = (0, 3_600_000, -3_600_000)
"""How wrong the clock of the outside party may be: it stamps what it writes to a topic with CreateTime."""

GONE = "#"
"""Behind the name of a topic that is gone; one of the same name may be there again."""

Origin = tuple[str, int, int]


class Sent(NamedTuple):
    """One answer on its way.

    Attributes:
        expects: What must come of it: `judged` (by the rules), `refused` or `dead`.
        proven: It carries what the step asks for, and is of the right shape.
        at_ms: When it was written, by the broker's clock.
    """

    interaction_id: str
    expects: str
    value: Any
    proven: bool
    at_ms: int = 0


@dataclass(slots=True)
class Question:
    """One request that the outside party has seen.

    Attributes:
        silent: It is meant to stay without an answer, or to be answered at the last moment.
        answers: How many were sent.
    """

    request: RequestEnvelope
    payload: dict[str, Any]
    step: AwaitStep
    silent: bool
    answers: int = 0


class Outside:
    """The outside party: reads request topics, writes response topics; `transacts`: also in transactions, that may be given up or stay open."""

    def __init__(self, scenario: Scenario, log: MemoryLog, rng: Random, say: Say, *, transacts: bool = True) -> None:
        self._transacts = transacts
        self.questions: dict[str, Question] = {}
        self.open: list[str] = []
        self.requests: dict[tuple[str, int], int] = {}
        self.sent: dict[Origin, Sent] = {}
        self._scenario = scenario
        self._pipeline = scenario.pipeline
        self._log = log
        self._rng = rng
        self._say = say
        sees = log.seen_from(SkewedClock(log.clock, rng.choice(SENDERS_TIMES_MS))) if scenario.senders_times else log
        self._writes_to = sees
        self._producer = sees.plain_producer()
        self._transactions: deque[tuple[MemoryProducer, Origin]] = deque()
        """Open ones, with where the answer lies that each brings."""
        self._drawn = 0
        self._generation = 0
        self.ambiguous: set[Origin] = set()
        """Places in a topic that was made again: two answers were there."""
        topics = {
            step.transport.request_topic
            for step in self._pipeline.await_steps
            if isinstance(step.transport, KafkaTransport)
        }
        self._reader = log.reader()
        self._reader.assign(
            {
                TopicPartition(topic, number): 0
                for topic in sorted(topics)
                for number in range(self._pipeline.partitions)
            }
        )

    def look(self) -> int:
        """Take new requests in."""
        records = self._reader.poll(10_000, 0)
        for record in records:
            self._take(record)
        return len(records)

    def _take(self, record: Record) -> None:
        request = _decode_request(record.value or b"")
        step = self._pipeline.find_step(request.step_id)
        assert isinstance(step, AwaitStep)
        seen = (request.interaction_id, 1)
        self.requests[seen] = self.requests.get(seen, 0) + 1
        payload = msgspec.json.decode(request.request_payload)
        silent = self._rng.random() < self._scenario.silence
        self.questions[request.interaction_id] = Question(request, payload, step, silent)
        self.open.append(request.interaction_id)
        self._say(f"outside: sees request {_short(request.interaction_id)}{' and will not answer' if silent else ''}")

    # --- answers -----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do one thing that an outside party does: answer, or make mischief."""
        self.look()
        if self._rng.random() < 0.3:
            self._end_transaction()
        roll = self._rng.random()
        if self._scenario.early and self._rng.random() < 0.4:
            self._foretell()
        elif roll < self._scenario.mischief:
            self._mischief()
        elif self._answer_at_the_last_moment():
            return
        elif self.open:
            position = self._rng.randrange(len(self.open))
            question = self.questions[self.open[position]]
            if not question.silent:
                del self.open[position]
                self.answer(question)

    def answer_one(self) -> int | None:
        """Answer one question that is meant to be answered; its deadline, or None: there is no such question."""
        self.look()
        waiting = [iid for iid in self.open if not self.questions[iid].silent]
        if not waiting:
            return None
        iid = self._rng.choice(waiting)
        self.open.remove(iid)
        self.answer(self.questions[iid])
        return self.questions[iid].request.deadline_epoch_ms

    def next_deadline_ms(self) -> int | None:
        """The first deadline of a request that is meant to stay without an answer."""
        waiting = [self.questions[iid].request.deadline_epoch_ms for iid in self.open if self.questions[iid].silent]
        return min((at_ms for at_ms in waiting if at_ms > self._log.clock.now_ms() - 1_000), default=None)

    def _answer_at_the_last_moment(self) -> bool:
        """Perhaps answer a question that was left silent until about its deadline."""
        now_ms = self._log.clock.now_ms()
        for position, iid in enumerate(self.open):
            question = self.questions[iid]
            if question.silent and abs(question.request.deadline_epoch_ms - now_ms) <= 300 and self._rng.random() < 0.5:
                del self.open[position]
                self.answer(question)
                return True
        return False

    def answer_all(self) -> int:
        """Answer every open question that is not meant to stay so; how many there were. No transaction stays open."""
        while self._end_transaction(may_give_up=False):
            pass
        self.look()
        due = [question for question in map(self.questions.__getitem__, self.open) if not question.silent]
        self.open = [name for name in self.open if self.questions[name].silent]
        for question in due:
            self.answer(question)
        return len(due)

    def answer(self, question: Question, *, variant: int = 0) -> None:
        """Send the answer that the request asks for."""
        question.answers += 1
        payload = self._payload(question.step, question.payload, variant)
        token = question.request.resume_token
        if token is not None and question.step.strategy == "interactionId" and self._rng.random() < 0.3:
            token = None
        self._send(question.step, question.request.interaction_id, payload, token, "judged", proven=True)

    def answer_with(self, question: Question, payload: Any) -> None:
        """Send an answer that somebody else has chosen."""
        self._send(
            question.step,
            question.request.interaction_id,
            payload,
            question.request.resume_token,
            "judged",
            proven=True,
        )

    def _payload(self, step: AwaitStep, request: dict[str, Any], variant: int) -> Any:
        return self._scenario.author.answer(request, projected=step.projection is not None, variant=variant)

    def _send(self, step: AwaitStep, iid: str, payload: Any, token: str | None, expects: str, *, proven: bool) -> None:
        body = {"interactionId": iid, "responsePayload": payload, **({"resumeToken": token} if token else {})}
        self._write(step, msgspec.json.encode(body), Sent(iid, expects, payload, proven))

    def _write(self, step: AwaitStep, value: bytes, sent: Sent) -> None:
        assert isinstance(step.transport, KafkaTransport)
        topic = step.transport.response_topic
        partition = self._rng.randrange(self._pipeline.partitions)
        at = TopicPartition(topic, partition)
        offset = self._log.end_offsets([at], "uncommitted", 1)[at]
        self._append(topic, partition, value, (topic, partition, offset))
        self.sent[topic, partition, offset] = sent._replace(at_ms=self._log.clock.now_ms())
        self._say(
            f"outside: answers {_short(sent.interaction_id)} ({sent.expects}) with {msgspec.json.encode(sent.value)!r} at {topic}[{partition}]@{offset}"
        )

    def _append(self, topic: str, partition: int, value: bytes, origin: Origin) -> None:
        """Write it: alone, in a transaction, before one that is given up, or in one that stays open for a while."""
        how = (
            "alone"
            if not self._transacts
            else self._rng.choice(("alone", "alone", "alone", "transaction", "then an abort", "open"))
        )
        if how == "alone":
            self._producer.send(topic, value, partition=partition, timeout_s=1)
            return
        self._drawn += 1
        name = f"outside-{self._drawn}"
        self._log.spare(name)
        producer = self._writes_to.producer(name)
        producer.init(1)
        producer.begin()
        producer.produce(topic, value, partition=partition)
        if how == "open":
            self._transactions.append((producer, origin))
            return
        producer.commit(1)
        if how == "then an abort":
            producer.begin()
            producer.produce(topic, b"given up", partition=partition)
            producer.abort()

    def lose_unread(self, topic: str, committed: dict[TopicPartition, int]) -> None:
        """A response topic is gone: what nobody had taken over was never said; of the rest only what came of it is known."""
        open_ = {origin for _, origin in self._transactions if origin[0] == topic}
        for producer, origin in [open_one for open_one in self._transactions if open_one[1] in open_]:
            producer.abort()
            self._transactions.remove((producer, origin))
        for origin in [origin for origin in self.sent if origin[0] == topic]:
            sent = self.sent.pop(origin)
            at = TopicPartition(topic, origin[1])
            if origin in open_ or origin[2] >= committed.get(at, 0):
                if sent.interaction_id in self.questions and sent.interaction_id not in self.open:
                    self.open.append(sent.interaction_id)
            else:
                self.ambiguous.add(origin)
                self._generation += 1
                self.sent[f"{topic}{GONE}{self._generation}", origin[1], origin[2]] = sent

    @property
    def has_open_transaction(self) -> bool:
        """Whether an answer lies in a transaction that nobody has ended."""
        return bool(self._transactions)

    def _end_transaction(self, *, may_give_up: bool = True) -> bool:
        """End the oldest open transaction; whether there was one. What is given up was never said, and is said again later."""
        if not self._transactions:
            return False
        producer, origin = self._transactions.popleft()
        if not may_give_up or self._rng.random() < 0.6:
            producer.commit(1)
            return True
        self._say(f"outside: takes back what it said at {origin}")
        producer.abort()
        iid = self.sent.pop(origin).interaction_id
        if iid in self.questions and iid not in self.open:
            self.open.append(iid)
        return True

    # --- mischief ----------------------------------------------------------------------------------------------------

    def _mischief(self) -> None:
        kinds = (
            self._repeat,
            self._repeat,
            self._contradict,
            self._garbage,
            self._forge,
            self._misshape,
            self._foretell,
            self._unknown,
        )
        self._rng.choice(kinds)()

    def _some(self) -> Question | None:
        return self.questions[self._rng.choice(sorted(self.questions))] if self.questions else None

    def _repeat(self) -> None:
        question = self._some()
        if question is not None and not question.silent:
            self.answer(question)

    def _contradict(self) -> None:
        question = self._some()
        if question is not None and not question.silent:
            self.answer(question, variant=1)

    def _garbage(self) -> None:
        step = self._rng.choice(self._pipeline.await_steps)
        value = self._rng.choice(
            (b"{", b"null", b"17", b'{"responsePayload": {}}', b'{"interactionId": "x.0.0", "responsePayload": null}')
        )
        self._write(step, value, Sent("", "dead", value, proven=False))

    def _forge(self) -> None:
        question = self._some()
        if question is None:
            return
        token = self._rng.choice(("nonsense", (question.request.resume_token or "") + "x", ""))
        expects = "refused" if token or question.step.needs_token else "judged"
        payload = self._payload(question.step, question.payload, 0)
        silent = question.silent and expects == "judged"
        if not silent:
            self._send(
                question.step, question.request.interaction_id, payload, token, expects, proven=expects == "judged"
            )

    def _misshape(self) -> None:
        question = self._some()
        if question is None:
            return
        payload: Any = {"kind": "maybe"}
        extra = question.payload.get("extra")
        if extra is not None and question.step.projection is None and self._rng.random() < 0.5:
            payload = self._payload(question.step, {**question.payload, "extra": None}, 0)
            payload["extra"] = self._scenario.author.endless(extra)
        if question.step.projection is not None and self._rng.random() < 0.5:
            payload = {"good": True, "value": self._scenario.author.REFUSED}
        self._send(
            question.step,
            question.request.interaction_id,
            payload,
            question.request.resume_token,
            "refused",
            proven=False,
        )

    def _foretell(self) -> None:
        """Send an answer before its request was made: its interaction id can be derived."""
        if not self._scenario.submissions:
            return
        step = self._rng.choice(self._pipeline.await_steps)
        execution = self._rng.choice(sorted(self._scenario.submissions))
        items = self._scenario.items_of(execution)
        itemised = step.itemised
        index = self._rng.randrange(len(items) + 2) if itemised else None
        iid = interaction_id(unit_id(execution, step.index), index)
        name = items[0]["name"] if items else "nobody"
        known = items[index] if step.index == 1 and index is not None and index < len(items) else {}
        if None in known.values():
            return  # a line that was cut makes no item
        request = {"name": name, "index": index or 0, **known, "count": len(items)}
        if iid in self.questions and self.questions[iid].silent:
            return
        payload = self._payload(step, request, self._rng.choice((0, 0, 1)))
        if step.projection is not None and self._rng.random() < 0.5:
            payload["value"] = self._scenario.author.REFUSED
        self._send(
            step,
            iid,
            payload,
            None,
            "judged",
            proven=not step.needs_token and payload["value"] != self._scenario.author.REFUSED,
        )

    def _unknown(self) -> None:
        step = self._rng.choice(self._pipeline.await_steps)
        execution = self._rng.choice(sorted(self._scenario.submissions) or ["nothing"])
        names = (
            "no-such-execution.1.0",
            f"{execution}.77.0",
            f"{execution}.0",
            f"{execution}.{step.index}.999",
            f"{execution}.{step.index}.01",
        )
        iid = self._rng.choice(names)
        payload = self._payload(step, {"name": "nobody", "index": 0}, 0)
        self._send(step, iid, payload, None, "judged", proven=False)


def _short(iid: str) -> str:
    execution, _, rest = iid.partition(".")
    return f"{execution[:4]}.{rest}"
