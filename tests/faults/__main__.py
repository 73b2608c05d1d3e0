"""The stage of `tests.faults.playing`: imports everything once, then plays each scenario it is told in a fork of itself.

`python -m tests.faults BOUNDS`, bounds of `schemas.limits` as JSON; each line of stdin names a scenario, each line of stdout says that one is over.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import structlog

from schemas import limits

FIRST = ("pytest", "tests.faults.ground")


def main() -> None:
    """Play what is told until nobody is there to tell."""
    structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])
    for name, value in json.loads(sys.argv[1]).items():  # before anything is imported that takes a copy of one
        assert hasattr(limits, name), f"there is no limits.{name}"
        setattr(limits, name, value)
    for module in FIRST:
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        told = json.loads(line)
        player = os.fork()
        if player == 0:
            _play(**told)
        os.waitid(os.P_PID, player, os.WEXITED | os.WNOWAIT)
        os.killpg(player, signal.SIGKILL)  # what it started; it is not reaped yet, so the group is its own
        os.waitpid(player, 0)
        print("over", flush=True)


def _play(*, module: str, scenario: str, folder: str, limit_s: float) -> None:
    """Play one scenario, write what came of it, and end this process."""
    code = 1
    try:
        os.setsid()
        os.chdir(Path(folder, "here"))
        with Path(os.devnull).open("rb") as nothing, Path(folder, "said").open("wb") as said:
            os.dup2(nothing.fileno(), 0)
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        faulthandler.dump_traceback_later(limit_s, exit=True)
        outcome = getattr(importlib.import_module(f"tests.faults.{module}"), scenario)()
        Path(folder, "outcome").write_text(json.dumps(outcome))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # a thread of the author's may never end


if __name__ == "__main__":
    main()
