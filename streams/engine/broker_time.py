"""The broker's time: measured at the start and every minute by a record whose stamp the broker sets (DECISIONS 6).

Theory of operation. A probe is appended to a topic with LogAppendTime. Its stamp was made somewhere between sending and hearing back, so half
of the round trip is added to it, and is what it may be wrong by; brokers whose clocks differ among themselves add to that. Asked aside: the
loop goes on meanwhile. The first probe of a client pays for its connection, so several are sent and the fastest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from schemas import limits
from schemas.envelopes import HEADER_PROBE
from schemas.errors import LogUnavailable, UsageError
from streams.clock import BrokerClock
from streams.engine.aside import Aside, Asked
from streams.log.seam import Log, PlainProducer
from streams.telemetry.metrics import Metrics

logger = structlog.get_logger("kawait.worker")

PROBES = 3
PROBE_TIMEOUT_S = 5.0
PROBE_HEADERS = [(HEADER_PROBE, b"")]


class Measured(NamedTuple):
    """What a probe says: the broker's clock at a moment of ours, give or take half of the round trip."""

    at_ms: float
    monotonic_s: float
    half_ms: float


class BrokerTime:
    """Keeps a `BrokerClock` set.

    Args:
        topic: Where probes go; it must have LogAppendTime, and its readers must take no notice of them.
        pace_s: Shortest time between two attempts.
    """

    def __init__(
        self, clock: BrokerClock, log: Log, topic: str, aside: Aside, metrics: Metrics, *, pace_s: float
    ) -> None:
        self._clock = clock
        self._log = log
        self._topic = topic
        self._aside = aside
        self._metrics = metrics
        self._pace_s = pace_s
        self._producer: PlainProducer | None = None
        self._asked: Asked[Measured] | None = None
        self._next_s = clock.monotonic_s()
        self._warned = False

    def keep(self) -> None:
        """Take the answer of a probe, or send one if it is time to; costs next to nothing else.

        Raises:
            UsageError: the clocks are too far apart to go on.
        """
        if self._asked is None:
            if self._clock.monotonic_s() < self._next_s and not self._clock.has_moved:
                return
            self._asked = self._aside.ask(self._measure)
        if self._asked.is_over:
            self._take(self._asked)
            self._asked = None

    def _measure(self) -> Measured:
        """Aside: the fastest of some probes."""
        if self._producer is None:
            self._producer = self._log.plain_producer()
        return min((self._probe(self._producer) for _ in range(PROBES)), key=lambda measured: measured.half_ms)

    def _probe(self, producer: PlainProducer) -> Measured:
        sent_s = self._clock.monotonic_s()
        stamp_ms = producer.send(self._topic, b"", partition=0, headers=PROBE_HEADERS, timeout_s=PROBE_TIMEOUT_S)
        heard_s = self._clock.monotonic_s()
        if stamp_ms is None:
            raise UsageError(
                f"{self._topic} does not carry the broker's time (message.timestamp.type=LogAppendTime); see `kawait topics`"
            )
        half_ms = (heard_s - sent_s) * 500
        return Measured(stamp_ms + half_ms, heard_s, half_ms)

    def _take(self, asked: Asked[Measured]) -> None:
        now_s = self._clock.monotonic_s()
        try:
            measured = asked.answer()
        except LogUnavailable as error:
            logger.debug("the broker's time is not known", detail=str(error))
            self._next_s = now_s + self._pace_s
            return
        uncertainty_ms = int(measured.half_ms + 0.5) + self._log.clocks_apart_ms
        self._clock.set(measured.at_ms, measured.monotonic_s, uncertainty_ms)
        self._next_s = now_s + limits.PROBE_EVERY_MS / 1000
        self._judge(self._clock.difference_s)

    def _judge(self, difference_s: float) -> None:
        """Say how far apart the clocks are, and refuse what cannot be meant."""
        self._metrics.clocks_differ(difference_s)
        ahead = "behind" if difference_s > 0 else "ahead of"
        if abs(difference_s) * 1000 > limits.CLOCK_DIFFERENCE_MS_MAX:
            raise UsageError(
                f"this machine's clock is {abs(difference_s):.0f} s {ahead} the broker's, more than "
                f"{limits.CLOCK_DIFFERENCE_MS_MAX // 1000} s: one of them is wrong. Let a time service (NTP) set both, and start again"
            )
        apart = abs(difference_s) * 1000 >= limits.CLOCK_DIFFERENCE_TOLD_MS
        if apart and not self._warned:
            logger.warning(
                "this machine's clock and the broker's differ; deadlines follow the broker's, stamps in logs do not",
                detail=f"{abs(difference_s):.1f} s {ahead} the broker's",
            )
        self._warned = apart

    def close(self) -> None:
        """Free the producer."""
        if self._producer is not None:
            self._producer.close()
