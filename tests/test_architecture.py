"""The shape of the tree: imports point one way, ``__init__`` files only speak, nothing of one machine is written down."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")
PYTHON_FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# The demo is an author's project: its modules are named and imported the author's way (`steps:approved`).
AUTHORS = ROOT / "topologies" / "csv_payments"


@cache
def tracked() -> list[Path]:
    """Return every file of the checkout that git tracks or would track; without git, all but tool folders."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        paths = [ROOT / line for line in listing.stdout.splitlines()]
    except (OSError, subprocess.CalledProcessError):
        paths = [
            path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    return [path for path in paths if path.is_file()]


def texts() -> list[tuple[Path, str]]:
    """Return the tracked text files with their content; a file that is not UTF-8 is data."""
    read = []
    for path in tracked():
        try:
            read.append((path.relative_to(ROOT), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return read


def hits(pattern: str, *, but_not: tuple[str, ...] = ()) -> list[str]:
    found = re.compile(pattern)
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        if str(path) not in but_not
        for number, line in enumerate(text.splitlines(), 1)
        if found.search(line)
    ]


def test_imports_point_one_way() -> None:
    """The contracts stand in pyproject.toml; import-linter reports a breach with file and line."""
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("path", [path for path in PYTHON_FILES if path.name == "__init__.py"], ids=str)
def test_an_init_file_holds_its_folders_sentence_only(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert ast.get_docstring(module)
    assert len(module.body) == 1
    assert len((ast.get_docstring(module) or "").splitlines()) == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_python_is_a_package(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_opens_with_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module starts with a docstring"


def core_modules() -> list[Path]:
    """Return the modules of the functional core: schemas and topologies without the author's project (DESIGN 5)."""
    return [
        path
        for path in PYTHON_FILES
        if path.relative_to(ROOT).parts[0] in {"schemas", "topologies"} and not path.is_relative_to(AUTHORS)
    ]


CLOCKS_AND_DICE = {
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("time", "monotonic"),
    ("time", "time"),
    ("uuid", "uuid1"),
    ("uuid", "uuid4"),
    ("os", "urandom"),
}


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_reads_no_clock_and_draws_nothing(path: Path) -> None:
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert used & CLOCKS_AND_DICE == set()


def test_no_path_of_one_machine_is_written_down() -> None:
    """A home directory, a checkout's place, a workplace: none of it belongs in a file that others read."""
    places = {re.escape(f"{ROOT.parent}/"), re.escape(f"{Path.home()}/"), r"/home/\w+/", r"/Users/\w+/", r"/root/"}
    assert hits("|".join(sorted(places)), but_not=("tests/test_architecture.py",)) == []


def test_no_registry_address_is_written_down() -> None:
    """Clients are used as the machine configures them (SURFACE "Set-up")."""
    registries = (
        r"(pypi\.org|pythonhosted|repo1?\.maven|maven\.apache\.org/maven2|npmjs\.|crates\.io|deb\.debian|proxy\.golang)"
    )
    assert hits(registries, but_not=("tests/test_architecture.py",)) == []


def test_no_relative_import_hides_where_a_name_comes_from() -> None:
    relative = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in PYTHON_FILES
        if not path.is_relative_to(AUTHORS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []
