"""Planted bugs of time: deadlines that ring too early, answers that are judged by the wrong clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from streams.clock import BrokerClock
from streams.engine.quiet_positions import QuietPositions
from streams.log.seam import Record
from streams.roles.core import gates
from streams.roles.core.deadlines import Deadlines
from streams.roles.core.events import AnswerArrived
from streams.roles.core.intake import Intake
from streams.roles.ingress import task as ingress
from streams.roles.ingress.records import read_answer
from streams.simulation.planting import Plant, Swap
from streams.simulation.violation import Breach
from topologies.decisions import admission


def _expire_over_backlog() -> list[Swap]:
    """A deadline rings while answers that were there before it wait to be decided."""

    def has_passed(_deadlines: Deadlines, _end: int) -> bool:
        return True

    return [(Deadlines, "has_passed", has_passed)]


def _ring_before_ingress() -> list[Swap]:
    """A deadline rings while answers lie on the response topic that nobody has taken over."""

    def is_taken_over(_ends: Any, _taken: Any) -> bool:
        return True

    return [(gates, "are_taken_over", is_taken_over)]


def _trust_the_own_clock() -> list[Swap]:
    """Deadlines follow the clock of the machine, which another machine or the broker does not share."""

    def now_ms(clock: BrokerClock) -> int:
        return clock._own.now_ms()  # noqa: SLF001

    return [(BrokerClock, "now_ms", now_ms)]


def _leave_markers() -> list[Swap]:
    """Positions that no record moved are never committed."""

    def moved(_quiet: QuietPositions, _consumer: Any) -> dict[Any, int]:
        return {}

    return [(QuietPositions, "moved", moved)]


def _judge_by_our_own_haste() -> list[Swap]:
    """An answer counts as come in when ingress wrote it to `completions`, not when it was on the response topic."""
    reading = Intake._read  # noqa: SLF001

    def read(intake: Intake, record: Record, kinds: tuple[type, ...]) -> Any:
        event = reading(intake, record, kinds)
        if isinstance(event, AnswerArrived) and event.completion.came_in_ms is not None:
            late = msgspec.structs.replace(event.completion, came_in_ms=record.timestamp_ms)
            return AnswerArrived(late, event.ref, record.timestamp_ms)
        return event

    return [(Intake, "_read", read)]


def _never_look_at_the_stamp() -> list[Swap]:
    """An answer is in time while the deadline has not rung, even where the broker says that it was not."""
    closed = admission._closed  # noqa: SLF001

    def judging(rows: Any, _came_in_ms: int | None) -> str | None:
        return closed(rows, None)

    return [(admission, "_closed", judging)]


def _believe_the_sender() -> list[Swap]:
    """The time that a sender wrote on its record is taken for the time at which it came in."""

    def reading(record: Record) -> Any:
        return read_answer(record._replace(appended=True))

    return [(ingress, "read_answer", reading)]


PLANTS: Mapping[str, Plant] = {
    "expire-over-backlog": Plant(_expire_over_backlog, Breach.TIMED_OUT_IN_TIME),
    "ring-before-ingress": Plant(_ring_before_ingress, Breach.TIMED_OUT_IN_TIME),
    "trust-the-own-clock": Plant(_trust_the_own_clock, Breach.RANG_EARLY),
    "leave-markers": Plant(_leave_markers, Breach.NEVER_AT_REST),
    "judge-by-our-own-haste": Plant(_judge_by_our_own_haste, Breach.TIMED_OUT_IN_TIME),
    "never-look-at-the-stamp": Plant(_never_look_at_the_stamp, Breach.ADMITTED_TOO_LATE),
    "believe-the-sender": Plant(_believe_the_sender, Breach.TIMED_OUT_IN_TIME),
}
