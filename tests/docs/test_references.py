"""Names that a page names exist, links lead somewhere, and every page is reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import (
    DOCS,
    INDEX,
    LINKED,
    PACKAGES,
    PAGES,
    README,
    ROOT,
    defined,
    in_backticks,
    name_of,
    prose,
    section,
)

LINES_MAX = 250
FOLDERS = (*PACKAGES, "bench", "docker", "tests")
NAME = re.compile(r"`([\w/]+\.py)(?:: ([\w.]+)|::(\w+))?`")


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_module_function_and_test_that_a_page_names_exists(page: Path) -> None:
    named = [
        (path, name or test)
        for path, name, test in NAME.findall(prose(page))
        if path.startswith(tuple(f"{folder}/" for folder in FOLDERS))
    ]
    missing = [
        f"{path}: {name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in defined(ROOT / path))
    ]
    assert missing == []


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_folder_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/(?:\w+/)*)`", page.read_text())
    assert [folder for folder in named if not (ROOT / folder).is_dir()] == []


def class_names() -> set[str]:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {name for path in modules for name in defined(path)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fact_decision_event_and_class_that_a_page_names_exists(page: Path) -> None:
    named = {
        name for text in in_backticks(prose(page)) for name in re.findall(r"(?<![\w{])(?:[A-Z][a-z]+){2,}\b", text)
    }
    assert named - class_names() == set()


def test_the_life_of_one_row_leads_through_the_code() -> None:
    page = DOCS / "one-row.md"
    modules = {path for path, name, _ in NAME.findall(section(page, "The row on its way")) if name}
    assert len(modules) > 15
    assert {module.split("/")[0] for module in modules} == set(PACKAGES)


# --- links ------------------------------------------------------------------------------------------------------------


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text())


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []


def test_every_page_is_linked_from_the_readme_and_from_the_index() -> None:
    pages = {*DOCS.glob("*.md")} - {INDEX}
    for start in (README, INDEX):
        reached = {(start.parent / link.partition("#")[0]).resolve() for link in links(start)}
        assert pages - reached == set(), name_of(start)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LINES_MAX
