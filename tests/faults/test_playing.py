"""A scenario that breaks is told from a fault that is still there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.playing import Outcome, ScenarioBroke, outcome_of

FOREVER_S = 3_600


def raises() -> Outcome:
    outcome: Outcome = {}
    assert outcome, "this is no outcome"
    return outcome


def hangs() -> Outcome:
    time.sleep(FOREVER_S)
    return {}


def is_killed() -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def leaves_a_process() -> Outcome:
    left = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"])
    return {"pid": left.pid, "folder": str(Path.cwd())}


def test_a_scenario_that_raises_has_broken_even_by_an_assertion() -> None:
    with pytest.raises(ScenarioBroke, match="this is no outcome"):
        outcome_of(raises)


def test_a_scenario_that_hangs_has_broken_and_says_where() -> None:
    with pytest.raises(ScenarioBroke, match="in hangs"):
        outcome_of(hangs, limit_s=0.5)


def test_a_scenario_that_is_killed_has_broken() -> None:
    with pytest.raises(ScenarioBroke, match="is_killed has no outcome"):
        outcome_of(is_killed)


def test_a_broken_scenario_is_no_assertion() -> None:
    assert not issubclass(ScenarioBroke, AssertionError)


def test_a_scenario_leaves_no_process_and_no_file_behind() -> None:
    left = outcome_of(leaves_a_process)
    until_s = time.monotonic() + 10
    while (
        Path(f"/proc/{left['pid']}/status").exists() and "zombie" not in Path(f"/proc/{left['pid']}/status").read_text()
    ):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert not Path(left["folder"]).exists()
