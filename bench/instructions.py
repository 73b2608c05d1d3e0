"""Instructions per row by stage, counted by valgrind: a figure that neither other load nor the clock of the machine moves.

Two runs of different size on the test driver; the difference is what a row costs, without what starting costs. Callgrind sees C functions
only, so each stage is called through a different function of the C library that calls back once (`CALLERS`): what callgrind
counts below that function is the stage.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from bench.place import ROOT
from bench.stages import run_driver
from streams import core, loop, memory_log, segments, session

SIZES = (300, 1_300)
TIMEOUT_S = 300.0
# Parts of a stage that are not the runtime's: they are named apart and taken off.
WITHIN = {"core: produce": "driver: log takes records"}


class InstructionsFailed(RuntimeError):
    """valgrind is missing or did not count."""


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """Instructions of one row: all, and by stage."""

    sizes: tuple[int, int]
    per_row: float
    stages: dict[str, float]


# --- counting, in a process under valgrind ------------------------------------------------------------------------------------------

_LIBC = ctypes.PyDLL(None)  # keeps the interpreter lock, as a plain call would
_COMPARE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ACTION = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_ONCE = ctypes.PYFUNCTYPE(None)
_PHDR = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_CELL = ctypes.create_string_buffer(8)
_ROOT = ctypes.c_void_p()


def _bsearch(call: Callable[[], None]) -> None:
    _LIBC.bsearch(_CELL, _CELL, ctypes.c_size_t(1), ctypes.c_size_t(1), _COMPARE(lambda _a, _b: call() or 0))


def _lfind(call: Callable[[], None]) -> None:
    count = ctypes.c_size_t(1)
    _LIBC.lfind(_CELL, _CELL, ctypes.byref(count), ctypes.c_size_t(1), _COMPARE(lambda _a, _b: call() or 0))


def _qsort(call: Callable[[], None]) -> None:
    pair = ctypes.create_string_buffer(2)
    _LIBC.qsort(pair, ctypes.c_size_t(2), ctypes.c_size_t(1), _COMPARE(lambda _a, _b: call() or 0))


def _tree() -> Any:
    if not _ROOT:
        _LIBC.tsearch(_CELL, ctypes.byref(_ROOT), _COMPARE(lambda _a, _b: 0))
    return _ROOT


def _tfind(call: Callable[[], None]) -> None:
    _LIBC.tfind(_CELL, ctypes.byref(_tree()), _COMPARE(lambda _a, _b: call() or 0))


def _tsearch(call: Callable[[], None]) -> None:
    _LIBC.tsearch(_CELL, ctypes.byref(_tree()), _COMPARE(lambda _a, _b: call() or 0))


def _twalk(call: Callable[[], None]) -> None:
    _LIBC.twalk(_tree(), _ACTION(lambda _node, _order, _depth: call()))


def _pthread_once(call: Callable[[], None]) -> None:
    once = ctypes.c_int(0)
    _LIBC.pthread_once(ctypes.byref(once), _ONCE(call))


def _dl_iterate_phdr(call: Callable[[], None]) -> None:
    _LIBC.dl_iterate_phdr(_PHDR(lambda _info, _size, _data: call() or 1), None)


CALLERS: dict[str, tuple[str, Callable[[Callable[[], None]], None], tuple[tuple[Any, str], ...]]] = {
    "bsearch": ("pool: pull items from the source", _bsearch, ((session.SourceStream, "pull"),)),
    "lfind": ("pool: project and shape answers", _lfind, ((core.CoreTask, "_project"),)),
    "qsort": ("pool: run suffixes", _qsort, ((segments.Suffix, "run_chunk"),)),
    "tfind": ("core and ingress: decide", _tfind, ((loop.TransactionalLoop, "_decide"),)),
    "tsearch": ("core: decode records", _tsearch, ((core.CoreTask, "accept"),)),
    "twalk": ("core: produce", _twalk, ((loop.TransactionalLoop, "_produce"),)),
    "pthread_once": ("driver: log takes records", _pthread_once, ((memory_log.MemoryProducer, "produce"),)),
    "dl_iterate_phdr": (
        "core: encode and apply rows",
        _dl_iterate_phdr,
        ((core.CoreTask, "changes"), (core.CoreTask, "apply")),
    ),
}
"""C function -> stage, how it calls back, what of ours is called through it."""


def _through(caller: Callable[[Callable[[], None]], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called from within a C function."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        results: list[Any] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(function(*arguments, **options))
            except BaseException as error:
                errors.append(error)

        caller(call)
        if errors:
            raise errors[0]
        return results[0]

    return run


def run_counted(rows: int, folder: Path) -> None:
    """Run the driver with every stage below its C function; this is what valgrind runs."""
    with ExitStack() as stack:
        for _, caller, functions in CALLERS.values():
            for owner, attribute in functions:
                original = getattr(owner, attribute)
                stack.callback(setattr, owner, attribute, original)
                setattr(owner, attribute, _through(caller, original))
        run_driver(rows, folder)


# --- running valgrind and reading what it counted ------------------------------------------------------------------------------------


def measure(folder: Path, sizes: tuple[int, int] = SIZES) -> Instructions:
    """Count; takes a minute or two.

    Raises:
        InstructionsFailed: valgrind is not on PATH, or a run broke off.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise InstructionsFailed("valgrind is not on PATH: install it to count instructions")
    with tempfile.TemporaryDirectory(prefix="kawait-bench-") as name:
        outs = [Path(name) / f"callgrind.{rows}" for rows in sizes]
        running = [_start(valgrind, out, rows, folder / f"count-{rows}") for out, rows in zip(outs, sizes, strict=True)]
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
        small, large = (read_callgrind(out.read_text(encoding="utf-8", errors="replace")) for out in outs)
    return difference(small, large, sizes)


