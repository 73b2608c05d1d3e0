"""Many deadlines at once, and deadlines under a backlog that only grows: as the bench measures both."""

from __future__ import annotations

import os

from bench import backlog, burst
from bench.place import Place
from streams.log.kafka.connection import Connection
from tests.acceptance.ground import Ground
from tests.acceptance.registry import Checks, line

RATIO_MAX = 2.0
LATE_S_MAX = 2.0
PER_S = 50.0
ROUNDS_MAX = 2
"""A busy machine gets another chance; the best round counts, and all are told."""


@line(
    "deadlines",
    "8,000 deadlines at once: p99 of other executions' request-to-resume at most 2 times the quiet one",
)
def at_once(ground: Ground, checks: Checks) -> None:
    """Parcels at a steady rate beside one whose pieces all expire together."""
    count, wait_s = ground.size(8_000, 1_000), ground.size(20, 12)
    place = Place(Connection(bootstrap=ground.bootstrap))
    rounds: list[burst.Burst] = []
    while len(rounds) < ROUNDS_MAX and not any(found.ratio <= RATIO_MAX for found in rounds):
        rounds.append(burst.measure(count, PER_S, wait_s, place, ground.folder))
    checks.that(
        f"{count:,} deadlines at once: p99 at most {RATIO_MAX:g} times the quiet one",
        any(found.ratio <= RATIO_MAX for found in rounds),
        "; ".join(
            f"{found.ratio:.2f} times: {found.quiet.p99_ms:.0f} ms, then {found.burst.p99_ms:.0f} ms over {found.burst_samples} samples; "
            f"deadlines within {found.spread_s:.1f} s, rung within {found.rang_s:.1f} s, the last {found.late_s:.1f} s after its time"
            for found in rounds
        )
        + f" (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)",
    )


@line(
    "deadlines",
    "A steady backlog of twice the capacity for a minute: timers ring within 2 s of their time (gate aside), every partition moves",
)
def under_a_backlog(ground: Ground, checks: Checks) -> None:
    """The capacity is measured right before."""
    place = Place(Connection(bootstrap=ground.bootstrap))
    warm, seconds, wait_s = ground.size(3_000, 500), ground.size(60, 15), ground.size(10, 3)
    found = backlog.measure(warm, seconds, wait_s, place, ground.folder)
    checks.note(
        "the load",
        f"{found.sent:,} parcels at twice the capacity of {found.capacity_per_s:,.0f} a second for {found.seconds:.0f} s, "
        f"{found.waiting:,} records waited at the end",
    )
    checks.that(
        f"timers ring within {LATE_S_MAX:g} s of their time, the gate aside",
        found.waiting and found.timers and found.rang and found.late_s <= LATE_S_MAX,
        f"the latest {found.late_s:.2f} s; {found.rang} of {found.timers} deadlines rang, a gate stayed shut for {found.gate_s:.2f} s at most",
    )
    checks.that(
        "every partition moves",
        found.slowest > 0,
        f"{found.slowest:,} facts of the slowest, {found.mean:,.0f} on average, no facts for {found.still_s:.2f} s at most",
    )
