"""A commit against this tree: both measured in turns on one warmed broker, compared pair by pair.

Machines drift and neighbours come and go, so a figure of today means little beside a figure of last week. Two figures taken one after the
other share most of what disturbs them: the ratio of a pair is steadier than either, and the median of several ratios steadier still.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.checkout import Tree, installed, this_tree
from bench.installed import Application, DriveFailed, Submitted, running
from bench.latency import quantiles
from bench.limit import Warming, warm_up
from bench.place import BROKER, Place, machine, running_place
from bench.processes import Watch
from bench.report import Table
from bench.topics import Record, Schemas, Topics, milliseconds_between
from streams.demo.payments_file import generate
from streams.demo.run import AWAIT_STEP

LIVE_KEY = f"steps.{AWAIT_STEP}.await.live"
REQUESTS, FACTS, COMMANDS = "payment.requests", "facts", "commands"
RESUMED = "ContinuationCompleted"
"""The fact by which an item has its output: its suffix has run on the answer."""
PAIRS_FOR_A_VERDICT = 9
WARM_UP = "warm-up"
WARM_UP_SHARE = 0.1
WARMING_ROWS = 100_000
RUN_S_BASE = 60.0
RATE_MIN = 200.0
"""Rows/s below which a run counts as stalled."""
LATENCY_RATE_MIN = 5.0

Figures = dict[str, float]
"""Measure -> value, of one tree in one turn."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each turn does.

    Attributes:
        rows: Of the file that is timed, live and suspending.
        warm_up_rows: Of the file before it, which also shows that every process works.
        latency: In flight -> rows.
    """

    rows: int
    warm_up_rows: int
    latency: Mapping[int, int]


FULL = Load(rows=20_000, warm_up_rows=2_000, latency={1: 300, 16: 1_600})
QUICK = Load(rows=1_000, warm_up_rows=100, latency={1: 40, 16: 160})


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One measure over all pairs; the ratios are new / base."""

    measure: str
    base: float
    new: float
    ratios: list[float]

    @property
    def median(self) -> float:
        """The one in the middle."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest."""
        return min(self.ratios), max(self.ratios)

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.measure.endswith("rows/s")

    @property
    def is_judged(self) -> bool:
        """Whether a verdict is asked of it: rates and times are; what a row costs is shown only."""
        return self.is_rate or self.measure.endswith(" ms")