def _start(valgrind: str, out: Path, rows: int, folder: Path) -> subprocess.Popen[str]:
    code = f"from pathlib import Path; from bench.instructions import run_counted; run_counted({rows}, Path({str(folder)!r}))"
    counting = [valgrind, "--tool=callgrind", f"--callgrind-out-file={out}", "--cache-sim=no"]
    return subprocess.Popen(
        [*counting, sys.executable, "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


TOTAL = "total"
_NAMED = re.compile(r"c?fn=\((\d+)\)(?: (.*))?")


def read_callgrind(text: str) -> dict[str, int]:
    """Instructions in all and below each of the C functions of `CALLERS`, from a profile in callgrind's format."""
    names: dict[str, str] = {}
    found = dict.fromkeys((TOTAL, *CALLERS), 0)
    called, is_arc = "", False
    for line in text.splitlines():
        if line.startswith(("fn=", "cfn=")):
            match = _NAMED.match(line)
            if match is not None:
                number, name = match.groups()
                if name:
                    names[number] = _plain(name)
                called = names.get(number, "") if line.startswith("c") else called
        elif line.startswith("calls="):
            is_arc = True
        elif line.startswith(("summary:", "totals:")):
            found[TOTAL] = max(found[TOTAL], int(line.split()[1]))
        elif is_arc:
            is_arc = False
            if called in CALLERS:
                found[called] += int(line.split()[-1])
    return found


def _plain(name: str) -> str:
    """`__tfind@@GLIBC_2.2.5'2` is tfind."""
    return re.split(r"[@']", name)[0].lstrip("_")


def difference(small: dict[str, int], large: dict[str, int], sizes: tuple[int, int]) -> Instructions:
    """What a row costs."""
    rows = sizes[1] - sizes[0]
    stages = {stage: (large[name] - small[name]) / rows for name, (stage, _, _) in CALLERS.items()}
    for outer, inner in WITHIN.items():
        stages[outer] -= stages[inner]
    return Instructions(sizes=sizes, per_row=(large[TOTAL] - small[TOTAL]) / rows, stages=stages)
