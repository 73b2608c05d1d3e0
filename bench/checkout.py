"""Trees to measure: this one, and a commit in a worktree of its own, installed from its own requirements into its own environment."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.place import ROOT, tied

COMMAND = "kawait"
STEP_TIMEOUT_S = 600.0
LINES_SHOWN = 12


class CheckoutFailed(RuntimeError):
    """A commit could not be laid out or installed."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A source tree and the command that its environment installed."""

    name: str
    root: Path
    command: Path

    @property
    def pipeline(self) -> Path:
        """The demo's pipeline: at the same place, or one folder further down, in every layout."""
        within = Path("topologies", "csv_payments", "pipeline.yaml")
        found = next((path for path in (self.root / within, self.root / COMMAND / within) if path.is_file()), None)
        if found is None:
            raise CheckoutFailed(f"{self.name} has no {within}")
        return found


def this_tree() -> Tree:
    """The tree that the bench belongs to, with the environment that runs it."""
    command = Path(sys.executable).parent / COMMAND
    if not command.is_file():
        raise CheckoutFailed(f"{command} is missing: this tree is not installed; `make bench` installs it")
    return Tree(name="new", root=ROOT, command=command)


@contextmanager
def sources_of(commit: str) -> Iterator[Path]:
    """The files of a commit, in a worktree that is removed at the end.

    Raises:
        CheckoutFailed: there is no such commit here.
    """
    with tempfile.TemporaryDirectory(prefix="kawait-bench-base-", ignore_cleanup_errors=True) as name:
        path = Path(name) / "tree"
        _run(["git", "worktree", "add", "--quiet", "--detach", str(path), commit], cwd=ROOT)
        try:
            yield path
        finally:
            _run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT)


@contextmanager
def installed(commit: str, tell: Callable[[str], None]) -> Iterator[Tree]:
    """A commit with an environment of its own: its hashed requirements, and the project linked in.

    Raises:
        CheckoutFailed: there is no such commit here, or it could not be installed.
    """
    with sources_of(commit) as root:
        short = _run(["git", "rev-parse", "--short", "HEAD"], cwd=root).strip()
        tell(f"installing {short}")
        environment = root / ".venv"
        python = str(environment / "bin" / "python")
        _run([sys.executable, "-m", "venv", str(environment)], cwd=root)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--require-hashes", "--requirement", "requirements/runtime.txt"], cwd=root)
        _run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."], cwd=root)
        yield Tree(name=short, root=root, command=environment / "bin" / COMMAND)


def _run(command: Sequence[str], *, cwd: Path) -> str:
    """Run a step to its end; what it says.

    Raises:
        CheckoutFailed: it did not end well; with its last lines.
    """
    done = subprocess.run(
        tied(command), cwd=cwd, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False, errors="replace"
    )
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-LINES_SHOWN:])
        raise CheckoutFailed(f"`{' '.join(command)}` ended with {done.returncode}: {last}")
    return done.stdout
