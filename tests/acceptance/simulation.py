"""The seeded simulator: two thousand seeds hold, and four planted bugs are caught."""

from __future__ import annotations

import subprocess
import sys

from streams.simulation.planted import PLANTS
from tests.acceptance.ground import ROOT, Ground
from tests.acceptance.registry import Checks, line

SEEDS = 2_000
PLANTED_SEEDS_MAX = 500


def _play(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streams.simulation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )


@line("simulation", "At least 2,000 seeds with all invariants checked after each; the four planted bugs are caught")
def simulation(ground: Ground, checks: Checks) -> None:
    """In a process of their own, as anybody would repeat a seed."""
    count = ground.size(SEEDS, 200)
    run = _play("--count", str(count))
    checks.that(
        f"{count} seeds hold", run.returncode == 0, "\n".join((run.stdout + run.stderr).strip().splitlines()[:9])[-900:]
    )
    for name in sorted(PLANTS):
        run = _play("--count", str(PLANTED_SEEDS_MAX), "--planted", name)
        said = run.stdout.strip().splitlines()
        checks.that(f"planted: {name} is caught", run.returncode == 0, (said[0] if said else run.stderr)[:240])
