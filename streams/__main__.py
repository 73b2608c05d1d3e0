"""The command line of `python -m kawait` and of the console script `kawait`; our own child processes are started here."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    # A default SIGTERM would skip what must be cleaned up: child processes, a broker, temporary folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    import click

    from streams.cli.root import cli

    try:
        code = cli.main(prog_name="kawait", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
