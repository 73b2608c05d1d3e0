"""Results for people: the same tables on a terminal and in the README."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from bench.budget import Budget, TopicShare
from bench.results import Results
from bench.throughput import Measured

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
RECORDS_SHOWN_MIN = 0.001
PARTS = ("core", "steps", "ingress", "provider", "broker", "all")
LIMIT_PARTS = ("core", "ingress", "provider")


@dataclass(frozen=True)
class Table:
    """Text only; the first column is left-aligned, the others right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(results: Results) -> list[Table]:
    """Every table that has rows."""
    found = [
        _limits(results),
        *(_throughput(results, group) for group in ("rows", "windows", "workers", "memory")),
        *_latencies(results),
        _budget(results),
        _burst(results),
        _backlog(results),
        _restores(results),
        _idle(results),
        *_profiles(results),
        _instructions(results),
    ]
    return [table for table in found if table.rows]


def _limits(results: Results) -> Table:
    rows = [
        (
            when,
            f"{limit.rows:,}",
            f"{limit.rows_per_s:,.0f}",
            *(_us(limit.cpu_s.get(part), limit.rows) for part in LIMIT_PARTS),
        )
        for when, limit in results.limits.items()
    ]
    return Table(
        "Limit of this broker (limit.py)", ("", "rows", "rows/s", *(f"{part} us/row" for part in LIMIT_PARTS)), rows
    )


def _us(seconds: float | None, rows: int) -> str:
    return "" if seconds is None else f"{1e6 * seconds / rows:.0f}"


TITLES = {
    "rows": "csv-payments on Kafka, one file",
    "windows": "Live window",
    "workers": "Workers, eight files",
    "memory": "In memory, one process (CPU with its start)",
}


def _throughput(results: Results, group: str) -> Table:
    measured = [item for item in results.throughput if item.case.group == group]
    parts = [part for part in PARTS if any(part in item.cpu_us_per_row for item in measured)]
    columns = ["", "s", "rows/s", "of limit", *(f"{part} us/row" for part in parts), "peak MiB"]
    return Table(TITLES[group], columns, [_run_row(results, item, parts) for item in measured])


def _run_row(results: Results, item: Measured, parts: Sequence[str]) -> list[str]:
    ratio = results.ratio(item)
    return [
        item.case.name.removeprefix(f"{item.case.broker}, "),
        f"{item.seconds:.2f}",
        f"{item.rows_per_s:,.0f}",
        "" if ratio is None else f"{ratio:.3f}",
        *(f"{item.cpu_us_per_row.get(part, 0):.0f}" for part in parts),
        f"{item.peak_mib.get('core', item.peak_mib.get('all', 0)):.0f}",
    ]


def _latencies(results: Results) -> list[Table]:
    columns = ("ms", "p50", "p99", "mean")
    return [
        Table(
            f"Latency with {found.in_flight} in flight ({found.samples} payments)",
            columns,
            [
                (line.name, f"{line.p50_ms:.1f}", f"{line.p99_ms:.1f}", f"{line.mean_ms:.1f}")
                for line in (found.resume, *found.hops, found.committed)
            ],
        )
        for found in results.latency
    ]


def _budget(results: Results) -> Table:
    columns = ("topic", "records", "markers", "bytes", "bytes on disk")
    return Table(
        "Budget of a row by topic", columns, [row for budget in results.budgets for row in _budget_rows(budget)]
    )


def _budget_rows(budget: Budget) -> Iterator[tuple[str, ...]]:
    path = "live" if budget.case.live else "suspending"
    disks = [share.disk_bytes for share in budget.topics if share.disk_bytes is not None]
    whole = TopicShare(
        topic="all",
        records=budget.records,
        markers=sum(share.markers for share in budget.topics),
        bytes=budget.bytes,
        disk_bytes=sum(disks) if disks else None,
    )
    for share in (*budget.topics, whole):
        numbers = (f"{share.records:.3f}", f"{share.markers:.4f}", f"{share.bytes:,.0f}", _disk(share.disk_bytes))
        if share.records >= RECORDS_SHOWN_MIN:
            yield (f"{path}: {share.topic}", *numbers)


def _disk(size: float | None) -> str:
    return "" if size is None else f"{size:,.0f}"


def _burst(results: Results) -> Table:
    found = results.burst
    columns = ("request to resume of other executions, ms", "p50", "p99", "mean", "samples")
    if found is None:
        return Table("", columns, [])
    title = (
        f"Burst of deadlines: {found.deadlines:,} within {found.spread_s:.1f} s, rung within {found.rang_s:.1f} s, the last "
        f"{found.late_s:.1f} s after its time; p99 {found.ratio:.2f} times the quiet one"
    )
    rows = [
        (line.name, f"{line.p50_ms:.1f}", f"{line.p99_ms:.1f}", f"{line.mean_ms:.1f}", f"{samples:,}")
        for line, samples in ((found.quiet, found.quiet_samples), (found.burst, found.burst_samples))
    ]
    return Table(title, columns, rows)


