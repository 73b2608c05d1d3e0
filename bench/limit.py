"""The upper bound: the record flow of one awaited row through this broker, without any logic (limit.py of the shared folder, unmodified)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.place import ROOT, tied

SCRIPT = ROOT.parent / "shared" / "limit.py"
SCRIPT_VARIABLE = "KAWAIT_LIMIT"
TIMEOUT_S = 300.0
LINE = re.compile(
    r"limit rows=(?P<rows>\d+) batch=\d+ rows_per_s=(?P<rate>\d+) wall_s=(?P<wall>[\d.]+) cpu_s=(?P<cpu>\{.*\})"
)
PART = re.compile(r"'(\w+)': ([\d.]+)")


class LimitFailed(RuntimeError):
    """The upper bound could not be measured."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One measurement of the upper bound; `cpu_s` by process, its start included."""

    rows: int
    rows_per_s: float
    wall_s: float
    cpu_s: Mapping[str, float]


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
