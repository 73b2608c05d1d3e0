"""One simulated run: a stretch in which things go wrong, then peace, in which everything must come to rest and hold (DESIGN 10).

    while things go wrong   a move at a time, drawn by the seed: step a loop, run a job, answer, let time pass, or break something
    then                    faults end, the outside answers what it means to answer, time passes to the deadlines
    at last                 every invariant is checked

A kill is an exception raised between two numbered steps of the commit. A stall runs other moves inside the commit of one loop: another
process takes its partitions, its transaction times out, and then it goes on as if nothing had happened.

    world      what there is, and the moves that can be made         |  each imports those above it only
    tables     rows against facts                                    |
    watch      what must hold after every move                       |
    verdict    what must hold at the end, with `undisturbed`         |
    run        plays a world under watch, then asks for the verdict  |
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import structlog

from state.keys import unit_key
from streams.log.seam import TopicPartition
from streams.simulation import tables, verdict
from streams.simulation.coverage import Coverage
from streams.simulation.machines import group_of, partition_of
from streams.simulation.scenario import PROJECT, Say, bounded, draw, without_trace
from streams.simulation.times import DAY_MS, HOUR_MS
from streams.simulation.violation import Breach, Failed, Violation
from streams.simulation.watch import Watch
from streams.simulation.world import World
from streams.worker.application import inputs_of

ROUNDS_MAX = 3_000
"""Rounds of peace after which a run that has not come to rest never will."""

HOURS_TO_FORGET = 3
"""Hours after which all of what may be forgotten is; a pass is made each hour."""

PAUSE_MS_MAX = 30_000
"""Longest time that passes between two rounds; after it nothing is left to happen before the next deadline."""


def simulate(seed: int, *, project: Path = PROJECT, say: Say | None = None) -> Coverage:
    """Play one seed.

    Raises:
        Failed: An invariant does not hold, the run does not come to rest, or a worker's own code is wrong.
    """
    output_dir = Path(tempfile.mkdtemp(prefix="kawait-simulation-"))
    try:
        scenario = draw(seed, project, output_dir / "out")
        with bounded(scenario.bounds), quiet_logs() as logs, ExitStack() as stack:
            world = World(scenario, _steady(say, output_dir))
            if world.folder is not None:
                stack.enter_context(world.folder.looked_at())
            try:
                play(world, Watch(world, logs))
            except Violation as violation:
                raise Failed(seed, violation.breach, f"{violation}\n    {scenario.describe()}") from violation
            except Exception as error:
                where = "".join(traceback.format_tb(error.__traceback__)[-3:])
                why = f"a worker raised {type(error).__name__}: {error}\n    {scenario.describe()}\n{where}"
                raise Failed(seed, Breach.WORKER_RAISED, why) from error
            return world.coverage
    finally:
        shutil.rmtree(output_dir, ignore_errors=True)


def _steady(say: Say | None, output_dir: Path) -> Say:
    """Traces do not show where the run's folder is, which is another one each time."""
    return without_trace if say is None else lambda text: say(text.replace(str(output_dir), "(a folder)"))


def play(world: World, watch: Watch) -> None:
    """Make trouble, then peace, then ask for the verdict."""
    world.begin()
    for _ in range(world.scenario.steps):
        world.move()
        watch.after_move()
    world.make_peace()
    _come_to_rest(world, watch)
    verdict.check(world)
    if world.scenario.ages:
        _let_it_be_forgotten(world, watch)
    world.coverage.outcomes.update(type(ending).__name__ for ending in world.ledger.ended.values())


# --- rest --------------------------------------------------------------------------------------------------------------


def _come_to_rest(world: World, watch: Watch) -> None:
    """Go on until everything has ended and nothing happens any more; when nothing happens before, let time pass."""
    quiet, pause_ms = 0, 100
    for _ in range(ROUNDS_MAX):
        moved = world.round()
        watch.after_move()
        quiet = 0 if moved else quiet + 1
        if moved:
            pause_ms = 100
        if quiet < 2:
            continue
        watch.at_rest()
        if world.is_over and _is_consumed(world):
            return
        world.times.advance(max(pause_ms, world.times.until_next_deadline() if pause_ms >= PAUSE_MS_MAX else 0))
        pause_ms = min(pause_ms * 2, PAUSE_MS_MAX)
    raise Violation(Breach.NEVER_AT_REST, f"the run does not come to rest: {_describe_open(world)}")


def _let_it_be_forgotten(world: World, watch: Watch) -> None:
    """Let more time pass than executions are kept, and look whether anything is left of them; then more than keys are."""
    retention = world.scenario.pipeline.retention
    _let_time_pass(world, watch, retention.executions_ms)
    if world.folder is not None:
        world.coverage.faults["folder looked at again"] += bool(world.folder.files())
        _let_time_pass(world, watch, retention.keys_ms)


def _let_time_pass(world: World, watch: Watch, by_ms: int) -> None:
    """Let time pass, start everything anew, and look whether anything is left of what may be gone by now."""
    world.times.advance(by_ms + DAY_MS)
    world.fleet.restart_all()
    for _ in range(HOURS_TO_FORGET):
        world.times.advance(HOUR_MS)
        quiet = 0
        for _ in range(ROUNDS_MAX):
            moved = world.round()
            watch.after_move()
            quiet = 0 if moved or not world.fleet.is_ready else quiet + 1
            if quiet > 2:
                break
    tables.check_forgotten(world)
    world.times.advance(2 * DAY_MS)
    world.log.compact()
    tables.check_forgotten(world)


def _is_consumed(world: World) -> bool:
    """Whether every role has consumed its inputs to their ends."""
    names, pipeline = world.names, world.scenario.pipeline
    inputs = {
        "core": (names.commands, names.completions),
        "ingress": inputs_of(pipeline)["ingress"],
        "continuation": (names.continuations,),
    }
    return all(
        _is_partition_consumed(world, role, TopicPartition(topic, number))
        for role, topics in inputs.items()
        for topic in topics
        for number in range(pipeline.partitions)
    )


def _is_partition_consumed(world: World, role: str, at: TopicPartition) -> bool:
    kept = partition_of(world.log, at)
    if not kept.records or kept.records[-1].offset in kept.aborted:
        return True
    return group_of(world.log, world.names.group(role)).committed.get(at, 0) > kept.records[-1].offset


def _describe_open(world: World) -> str:
    """The executions that have not ended, in words."""
    lines = [f"consumed: {_is_consumed(world)}"]
    for execution_id in world.scenario.submissions:
        if execution_id in world.ledger.ended:
            continue
        execution = world.ledger.execution(execution_id)
        unit_id = execution.await_unit_id if execution else None
        unit = world.ledger.rows.get(unit_key(unit_id)) if unit_id else None
        lines.append(f"{execution}\n      {unit}")
    return "\n      ".join(lines)


# --- logs --------------------------------------------------------------------------------------------------------------


@contextmanager
def quiet_logs() -> Iterator[list[dict[str, Any]]]:
    """Collect what workers log, in place of printing it."""
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
