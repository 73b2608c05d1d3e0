"""The mock payment provider as a Faust application: the outside party that many Python teams would write (`faust` extra).

It gives the answers of `provider`, with the same echoes. It is at-least-once too: Faust acknowledges a request when the
agent has sent its answer, and repeats what was not acknowledged. Its duplicates do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streams.demo.provider import (
    HEADER_RESPONSE_TOPIC,
    HEADER_TRACEPARENT,
    POLL_S,
    Pace,
    ProviderFailed,
    ProviderSettings,
)
from streams.demo.provider_answers import PoisonRequest, answered_twice, parse, reply

if TYPE_CHECKING:
    import faust

CONCURRENCY: Final = 1
SECURITY_PROPERTIES: Final = ("security.protocol", "sasl.mechanism", "sasl.mechanisms", "ssl.ca.location")

logger = logging.getLogger(__name__)


class FaustMissing(RuntimeError):
    """The `faust` extra is not installed."""


def build_app(settings: ProviderSettings, folder: Path) -> faust.App:
    """The Faust application: one agent on the request topic; call it inside the event loop that will run it.

    Args:
        settings: What to answer, and where.
        folder: For what Faust keeps while it runs; the default would be the working directory.

    Raises:
        FaustMissing: The `faust` extra is not installed.
        ProviderFailed: The settings ask for SASL or TLS, which this variant does not do.
    """
    faust_module, transport = _import_faust()
    _refuse_security(settings.kafka)
    app: Any = faust_module.App(
        settings.group_id,
        loop=asyncio.get_running_loop(),
        broker=[f"kafka://{server.strip()}" for server in settings.bootstrap.split(",")],
        store="memory://",
        datadir=folder,
        key_serializer="raw",
        value_serializer="raw",
        consumer_auto_offset_reset="earliest",
        producer_linger=0.001,
        producer_acks=-1,
        producer_compression_type="gzip",
        broker_session_timeout=10.0,
        broker_heartbeat_interval=2.0,
        broker_commit_interval=0.5,
        topic_allow_declare=False,  # kawait makes the topics, with the right settings
        topic_disable_leader=True,
        stream_wait_empty=False,
        web_enabled=False,
        autodiscover=False,
    )
    app.transport = transport(app)
    requests = app.topic(settings.request_topic, key_type=bytes, value_type=bytes)
    app.agent(requests, name="payment-provider", concurrency=CONCURRENCY)(_agent(app, settings))
    built: faust.App = app
    return built


def _agent(app: Any, settings: ProviderSettings) -> Any:
    pace = Pace(rate_per_s=settings.rate_per_s, burst=settings.burst)
    topics: dict[str, Any] = {}

    def topic(name: str) -> Any:
        if name not in topics:
            topics[name] = app.topic(name, key_type=bytes, value_type=bytes)
        return topics[name]

    async def answer_payments(requests: Any) -> None:
        async for event in requests.events():
            try:
                request = parse(event.value)
            except PoisonRequest as error:
                place = event.message
                logger.warning("skipped a record that is no payment request: %s@%s: %s", place.tp, place.offset, error)
                continue
            await _paced(pace, (event.message.time_in or 0.0) + settings.delay_ms / 1000)
            headers = _headers(event.headers)
            destination = topic(headers.get(HEADER_RESPONSE_TOPIC, b"").decode() or settings.response_topic)
            echoed = {HEADER_TRACEPARENT: headers[HEADER_TRACEPARENT]} if HEADER_TRACEPARENT in headers else {}
            value = reply(request, reject_rate=settings.reject_rate, actor=settings.actor)
            copies = 2 if answered_twice(request.interaction_id, settings.duplicate) else 1
            for _ in range(copies):
                await destination.send(key=request.interaction_id.encode(), value=value, headers=echoed)

    return answer_payments


async def _paced(pace: Pace, due_s: float) -> None:
    """Wait until the answer is due and the pace allows it; requests that arrived together are due together."""
    early_s = due_s - time.monotonic()
    if early_s > 0:
        await asyncio.sleep(early_s)
    while pace.grant(1, time.monotonic()) == 0:  # noqa: ASYNC110 - time passes, nothing happens
        await asyncio.sleep(max(0.001, pace.wait_s(time.monotonic())))


def _headers(headers: Any) -> Mapping[str, bytes]:
    """Record headers as a mapping; Faust gives a mapping, a list of pairs, or None."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return {name: value if isinstance(value, bytes) else str(value).encode() for name, value in pairs if value}


def _refuse_security(kafka: Mapping[str, str]) -> None:
    asked = [name for name in SECURITY_PROPERTIES if kafka.get(name, "PLAINTEXT").upper() != "PLAINTEXT"]
    if asked:
        msg = (
            f"the Faust provider connects without SASL or TLS, but {', '.join(asked)} is set; use the default provider"
        )
        raise ProviderFailed(msg)


def _import_faust() -> tuple[Any, Any]:
    """Import Faust when it is asked for, and return it with a factory of a transport that skips aborted records.

    Faust reads committed records only under `exactly_once`, whose producer it then runs transactionally as well; our
    requests come out of transactions, and an aborted one must not be answered.
    """
    try:
        import faust
        from faust.transport.drivers import aiokafka as driver
    except ImportError as error:
        msg = "`provider --faust` needs the faust extra: pip install 'kawait[faust]'"
        raise FaustMissing(msg) from error

    class CommittedThread(driver.AIOKafkaConsumerThread):
        def _create_worker_consumer(self, transport: Any) -> Any:
            consumer = super()._create_worker_consumer(transport)
            consumer._isolation_level = "read_committed"  # noqa: SLF001 - read when the consumer starts
            return consumer

    class CommittedConsumer(driver.Consumer):
        def _new_consumer_thread(self) -> Any:
            return CommittedThread(self, loop=self.loop, beacon=self.beacon)

    class CommittedTransport(driver.Transport):
        Consumer = CommittedConsumer

    def transport(app: Any) -> Any:
        return CommittedTransport(app.conf.broker_consumer, app, loop=app.loop)

    return faust, transport


def run_faust_provider(settings: ProviderSettings, stop: threading.Event | None = None) -> None:
    """Run the application until SIGTERM, SIGINT or the stop event; in the main thread signals are taken over.

    Raises:
        FaustMissing: The `faust` extra is not installed.
        ProviderFailed: The application crashed, or the settings ask for what it cannot do.
    """
    with tempfile.TemporaryDirectory(prefix="kawait-faust-") as folder:
        asyncio.run(_serve(settings, Path(folder), stop or threading.Event()))


async def _serve(settings: ProviderSettings, folder: Path, stop: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    app: Any = build_app(settings, folder)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    app.finalize()
    try:
        await app.start()
        while not stop.is_set() and not app.should_stop:  # noqa: ASYNC110 - the stop comes from another thread
            await asyncio.sleep(POLL_S)
    finally:
        await app.stop()
    crash = app.crash_reason
    if crash is not None:
        msg = f"the Faust provider crashed: {crash!r}"
        raise ProviderFailed(msg) from crash
