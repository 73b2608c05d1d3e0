"""A command of ours as a child process: it says when it is ready, ends when it is told to, and never outlives its parent."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from schemas.errors import KawaitError
from streams.clock import SystemClock
from streams.process.launcher import LAUNCHER, child_environment

READY: Final = "ready"
"""First word of the line that a command prints once it works."""
STOP_TIMEOUT_S: Final = 15.0
COMMAND_LINE: Final = __spec__.name.rsplit(".", 2)[0]
"""The package that `-m` runs: the one above this folder, wherever it is imported from."""
LAST_LINES: Final = 12


class ChildEnded(KawaitError):
    """A child process ended by itself."""


class Child:
    """One running command.

    Args:
        name: For messages.
        arguments: As after `kawait`.
        log_path: Takes what it writes to stderr.
        module: What runs them; ours, unless something stands before it.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        log_path: Path,
        module: str = COMMAND_LINE,
    ) -> None:
        self.name = name
        self._log_path = log_path
        self._said = b""
        # `-P`: the current folder may hold a package named like one of ours. The launcher ties its life to ours, kill -9 included.
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid())]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(environ),
                start_new_session=True,  # Ctrl-C reaches us first, and we end them in order
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_ready(self, until_s: float) -> None:
        """Wait for its ready line.

        Args:
            until_s: On the monotonic clock.

        Raises:
            ChildEnded: it ended, or said nothing in time; with its last lines.
        """
        assert self._process.stdout is not None
        clock = SystemClock()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not any(line.startswith(READY.encode()) for line in self._said.split(b"\n")[:-1]):
                self.check()
                if clock.monotonic_s() > until_s:
                    raise ChildEnded(f"the {self.name} was not ready in time. {self._last_lines()}")
                if selector.select(0.1):
                    self._said += os.read(self._process.stdout.fileno(), 4_096)

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            ChildEnded: it does not.
        """
        code = self._process.poll()
        if code is not None:
            raise ChildEnded(f"the {self.name} ended with {code}. {self._last_lines()}")

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended.

        Raises:
            ChildEnded: it has not, within `timeout_s`.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ChildEnded(f"the {self.name} has not ended within {timeout_s:g} s. {self._last_lines()}") from error

    def end(self) -> None:
        """Wait for its end, and enforce it after `STOP_TIMEOUT_S`."""
        self.ask_to_end()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _last_lines(self) -> str:
        lines = self._log_path.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        return "It said:\n" + "\n".join(lines) if lines else "It said nothing."


def end_all(children: Sequence[Child]) -> None:
    """End children, all at once."""
    for child in children:
        child.ask_to_end()
    for child in children:
        child.end()
