"""How often a row changes its file: what must be read, and where one must jump, to follow one provider answer to the output file.

`bench/journey_trace.py` does the counting in a process of its own with the tree under measurement as its only source of our modules,
so a tree of an older layout is counted by the same rules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.place import ROOT, tied

SCRIPT = ROOT / "bench" / "journey_trace.py"
TIMEOUT_S = 120.0
PATHS = ("live", "suspending")
PARTS = {
    "answer": "answer to output, in full batches",
    "whole": "question to output, in full batches",
    "alone": "answer to stored output, a lone row",
}


class JourneyFailed(RuntimeError):
    """A tree could not be counted."""


@dataclass(frozen=True, kw_only=True)
class Journey:
    """What one tree's rows call, by path; the values are those of `journey_trace.measured`."""

    tree: str
    paths: dict[str, dict[str, Any]]

    def changes(self, path: str, part: str = "answer") -> float:
        """Changes of file a row."""
        return float(self.paths[path][part]["changes"])


def measure(tree: Path, name: str = "") -> Journey:
    """Count a tree, with the interpreter and the libraries that run us.

    Raises:
        JourneyFailed: its rows did not come to their end, or it is no tree of ours.
    """
    tree = tree.resolve()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KAWAIT_", "PYTHON"))}
    environ = {**kept, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            tied([sys.executable, "-P", str(SCRIPT), str(tree)]),
            capture_output=True,
            text=True,
            cwd=tree,
            env=environ,
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise JourneyFailed(f"{tree}: {error}") from error
    if done.returncode != 0:
        raise JourneyFailed(f"{tree}: the count ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    return Journey(tree=name or str(tree), paths=json.loads(done.stdout.splitlines()[-1]))


def show(found: Sequence[Journey], console: Console) -> None:
    """A table of all trees; every one after the first is compared with it."""
    table = Table(title="Changes of file a row", title_justify="left")
    for column in ("tree", "path", "part", "calls", "changes of file", "with returns", "files", "of the first"):
        table.add_column(column, justify="left" if column in {"tree", "path", "part"} else "right", overflow="fold")
    for journey in found:
        for cells in _lines(journey, found[0]):
            table.add_row(*cells)
    console.print(table)


def _lines(journey: Journey, first: Journey) -> Iterator[list[str]]:
    for path in PATHS:
        for part, title in PARTS.items():
            count = journey.paths[path][part]
            ratio = f"{journey.changes(path, part) / first.changes(path, part):.2f}" if journey is not first else ""
            files = str(len(journey.paths[path]["files"])) if part == "answer" else ""
            figures = [f"{count[name]:.1f}" for name in ("calls", "changes", "moves")]
            yield [journey.tree, path, title, *figures, files, ratio]


def write(found: Sequence[Journey], path: Path) -> None:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(journey) for journey in found], indent=1) + "\n", encoding="utf-8")


def stops_text(journey: Journey, path: str) -> str:
    """The stops of a row in order, a line for each file that it comes to; then every file with how often a row enters it."""
    stops = journey.paths[path]["stops"]
    lines = [f"{journey.tree}, {path}: {len(stops)} calls of a row, from its answer to the output file"]
    for file, calls in groupby(stops, key=lambda stop: str(stop[0])):
        lines.append(f"  {file}: {', '.join(stop[1] for stop in calls)}")
    lines.append("entered from another file, calls")
    files = journey.paths[path]["files"].items()
    lines += [
        f"  {count['entered']:5.1f} {count['calls']:5.1f}  {file}"
        for file, count in sorted(files, key=lambda item: (-item[1]["entered"], item[0]))
    ]
    return "\n".join(lines)
