"""A newcomer's reading path: it exists, its links lead somewhere, its diagrams are those of the transition tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance.ground import ROOT, Ground
from tests.acceptance.registry import Checks, line

WANTED = {
    "tour": re.compile(r"tour", re.IGNORECASE),
    "life of one row": re.compile(r"life of (one|a) row", re.IGNORECASE),
    "glossary": re.compile(r"glossary", re.IGNORECASE),
    "state diagrams": re.compile(r"docs/states\.md"),
}
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@line(
    "reading_path",
    "A newcomer's reading path: README tour, life of one row, glossary, state diagrams from the transition tables",
)
def reading_path(ground: Ground, checks: Checks) -> None:
    """What the README names and where it leads."""
    del ground
    readme = ROOT / "README.md"
    if not checks.that("there is a README", readme.exists()):
        return
    text = readme.read_text(encoding="utf-8")
    for name, pattern in WANTED.items():
        checks.that(f"it leads to the {name}", pattern.search(text))
    pages = [readme, *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [f"{page.name}: {link}" for page in pages for link in _broken(page)]
    checks.that("every link in it and in docs/ leads somewhere", not broken, broken or f"{len(pages)} pages")
    states = ROOT / "docs" / "states.md"
    drawn = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/state/test_transitions.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    checks.that(
        "the state diagrams are those of the transition tables",
        "stateDiagram" in states.read_text(encoding="utf-8") and drawn.returncode == 0,
        drawn.stdout.strip().splitlines()[-1] if drawn.stdout.strip() else drawn.stderr[-200:],
    )


def _broken(page: Path) -> list[str]:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    return [link for link in links if not (page.parent / link).exists()]
