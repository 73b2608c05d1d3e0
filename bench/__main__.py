"""`python -m bench`: measure, print tables, write JSON and a plot below out/bench/.

python -m bench                       everything, less than 15 minutes
python -m bench --quick               small sizes, less than 3 minutes
python -m bench --only windows        one part (repeatable)
python -m bench profile [ROWS]        CPU by stage inside the runtime, no broker
python -m bench instructions          instructions by stage, counted by valgrind
python -m bench against COMMIT         this tree and a commit in turns: the ratios of rates and latencies
python -m bench journey [--tree DIR]  changes of file on a row's way, of one tree or of several
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from bench import (
    backlog,
    budget,
    burst,
    compare,
    idle,
    instructions,
    journey,
    latency,
    limit,
    plot,
    report,
    restore,
    stages,
    throughput,
)
from bench.checkout import CheckoutFailed, sources_of
from bench.place import ROOT, Place, machine, running_place
from bench.plan import FULL, PARTS, QUICK, Plan
from bench.results import Results
from bench.throughput import Case

T = TypeVar("T")

FOLDER = Path("out/bench")
WARM_UP_ROWS = 5_000
WIDTH = 160


class Run:
    """One run of the bench: parts in order, each on its own; a part that breaks off is noted and the rest goes on."""

    def __init__(self, plan: Plan, parts: tuple[str, ...], folder: Path, tell: Callable[[str], None]) -> None:
        self.results = Results(plan=plan.name, machine=machine())
        self._plan = plan
        self._parts = parts
        self._folder = folder
        self._tell = tell

    def run(self) -> Results:
        """Measure."""
        started_s = time.monotonic()
        self._without_broker()
        if any(part not in ("memory", "profile", "instructions") for part in self._parts):
            with running_place(os.environ, self._tell) as place:
                self._on_kafka(place)
        self.results.seconds = time.monotonic() - started_s
        return self.results

    def _part(self, name: str, measure: Callable[[], T], take: Callable[[T], object] = lambda _measured: None) -> None:
        """Measure one thing; what it raises becomes a problem."""
        self._tell(name)
        try:
            take(measure())
        except Exception as error:
            self.results.problems.append(f"{name}: {type(error).__name__}: {error}")
            self._tell(f"{name}: {error}")

    def _without_broker(self) -> None:
        plan, results, folder = self._plan, self.results, self._folder
        self._cases("memory", None)
        if "profile" in self._parts:
            for path, live in (("live", True), ("suspending", False)):
                measure = partial(stages.measure, plan.profile_rows, folder, live=live)
                self._part(f"profile, {path}", measure, partial(results.profiles.__setitem__, path))
        if "instructions" in self._parts and plan.instructions:
            self._part("instructions", partial(instructions.measure, folder), self._take("instructions"))

    def _on_kafka(self, place: Place) -> None:
        bounded = [group for group in ("rows", "windows", "workers") if group in self._parts]
        self._part("warm-up", partial(self._warm_up, place))
        for group in bounded:
            self._cases(group, place)
        if bounded:
            self._limit_after(place)
        self._low_load(place)

    def _low_load(self, place: Place) -> None:
        plan, results, folder = self._plan, self.results, self._folder
        if "budget" in self._parts:
            for live in (True, False):
                case = Case(group="budget", rows=plan.budget_rows, live=live)
                self._part(f"budget, {case.name}", partial(budget.measure, case, place, folder), results.budgets.append)
        if "latency" in self._parts:
            for in_flight, rows in plan.latency.items():
                measure = partial(latency.measure, in_flight, rows, place, folder)
                self._part(f"latency, {in_flight} in flight", measure, results.latency.append)
        if "burst" in self._parts:
            self._part("burst of deadlines", partial(burst.measure, *plan.burst, place, folder), self._take("burst"))
        if "backlog" in self._parts:
            self._part("steady backlog", partial(backlog.measure, *plan.backlog, place, folder), self._take("backlog"))
        if "restore" in self._parts:
            self._part("restore", partial(restore.measure, plan.restore_rows, place, folder), results.restores.extend)
        if "idle" in self._parts:
            self._part("idle", partial(idle.measure, plan.idle_units, plan.idle_s, place, folder), results.idle.extend)

    def _take(self, name: str) -> Callable[[object], None]:
        """Keeps what was measured once."""
        return partial(setattr, self.results, name)

    def _warm_up(self, place: Place) -> None:
        """The limit until it settles, which is the limit before everything else; then us, or our first run would show ours alone."""
        self.results.warming = limit.warm_up(place.connection.bootstrap, self._plan.limit_rows, self._tell)
        if self.results.warming.runs:
            self.results.limits["before"] = self.results.warming.runs[-1]
        throughput.run(Case(group="warm-up", rows=WARM_UP_ROWS), place, self._folder)

    def _limit_after(self, place: Place) -> None:
        script = limit.script()
        if script is None:
            self.results.problems.append(limit.MISSING)
            return
        measure = partial(limit.measure, script, self._plan.limit_rows, place.connection.bootstrap)
        self._part("limit after", measure, partial(self.results.limits.__setitem__, "after"))

    def _cases(self, group: str, place: Place | None) -> None:
        if group not in self._parts:
            return
        for case in self._plan.cases():
            if case.group == group:
                self._part(
                    case.name, partial(throughput.run, case, place, self._folder), self.results.throughput.append
                )


@click.group(invoke_without_command=True)
@click.option("--quick", is_flag=True, help="Small sizes, less than 3 minutes.")
@click.option("--only", "parts", type=click.Choice(PARTS), multiple=True, help="Only this part; repeatable.")
@click.option("--out", "folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True, metavar="DIR")
@click.option("--write-readme", is_flag=True, help="Put the figures into bench/README.md.")
@click.pass_context
def main(ctx: click.Context, parts: tuple[str, ...], folder: Path, *, quick: bool, write_readme: bool) -> None:
    """Measure csv-payments and what it stands on."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything started is ended
    ctx.obj = folder
    if ctx.invoked_subcommand is not None:
        return
    news = Console(stderr=True)
    run = Run(
        QUICK if quick else FULL, parts or PARTS, folder, lambda line: news.print(line, style="dim", markup=False)
    )
    results = run.run()
    _finish(results, folder)
    if write_readme:
        report.write_readme(results)
    ctx.exit(1 if results.problems else 0)


