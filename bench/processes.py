"""What processes use, read from /proc while they run: CPU seconds and peak memory (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields 14 and 15 of /proc/<pid>/stat, counted from the third one: the name before it may hold blanks.
USER_FIELD, SYSTEM_FIELD = 11, 12


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process used between two looks; `peak_mib` is of its whole life."""

    cpu_s: float
    peak_mib: float


class Watch:
    """Looks at processes twice: when made, and at `stop`.

    Args:
        pids: By a name for the report.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_s(pid) for name, pid in self._pids.items()}
        self._started_s = time.monotonic()

    def stop(self) -> dict[str, Usage]:
        """What each has used since."""
        return {
            name: Usage(cpu_s=cpu_s(pid) - self._before[name], peak_mib=peak_mib(pid))
            for name, pid in self._pids.items()
        }

    def percent(self) -> dict[str, float]:
        """CPU of each since the start, in percent of one core."""
        passed_s = time.monotonic() - self._started_s
        return {name: 100 * usage.cpu_s / passed_s for name, usage in self.stop().items()}


def cpu_s(pid: int) -> float:
    """User and system seconds of a running process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[USER_FIELD]) + int(fields[SYSTEM_FIELD])) / TICKS_PER_S


def children_of(pid: int) -> list[int]:
    """Processes that a process started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]


def peak_mib(pid: int) -> float:
    """Largest resident memory that a running process has had."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
