"""One simulated run: a stretch in which things go wrong, then peace, in which everything must come to rest and hold (DESIGN 10).

    while things go wrong   a move at a time, drawn by the seed: step a loop, run a job, answer, let time pass, or break something
    then                    faults end, the outside answers what it means to answer, time passes to the deadlines
    at last                 every invariant is checked: `streams.simulation.verdict`

A kill is an exception raised between two numbered steps of the commit. A stall runs other moves inside the commit of one loop: another
process takes its partitions, its transaction times out, and then it goes on as if nothing had happened.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from streams.simulation.scenario import PROJECT, bounded, draw
from streams.simulation.world import Coverage, Failed, World, without_trace


def simulate(seed: int, *, project: Path = PROJECT, say: Callable[[str], None] | None = None) -> Coverage:
    """Play one seed.

    Raises:
        Failed: An invariant does not hold, the run does not come to rest, or a worker's own code is wrong.
    """
    output_dir = Path(tempfile.mkdtemp(prefix="kawait-simulation-"))
    try:
        scenario = draw(seed, project, output_dir / "out")
        with bounded(scenario.bounds), quiet_logs() as logs:
            world = World(scenario, say or without_trace, logs)
            try:
                world.play()
            except Failed:
                raise
            except AssertionError as error:
                raise Failed(seed, f"{error}\n    {scenario.describe()}") from error
            except Exception as error:
                where = "".join(traceback.format_tb(error.__traceback__)[-3:])
                raise Failed(
                    seed, f"a worker raised {type(error).__name__}: {error}\n    {scenario.describe()}\n{where}"
                ) from error
            return world.coverage
    finally:
        shutil.rmtree(output_dir, ignore_errors=True)


@contextmanager
def quiet_logs() -> Iterator[list[dict[str, Any]]]:
    """Take what workers log in place of printing it."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    taken: list[dict[str, Any]] = []

    def take(_logger: Any, _method: str, event: Any) -> Any:
        known = {"exc_info": repr(sys.exc_info()[1])} if event.get("exc_info") else {}
        taken.append({**event, **known})
        raise structlog.DropEvent

    structlog.configure(processors=[take])
    try:
        yield taken
    finally:
        structlog.reset_defaults()
        if was_configured:
            structlog.configure(**before)
