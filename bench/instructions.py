"""Instructions per row by stage, counted by valgrind: a figure that neither other load nor the clock of the machine moves.

Two runs of different size on the test driver; the difference is what a row costs, without what starting costs. Callgrind sees machine code
only, so each stage is called from C through a callback of its own: what callgrind counts below the callback's address is the stage.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from bench.place import ROOT, tied
from bench.stages import run_driver
from streams.author import local, suffixes
from streams.engine import loop
from streams.log.memory import producer as memory_producer
from streams.roles.core import intake, local_work, source
from streams.roles.core import task as core

SIZES = (300, 1_300)
TIMEOUT_S = 300.0
TOTAL = "total"
LOG_STAGE = "driver: log takes records"
COUNTED: dict[str, tuple[tuple[Any, str], ...]] = {
    "pool: pull items from the source": ((source.SourceStream, "pull"),),
    "pool: project and shape answers": ((intake.Intake, "_unshaped"), (local.LocalAuthor, "project")),
    "pool: run suffixes": ((suffixes.Suffix, "run_chunk"),),
    "pool: publish the output": ((local_work, "publish_object"),),
    "core: decode records": ((core.CoreTask, "accept"),),
    "core and ingress: decide": ((loop.TransactionalLoop, "_decide"),),
    "core: encode and apply rows": ((core.CoreTask, "changes"), (core.CoreTask, "apply")),
    "loop: produce": ((loop.TransactionalLoop, "_produce"),),
    LOG_STAGE: ((memory_producer.MemoryProducer, "produce"),),
}
"""Stage -> our functions that make it up."""
WITHIN = {"loop: produce": LOG_STAGE}
"""Stage -> another that runs inside it, and is taken off it."""


class InstructionsFailed(RuntimeError):
    """valgrind is missing or did not count."""


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """Instructions of one row: all, and by stage."""

    sizes: tuple[int, int]
    per_row: float
    stages: dict[str, float]


# --- counting, in a process under valgrind ------------------------------------------------------------------------------------------


class Gate:
    """Calls functions through one C callback, whose address names them in callgrind's profile.

    The callback is that of `bsearch` over one element, which compares once.
    """

    _libc = ctypes.PyDLL(None)  # keeps the interpreter lock, as a plain call would
    _cell = ctypes.create_string_buffer(8)
    _compare = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._callback = self._compare(self._run)

    @property
    def address(self) -> int:
        """Of the callback."""
        return ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def _run(self, _key: object, _element: object) -> int:
        self._waiting.pop()()
        return 0

    def through(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called through the callback."""

        @wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            results: list[Any] = []
            errors: list[BaseException] = []

            def call() -> None:
                try:
                    results.append(function(*arguments, **options))
                except BaseException as error:
                    errors.append(error)

            self._waiting.append(call)
            one = ctypes.c_size_t(1)
            self._libc.bsearch(self._cell, self._cell, one, one, self._callback)
            if errors:
                raise errors[0]
            return results[0]

        return run


def run_counted(rows: int, folder: Path, addresses: Path) -> None:
    """Run the driver with every stage behind its gate; this is what valgrind runs. Writes stage -> address as JSON."""
    gates = {stage: Gate() for stage in COUNTED}
    addresses.write_text(json.dumps({stage: gate.address for stage, gate in gates.items()}), encoding="utf-8")
    with ExitStack() as stack:
        for stage, functions in COUNTED.items():
            for owner, attribute in functions:
                original = getattr(owner, attribute)
                stack.callback(setattr, owner, attribute, original)
                setattr(owner, attribute, gates[stage].through(original))
        run_driver(rows, folder)


# --- running valgrind and reading what it counted ------------------------------------------------------------------------------------


def measure(folder: Path, sizes: tuple[int, int] = SIZES) -> Instructions:
    """Count, both sizes side by side; takes a minute or two.

    Raises:
        InstructionsFailed: valgrind is not on PATH, or a run broke off.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise InstructionsFailed("valgrind is not on PATH: install it to count instructions")
    with tempfile.TemporaryDirectory(prefix="kawait-bench-") as name:
        outs = [Path(name) / f"callgrind.{rows}" for rows in sizes]
        running = [
            _start(valgrind, out, rows, (folder / f"count-{rows}").absolute())
            for out, rows in zip(outs, sizes, strict=True)
        ]
        try:
            said = [process.communicate(timeout=TIMEOUT_S)[1] for process in running]
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        for process, text in zip(running, said, strict=True):
            if process.returncode != 0:
                raise InstructionsFailed(f"valgrind ended with {process.returncode}: {text[-800:]}")
        small, large = (_counted(out) for out in outs)
    return difference(small, large, sizes)


def _start(valgrind: str, out: Path, rows: int, folder: Path) -> subprocess.Popen[str]:
    code = (
        "import sys; from pathlib import Path; from bench.instructions import run_counted; "
        "run_counted(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    counting = [valgrind, "--tool=callgrind", f"--callgrind-out-file={out}", "--cache-sim=no"]
    return subprocess.Popen(
        tied([*counting, sys.executable, "-c", code, str(rows), str(folder), f"{out}.json"]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


def _counted(out: Path) -> dict[str, int]:
    addresses = json.loads(Path(f"{out}.json").read_text(encoding="utf-8"))
    return read_callgrind(out.read_text(encoding="utf-8", errors="replace"), addresses)


_CALLEE = re.compile(r"cfn=\((\d+)\)(?: (\S+))?")
_NAME = re.compile(r"fn=\((\d+)\) (\S+)")


def read_callgrind(text: str, addresses: Mapping[str, int]) -> dict[str, int]:
    """Instructions in all, and below each address, from a profile in callgrind's format.

    A call is three lines: `cfn=(id) name` (the name only the first time), `calls=...`, and `<line> <instructions below it>`.
    """
    stage_of = {f"0x{address:016x}": stage for stage, address in addresses.items()}
    names: dict[str, str] = {}
    found = dict.fromkeys((TOTAL, *addresses), 0)
    callee, is_call = "", False
    for line in text.splitlines():
        if is_call:
            is_call = False
            stage = stage_of.get(names.get(callee, ""))
            if stage is not None:
                found[stage] += int(line.split()[-1])
        elif line.startswith("cfn="):
            match = _CALLEE.match(line)
            if match is not None:
                callee = match[1]
                if match[2]:
                    names[callee] = match[2].partition("'")[0]  # `'2`: the second of it on the stack
        elif line.startswith("fn="):
            match = _NAME.match(line)
            if match is not None:
                names[match[1]] = match[2].partition("'")[0]
        elif line.startswith("calls="):
            is_call = True
        elif line.startswith(("summary:", "totals:")):
            found[TOTAL] = max(found[TOTAL], int(line.split()[1]))
    return found


def difference(small: Mapping[str, int], large: Mapping[str, int], sizes: tuple[int, int]) -> Instructions:
    """What a row costs."""
    rows = sizes[1] - sizes[0]
    per_row = {name: (large[name] - small[name]) / rows for name in large}
    for outer, inner in WITHIN.items():
        if outer in per_row:
            per_row[outer] -= per_row.get(inner, 0.0)
    total = per_row.pop(TOTAL)
    per_row["loop: the rest"] = total - sum(per_row.values())
    return Instructions(sizes=sizes, per_row=total, stages=per_row)