@dataclass(kw_only=True)
class Compared:
    """Every turn of a comparison, and what disturbed it."""

    base: str
    new: str
    load: Load
    machine: dict[str, object]
    warming: Warming | None = None
    pairs: list[tuple[Figures, Figures]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def ratios(self) -> list[Ratio]:
        """Of every measure that each pair has; what a verdict is asked of comes first."""
        turns = [turn for pair in self.pairs for turn in pair]
        names = [name for name in turns[0] if all(name in turn for turn in turns)] if turns else []
        return sorted((self._ratio(name) for name in names), key=lambda ratio: not ratio.is_judged)

    def _ratio(self, name: str) -> Ratio:
        both = [(base[name], new[name]) for base, new in self.pairs]
        base_values, new_values = zip(*both, strict=True)
        ratios = [new / base for base, new in both if base]
        return Ratio(measure=name, base=median(base_values), new=median(new_values), ratios=ratios or [1.0])

    def doubts(self) -> list[str]:
        """What a reader must know before believing the figures."""
        young = [] if self.warming is None or self.warming.is_settled else [self.warming.doubt]
        return [*self.problems, *young]

    def write(self, path: Path, at_least: float | None) -> None:
        """As JSON."""
        whole: dict[str, Any] = asdict(self)
        whole["doubts"] = self.doubts()
        whole["ratios"] = [
            {
                **asdict(ratio),
                "median": ratio.median,
                "spread": ratio.spread,
                "verdict": None if at_least is None or not ratio.is_judged else verdict(ratio, at_least),
            }
            for ratio in self.ratios()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def verdict(ratio: Ratio, at_least: float) -> str:
    """Whether the new tree is at least so fast, and by which rule: the median is, or the bound lies within the spread of nine pairs.

    Of a time the same is asked the other way round: at most 1 / `at_least` of the base's.
    """
    speeds = sorted(value if ratio.is_rate else 1 / value for value in ratio.ratios if value)
    low, high, middle = speeds[0], speeds[-1], median(speeds)
    if middle >= at_least:
        return f"met: the median is {middle:.2f}"
    within = low <= at_least <= high
    if within and len(speeds) >= PAIRS_FOR_A_VERDICT:
        return f"met: within {low:.2f} to {high:.2f} of {len(speeds)} pairs, the median is {middle:.2f}"
    if within:
        return f"open: within {low:.2f} to {high:.2f}, but of {len(speeds)} pairs, not {PAIRS_FOR_A_VERDICT}"
    return f"missed: at most {high:.2f}"


def table(compared: Compared, at_least: float | None) -> Table:
    """A line for each measure."""
    judged = () if at_least is None else (f"at least {at_least:g}",)
    return Table(
        f"{compared.new} against {compared.base}, {len(compared.pairs)} pairs, medians",
        ("", compared.base, compared.new, "new / base", "spread", *judged),
        [_line(ratio, at_least) for ratio in compared.ratios()],
    )


def _line(ratio: Ratio, at_least: float | None) -> list[str]:
    low, high = ratio.spread
    figures = [_figure(ratio.base), _figure(ratio.new), f"{ratio.median:.3f}", f"{low:.3f} to {high:.3f}"]
    judged = [] if at_least is None else [verdict(ratio, at_least) if ratio.is_judged else ""]
    return [ratio.measure, *figures, *judged]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


# --- measuring -------------------------------------------------------------------------------------------------------------------------


def run(commit: str, pairs: int, load: Load, folder: Path, tell: Callable[[str], None]) -> Compared:
    """Lay out the commit, warm a broker, and measure base, new, base, new, ...; all that was made is removed again.

    Args:
        folder: Where the payments files are made; the same for both.

    Raises:
        CheckoutFailed: the commit could not be laid out and installed.
    """
    started_s = time.monotonic()
    new = this_tree()
    with installed(commit, tell) as base, running_place(os.environ, tell) as place:
        compared = Compared(base=base.name, new=new.name, load=load, machine=machine())
        compared.warming = warm_up(place.connection.bootstrap, WARMING_ROWS, tell)
        for number in range(1, pairs + 1):
            tell(f"pair {number} of {pairs}")
            try:
                turns = [measure(tree, place, load, (folder / "in").absolute()) for tree in (base, new)]
            except Exception as error:  # the next pair may go well
                compared.problems.append(f"pair {number}: {type(error).__name__}: {error}")
                tell(compared.problems[-1])
            else:
                compared.pairs.append((turns[0], turns[1]))
    compared.seconds = time.monotonic() - started_s
    return compared


def measure(tree: Tree, place: Place, load: Load, inputs: Path) -> Figures:
    """One turn of one tree.

    Raises:
        DriveFailed, TopicsFailed: some row was not paid, or was not found again on its topics.
    """
    figures: Figures = {}
    for path, overrides in (("live", ()), ("suspending", (f"{LIVE_KEY}=false",))):
        with running(tree, place, overrides) as application:
            figures |= {f"{path} {name}": value for name, value in throughput(application, place, load, inputs).items()}
    for in_flight, rows in load.latency.items():
        with running(tree, place, (f"{LIVE_KEY}.window={in_flight}",)) as application:
            times_ms = latencies(application, place, tree, load, payments(inputs, rows), rows)
        found = quantiles("", times_ms)
        figures[f"{in_flight} in flight p50 ms"] = found.p50_ms
        figures[f"{in_flight} in flight p99 ms"] = found.p99_ms
    return figures


def payments(folder: Path, rows: int, name: str = "payments") -> Path:
    """A payments file of so many rows, made once; under another name the same rows are another execution."""
    path = folder / f"{name}_{rows}.csv"
    return path if path.exists() else generate(path, rows)


def throughput(application: Application, place: Place, load: Load, inputs: Path) -> Figures:
    """Rate, CPU and memory by process, and offsets by topic, of one file after a smaller one."""
    application.pay(payments(inputs, load.warm_up_rows, WARM_UP), _limit_s(load.warm_up_rows, RATE_MIN))
    topics = Topics(place.connection)
    try:
        before = topics.offsets(f"{application.name}.")
        watch = Watch(place.pids(application.processes))
        submitted = _pay(application, payments(inputs, load.rows), load.rows, RATE_MIN)
        usage = watch.stop()
        after = topics.offsets(f"{application.name}.")
        seconds = _seconds(topics, application.name, submitted)
    finally:
        topics.close()
    rows = load.rows
    figures = {"rows/s": rows / seconds}
    figures |= {f"{name} us/row": 1e6 * used.cpu_s / rows for name, used in usage.items()}
    figures |= {f"{name} peak MiB": used.peak_mib for name, used in usage.items() if name != BROKER}
    figures["offsets/row"] = sum(after[name] - before.get(name, 0) for name in after) / rows
    return figures


def _pay(application: Application, path: Path, rows: int, rate_min: float) -> Submitted:
    submitted = application.pay(path, _limit_s(rows, rate_min))
    if submitted.rows != rows:
        raise DriveFailed(f"{submitted.rows} of {rows} rows have an output")
    return submitted


def _limit_s(rows: int, rate_min: float) -> float:
    return RUN_S_BASE + rows / rate_min


def _seconds(topics: Topics, app: str, submitted: Submitted) -> float:
    """From the submission's record to the last fact about it."""
    started_ms = min(record.at_ms for record in _of(topics.records(f"{app}.{COMMANDS}"), submitted))
    ended_ms = max(record.at_ms for record in _of(topics.records(f"{app}.{FACTS}"), submitted))
    return max(ended_ms - started_ms, 1) / 1000


def _of(records: Sequence[Record], submitted: Submitted) -> list[Record]:
    """Those of one execution, which is their key."""
    key = submitted.execution_id.encode()
    return [record for record in records if record.key == key]


def latencies(application: Application, place: Place, tree: Tree, load: Load, path: Path, rows: int) -> list[float]:
    """Milliseconds of each row but the first tenth: from its request's record to that of the fact that it has an output."""
    application.pay(payments(path.parent, load.warm_up_rows, WARM_UP), _limit_s(load.warm_up_rows, LATENCY_RATE_MIN))
    submitted = _pay(application, path, rows, LATENCY_RATE_MIN)
    schemas = Schemas(tree.root)
    topics = Topics(place.connection)
    try:
        requests = topics.records(f"{application.name}.{REQUESTS}")
        facts = _of(topics.records(f"{application.name}.{FACTS}"), submitted)
    finally:
        topics.close()
    sent, resumed = _sent_ms(requests, submitted), _resumed_ms(facts, schemas)
    return milliseconds_between(sent, resumed, int(rows * WARM_UP_SHARE))


def _sent_ms(requests: Sequence[Record], submitted: Submitted) -> dict[int, int]:
    """Item -> when it was first asked about."""
    found: dict[int, int] = {}
    for record in requests:
        request = json.loads(record.value)
        if request["executionId"] == submitted.execution_id:
            found.setdefault(request["itemIndex"], record.at_ms)
    return found


def _resumed_ms(facts: Sequence[Record], schemas: Schemas) -> dict[int, int]:
    """Item -> when it had its output."""
    decoded = ((schemas.decode(record.value), record.at_ms) for record in facts)
    return {fields["itemIndex"]: at_ms for (name, fields), at_ms in decoded if name == RESUMED}
