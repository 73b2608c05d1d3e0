"""Playing a scenario of a known fault in a process of its own, so that what hangs, leaks or crashes there harms no other test.

The tests of this folder assert what should hold, so they fail until their fault is mended: `xfail(strict=True, raises=AssertionError)` says
so, and turns red on the day it holds. A scenario that breaks before it has an outcome says nothing about its fault: `ScenarioBroke`, red too.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]

LIMIT_S = 30.0
"""A scenario that takes longer has broken."""
LAST_LINES = 40

Outcome = dict[str, Any]
"""What came of a scenario: counts and words, as JSON can say them."""


class ScenarioBroke(RuntimeError):
    """A scenario ended without an outcome, so nothing is known about its fault."""


@cache
def outcome_of(
    scenario: Callable[[], Outcome], *, limit_s: float = LIMIT_S, hash_seed: int = 0, **bounds: int
) -> Outcome:
    """Play a scenario in a process of its own, in an empty folder; tests that ask for the same one share its outcome.

    Args:
        scenario: A function of a test module in this folder.
        limit_s: How long it may take.
        hash_seed: Of its process: decides the order in which sets of texts are gone through.
        bounds: Values of `schemas.limits`, set before anything else is imported.

    Raises:
        ScenarioBroke: it raised, hung or crashed.
    """
    module, name = Path(inspect.getfile(scenario)).stem, scenario.__name__
    with TemporaryDirectory(prefix="kawait-fault-", ignore_cleanup_errors=True) as folder:
        Path(folder, "here").mkdir()
        with _stage(hash_seed, bounds) as stage:
            stage.play(module=module, scenario=name, folder=folder, limit_s=limit_s)
        outcome, said = Path(folder, "outcome"), Path(folder, "said")
        if not outcome.exists():
            lines = said.read_text(errors="replace").splitlines()[-LAST_LINES:] if said.exists() else []
            raise ScenarioBroke(f"{name} has no outcome; it said:\n" + "\n".join(lines))
        found: Outcome = json.loads(outcome.read_text())
        return found


class Stage:
    """A process that has everything imported and plays each scenario in a fork of itself: to import it anew would take longest."""

    def __init__(self, hash_seed: int, bounds: dict[str, int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.faults", json.dumps(bounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)},
            text=True,
        )

    def play(self, **what: object) -> None:
        """Play one, to its end.

        Raises:
            ScenarioBroke: the stage itself has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(what), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise ScenarioBroke("there is no stage to play on") from error
        if not self._process.stdout.readline():
            raise ScenarioBroke("the stage ended with what was played on it")

    def close(self) -> None:
        """End it: it plays until nobody is there to tell it."""
        self._process.communicate()


@cache
def _common_stage() -> Stage:
    stage = Stage(0, {})
    atexit.register(stage.close)
    return stage


@contextmanager
def _stage(hash_seed: int, bounds: dict[str, int]) -> Iterator[Stage]:
    """The stage that most scenarios share, or one of its own where something must be otherwise from the beginning."""
    if hash_seed == 0 and not bounds:
        yield _common_stage()
        return
    stage = Stage(hash_seed, bounds)
    try:
        yield stage
    finally:
        stage.close()
