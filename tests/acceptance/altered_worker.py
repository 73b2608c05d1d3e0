"""`python -m tests.acceptance.altered_worker [--clock-offset-s N] [--forget-every-s N] -- worker PIPELINE ...`: a worker under other conditions.

The command line is the product's, and so are the settings that it builds. What differs is handed in where it runs: a clock that is off, or a
shorter pause between two passes of retention. Neither is an option of the product.
"""

from __future__ import annotations

import argparse
import functools
import sys

from streams import __main__ as command_line
from streams.clock import SystemClock
from streams.roles.core import retention
from streams.worker import run


class OffClock(SystemClock):
    """The machine's clock, as a machine shows it that is ahead (or behind, below zero)."""

    def __init__(self, offset_ms: int) -> None:
        self._offset_ms = offset_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._offset_ms


def main() -> None:
    """Alter what is asked for, then be the command line."""
    parser = argparse.ArgumentParser(prog="altered_worker")
    parser.add_argument("--clock-offset-s", type=float, default=0.0)
    parser.add_argument("--forget-every-s", type=float, default=None)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and what follows `kawait`")
    args = parser.parse_args()
    if args.clock_offset_s:
        clock = OffClock(round(args.clock_offset_s * 1000))
        run.run_worker = functools.partial(run.run_worker, clock=clock)
    if args.forget_every_s is not None:
        assert hasattr(retention, "RETENTION_EVERY_MS")
        retention.RETENTION_EVERY_MS = round(args.forget_every_s * 1000)
    sys.argv = ["kawait", *(word for word in args.command if word != "--")]
    command_line.main()


if __name__ == "__main__":
    main()
