"""The report: Markdown for people, JSON for machines, a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.acceptance.registry import Result


def write(
    results: Sequence[Result], folder: Path, *, quick: bool, seed: int, seconds: float, machine: str
) -> list[Path]:
    """Write both files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    held = sum(result.held for result in results)
    head = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "quick": quick,
        "seed": seed,
        "seconds": round(seconds, 1),
        "held": held,
        "lines": len(results),
    }
    as_json, as_text = folder / "report.json", folder / "report.md"
    as_json.write_text(
        json.dumps({**head, "results": [result.to_json() for result in results]}, indent=1, ensure_ascii=False) + "\n"
    )
    as_text.write_text(_markdown(results, head))
    return [as_text, as_json]


def _markdown(results: Sequence[Result], head: dict[str, object]) -> str:
    size = ", quick: fewer rows and rounds" if head["quick"] else ""
    lines = [
        "# Acceptance",
        "",
        f"{head['held']} of {head['lines']} lines held. {head['at']}, {head['machine']}, {head['seconds']} s, seed {head['seed']}{size}.",
    ]
    for result in results:
        verdict = "holds" if result.held else "FAILS"
        lines += ["", f"## {verdict}: {result.line.name} ({result.seconds:.0f} s)", "", result.line.promise, ""]
        lines += ["| | check | figures |", "|---|---|---|"]
        lines += [
            f"| {'ok' if check.held else 'FAIL'} | {_cell(check.what)} | {_cell(check.figures)} |"
            for check in result.checks
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def show(results: Sequence[Result]) -> None:
    """Print the table."""
    table = Table(title="acceptance", show_lines=False)
    for column in ("", "line", "check", "figures"):
        table.add_column(column, overflow="fold")
    for result in results:
        for check in result.checks:
            verdict = "[green]ok[/]" if check.held else "[bold red]FAIL[/]"
            table.add_row(verdict, result.line.name, check.what, check.figures[:300].replace("[", "\\["))
    Console(width=None).print(table)
