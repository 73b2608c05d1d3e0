"""`python -m streams`, the same as the console script `kawait`."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    # A default SIGTERM would skip what must be cleaned up: child processes, a broker, temporary folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    from streams.cli.root import cli

    try:
        cli(prog_name="kawait")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
