"""`python -m tests.acceptance [NAME...] [--quick]`: run the lines and write a report under out/acceptance/."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance.ground import ROOT, Ground
from tests.acceptance.registry import LINES, Result, run_line
from tests.acceptance.report import show, write

MODULES = (
    "kill",
    "two_workers",
    "broker_faults",
    "restore",
    "on_time",
    "asked_once",
    "changing_files",
    "outputs",
    "values",
    "answers",
    "csv_trouble",
    "demo",
    "latency",
    "deadlines",
    "throughput",
    "simulation",
    "reading_path",
)
"""In the order in which they run: what finds mistakes first."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"lines to run: {', '.join(MODULES)}; none: all")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: a try, not a proof")
    parser.add_argument("--seed", type=int, default=None, help="of what is random; printed with the report")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "acceptance", help="folder of the report")
    return parser


def main() -> int:
    """Exit code 0: every line held."""
    parser = _parser()
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(MODULES))
    if unknown:
        parser.error(f"no such line: {', '.join(unknown)}; there are {', '.join(MODULES)}")
    for module in MODULES:
        if not args.names or module in args.names:
            importlib.import_module(f"tests.acceptance.{module}")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="kawait-acceptance-"))
    ground = Ground(folder, quick=args.quick, seed=seed)
    results: list[Result] = []
    began_s = time.monotonic()
    try:
        for number, chosen in enumerate(LINES, 1):
            _say(f"[{number}/{len(LINES)}] {chosen.name}: {chosen.promise}")
            results.append(run_line(chosen, ground, _say))
            _say(f"    {results[-1].seconds:.0f} s")
    except KeyboardInterrupt:
        _say("interrupted")
    finally:
        ground.close()
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()}"
    files = write(
        results, args.output, quick=args.quick, seed=seed, seconds=time.monotonic() - began_s, machine=machine
    )
    show(results)
    _say(f"report: {', '.join(map(str, files))}")
    return int(len(results) < len(LINES) or not all(result.held for result in results))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
