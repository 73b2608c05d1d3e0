"""An application run by a tree's installed command alone: topics, a worker process for each role; of csv-payments also the provider, submissions.

Nothing of the measured tree is imported, so a measure that is added here can be taken of any commit. What comes of a run is read from its
topics, from its output file, and from /proc.
"""

from __future__ import annotations

import csv
import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.checkout import Tree
from bench.place import Place, tied
from bench.topics import remove_topics_and_groups

ROLES = ("core", "ingress", "continuation")
"""A process for each."""
PROVIDER = "provider"
READY = "ready"
"""First word of the line by which a worker says that it works."""
TOKEN_VARIABLE = "KAWAIT_TOKEN_K1"
KEPT_PREFIX = "KAWAIT_KAFKA_"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
TOPICS_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.05
LINES_SHOWN = 12


class DriveFailed(RuntimeError):
    """A command of the measured tree did not do its work."""


class Process:
    """One running command of a tree; what it writes is kept in files."""

    def __init__(self, name: str, command: Sequence[str], *, environ: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self._said, self._log = folder / f"{name}.out", folder / f"{name}.log"
        with self._said.open("wb") as said, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied(command), stdin=subprocess.DEVNULL, stdout=said, stderr=log, env=environ, cwd=folder
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            DriveFailed: it does not.
        """
        if self._process.poll() is not None:
            raise DriveFailed(f"the {self.name} ended with {self._process.returncode}: {_last_lines(self._log)}")

    def wait_ready(self, until_s: float) -> None:
        """Wait for its ready line.

        Raises:
            DriveFailed: it ended, or said nothing in time.
        """
        while not any(line.startswith(READY) for line in self._said.read_text(errors="replace").splitlines()):
            self.check()
            if time.monotonic() > until_s:
                raise DriveFailed(f"the {self.name} was not ready in time: {_last_lines(self._log)}")
            time.sleep(LOOK_EVERY_S)

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def end(self) -> None:
        """Wait for its end, and enforce it after a while."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
            return
        self._process.kill()
        self._process.wait()


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").strip().splitlines()[-LINES_SHOWN:]) or "it said nothing"


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A file that was paid; `rows` as counted in its output."""

    execution_id: str
    rows: int


class Application:
    """One tree's application under a name of its own, while entered: topics, workers and a provider, all gone afterwards.

    Args:
        overrides: As `--set`.
        folder: An empty one, for state, logs and outputs.
        pipeline: Another one, which reads and writes topics, and whose requests the bench answers; None: csv-payments.
    """

    def __init__(
        self, tree: Tree, place: Place, folder: Path, overrides: Sequence[str] = (), pipeline: Path | None = None
    ) -> None:
        self.name = f"bench-{secrets.token_hex(4)}"
        self.processes: list[Process] = []
        self._tree = tree
        self._place = place
        self._folder = folder
        self._output = folder / "out"
        self._has_provider = pipeline is None
        places = (f"output.location={self._output}", f"input.location={folder / 'in'}") if self._has_provider else ()
        sets = [part for override in (*places, *overrides) for part in ("--set", override)]
        self._common = [
            str(pipeline or tree.pipeline),
            "--app",
            self.name,
            "--bootstrap",
            place.connection.bootstrap,
            *sets,
        ]
        self._environ = environment(os.environ)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(remove_topics_and_groups, self._place.connection, f"{self.name}.", self.name)
            stack.callback(self._end_all)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def _start(self) -> None:
        for name in ("in", "out"):
            (self._folder / name).mkdir()
        self._to_its_end("topics", TOPICS_TIMEOUT_S)
        for role in ROLES:
            own = ["--roles", role, "--instance", "auto", "--admin-port", "off"]
            self._process(role, ["worker", *self._common, *own, "--state-dir", str(self._folder / f"state-{role}")])
        if self._has_provider:
            self._process(PROVIDER, ["provider", *self._common])
        until_s = time.monotonic() + READY_TIMEOUT_S
        for process in self.processes:
            if process.name != PROVIDER:  # it says nothing; the first answer shows that it works
                process.wait_ready(until_s)

    def _process(self, name: str, arguments: Sequence[str]) -> None:
        command = [str(self._tree.command), *arguments]
        self.processes.append(Process(name, command, environ=self._environ, folder=self._folder))

    def _end_all(self) -> None:
        for process in self.processes:
            process.ask_to_end()
        for process in self.processes:
            process.end()

    def pay(self, path: Path, timeout_s: float) -> Submitted:
        """Submit a file and wait until it is paid.

        Raises:
            DriveFailed: it was not, in time.
        """
        said = self._to_its_end("submit", timeout_s, "--input", str(path), "--wait", "--json")
        for process in self.processes:
            process.check()
        outcome = json.loads(said.splitlines()[-1])
        if outcome.get("status") != "SUCCEEDED":
            raise DriveFailed(f"{path.name} was not paid: {outcome}")
        with (self._output / f"{path.name}.out").open(encoding="utf-8", newline="") as file:
            rows = sum(1 for _ in csv.reader(file)) - 1
        return Submitted(execution_id=outcome["executionId"], rows=rows)

    def _to_its_end(self, word: str, timeout_s: float, *more: str) -> str:
        command = [str(self._tree.command), word, *self._common, *more]
        if "--wait" in more:
            command += ["--timeout", f"{timeout_s:g}"]
        try:
            done = subprocess.run(
                tied(command),
                env=self._environ,
                cwd=self._folder,
                capture_output=True,
                text=True,
                timeout=timeout_s + STOP_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DriveFailed(f"{self._tree.name}: `kawait {word}` did not end within {timeout_s:g} s") from error
        if done.returncode != 0:
            last = done.stderr.strip()[-500:] or done.stdout.strip()[-500:]
            raise DriveFailed(f"{self._tree.name}: `kawait {word}` ended with {done.returncode}: {last}")
        return done.stdout


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours without what would lead a command to other code or other settings, and with a token key."""
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith(KEPT_PREFIX) or not name.startswith(("KAWAIT_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, TOKEN_VARIABLE: "k" * 32}


@contextmanager
def running(
    tree: Tree, place: Place, overrides: Sequence[str] = (), pipeline: Path | None = None
) -> Iterator[Application]:
    """An application that is ready, in a folder that is removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="kawait-bench-", ignore_cleanup_errors=True) as name,
        Application(tree, place, Path(name), overrides, pipeline) as application,
    ):
        yield application
