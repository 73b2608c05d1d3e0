"""The outside party of a simulated run: answers late, twice, differently, in any order, forged, early or never.

Every answer that is sent is kept with where it was written, because each must have an outcome: admitted, the same as what was admitted,
held, refused or dead-lettered.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import msgspec

from schemas.envelopes import RequestEnvelope
from schemas.identity import interaction_id, unit_id
from streams.log.memory.log import MemoryLog
from streams.log.seam import Record, TopicPartition
from streams.simulation.scenario import Say, Scenario
from topologies.pipeline.steps import AwaitStep
from topologies.pipeline.transports import KafkaTransport

_decode_request = msgspec.json.Decoder(RequestEnvelope).decode

Origin = tuple[str, int, int]


class Sent(NamedTuple):
    """One answer on its way.

    Attributes:
        expects: What must come of it: `judged` (by the rules), `refused` or `dead`.
        proven: It carries what the step asks for, and is of the right shape.
    """

    interaction_id: str
    expects: str
    value: Any
    proven: bool


@dataclass(slots=True)
class Asked:
    """One request that was seen."""

    request: RequestEnvelope
    payload: dict[str, Any]
    step: AwaitStep
    silent: bool
    answers: int = 0


class Outside:
    """Reads request topics, writes response topics."""

    def __init__(self, scenario: Scenario, log: MemoryLog, rng: Random, say: Say) -> None:
        self.asked: dict[str, Asked] = {}
        self.open: list[str] = []
        self.requests: dict[tuple[str, int], int] = {}
        self.sent: dict[Origin, Sent] = {}
        self._scenario = scenario
        self._pipeline = scenario.pipeline
        self._log = log
        self._rng = rng
        self._say = say
        self._producer = log.plain_producer()
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
        self.asked[request.interaction_id] = Asked(request, payload, step, silent)
        self.open.append(request.interaction_id)
        self._say(f"outside: sees request {_short(request.interaction_id)}{' and will not answer' if silent else ''}")

    # --- answers -----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Something an outside party does."""
        self.look()
        roll = self._rng.random()
        if self._scenario.early and self._rng.random() < 0.4:
            self._foretell()
        elif roll < self._scenario.mischief:
            self._mischief()
        elif self._answer_at_the_last_moment():
            return
        elif self.open:
            position = self._rng.randrange(len(self.open))
            asked = self.asked[self.open[position]]
            if not asked.silent:
                del self.open[position]
                self.answer(asked)

    def next_deadline_ms(self) -> int | None:
        """The first deadline of a request that is meant to stay without an answer."""
        waiting = [self.asked[iid].request.deadline_epoch_ms for iid in self.open if self.asked[iid].silent]
        return min((at_ms for at_ms in waiting if at_ms > self._log.clock.now_ms() - 1_000), default=None)

    def _answer_at_the_last_moment(self) -> bool:
        """Who has been silent may answer around the deadline."""
        now_ms = self._log.clock.now_ms()
        for position, iid in enumerate(self.open):
            asked = self.asked[iid]
            if asked.silent and abs(asked.request.deadline_epoch_ms - now_ms) <= 300 and self._rng.random() < 0.5:
                del self.open[position]
                self.answer(asked)
                return True
        return False

    def answer_all(self) -> int:
        """Answer whatever is open and not meant to stay so."""
        self.look()
        due = [found for found in map(self.asked.__getitem__, self.open) if not found.silent]
        self.open = [name for name in self.open if self.asked[name].silent]
        for asked in due:
            self.answer(asked)
        return len(due)

    def answer(self, asked: Asked, *, variant: int = 0) -> None:
        """The answer that was asked for."""
        asked.answers += 1
        payload = self._payload(asked.step, asked.payload, variant)
        token = asked.request.resume_token
        if token is not None and asked.step.strategy == "interactionId" and self._rng.random() < 0.3:
            token = None
        self._send(asked.step, asked.request.interaction_id, payload, token, "judged", proven=True)

    def answer_with(self, asked: Asked, payload: Any) -> None:
        """An answer that somebody else has chosen."""
        self._send(asked.step, asked.request.interaction_id, payload, asked.request.resume_token, "judged", proven=True)

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
        self._producer.send(topic, value, partition=partition, timeout_s=1)
        self.sent[topic, partition, offset] = sent
        self._say(
            f"outside: answers {_short(sent.interaction_id)} ({sent.expects}) with {sent.value} at {topic}[{partition}]@{offset}"
        )

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

    def _some(self) -> Asked | None:
        return self.asked[self._rng.choice(sorted(self.asked))] if self.asked else None

    def _repeat(self) -> None:
        asked = self._some()
        if asked is not None and not asked.silent:
            self.answer(asked)

    def _contradict(self) -> None:
        asked = self._some()
        if asked is not None and not asked.silent:
            self.answer(asked, variant=1)

    def _garbage(self) -> None:
        step = self._rng.choice(self._pipeline.await_steps)
        value = self._rng.choice(
            (b"{", b"null", b"17", b'{"responsePayload": {}}', b'{"interactionId": "x.0.0", "responsePayload": null}')
        )
        self._write(step, value, Sent("", "dead", value, proven=False))

    def _forge(self) -> None:
        asked = self._some()
        if asked is None:
            return
        token = self._rng.choice(("nonsense", (asked.request.resume_token or "") + "x", ""))
        expects = "refused" if token or asked.step.needs_token else "judged"
        payload = self._payload(asked.step, asked.payload, 0)
        silent = asked.silent and expects == "judged"
        if not silent:
            self._send(asked.step, asked.request.interaction_id, payload, token, expects, proven=expects == "judged")

    def _misshape(self) -> None:
        asked = self._some()
        if asked is None:
            return
        payload: Any = {"kind": "maybe"}
        if asked.step.projection is not None and self._rng.random() < 0.5:
            payload = {"good": True, "value": self._scenario.author.REFUSED}
        self._send(
            asked.step, asked.request.interaction_id, payload, asked.request.resume_token, "refused", proven=False
        )

    def _foretell(self) -> None:
        """An answer before its request: ids are derivable."""
        step = self._rng.choice(self._pipeline.await_steps)
        execution = self._rng.choice(sorted(self._scenario.submissions))
        items = msgspec.json.decode(self._scenario.submissions[execution].input)["items"]
        itemised = step.itemised
        index = self._rng.randrange(len(items) + 2) if itemised else None
        iid = interaction_id(unit_id(execution, step.index), index)
        request = {
            "name": msgspec.json.decode(self._scenario.submissions[execution].input)["name"],
            "index": index or 0,
            "count": len(items),
        }
        if iid in self.asked and self.asked[iid].silent:
            return
        payload = self._payload(step, request, self._rng.choice((0, 0, 1)))
        if step.projection is not None and self._rng.random() < 0.3:
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
        execution = self._rng.choice(sorted(self._scenario.submissions))
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
