"""Burst of deadlines: many at once on one worker, and what they do to the latency of its other executions.

A parcel of as many pieces is asked about and never answered, so all its deadlines fall together. Beside it parcels of one piece come at a steady
rate and are answered at once; of each the time from the request's record to that of the fact that its suffix has run is taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.checkout import Tree, this_tree
from bench.installed import Application, running
from bench.latency import Quantiles, quantiles
from bench.parcels import SILENT, Asked, Counting, Outside, Sender, answering, timeout, write
from bench.place import Place
from bench.throughput import RunFailed
from bench.topics import Schemas, Topics

RANG, RESUMED = "InteractionTimedOut", "ContinuationCompleted"
QUIET = "quiet"
SETTLE_S = 3.0
"""After the last request of the large parcel, until what is measured counts as quiet."""
QUIET_S = 10.0
"""So much of the time before the first deadline is compared."""
RING_S_MAX = 60.0
QUIET_AFTER_S = 4.0
"""Nothing has rung for so long: all have."""


@dataclass(frozen=True, kw_only=True)
class Burst:
    """One run.

    Attributes:
        spread_s: From the first deadline to the last.
        rang: Deadlines that rang, over `rang_s` seconds.
        late_s: From the last deadline until the last of them rang, the gate included.
        quiet, burst: Request to resume of the other executions, before the first deadline and while deadlines ring.
        quiet_samples, burst_samples: How many.
    """

    deadlines: int
    per_s: float
    spread_s: float
    rang: int
    rang_s: float
    late_s: float
    quiet: Quantiles
    burst: Quantiles
    quiet_samples: int
    burst_samples: int

    @property
    def ratio(self) -> float:
        """The p99 under the burst over the quiet one."""
        return self.burst.p99_ms / self.quiet.p99_ms


def measure(deadlines: int, per_s: float, wait_s: float, place: Place, folder: Path) -> Burst:
    """Let `deadlines` deadlines fall together, `wait_s` seconds after their requests.

    Raises:
        RunFailed: they did not ring, or too little was measured beside them.
    """
    tree = this_tree()
    with running(tree, place, (timeout(wait_s),), write(folder / "parcels")) as application:
        with answering(application, place) as (sender, outside):
            _play(application, place, sender, outside, deadlines, per_s, wait_s)
        return _read(application, tree, place, outside.asked, deadlines, per_s)


def _play(
    application: Application,
    place: Place,
    sender: Sender,
    outside: Outside,
    deadlines: int,
    per_s: float,
    wait_s: float,
) -> None:
    """Warm up, ask about the large parcel, go on until its deadlines have rung and it was quiet for a while."""
    facts = Counting(application, place)
    try:
        for _ in sender.steadily(lambda: per_s, SETTLE_S, "warm-up"):
            pass
        sender.send(SILENT, deadlines)
        before, count, changed_s = 0, 0, 0.0
        for passed_s in sender.steadily(lambda: per_s, wait_s + RING_S_MAX, "steady"):
            for process in application.processes:
                process.check()
            if outside.silent < deadlines:
                continue
            found = facts.of(outside.execution)
            if time.time() * 1000 < outside.last_deadline_ms:
                before = found
            if found != count:
                count, changed_s = found, passed_s
            if count >= before + deadlines and passed_s > changed_s + QUIET_AFTER_S:
                return
    finally:
        facts.close()


def _read(
    application: Application, tree: Tree, place: Place, asked: Sequence[Asked], deadlines: int, per_s: float
) -> Burst:
    """What came of it, from the facts."""
    schemas = Schemas(tree.root)
    topics = Topics(place.connection)
    rang: list[int] = []
    resumed: dict[str, int] = {}
    large = next(one.execution_id for one in asked if one.parcel == SILENT)
    try:
        for record in topics.records(f"{application.name}.facts"):
            name, _ = schemas.decode(record.value)
            key = record.key.decode()
            if name == RANG and key == large:
                rang.append(record.at_ms)
            elif name == RESUMED and key != large:
                resumed[key] = record.at_ms
    finally:
        topics.close()
    return summary(asked, rang, resumed, deadlines, per_s)


def summary(
    asked: Sequence[Asked], rang: Sequence[int], resumed: dict[str, int], deadlines: int, per_s: float
) -> Burst:
    """The figures.

    Raises:
        RunFailed: not every deadline rang, or nothing was measured beside them.
    """
    silent = [one for one in asked if one.parcel == SILENT]
    if len(rang) < deadlines:
        raise RunFailed(f"{len(rang)} of {deadlines} deadlines rang ({len(silent)} requests)")
    first, last = min(one.deadline_ms for one in silent), max(one.deadline_ms for one in silent)
    steady = [one for one in asked if one.parcel.startswith("steady")]
    open_ = [one for one in steady if one.execution_id not in resumed and one.at_ms < max(rang)]
    if open_:
        raise RunFailed(f"{len(open_)} parcels beside the deadlines were answered and not received")
    settled = max(one.at_ms for one in silent) + round(SETTLE_S * 1000)
    quiet = _took(steady, resumed, max(settled, first - round(QUIET_S * 1000)), first)
    burst = _took(steady, resumed, min(rang), max(rang))
    if not quiet or not burst:
        raise RunFailed(f"{len(quiet)} parcels in quiet, {len(burst)} under the burst: nothing to compare")
    return Burst(
        deadlines=deadlines,
        per_s=per_s,
        spread_s=(last - first) / 1000,
        rang=len(rang),
        rang_s=(max(rang) - min(rang)) / 1000,
        late_s=(max(rang) - last) / 1000,
        quiet=quantiles(QUIET, quiet),
        burst=quantiles("under the burst", burst),
        quiet_samples=len(quiet),
        burst_samples=len(burst),
    )


def _took(steady: Iterable[Asked], resumed: dict[str, int], start_ms: int, end_ms: int) -> list[float]:
    """Milliseconds of each request that was sent in a span, or was open when it began."""
    return [
        float(resumed[one.execution_id] - one.at_ms)
        for one in steady
        if one.execution_id in resumed and one.at_ms <= end_ms and resumed[one.execution_id] >= start_ms
    ]
