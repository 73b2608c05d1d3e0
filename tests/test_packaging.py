"""In a checkout the folders are the import names: nothing else may own them, and what is imported is this checkout.

What an environment gets is one package: tests/setup/test_wheel.py.
"""

from __future__ import annotations

import importlib
import tomllib
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")
MODULES = (*PACKAGES, "kawait")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", MODULES)
def test_no_dependency_ships_a_module_of_our_name(name: str) -> None:
    """From outside the checkout site-packages wins over an editable install, silently (STYLE 2.8, hazard 1)."""
    owners = {owner.lower() for owner in packages_distributions().get(name, [])}
    assert owners <= {"kawait"}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_imported_is_this_checkout(name: str) -> None:
    origin = importlib.import_module(name).__file__
    assert origin is not None
    assert Path(origin).is_relative_to(ROOT)
    assert ".venv" not in Path(origin).relative_to(ROOT).parts


def test_what_is_built_is_made_of_every_package() -> None:
    targets = PROJECT["tool"]["hatch"]["build"]["targets"]
    assert sorted(targets["wheel"]["only-include"]) == sorted(PACKAGES)
    assert {*PACKAGES, "kawait.py", "hatch_build.py"} <= set(targets["sdist"]["only-include"])


def test_the_console_script_has_one_name_in_both_layouts() -> None:
    assert PROJECT["project"]["scripts"] == {"kawait": "kawait:main"}
    installed = [point for point in entry_points(group="console_scripts") if point.name == "kawait"]
    assert {point.value for point in installed} <= {"kawait:main"}
    assert callable(importlib.import_module("kawait").main)


@pytest.mark.parametrize("listed", ["runtime", "dev"])
def test_the_locked_lists_are_hashed_and_name_no_place_to_fetch_from(listed: str) -> None:
    text = (ROOT / "requirements" / f"{listed}.txt").read_text()
    entries = text.replace("\\\n", " ").splitlines()
    pinned = [entry for entry in entries if entry and not entry.startswith("#")]
    assert pinned
    assert [entry for entry in pinned if "==" not in entry or "--hash=sha256:" not in entry] == []
    assert "://" not in text
    assert [entry for entry in pinned if entry.startswith("-")] == []


def names(listed: str) -> dict[str, str]:
    """Return package -> pinned version with its marker, as a locked list has it."""
    text = (ROOT / "requirements" / f"{listed}.txt").read_text().replace("\\\n", " ")
    pins = [line.split("--hash")[0].strip() for line in text.splitlines() if "==" in line]
    return {pin: pin.split("==")[0].lower() for pin in pins}


def test_the_two_locked_lists_agree() -> None:
    assert set(names("runtime")) <= set(names("dev"))


def test_every_declared_dependency_is_locked() -> None:
    project = PROJECT["project"]
    wanted = {"runtime": project["dependencies"] + PROJECT["build-system"]["requires"]}
    wanted["dev"] = wanted["runtime"] + project["optional-dependencies"]["faust"] + PROJECT["dependency-groups"]["dev"]
    for listed, requirements in wanted.items():
        declared = {requirement.split(">")[0].strip().lower() for requirement in requirements}
        assert declared - set(names(listed).values()) == set()
