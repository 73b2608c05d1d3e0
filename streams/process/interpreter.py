"""How the interpreter of a process that runs rows is tuned."""

from __future__ import annotations

import gc
import sys

COLLECT_FROM_OBJECTS = 50_000
"""Young objects before the garbage collector looks at them; a window of rows is many objects, and next to none of them are cycles."""
SWITCH_INTERVAL_S = 0.002
"""How long a computing thread may keep the interpreter from the one that commits; the default of 5 ms shows in the low-load latency."""


def tune_interpreter() -> None:
    """Settings of the process that runs loops."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    collect_less()


def collect_less() -> None:
    """Leave what is loaded by now out of garbage collections, and collect seldom."""
    gc.freeze()
    gc.set_threshold(COLLECT_FROM_OBJECTS, 20, 100)
