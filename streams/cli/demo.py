"""`kawait demo`: csv-payments end to end, with a progress bar for people and one JSON line for machines."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from streams.cli import options
from streams.cli.printing import news, out, print_json
from streams.demo.provider_answers import REJECT_RATE_DEFAULT
from streams.demo.run import ROWS_DEFAULT, DemoResult, DemoSettings, Stage, environment, prepare_inputs, run_demo

LINES_SHOWN = 12
FILES_SHOWN = 3
YOUNG_BROKER = (
    "This broker has just started, and its JVM still compiles: one that has run for some minutes gives more rows/s."
)


@click.command()
@options.option(
    "--input",
    "inputs",
    type=options.READABLE_FILE,
    multiple=True,
    metavar="FILE",
    help="A payments file; repeatable. [default: a sample of 12 rows]",
)
@options.option(
    "--rows",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Generate a file of N rows instead. [default: {ROWS_DEFAULT}]",
)
@options.option("--seed", type=int, default=1, show_default=True, help="Seed of the generated file.")
@options.option(
    "--output",
    type=options.FILE,
    default=Path("out"),
    show_default=True,
    metavar="DIR",
    help="Where the output files go; one of the same name is replaced.",
)
@options.option(
    "--reject-rate",
    type=click.FloatRange(0, 1),
    default=REJECT_RATE_DEFAULT,
    show_default=True,
    help="Share of payments that the provider rejects.",
)
@options.option("--live/--no-live", "live", default=True, help="With or without the live window.")
@options.option("--kafka", is_flag=True, help="Run on a real Kafka: a throw-away one, or $KAWAIT_BOOTSTRAP.")
@click.option("--bootstrap", metavar="HOST:PORT", help="Run on this Kafka.")
@options.option(
    "--config", "config_file", type=options.READABLE_FILE, metavar="FILE", help="librdkafka properties for it."
)
@options.option(
    "--workers", type=click.IntRange(1, 16), default=1, show_default=True, metavar="N", help="App instances."
)
@options.option(
    "--app",
    metavar="NAME",
    help="App name; its topics stay on the Kafka. [default: one for each run, removed at its end]",
)
@options.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Overrides one key of the demo's pipeline; repeatable.",
)
@options.JSON
@options.log_options(level="warning")
@click.pass_context
def demo(
    ctx: click.Context,
    inputs: tuple[Path, ...],
    rows: int | None,
    seed: int,
    output: Path,
    reject_rate: float,
    bootstrap: str | None,
    config_file: Path | None,
    workers: int,
    app: str | None,
    overrides: tuple[str, ...],
    *,
    live: bool,
    kafka: bool,
    as_json: bool,
) -> None:
    """Pay a file of payments: read it, ask a mock provider about each row, write the outcome of every row in order.

    Runs in this one process on an in-memory log, which keeps nothing; --kafka runs it on the real thing, in processes.
    """
    if inputs and rows is not None:
        raise click.UsageError("give either --input or --rows")
    if kafka and bootstrap is not None:
        raise click.UsageError("give either --kafka (a throw-away broker) or --bootstrap")
    settings = DemoSettings(
        inputs=inputs,
        rows=rows,
        seed=seed,
        output=output,
        reject_rate=reject_rate,
        live=live,
        workers=workers,
        app=app,
        overrides=overrides,
    )
    files = prepare_inputs(settings)
    with (
        tempfile.TemporaryDirectory(prefix="kawait-demo-", ignore_cleanup_errors=True) as folder,
        Screen(news()) as screen,
        _stage(
            settings, Path(folder), screen.report, kafka=kafka, bootstrap=bootstrap, config_file=config_file
        ) as stage,
    ):
        screen.report("paying")
        result = run_demo(settings, stage, files, progress=screen.progress if screen.is_shown else None)
        screen.finish(result)
    _explain_failures(result)
    if as_json:
        print_json(result.to_json())
    else:
        _explain(result)
    if kafka and not os.environ.get("KAWAIT_BOOTSTRAP"):  # a broker that we did not start may be of any age
        news().print(YOUNG_BROKER, style="dim", soft_wrap=True)
    if result.failures:
        ctx.exit(1)


def _stage(
    settings: DemoSettings,
    folder: Path,
    report: Callable[[str], None],
    *,
    kafka: bool,
    bootstrap: str | None,
    config_file: Path | None,
) -> AbstractContextManager[Stage]:
    environ = environment(os.environ)
    if not kafka and bootstrap is None:
        from streams.demo.memory import memory_stage

        return memory_stage(settings, environ, folder)
    from streams.demo.kafka import kafka_stage

    given = options.place(bootstrap, config_file) if bootstrap is not None else None
    return kafka_stage(settings, environ, folder, given=given, properties_file=config_file, report=report)


class Screen:
    """What a person sees meanwhile, on stderr: a bar on a terminal, and a line for each slow step elsewhere."""

    def __init__(self, console: Console) -> None:
        self.is_shown = console.is_terminal
        self._console = console
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not self.is_shown)
        self._bar = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Remove it."""
        self._progress.stop()

    def report(self, line: str) -> None:
        """What happens now."""
        if self.is_shown:
            self._progress.update(self._bar, description=line)
        elif line != "paying":
            self._console.print(line, style="dim", markup=False)

    def progress(self, answers: int, rows: int) -> None:
        """How far the payments are."""
        self._progress.update(self._bar, completed=answers, total=max(rows, answers))

    def finish(self, result: DemoResult) -> None:
        """All are done; what is left is to stop."""
        self._progress.update(self._bar, completed=result.rows, total=result.rows, description="stopping")


def _explain_failures(result: DemoResult) -> None:
    console = news()
    for failure in result.failures:
        console.print(Text("error ", style="bold red") + Text(f"{failure.input} was not paid"), soft_wrap=True)
        console.print(Text(failure.error), soft_wrap=True)


def _explain(result: DemoResult) -> None:
    console = out()
    for path in result.outputs[:FILES_SHOWN]:
        console.print(Text(str(_near(path)), style="bold"), soft_wrap=True)
        for line in _first_lines(path):
            # A screen cuts long lines; a pipe gets all of them.
            console.print(
                Text(f"  {line}", style="dim"), soft_wrap=not console.is_terminal, no_wrap=True, overflow="ellipsis"
            )
    if len(result.outputs) > FILES_SHOWN:
        console.print(f"and {len(result.outputs) - FILES_SHOWN} more in {_near(result.outputs[0].parent)}", style="dim")
    where = "in memory" if result.broker == "memory" else "on Kafka"
    counts = Text(f"{result.rows} payments {where}: ")
    counts += (
        Text(f"{result.approved} approved", style="green")
        + Text(", ")
        + Text(f"{result.rejected} rejected", style="yellow")
    )
    if result.failed:
        counts += Text(", ") + Text(f"{result.failed} failed", style="red")
    way = "live window" if result.live else "suspending path"
    counts += Text(f"; {result.seconds:.2f} s, {result.rows_per_second:,.0f} rows/s, {way}")
    console.print(counts, soft_wrap=True)


def _first_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from (line.rstrip("\r\n") for line in islice(file, LINES_SHOWN + 1))
        if next(file, None) is not None:
            yield "..."


def _near(path: Path) -> Path:
    """The path as a person here would write it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
