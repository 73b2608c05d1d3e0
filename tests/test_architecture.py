"""The shape of the tree: imports point one way, ``__init__`` files only speak, nothing of one machine is written down."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")
PYTHON_FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TOP_FOLDERS = (".ci", "bench", *PACKAGES, "docker", "docs", "requirements", "tests")
TOP_FILES = (
    *(".dockerignore", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "docker-compose.yml"),
    *("hatch_build.py", "kawait.py", "pyproject.toml"),
)
# The demo is an author's project: its modules are named and imported the author's way (`steps:approved`).
AUTHORS = ROOT / "topologies" / "csv_payments"


def ours(root: Path = ROOT) -> list[Path]:
    """Return the project's files: those that git tracks, or without git those of our folders. What a user puts beside them is not ours."""
    git = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = []
    tracked = [root / name for name in names if name]
    return [path for path in tracked or below(root) if path.is_file()]


def below(root: Path) -> list[Path]:
    """Return what is in our folders and not made by a tool or a run."""
    made = {"__pycache__", *(line.rstrip("/") for line in (root / ".gitignore").read_text().splitlines())}
    files = [root / name for name in TOP_FILES]
    inner = [path for name in TOP_FOLDERS for path in (root / name).rglob("*")]
    return files + [path for path in inner if not made & set(path.relative_to(root).parts)]


def texts(root: Path) -> list[tuple[Path, str]]:
    """Return the project's text files with their content; a file that is not UTF-8 is data."""
    read = []
    for path in ours(root):
        try:
            read.append((path.relative_to(root), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return read


def hits(pattern: str, *, but_not: tuple[str, ...] = (), root: Path = ROOT) -> list[str]:
    found = re.compile(pattern)
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts(root)
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
    folders = {path.parent for path in (ROOT / package).rglob("*.py")} - {AUTHORS}
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


PLACES = {re.escape(f"{ROOT.parent}/"), re.escape(f"{Path.home()}/"), r"/home/\w+/", r"/Users/\w+/", r"/root/"}
ONE_MACHINE = "|".join(sorted(PLACES))


def test_no_path_of_one_machine_is_written_down() -> None:
    """A home directory, a checkout's place, a workplace: none of it belongs in a file that others read."""
    assert hits(ONE_MACHINE, but_not=("tests/test_architecture.py",)) == []


def test_our_folders_are_all_of_the_checkout() -> None:
    """Else a copy without git is read in part only."""
    assert {path.relative_to(ROOT).parts[0] for path in ours()} == {*TOP_FOLDERS, *TOP_FILES}


def written_by_the_tour() -> set[str]:
    """Return the files and folders below the checkout that the README's commands make."""
    _, _, rest = (ROOT / "README.md").read_text().partition("# Two commands\n")
    tour, _, _ = rest.partition("# A pipeline of your own\n")
    return set(re.findall(r"(?:mkdir -p |tee |--output | > |location=\$PWD/)([\w./]+)", tour))


@pytest.fixture(params=["without git", *(["with git"] if shutil.which("git") else [])])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the project's files."""
    copy = tmp_path / "checkout"
    for path in ours():
        goal = copy / path.relative_to(ROOT)
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, goal)
    if request.param == "with git":
        for command in (["init", "--quiet"], ["add", "--all"]):
            subprocess.run(["git", *command], cwd=copy, check=True)
    return copy


def put(file: Path, text: str) -> None:
    """Write a file where the tour made a folder or none."""
    goal = file / "file" if file.is_dir() or not file.suffix else file
    goal.parent.mkdir(parents=True, exist_ok=True)
    goal.write_text(text, encoding="utf-8")


def test_the_tour_writes_only_where_git_looks_away() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    written = written_by_the_tour()
    assert {"out/in", "out/bad.csv", "out/submitted"} <= written
    assert [path for path in sorted(written) if f"{path.split('/')[0]}/" not in ignored] == []


def test_what_a_user_leaves_in_a_checkout_is_not_read(checkout: Path) -> None:
    """The tour's files, those of a worker started without its settings, and a pipeline of the user's own."""
    by_default = {"topologies/csv_payments/in/a.csv", "topologies/csv_payments/out/a.csv.out", ".kawait/app/w1/LOG"}
    own = {".env", "notes.txt", "orders/pipeline.yaml", "bad.csv", "big/a.csv"}
    for path in (*written_by_the_tour(), *by_default, *own):
        put(checkout / path, f"{ROOT.parent}/file")
    assert hits(ONE_MACHINE, but_not=("tests/test_architecture.py",), root=checkout) == []
    put(checkout / "docs" / "recovery.md", f"{ROOT.parent}/file")
    assert hits(ONE_MACHINE, but_not=("tests/test_architecture.py",), root=checkout) == [
        f"docs/recovery.md:1: {ROOT.parent}/file"
    ]


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
