"""The upper bound: the record flow of one awaited row through this broker, without any logic (limit.py of the shared folder, unmodified)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.place import ROOT, tied

SCRIPT = ROOT.parent / "shared" / "limit.py"
SCRIPT_VARIABLE = "KAWAIT_LIMIT"
MISSING = f"there is no {SCRIPT.name} to warm the broker with and to compare with; name it with {SCRIPT_VARIABLE}"
TIMEOUT_S = 300.0
LINE = re.compile(
    r"limit rows=(?P<rows>\d+) batch=\d+ rows_per_s=(?P<rate>\d+) wall_s=(?P<wall>[\d.]+) cpu_s=(?P<cpu>\{.*\})"
)
PART = re.compile(r"'(\w+)': ([\d.]+)")
SETTLED_SHARE = 0.1
WARMING_RUNS_MAX = 8


class LimitFailed(RuntimeError):
    """The upper bound could not be measured."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One measurement of the upper bound; `cpu_s` by process, its start included."""

    rows: int
    rows_per_s: float
    wall_s: float
    cpu_s: Mapping[str, float]


@dataclass(kw_only=True)
class Warming:
    """Runs of the limit until the broker is warm: until two in a row agree within `SETTLED_SHARE`.

    A broker that has just started compiles on the cores that everybody shares, and what is measured meanwhile says so and little else.
    """

    runs: list[Limit] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether the last two agree."""
        rates = [run.rows_per_s for run in self.runs[-2:]]
        return len(rates) == 2 and max(rates) <= min(rates) * (1 + SETTLED_SHARE)

    @property
    def doubt(self) -> str:
        """What is wrong with a broker that never settled."""
        rates = ", ".join(f"{run.rows_per_s:,.0f}" for run in self.runs)
        return f"the broker is young or the machine is not quiet: the limit did not settle ({rates or 'not measured'} rows/s)"


def warm_up(bootstrap: str, rows: int, tell: Callable[[str], None]) -> Warming:
    """Run the limit until it settles, but not for ever; without the script nothing is run, and nothing is known.

    Raises:
        LimitFailed: the script did not end well.
    """
    path, warming = script(), Warming()
    while path is not None and not warming.is_settled and len(warming.runs) < WARMING_RUNS_MAX:
        warming.runs.append(measure(path, rows, bootstrap))
        tell(f"warming the broker: {warming.runs[-1].rows_per_s:,.0f} rows/s")
    return warming


def script() -> Path | None:
    """The script, unless it is not there: then there are no ratios."""
    path = Path(os.environ.get(SCRIPT_VARIABLE) or SCRIPT)
    return path if path.is_file() else None


def measure(path: Path, rows: int, bootstrap: str) -> Limit:
    """Run the script, with the interpreter that runs us.

    Raises:
        LimitFailed: it did not end well or said something else than expected.
    """
    command = tied([sys.executable, str(path), str(rows), bootstrap])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, complained = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its own processes too
            process.wait()
    found = LINE.search(said)
    if process.returncode != 0 or found is None:
        raise LimitFailed(f"{path.name} ended with {process.returncode}: {complained.strip()[-500:] or said.strip()}")
    cpu_s = {name: float(seconds) for name, seconds in PART.findall(found["cpu"])}
    return Limit(rows=int(found["rows"]), rows_per_s=float(found["rate"]), wall_s=float(found["wall"]), cpu_s=cpu_s)
