"""What the pages say is so: blocks run, names exist, tables are those of the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from schemas import limits
from schemas.topics import TOPICS
from streams.cli.root import COMMANDS
from streams.telemetry.metrics import Metrics
from topologies.reading.advice import NOT_YET

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")


class Block(NamedTuple):
    """One fenced block: ```<language> <word> <name>=<value>."""

    line: int
    language: str
    words: tuple[str, ...]
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text[: m.start()].count("\n") + 1, m[1], tuple(m[2].split()), m[3]) for m in found]


def section(heading: str) -> str:
    """The text below a heading of the README, up to the next of any level."""
    _, found, rest = README.read_text().partition(f"# {heading}\n")
    assert found, f"README.md has no heading {heading}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(heading: str) -> list[list[str]]:
    """The names in backticks in the first cell of each row of a section's table."""
    rows = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]


def names(heading: str) -> list[str]:
    return [name for cell in first_cells(heading) for name in cell]


# --- blocks that run --------------------------------------------------------------------------------------------------


def run(script: str, cwd: Path) -> str:
    """Run a shell block as a newcomer would, with `kawait` and `python` of this environment."""
    prelude = f'set -eu; kawait() {{ "{sys.executable}" -m streams "$@"; }}; python() {{ "{sys.executable}" "$@"; }}\n'
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAWAIT_", "PYTEST_"))}
    environ = {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    done = subprocess.run(
        ["bash", "-c", prelude + script], cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_what_varies(text: str) -> str:
    """Times differ, and ids follow from the absolute path of the input."""
    text = re.sub(r"[\d.]+ s, [\d,]+ rows/s", "TIME", text)
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo in it and the pipeline of the page's own-pipeline section in `own`."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "topologies").symlink_to(ROOT / "topologies")
    for block in blocks(README):
        named = [word.removeprefix("file=") for word in block.words if word.startswith("file=")]
        for name in named:
            file = folder / "own" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
    return folder


RUNNABLE = [(index, block) for index, block in enumerate(blocks(README)) if block.words[:1] == ("run",)]


@pytest.mark.parametrize(("index", "block"), RUNNABLE, ids=[f"README.md:{block.line}" for _, block in RUNNABLE])
def test_a_block_runs_and_says_what_the_page_says(index: int, block: Block, workplace: Path) -> None:
    folder = workplace / "own" if "in=own" in block.words else workplace
    said = run(block.text, folder)
    for following in blocks(README)[index + 1 : index + 2]:
        if following.words == ("output",):
            assert without_what_varies(said) == without_what_varies(following.text)


def test_enough_of_the_page_runs() -> None:
    assert len(RUNNABLE) >= 3
    written = {word for block in blocks(README) for word in block.words if word.startswith("file=")}
    assert written == {"file=pipeline.yaml", "file=domain.py", "file=steps.py", "file=test_pipeline.py"}


# --- names and links --------------------------------------------------------------------------------------------------


@cache
def defined(path: Path) -> frozenset[str]:
    """Functions, classes and methods of a module, dotted."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in tree.body if isinstance(node, kinds)]
    inner = {
        f"{node.name}.{child.name}"
        for node in top
        if isinstance(node, ast.ClassDef)
        for child in node.body
        if isinstance(child, kinds)
    }
    return frozenset({node.name for node in top} | inner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_function_and_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    folders = (*PACKAGES, "tests")
    named = [
        (path, name or test)
        for path, name, test in re.findall(r"`([\w/]+\.py)(?:: ([\w.]+)|::(\w+))?`", text)
        if path.startswith(tuple(f"{folder}/" for folder in folders))
    ]
    missing = [
        f"{path}: {name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in defined(ROOT / path))
    ]
    assert missing == []


def test_the_life_of_one_row_leads_through_the_code() -> None:
    modules = set(re.findall(r"`([\w/]+\.py): ", section("The life of one row")))
    assert len(modules) > 15
    assert {module.split("/")[0] for module in modules} == set(PACKAGES)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    anchors = {anchor(found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    broken = [
        link
        for link in links
        if (link.startswith("#") and link[1:] not in anchors)
        or (not link.startswith("#") and not (page.parent / link.partition("#")[0]).exists())
    ]
    assert broken == []


# --- tables -----------------------------------------------------------------------------------------------------------


def test_every_command_is_listed() -> None:
    commands = [f"kawait {getattr(command, 'name', '')}" for command in COMMANDS]
    assert names("Operating") == commands


def test_the_metrics_are_those_of_the_code() -> None:
    """Name, type and labels."""
    code = {
        (family.name, family.type, tuple(getattr(collector, "_labelnames", ())))
        for collector in Metrics().registry._collector_to_names
        for family in collector.collect()
    }
    rows = [line.split("|") for line in section("Metrics").splitlines() if line.startswith("| `")]
    page = {(row[1].strip(" `"), row[2].strip(), tuple(row[3].split())) for row in rows}
    assert page == code


def test_the_topics_are_those_of_the_catalogue() -> None:
    assert names("Topics and permissions") == [topic.suffix for topic in TOPICS]


def test_limits_have_the_value_of_the_code() -> None:
    rows = [line.split("|") for line in section("Limits and settings").splitlines() if line.startswith("| `")]
    wrong = [
        row[1].strip()
        for row in rows
        if int(row[2].split()[0].replace(",", "")) != getattr(limits, row[1].strip(" `"), None)
    ]
    assert len(rows) > 15
    assert wrong == []


def test_what_is_not_there_yet_is_listed() -> None:
    listed = " ".join(names("Not there yet"))
    assert [feature for feature in NOT_YET if feature not in listed] == []


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = section("Working on the code")
    groups = (
        project["project"]["dependencies"],
        project["project"]["optional-dependencies"]["faust"],
        project["dependency-groups"]["dev"],
    )
    wanted = [re.split(r"[><=]", requirement)[0] for group in groups for requirement in group]
    assert [name for name in wanted if f"`{name}`" not in text] == []


# --- reasons ----------------------------------------------------------------------------------------------------------


def calls(name: str) -> list[ast.Call]:
    """Calls of a function or class by its bare name, over the whole code."""
    return [
        node
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "simulation" not in path.parts and "csv_payments" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def first_texts(name: str) -> set[str]:
    found = [call.args[0] for call in calls(name) if call.args]
    return {arg.value for arg in found if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}


def class_codes() -> set[str]:
    """`code = "..."` of error classes."""
    return {
        str(node.value.value)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for cls in ast.walk(ast.parse(path.read_text()))
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "code"
        and isinstance(node.value, ast.Constant)
    }


def test_every_reason_of_a_refusal_is_explained() -> None:
    from topologies.decisions.decision import Refuse

    listed = re.search(r"reason: (.+?)\.", Refuse.__doc__ or "")
    assert listed
    said = set(re.split(r", | or ", listed[1]))
    assert set(names("Refused answers")) == said
    assert first_texts("Refuse") <= said


def test_every_reason_of_a_dead_letter_is_explained() -> None:
    keywords = [keyword for call in calls("fail") for keyword in call.keywords if keyword.arg == "code"]
    codes = {word.value.value for word in keywords if isinstance(word.value, ast.Constant)}
    reasons = first_texts("PoisonRecord") | class_codes() | {str(code) for code in codes}
    assert reasons - set(re.findall(r"`([^`]+)`", section("Dead letters"))) == set()
