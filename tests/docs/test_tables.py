"""Tables list what the code has, no more and no less."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from typing import Any

from schemas.topics import TOPICS
from streams.cli.root import COMMANDS
from streams.simulation.planted import PLANTS
from streams.telemetry.metrics import Metrics
from streams.worker.assembly import ROLES
from tests.docs.pages import DOCS, PACKAGES, README, ROOT, blocks, first_names, in_backticks, prose, rows, section
from topologies.reading.advice import NOT_YET

OPERATING, WORKING = DOCS / "operating.md", DOCS / "working.md"


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# --- run it -----------------------------------------------------------------------------------------------------------


def test_every_command_is_listed() -> None:
    commands = [f"kawait {getattr(command, 'name', '')}" for command in COMMANDS]
    assert first_names(OPERATING, "Commands") == commands


def test_every_role_is_listed() -> None:
    assert tuple(first_names(OPERATING, "Roles")) == ROLES


def test_the_topics_are_those_of_the_catalogue() -> None:
    assert first_names(OPERATING, "Topics and permissions") == [topic.suffix for topic in TOPICS]


def test_the_metrics_are_those_of_the_code() -> None:
    """Name, type and labels."""
    code = {
        (family.name, family.type, tuple(getattr(collector, "_labelnames", ())))
        for collector in Metrics().registry._collector_to_names
        for family in collector.collect()
    }
    page = {(row[0].strip("`"), row[1], tuple(row[2].split())) for row in rows(DOCS / "metrics.md", "Metrics")}
    assert page == code


def test_alerts_watch_metrics_that_there_are() -> None:
    """The client adds a counter's _total."""
    watched = set(re.findall(r"\bkawait_\w+", section(DOCS / "metrics.md", "Alerts")))
    assert len(watched) > 4
    assert {name.removesuffix("_total") for name in watched} <= set(first_names(DOCS / "metrics.md", "Metrics"))


def test_what_is_not_there_yet_is_listed() -> None:
    listed = " ".join(first_names(DOCS / "pipelines.md", "Not there yet"))
    assert [feature for feature in NOT_YET if feature not in listed] == []


def test_planted_bugs_are_listed_with_what_catches_them() -> None:
    listed = {row[0].strip("`"): row[2].strip("`") for row in rows(WORKING, "Planted bugs")}
    assert listed == {name: plant.breach for name, plant in PLANTS.items()}


def test_every_dependency_is_explained() -> None:
    text = section(README, "Dependencies")
    groups = (
        project()["project"]["dependencies"],
        project()["project"]["optional-dependencies"]["faust"],
        project()["dependency-groups"]["dev"],
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
    assert set(first_names(DOCS / "refusals.md", "Refused answers")) == said
    assert first_texts("Refuse") <= said


def test_every_reason_of_a_dead_letter_is_explained() -> None:
    keywords = [keyword for call in calls("fail") for keyword in call.keywords if keyword.arg == "code"]
    codes = {word.value.value for word in keywords if isinstance(word.value, ast.Constant)}
    reasons = first_texts("PoisonRecord") | first_texts("DeadLetterRecord") | class_codes()
    reasons |= {str(code) for code in codes}
    assert reasons - set(in_backticks(section(DOCS / "refusals.md", "Dead letters"))) == set()


# --- the house --------------------------------------------------------------------------------------------------------


def test_every_folder_has_the_sentence_of_its_init_file() -> None:
    inits = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    code = {f"`{path.parent.relative_to(ROOT)}/`": ast.get_docstring(ast.parse(path.read_text())) for path in inits}
    assert {row[0]: row[1] for row in rows(WORKING, "The rooms")} == code


def test_the_import_rules_are_those_that_are_held() -> None:
    contracts = project()["tool"]["importlinter"]["contracts"]
    assert [row[0] for row in rows(WORKING, "Which may import which")] == [contract["name"] for contract in contracts]
    layers = [block.text.splitlines() for block in blocks(WORKING) if block.words == ("layers",)]
    assert layers == [contract["layers"] for contract in contracts[:2]]


def test_every_folder_of_tests_is_explained() -> None:
    with_tests = {path.parent for path in (ROOT / "tests").rglob("*.py")} - {ROOT / "tests"}
    folders = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}/" for path in with_tests}
    assert folders - set(first_names(WORKING, "Tests")) == set()


def test_no_page_says_how_to_run_what_is_installed_by_a_folder_of_the_checkout() -> None:
    """`kawait` and `python -m kawait` work in both; the simulator, the broker and the bench are in a checkout only."""
    named = {
        name for page in (README, *DOCS.glob("*.md")) for name in re.findall(r"python -m (\w+(?:\.\w+)?)", prose(page))
    }
    assert named <= {"kawait", "pytest", "state.diagrams", "streams", "streams.broker", "streams.simulation"}
