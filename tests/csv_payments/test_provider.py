"""The mock provider as a process of its own, in both forms, against a real broker; and its pace, without one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from streams.demo import provider_faust
from streams.demo.provider import BURST_PAUSE_S, Pace, PaymentProvider, ProviderFailed, ProviderSettings
from streams.demo.provider_answers import answered_twice

ROOT = Path(__file__).parents[2]
needs_faust = pytest.mark.skipif(importlib.util.find_spec("faust") is None, reason="the faust extra is not installed")

# --- pace, without a broker -------------------------------------------------------------------------------------------


def test_without_limits_everything_leaves_at_once() -> None:
    assert Pace().grant(5_000, 0.0) == 5_000
    assert Pace().wait_s(0.0) == 0


def test_a_rate_spreads_answers_over_time() -> None:
    pace = Pace(rate_per_s=100)
    sent = sum(pace.grant(1_000, step / 1_000) for step in range(1_001))
    assert 100 <= sent <= 101
    assert 0 < pace.wait_s(1.0) <= 0.01


def test_a_rate_below_one_a_second_still_sends() -> None:
    pace = Pace(rate_per_s=0.5)
    assert [pace.grant(10, float(second)) for second in range(6)] == [1, 0, 1, 0, 1, 0]


def test_an_idle_time_is_not_made_up_for() -> None:
    pace = Pace(rate_per_s=1_000)
    pace.grant(1, 0.0)
    assert pace.grant(10_000, 60.0) == 100


def test_a_burst_is_followed_by_a_pause() -> None:
    pace = Pace(burst=25)
    assert pace.grant(60, 0.0) == 25
    assert pace.grant(35, BURST_PAUSE_S / 2) == 0
    assert pace.wait_s(BURST_PAUSE_S / 2) == BURST_PAUSE_S / 2
    assert pace.grant(35, BURST_PAUSE_S) == 25


def test_the_faust_provider_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faust", None)
    with pytest.raises(provider_faust.FaustMissing, match=r"kawait\[faust\]"):
        provider_faust.run_faust_provider(ProviderSettings(bootstrap="127.0.0.1:1"))


@needs_faust
def test_the_faust_provider_refuses_what_it_cannot_secure() -> None:
    settings = ProviderSettings(bootstrap="127.0.0.1:1", kafka={"security.protocol": "SASL_SSL"})
    with pytest.raises(ProviderFailed, match=r"without SASL or TLS, but security\.protocol is set"):
        provider_faust.run_faust_provider(settings)


# --- with a broker ----------------------------------------------------------------------------------------------------


class Counterpart:
    """Our side of the exchange: sends requests in transactions, reads committed answers."""

    def __init__(self, bootstrap: str) -> None:
        run = uuid.uuid4().hex[:8]
        self.bootstrap, self.group = bootstrap, f"provider-{run}"
        self.requests, self.results, self.elsewhere = (f"p-{run}-{name}" for name in ("requests", "results", "else"))
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(name, num_partitions=3, replication_factor=1) for name in self.topics]
        for created in self._admin.create_topics(topics).values():
            created.result(30)
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t-{run}"})
        self._producer.init_transactions(30)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{run}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([self.results, self.elsewhere])

    @property
    def topics(self) -> list[str]:
        return [self.requests, self.results, self.elsewhere]

    def send(
        self, *values: bytes | None, commit: bool = True, headers: dict[str, str | bytes | None] | None = None
    ) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self.requests, value, headers=headers or {})
        self._producer.flush(30)
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)

    def answers(self, count: int, wait_s: float = 40.0) -> list[Message]:
        """The next answers; fewer when the wait ends first."""
        found: list[Message] = []
        while len(found) < count:
            message = self._consumer.poll(wait_s)
            if message is None:
                break
            if message.error() is None:
                found.append(message)
        return found

    def close(self) -> None:
        self._consumer.close()
        for deleted in self._admin.delete_topics(self.topics).values():
            deleted.result(30)


@pytest.fixture
def counterpart(bootstrap: str) -> Iterator[Counterpart]:
    party = Counterpart(bootstrap)
    yield party
    party.close()


def request_value(item: int) -> bytes:
    payload = {"csvId": str(item), "recipient": "Ann", "amount": "1.00", "currency": "EUR"}
    envelope = {"interactionId": f"e.1.{item}", "resumeToken": f"token-{item}", "requestPayload": payload}
    return json.dumps(envelope).encode()


PROGRAM = """
    import logging, sys
    from streams.process.signals import stop_on_signals
    from streams.demo import provider
    from streams.demo import provider_faust
    logging.basicConfig()
    bootstrap, requests, results, group, form = sys.argv[1:]
    settings = provider.ProviderSettings(
        bootstrap=bootstrap, request_topic=requests, response_topic=results, group_id=group
    )
    if form == "faust":
        provider_faust.run_faust_provider(settings)
    else:
        provider.run_provider(settings, stop_on_signals())
"""


@pytest.mark.broker
@pytest.mark.parametrize("form", ["plain", pytest.param("faust", marks=[needs_faust, pytest.mark.faust])])
def test_a_provider_process_answers_and_stops(counterpart: Counterpart, form: str) -> None:
    counterpart.send(request_value(7_777), commit=False)
    counterpart.send(b"garbage", None)
    counterpart.send(request_value(1), headers={"traceparent": b"00-1"})
    counterpart.send(
        request_value(2), headers={"kawait-response-topic": counterpart.elsewhere.encode(), "kawait-resume-token": b"t"}
    )
    where = [counterpart.bootstrap, counterpart.requests, counterpart.results, counterpart.group, form]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *where],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        answers = {(message.key() or b"").decode(): message for message in counterpart.answers(2)}
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    assert set(answers) == {"e.1.1", "e.1.2"}, log
    assert process.returncode == 0, log
    assert answers["e.1.1"].topic() == counterpart.results
    assert answers["e.1.1"].headers() == [("traceparent", b"00-1")]
    assert answers["e.1.2"].topic() == counterpart.elsewhere
    value = json.loads(answers["e.1.2"].value() or b"")
    assert (value["interactionId"], value["resumeToken"]) == ("e.1.2", "token-2")
    assert counterpart.answers(1, wait_s=0.5) == []
    assert log.count("skipped a record that is no payment request") == 2


@pytest.mark.broker
def test_answers_are_delayed_side_by_side_doubled_and_not_repeated_after_a_restart(counterpart: Counterpart) -> None:
    counterpart.send(*map(request_value, range(200)))
    settings = ProviderSettings(
        bootstrap=counterpart.bootstrap,
        request_topic=counterpart.requests,
        response_topic=counterpart.results,
        group_id=counterpart.group,
        delay_ms=200,
        duplicate=0.5,
    )
    doubled = sum(answered_twice(f"e.1.{item}", 0.5) for item in range(200))
    assert 0 < doubled < 200
    run_until(settings, counterpart, answers=200 + doubled)
    counterpart.send(request_value(1_000))
    again = run_until(settings, counterpart, answers=1)
    assert again.answers == 1 + answered_twice("e.1.1000", 0.5)


def run_until(settings: ProviderSettings, counterpart: Counterpart, *, answers: int) -> PaymentProvider:
    """Run a provider in a thread until so many answers have come, then stop it."""
    stop = threading.Event()
    provider = PaymentProvider(settings, stop=stop)
    thread = threading.Thread(target=provider.run)
    thread.start()
    try:
        assert len(counterpart.answers(answers)) == answers
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    return provider
