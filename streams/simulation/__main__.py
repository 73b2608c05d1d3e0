"""`python -m streams.simulation`: play seeds, or one seed with every move."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from streams.clock import SystemClock
from streams.simulation.coverage import STEPS, Coverage
from streams.simulation.planted import PLANTS, planted
from streams.simulation.run import simulate
from streams.simulation.scenario import PROJECT
from streams.simulation.violation import Failed
from streams.worker.assembly import ROLES


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m streams.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--trace", action="store_true", help="print every move")
    parser.add_argument("--keep-going", action="store_true", help="play on after a failure")
    parser.add_argument(
        "--planted", choices=sorted(PLANTS), help="plant a known bug first; the breach that it names must catch it"
    )
    parser.add_argument("--project", type=Path, default=PROJECT, help="folder of the simulated pipelines")
    return parser


def main() -> int:
    """Exit code 0: all seeds hold, or the planted bug was caught by the breach that it names."""
    args = _parser().parse_args()
    plant = PLANTS.get(args.planted)
    clock, coverage = SystemClock(), Coverage()
    began_s, played, breaches, is_caught = clock.monotonic_s(), 0, Counter[str](), False
    with planted(args.planted):
        for seed in range(args.seed, args.seed + args.count):
            played += 1
            try:
                coverage.add(simulate(seed, project=args.project, say=_say if args.trace else None))
            except Failed as failed:
                breaches[failed.breach] += 1
                is_caught = is_caught or (plant is not None and plant.is_caught_by(failed))
                _say(str(failed))
                if args.trace:
                    raise
                if not args.keep_going and (plant is None or is_caught):
                    break
    _say(f"{played} seeds, {breaches.total()} failed, {1000 * (clock.monotonic_s() - began_s) / played:.1f} ms a seed")
    if played > 1:
        _report(coverage, breaches)
    return int(not is_caught if plant else bool(breaches))


def _report(coverage: Coverage, breaches: Counter[str]) -> None:
    for title, counts in (("killed before", coverage.kills), ("stalled before", coverage.stalls)):
        for role in ROLES:
            by_step = ", ".join(f"{step}: {counts[role, step]}" for step in range(1, STEPS + 1))
            _say(f"{title} step of {role}: {by_step}")
    tables: dict[str, Counter[str]] = {
        "steps while paused": coverage.pauses,
        "faults": coverage.faults,
        "outcomes": coverage.outcomes,
        "shapes": coverage.shapes,
        "breaches": breaches,
    }
    for title, table in tables.items():
        _say(f"{title}: {', '.join(f'{key} {count}' for key, count in sorted(table.items())) or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
