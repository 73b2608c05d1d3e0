"""`python -m streams.simulation`: play seeds, or one seed with every move."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from streams.clock import SystemClock
from streams.simulation.planted import PLANTS, planted
from streams.simulation.run import simulate
from streams.simulation.scenario import PROJECT
from streams.simulation.world import STEPS, Coverage, Failed


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m streams.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--trace", action="store_true", help="print every move")
    parser.add_argument("--keep-going", action="store_true", help="play on after a failure")
    parser.add_argument("--planted", choices=sorted(PLANTS), help="plant a known bug first; it must be caught")
    parser.add_argument("--project", type=Path, default=PROJECT, help="folder of the simulated pipelines")
    return parser


def main() -> int:
    """Exit code 0: all seeds hold (or a planted bug was caught)."""
    args = _parser().parse_args()
    clock, coverage, failures = SystemClock(), Coverage(), 0
    began_s = clock.monotonic_s()
    played = 0
    with planted(args.planted):
        for seed in range(args.seed, args.seed + args.count):
            played += 1
            try:
                coverage.add(simulate(seed, project=args.project, say=_say if args.trace else None))
            except Failed as error:
                failures += 1
                _say(str(error))
                if args.trace:
                    raise
                if not args.keep_going:
                    break
    seconds = clock.monotonic_s() - began_s
    _say(f"{played} seeds, {failures} failed, {1000 * seconds / played:.1f} ms a seed")
    if played > 1:
        _report(coverage)
    return int(bool(failures) != bool(args.planted))


def _report(coverage: Coverage) -> None:
    for what, counted in (("killed before", coverage.kills), ("stalled before", coverage.stalls)):
        for role in ("core", "ingress", "continuation"):
            _say(
                f"{what} step of {role}: {', '.join(f'{step}: {counted[role, step]}' for step in range(1, STEPS + 1))}"
            )
    for name, counter in (("faults", coverage.faults), ("outcomes", coverage.outcomes), ("shapes", coverage.shapes)):
        _say(f"{name}: {', '.join(f'{key} {count}' for key, count in sorted(counter.items()))}")


if __name__ == "__main__":
    sys.exit(main())
