"""The pages, taken apart: fenced blocks, sections, tables, prose, and the names that stand in backticks."""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
PAGES = (README, *sorted(DOCS.glob("*.md")))
LINKED = (*PAGES, ROOT / "bench" / "README.md")
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")

_FENCE = re.compile(r"^```([\w-]+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block: ```<language> <word> <name>=<value>."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def value(self, name: str) -> str | None:
        """What `<name>=` says, if it is there."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), None)


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    text = page.read_text()
    found = _FENCE.finditer(text)
    return tuple(Block(page, text[: m.start()].count("\n") + 1, m[1], tuple(m[2].split()), m[3]) for m in found)


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def place_of(block: Block) -> str:
    """An id for pytest."""
    return f"{name_of(block.page)}:{block.line}"


def prose(page: Path) -> str:
    """The text without fenced blocks; each paragraph is one line."""
    return re.sub(r"(?<=\S)\n(?=[^\s|#-])", " ", re.sub(r"\n +(?=\S)", " ", _FENCE.sub("", page.read_text())))


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next of any level."""
    _, found, rest = page.read_text().partition(f"# {heading}\n")
    assert found, f"{name_of(page)} has no heading {heading}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the tables of a section, without heads and rulers."""
    lines = section(page, heading).splitlines()
    is_ruler = re.compile(r"\|[\s:|-]+\|")
    cells = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not is_ruler.fullmatch(line) and not is_ruler.fullmatch(following):
            cells.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return cells


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def first_names(page: Path, heading: str) -> list[str]:
    """The names in backticks in the first cells of a section's tables."""
    return [name for row in rows(page, heading) for name in in_backticks(row[0])]


@cache
def defined(path: Path) -> frozenset[str]:
    """Functions, classes, constants and methods of a module, dotted."""
    body = ast.parse(path.read_text()).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = {f"{cls.name}.{name}" for cls in classes for name in _names(cls.body)}
    return frozenset(_names(body) | methods)


def _names(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


# --- running what a page shows ----------------------------------------------------------------------------------------

PRELUDE = f'set -eu; kawait() {{ "{sys.executable}" -m streams "$@"; }}; python() {{ "{sys.executable}" "$@"; }}\n'
"""`kawait` and `python` are those of this environment, as after `source .venv/bin/activate`."""


def newcomers_environment() -> dict[str, str]:
    """Nothing of ours is set, and no flag comes from outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAWAIT_", "PYTEST_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}


def left_for_git(folder: Path) -> list[str]:
    """Files below a folder that git would show, if the folder were this checkout."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if ignored.isdisjoint(path.parts))
