"""The launcher: what runs first in a child of ours, so that it ends with its parent."""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Runs before exec in the child's own interpreter: a preexec_fn would run our code after fork in a threaded process.
# Arguments: the parent's pid, then the command. 1 is PR_SET_PDEATHSIG; 9 is SIGKILL.
LAUNCHER: Final = """
import ctypes, os, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != parent:
        os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


ROOT: Final = Path(__file__).parents[__spec__.name.count(".")]
"""The folder that our import names begin in: the checkout, or where kawait is installed."""

_KEPT_PREFIXES: Final = ("KAWAIT_KAFKA_", "KAWAIT_TOKEN", "KAWAIT_LOG_")


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: ours without the flags, which it gets as arguments, and with our own code to import."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("KAWAIT_") or name.startswith(_KEPT_PREFIXES)
    }
    return {**kept, "PYTHONPATH": import_path(environ)}


def import_path(environ: Mapping[str, str]) -> str:
    """The PYTHONPATH of a child: our own code first, unless Python finds it by itself, then what the user set."""
    # Site-packages on the PYTHONPATH would come before the standard library and before the user's own folders.
    own = [] if str(ROOT) in [*site.getsitepackages(), site.getusersitepackages()] else [str(ROOT)]
    return os.pathsep.join([*own, *filter(None, [environ.get("PYTHONPATH")])])
