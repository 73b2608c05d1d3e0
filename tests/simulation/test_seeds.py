"""Seeded runs: each seed is one application with everything going wrong, and every invariant of DESIGN section 10 must hold.

KAWAIT_SEEDS says how many (`make test`: 2,000). A failure names its seed and how to play it again with every move printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.simulation.coverage import STEPS, Coverage
from streams.simulation.planted import PLANTS, planted
from streams.simulation.run import simulate
from streams.simulation.violation import Breach, Failed
from streams.worker.assembly import ROLES

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("KAWAIT_SEEDS", "300"))
PART = 100
"""Seeds of one test: a hang or a slow run shows which hundred it was."""

PLANTED_SEEDS_MAX = 500
"""Seeds within which a planted bug must be caught by the breach that it names."""

FAULTS = {"commit abort", "commit before", "commit after", "broker away", "zombie", "second process", "compaction"}

SITUATIONS = {
    # time
    "answers left lying",
    "came in late",
    "clock of a machine set",
    "core without ingress",
    "transaction open at a deadline",
    # memory
    "months",
    "rows forgotten",
    "offsets lost",
    "start refused",
    "source topic made again",
    "response topic made again",
    # files
    "file changed",
    "file changed under the reader",
    "file taken out",
    "file came back",
    "upload pauses",
    "folder looked at again",
    # items
    "equal items",
    "item left out",
    "item letter",
    # values
    "value of many kinds",
}
"""What a world must come to now and then: what never comes proves nothing."""

played = Coverage()


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    for seed in range(first, min(first + PART, SEEDS)):
        played.add(simulate(seed))


def test_a_seed_is_one_run() -> None:
    """The same seed makes the same moves; another one makes others."""
    first, again, other = trace(7), trace(7), trace(8)
    assert first == again
    assert first != other


def test_a_seed_is_one_run_in_every_process() -> None:
    """Nothing follows the order of a set, which each process draws anew; seed 3 has timers that are due together."""
    first, other = trace_of_a_process(3, hash_seed="1"), trace_of_a_process(3, hash_seed="2")
    assert len(first) > 100
    assert first == other


def trace_of_a_process(seed: int, *, hash_seed: str) -> list[str]:
    command = [sys.executable, "-m", "streams.simulation", "--seed", str(seed), "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[:-1]  # the last line says how long it took


def trace(seed: int) -> list[str]:
    lines: list[str] = []
    simulate(seed, say=lines.append)
    return lines


def test_every_step_of_every_role_is_killed_at_and_every_situation_comes() -> None:
    """Kills between each two numbered steps of the commit, every fault and situation, and full inboxes; more seeds are played until each was met."""
    covered = Coverage()
    covered.add(played)
    for seed in range(SEEDS, SEEDS + 500):
        if not missing(covered):
            break
        covered.add(simulate(seed))
    assert missing(covered) == set()


def missing(covered: Coverage) -> set[object]:
    kills = {(role, step) for role in ROLES for step in range(1, STEPS + 1)}
    met = {name for name, count in covered.faults.items() if count}
    return {
        *(kills - covered.kills.keys()),
        *(set(ROLES) - covered.pauses.keys()),
        *(FAULTS - met),
        *(SITUATIONS - met),
    }


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught_by_the_breach_that_it_names(name: str) -> None:
    others: Counter[str] = Counter()
    with planted(name):
        for failed in failures(PLANTED_SEEDS_MAX):
            if PLANTS[name].is_caught_by(failed):
                return
            others[failed.breach] += 1
    pytest.fail(f"{name} was caught by {dict(others) or 'nothing'} in {PLANTED_SEEDS_MAX} seeds, not by {PLANTS[name]}")


def failures(count: int) -> Iterator[Failed]:
    for seed in range(count):
        try:
            simulate(seed)
        except Failed as failed:
            yield failed


def test_a_planted_bug_is_not_caught_by_another_breach() -> None:
    plant = PLANTS["count-a-duplicate"]
    assert plant.is_caught_by(Failed(5, Breach.HAPPENED_TWICE, "e.1.0 was admitted twice"))
    assert not plant.is_caught_by(Failed(5, Breach.HAPPENED_TWICE, "e.1.0 was dispatched twice"))
    assert not plant.is_caught_by(Failed(5, Breach.BATCH_NOT_DECIDED, "a worker logged IllegalTransition"))


def test_a_failure_names_its_breach_and_says_how_to_play_it_again() -> None:
    with planted("type-by-the-branch"):
        failed = next(failures(PLANTED_SEEDS_MAX))
    assert str(failed).startswith(f"seed {failed.seed}: unexpected-ending: ")
    assert f"python -m streams.simulation --seed {failed.seed} --trace" in str(failed)