def _backlog(results: Results) -> Table:
    columns = ("", "")
    found = results.backlog
    if found is None:
        return Table("", columns, [])
    title = f"Steady backlog: {found.sent:,} parcels, twice the capacity for {found.seconds:.0f} s"
    rows = [
        ("parcels a second that it can take", f"{found.capacity_per_s:,.0f}"),
        ("records that waited at the end", f"{found.waiting:,}"),
        ("deadlines that passed, and rang", f"{found.timers:,}, {found.rang:,}"),
        ("largest lateness of a ring, its gate aside, s", f"{found.late_s:.2f}"),
        ("longest that a gate stayed shut, s", f"{found.gate_s:.2f}"),
        ("facts of the slowest partition, of all on average", f"{found.slowest:,}, {found.mean:,.0f}"),
        ("longest standstill of a partition, s", f"{found.still_s:.2f}"),
    ]
    return Table(title, columns, rows)


def _restores(results: Results) -> Table:
    columns = (
        "state",
        "rows",
        "changelog records",
        "restore s",
        "s per 100k rows",
        "ready, state lost s",
        "ready, state kept s",
        "peak MiB",
    )
    rows = [
        (
            found.state,
            f"{found.rows:,}",
            f"{found.changelog_records:,}",
            f"{found.restore_s:.2f}",
            f"{found.per_100k_s:.2f}",
            f"{found.ready_lost_s:.2f}",
            f"{found.ready_kept_s:.2f}",
            f"{found.peak_mib:.0f}",
        )
        for found in results.restores
    ]
    return Table("Restore", columns, rows)


def _idle(results: Results) -> Table:
    parts = ("core", "steps", "ingress", "broker")
    rows = [
        (found.load, *(f"{found.percent[part]:.1f}" if part in found.percent else "" for part in parts))
        for found in results.idle
    ]
    return Table("Waiting: percent of one core", ("", *parts), rows)


def _profiles(results: Results) -> list[Table]:
    return [
        Table(
            f"CPU by stage, {path}, {profile.rows:,} rows on the test driver",
            ("stage", "us/row", "calls"),
            [
                *((stage.name, f"{stage.us_per_row:.1f}", f"{stage.calls:,}") for stage in profile.stages),
                ("all", f"{profile.total_us_per_row:.1f}", ""),
            ],
        )
        for path, profile in results.profiles.items()
    ]


def _instructions(results: Results) -> Table:
    counted = results.instructions
    rows: list[tuple[str, str]] = []
    if counted is not None:
        rows = [
            (name, f"{count / 1000:,.1f}") for name, count in sorted(counted.stages.items(), key=lambda pair: -pair[1])
        ]
        rows.append(("all", f"{counted.per_row / 1000:,.1f}"))
    return Table("Instructions by stage", ("stage", "thousands/row"), rows)


# --- terminal and README ---------------------------------------------------------------------------------------------------------------


def show(results: Results, console: Console) -> None:
    """On a terminal, or in a log."""
    for table in tables(results):
        show_table(table, console)
    show_doubts(results.doubts(), console)


def show_table(table: Table, console: Console) -> None:
    """One table."""
    shown = RichTable(title=table.title, title_justify="left", title_style="bold")
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


def show_doubts(doubts: Iterable[str], console: Console) -> None:
    """A line for each."""
    for doubt in doubts:
        console.print(f"doubt: {doubt}", markup=False, soft_wrap=True)


def markdown(results: Results) -> str:
    """For the README: the machine, then the tables."""
    about = results.machine
    build = "" if about["optimisedPython"] else ", a build without optimisations"
    where = f"{about['cores']} cores of {about['cpu']}, {about['memoryMiB']} MiB, Python {about['python']}{build}"
    lines = [f"Measured on {about['date']}: {where}; plan `{results.plan}`, {results.seconds:.0f} s.", ""]
    for table in tables(results):
        lines += [f"**{table.title}**", "", *_markdown_table(table), ""]
    lines += [f"- Doubt: {doubt}" for doubt in results.doubts()]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(table: Table) -> Iterable[str]:
    yield "| " + " | ".join(table.columns) + " |"
    yield "|" + "|".join([" --- ", *[" ---: "] * (len(table.columns) - 1)]) + "|"
    for row in table.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def write_readme(results: Results, path: Path = README) -> None:
    """Replace what stands between the two markers.

    Raises:
        ValueError: a marker is missing.
    """
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path.name} lacks the lines {BEGIN} and {END}")
    path.write_text(f"{head}{BEGIN}\n{markdown(results)}{END}{tail}", encoding="utf-8")
