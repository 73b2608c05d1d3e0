"""Seeded runs: each seed is one application with everything going wrong, and every invariant of DESIGN section 10 must hold.

KAWAIT_SEEDS says how many (`make test`: 2,000). A failure names its seed and how to play it again with every move printed.
"""

from __future__ import annotations

import os

import pytest

from streams.simulation.planted import PLANTS, planted
from streams.simulation.run import simulate
from streams.simulation.world import STEPS, Coverage, Failed

SEEDS = int(os.environ.get("KAWAIT_SEEDS", "300"))
PART = 100
"""Seeds of one test: a hang or a slow run shows which hundred it was."""

KEPT: dict[int, str] = {
    0: "what waits behind a scalar await was read by the type of the branch that follows; an unknown commit was decided again",
    3: "the next item's index followed the commits: items pulled before were lost, or sent under another one's index",
    8: "a source stream that had failed was read on, and the unit ended with the items that had come so far",
    11: "a batch that the broker refused twice was bisected down to an innocent event, which was dead-lettered",
    106: "without the offsets of a touched partition, a zombie committed",
    130: "a deadline rang while answers that had been there before it waited in the backlog",
    174: "a segment whose result waited to be decided was started again; its second result met later rows",
    1955: "an answer that overtook its request was refused by the projector, and the request was sent a second time",
}
"""Seed -> the bug that it found first, or finds again when `streams.simulation.planted` plants it."""

PLANTED_SEEDS_MAX = 600
"""Seeds within which a planted bug must be caught."""

played = Coverage()


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    for seed in range(first, min(first + PART, SEEDS)):
        played.add(simulate(seed))


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_found_a_bug(seed: int) -> None:
    simulate(seed)


def test_a_seed_is_one_run() -> None:
    """The same seed makes the same moves; another one makes others."""
    first, again, other = trace(7), trace(7), trace(8)
    assert first == again
    assert first != other


def play(count: int) -> None:
    for seed in range(count):
        simulate(seed)


def trace(seed: int) -> list[str]:
    lines: list[str] = []
    simulate(seed, say=lines.append)
    return lines


def test_every_step_of_every_role_is_killed_at() -> None:
    """Kills between each two numbered steps of the commit, in the loops of all roles; more seeds are played until each was met."""
    wanted = {(role, step) for role in ("core", "ingress", "continuation") for step in range(1, STEPS + 1)}
    covered = Coverage()
    covered.add(played)
    for seed in range(SEEDS, SEEDS + 500):
        if wanted <= covered.kills.keys():
            break
        covered.add(simulate(seed))
    assert wanted <= covered.kills.keys()
    assert {
        "commit abort",
        "commit before",
        "commit after",
        "broker away",
        "zombie",
        "second process",
        "compaction",
    } <= covered.faults.keys()


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with planted(name), pytest.raises(Failed, match="seed"):
        play(PLANTED_SEEDS_MAX)


def test_a_failure_says_how_to_play_it_again() -> None:
    with planted("type-by-the-branch"), pytest.raises(Failed) as caught:
        play(PLANTED_SEEDS_MAX)
    assert f"python -m streams.simulation --seed {caught.value.seed} --trace" in str(caught.value)