@main.command()
@click.argument("rows", type=click.IntRange(min=1), default=5_000)
@click.option("--no-live", is_flag=True, help="The suspending path.")
@click.option("--tree", is_flag=True, help="Sampled by pyinstrument instead of timers.")
@click.pass_obj
def profile(folder: Path, rows: int, *, no_live: bool, tree: bool) -> None:
    """CPU by stage inside the runtime: one thread, no broker."""
    if tree:
        from pyinstrument import Profiler

        with Profiler() as profiler:
            stages.run_driver(rows, folder, live=not no_live)
        click.echo(profiler.output_text(unicode=True, color=sys.stdout.isatty()))
        return
    results = Results(plan="profile", machine=machine())
    results.profiles["suspending" if no_live else "live"] = stages.measure(rows, folder, live=not no_live)
    report.show(results, _console())


@main.command(name="instructions")
@click.pass_obj
def count(folder: Path) -> None:
    """Instructions by stage, counted by valgrind: takes a minute or two."""
    results = Results(plan="instructions", machine=machine())
    try:
        results.instructions = instructions.measure(folder)
    except instructions.InstructionsFailed as error:
        raise click.ClickException(str(error)) from error
    report.show(results, _console())


@main.command()
@click.argument("commit")
@click.option(
    "--pairs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help=f"Turns of each; a verdict takes {compare.PAIRS_FOR_A_VERDICT}.",
)
@click.option(
    "--at-least",
    type=click.FloatRange(min=0, min_open=True),
    metavar="R",
    help="Judge every rate and time: as fast as R times the commit, or not.",
)
@click.option("--rows", type=click.IntRange(min=100), help="Rows of the files whose rate is measured.")
@click.option("--quick", is_flag=True, help="Small sizes: shows that it works, its ratios say little.")
@click.pass_obj
def against(folder: Path, commit: str, pairs: int, at_least: float | None, rows: int | None, *, quick: bool) -> None:
    """Measure COMMIT and this tree in turns on one warmed broker, and print the ratios new / base."""
    load = compare.QUICK if quick else compare.FULL
    if rows is not None:
        load = replace(load, rows=rows)
    news = Console(stderr=True)
    try:
        compared = compare.run(
            commit, pairs, load, folder, lambda line: news.print(line, style="dim", markup=False, soft_wrap=True)
        )
    except CheckoutFailed as error:
        raise click.ClickException(str(error)) from error
    console = _console()
    report.show_table(compare.table(compared, at_least), console)
    report.show_doubts(compared.doubts(), console)
    compared.write(folder / "against.json", at_least)
    console.print(f"{compared.seconds:.0f} s; {folder / 'against.json'}")
    click.get_current_context().exit(1 if compared.problems else 0)


@main.command(name="journey")
@click.option("--base", metavar="COMMIT", help="Count this commit first, and compare with it.")
@click.option(
    "--tree",
    "trees",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="A checkout to count; repeatable, the others are compared with the first. Default: this one.",
)
@click.option("--stops", is_flag=True, help="Every stop of a row in order, and how often it enters each file.")
@click.pass_obj
def count_changes(folder: Path, base: str | None, trees: tuple[Path, ...], *, stops: bool) -> None:
    """Changes of file on a row's way from its answer to the output: seconds, no broker."""
    found: list[journey.Journey] = []
    try:
        if base is not None:
            with sources_of(base) as tree:
                found.append(journey.measure(tree, base))
        found += [journey.measure(tree) for tree in trees or (ROOT,)]
    except (CheckoutFailed, journey.JourneyFailed) as error:
        raise click.ClickException(str(error)) from error
    if stops:
        for one in found:
            for path in journey.PATHS:
                click.echo(journey.stops_text(one, path))
    journey.show(found, _console())
    journey.write(found, folder / "journey.json")


def _finish(results: Results, folder: Path) -> None:
    results.write(folder / "bench.json")
    drawn = plot.draw(results, folder / "bench.png")
    console = _console()
    report.show(results, console)
    console.print(f"{results.seconds:.0f} s; {folder / 'bench.json'}" + (f", {folder / 'bench.png'}" if drawn else ""))


def _console() -> Console:
    """On a terminal its own width; in a file wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


if __name__ == "__main__":
    main()
