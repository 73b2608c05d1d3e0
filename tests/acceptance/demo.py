"""The two commands of a newcomer, as a newcomer types them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.ground import ROOT, Ground
from tests.acceptance.registry import Checks, line


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _last(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


@line("demo", "`make demo`: 12 rows in, 12 out, 8 rejected, in input order")
def make_demo(ground: Ground, checks: Checks) -> None:
    """In the checkout as it is; a clean machine is one without `.venv`."""
    output = ground.folder / "make-demo"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAWAIT_")}
    run = subprocess.run(
        ["make", "--silent", "demo", f"ARGS=--output {output} --json"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if not checks.that("it ends well", run.returncode == 0, run.stderr.strip()[-300:] if run.returncode else ""):
        return
    told = _last(run.stdout)
    rows = _rows(Path(told["outputs"][0]))
    given = _rows(ROOT / "topologies" / "csv_payments" / "payments_12.csv")
    checks.that(
        "12 rows, 8 of them rejected, in input order",
        [row["csvId"] for row in rows] == [row["ID"] for row in given]
        and sum(row["status"] == "Rejected" for row in rows) == 8
        and told["rows"] == 12
        and told["rejected"] == 8
        and told["broker"] == "memory",
        {name: told[name] for name in ("rows", "approved", "rejected", "failed", "seconds", "broker", "live")},
    )


@line("demo", "`kawait demo --kafka` on 1,000 rows: 93 rejected, live; with --no-live the same file, byte for byte")
def kafka_demo(ground: Ground, checks: Checks) -> None:
    """Each run starts its own broker, as a newcomer's would."""
    path = ROOT / "tests" / "data" / "payments_1k.csv"
    made: dict[bool, bytes] = {}
    for live in (True, False):
        output = ground.folder / f"demo-live-{live}"
        way = [] if live else ["--no-live"]
        run = ground.kawait(
            "demo", "--kafka", "--input", str(path), "--json", "--output", str(output), *way, check=False
        )
        if not checks.that(
            f"{'live' if live else '--no-live'}: it ends well",
            run.returncode == 0,
            run.stderr[-300:] if run.returncode else "",
        ):
            return
        told = _last(run.stdout)
        checks.that(
            f"{'live' if live else '--no-live'}: 1,000 rows, 93 rejected",
            (told["rows"], told["rejected"], told["failed"], told["live"], told["broker"])
            == (1000, 93, 0, live, "kafka"),
            {name: told[name] for name in ("rows", "rejected", "seconds", "rowsPerSecond", "live")},
        )
        made[live] = Path(told["outputs"][0]).read_bytes()
    checks.that("byte for byte the same file", made[True] == made[False], f"{len(made[True])} bytes")
